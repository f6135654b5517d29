"""Who runs next: admission of prompts, the set of running requests, and who has to give way."""

from .admission import Plan, PrefillManager
from .decode import DecodeManager, NewTokenRatio
from .prefill_adder import AddReqResult, PrefillAdder
from .retraction import Retraction, choose_victim
from .unified import UnifiedBudget
from .waiting import SchedulePolicy, WaitingQueue

__all__ = [
    "AddReqResult",
    "DecodeManager",
    "NewTokenRatio",
    "Plan",
    "PrefillAdder",
    "PrefillManager",
    "Retraction",
    "SchedulePolicy",
    "UnifiedBudget",
    "WaitingQueue",
    "choose_victim",
]
