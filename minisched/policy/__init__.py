"""Who runs next: admission of prompts, the set of running requests, and who has to give way."""

from .decode import DecodeManager
from .prefill import PrefillAdder, PrefillManager
from .retraction import Retraction, choose_victim

__all__ = ["DecodeManager", "PrefillAdder", "PrefillManager", "Retraction", "choose_victim"]
