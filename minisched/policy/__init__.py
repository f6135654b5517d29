"""Which requests run next: admission of prompts, the running set, retraction."""

from .admission import Plan, PrefillManager
from .decode import DecodeManager, NewTokenRatio
from .prefill_adder import AddReqResult, PrefillAdder
from .retraction import Retraction
from .vllm import UnifiedBudget
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
]
