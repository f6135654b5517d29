"""What one step runs: rows that name a request and a lease, frozen when they were committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from .request import FinishReason, Lease, Request


class ForwardMode(Enum):
    """What a batch does (SGLang ``model_executor/forward_batch_info.py``)."""

    EXTEND = "extend"  # prompts, or chunks of them
    DECODE = "decode"  # one token a row
    MIXED = "mixed"  # both (a later lesson)
    IDLE = "idle"  # nothing


class NoBatch(Enum):
    """Why ``next_batch`` gave no batch. Both are false, so a loop may write ``if batch:``."""

    WAIT = "wait"  # only results in flight can help
    IDLE = "idle"  # there is no request at all

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True, eq=False)
class Row:
    """One request's part in one batch: everything that was true at commit.

    ``process`` and the worker read the row, never the live request: by the time a result comes
    back the scheduler has moved on (MindIE #233 read a live last-chunk flag).
    """

    req: Request
    lease: Lease
    start: int  # first position this row computes
    ids: tuple[int | None, ...]  # [extend_len] input tokens; None: only the device knows it
    new_slots: tuple[int, ...]  # KV slots reserved now, for the positions after those it had
    slots_at: int  # the position that new_slots[0] belongs to
    deliver: bool  # False for a chunk that is not the last

    @property
    def extend_len(self) -> int:
        """Positions this row computes."""
        return len(self.ids)

    @property
    def end(self) -> int:
        """One past the last position this row computes: the position of the token it samples."""
        return self.start + len(self.ids)


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one step, in order of arrival."""

    step: int
    mode: ForwardMode
    rows: tuple[Row, ...]

    @property
    def rids(self) -> tuple[str, ...]:
        """The request ids, row by row."""
        return tuple(row.req.rid for row in self.rows)

    @property
    def num_tokens(self) -> int:
        """Positions computed by the whole batch."""
        return sum(row.extend_len for row in self.rows)


@dataclass(frozen=True)
class Result:
    """What came back from a step: a token for every row, or the error that stopped it."""

    tokens: Sequence[int]  # [num_reqs]; empty after an error
    error: str = ""


@dataclass(frozen=True)
class Output:
    """One thing a client hears: a token, the end of its request, or both."""

    rid: str
    token: int | None
    finish_reason: FinishReason | None = None
    error: str = ""
