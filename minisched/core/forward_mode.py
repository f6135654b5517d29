"""The kinds of a step, and the two reasons for a turn without one."""

from __future__ import annotations

from enum import Enum
from typing import Literal


class ForwardMode(Enum):
    """The work of a batch (SGLang ``model_executor/forward_batch_info.py``)."""

    EXTEND = "extend"  # prompts, or chunks of them
    DECODE = "decode"  # one token a row
    MIXED = "mixed"  # prompts first, then rows that decode
    TARGET_VERIFY = "target verify"  # the last token and its drafts, in each row
    DRAFT_EXTEND = "draft extend"  # the draft model computes what the target has settled
    IDLE = "idle"  # nothing


class NoBatch(Enum):
    """Why ``next_batch`` gave no batch. Both are false, so a loop may write ``if batch:``."""

    WAIT = "wait"  # only results in flight can help
    IDLE = "idle"  # there is no request at all

    def __bool__(self) -> Literal[False]:
        return False
