"""Who runs next: admission of prompts, the set of running requests, and who has to give way."""

from .decode import DecodeManager
from .new_token_ratio import NewTokenRatio
from .prefill import PrefillManager
from .prefill_adder import PrefillAdder
from .prefill_budget import AddReqResult, PrefillBudget
from .retraction import Retraction, choose_victim
from .run_first import Plan, RunFirst
from .schedule_policy import SchedulePolicy
from .unified import UnifiedBudget
from .waiting_queue import WaitingQueue

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
