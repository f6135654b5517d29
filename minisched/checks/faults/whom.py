"""Whom a fault has cost something, and whom it has not."""

from __future__ import annotations

from typing import NamedTuple

from ...core import Request
from .fault import EVERYBODY, Fault
from .survival import ENDED_EARLY, Aftermath


class Whom(NamedTuple):
    """How many requests a trial has judged; those that the workload itself gives up are nowhere.

    ``ended`` ended early or were refused, ``whole`` got all their tokens. Of the ended, ``struck``
    are those who did so because of the fault; of the whole, ``spared`` are those whom it did not
    touch. ``can_spare`` is whether there could be such a one: not if the fault touches everybody,
    or if there is only one request.
    """

    ended: int = 0
    whole: int = 0
    struck: int = 0
    spared: int = 0
    can_spare: bool = False

    @property
    def tells(self) -> bool:
        """Whether there is somebody to judge on either side."""
        return self.struck > 0 and (self.spared > 0 or not self.can_spare)


def whom(after: Aftermath) -> Whom:
    """Count them, when every law has held.

    Raises:
        Broken: requests name several failed steps, of which only one can have failed.
    """
    others = [req for req in after.workload.requests if not after.is_given_up(req)]
    ended = [req for req in others if req.finish_reason in ENDED_EARLY]
    whole = [req for req in others if req.finish_reason not in (None, *ENDED_EARLY)]
    return Whom(
        len(ended),
        len(whole),
        sum(after.is_touched(req) for req in ended),
        sum(not after.is_touched(req) for req in whole),
        can_spare(after.fault, others),
    )


def can_spare(fault: Fault, others: list[Request]) -> bool:
    """Whether a fault could leave one of these alone: there are two, and it spares somebody."""
    return len(others) > 1 and not EVERYBODY & fault.touched


def kept_from_starting(num_requests: int) -> Whom:
    """Nothing has run: nobody has ended, and everybody is struck."""
    return Whom(struck=num_requests)
