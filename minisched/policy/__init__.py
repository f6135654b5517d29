"""Who runs next: admission of prompts, the set of running requests, and who has to give way."""

from .admission import PrefillAdder, PrefillManager
from .budget import AddReqResult, PrefillBudget
from .plan import DecodeManager, NewTokenRatio, Plan, RunFirst
from .retraction import Retraction, choose_victim
from .unified import UnifiedBudget
from .waiting import SchedulePolicy, WaitingQueue

__all__ = [
    "AddReqResult",
    "DecodeManager",
    "NewTokenRatio",
    "Plan",
    "PrefillAdder",
    "PrefillBudget",
    "PrefillManager",
    "Retraction",
    "RunFirst",
    "SchedulePolicy",
    "UnifiedBudget",
    "WaitingQueue",
    "choose_victim",
]
