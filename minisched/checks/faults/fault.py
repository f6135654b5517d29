"""A fault: something outside the scheduler that goes wrong once, at a place that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...core import ScheduleBatch
from ...devices.base import Device
from ...engine.engine import Engine
from ...models.base import ForwardBatch
from ..workload import Failure, Workload

EVERYBODY = frozenset({"*"})  # in the place of request ids: whoever is there


@dataclass(eq=False)
class Fault:
    """What goes wrong, and when: at the ``at``-th chance, from 1 on.

    Of a step that goes wrong, ``computing`` may say instead which one: the first that computes a
    position of a request.

    A run may have no such chance: then it was not ``is_hit``, and counts as not tried. ``touched``
    are the requests that may end because of it; all the others must not notice. Those of whom
    ``is_silent`` is true can't be told that they have ended: their reader is the fault.
    """

    name: ClassVar[str]
    at: int
    pick: int = 0  # a number that decides what else there is to decide
    is_hit: bool = False
    touched: set[str] = field(default_factory=set)
    is_silent: ClassVar[bool] = False
    says: ClassVar[str] = ""  # stands in the reason of whoever ends with an error because of it
    keeps_from_starting: ClassVar[bool] = False  # then nothing runs, and a sentence says why
    num_chances: int = 0  # so far; of a fault that draws no moment, none are counted
    computing: Failure | None = None

    @classmethod
    def fits(cls, loop: str, device: str) -> bool:
        """Whether it can happen there at all."""
        return True

    def prepare(self, workload: Workload) -> None:
        """Change the workload before anything runs."""

    def open(self, device: Device) -> None:
        """Change the device before there is an engine."""

    def put_in(self, engine: Engine) -> None:
        """Change an engine before it starts; ``pd`` has two, and the client's comes last."""

    def each_turn(self, engine: Engine) -> None:
        """After every turn."""

    def may_end(self, rid: str) -> bool:
        """Whether a request may end because of it."""
        return self.is_hit and bool(self.touched & {rid, *EVERYBODY})

    def is_due(self, step: ForwardBatch | ScheduleBatch | None = None) -> bool:
        """Whether this chance is the one; called once at each, with the step if it is in one."""
        if self.computing is not None:
            return not self.is_hit and step is not None and computes(step, self.computing)
        self.num_chances += 1
        return self.num_chances == self.at

    def hit(self, *rids: str) -> None:
        """It has happened, to these requests."""
        self.is_hit = True
        self.touched.update(rids)


def computes(step: ForwardBatch | ScheduleBatch, place: Failure) -> bool:
    """Whether a step computes a position of a request."""
    if isinstance(step, ForwardBatch):
        rids, columns = step.label.rids, step.extents
    else:
        rids, columns = step.rids, zip(step.starts, map(len, step.ids), strict=True)
    return any(
        rid == place.rid and start <= place.position < start + length
        for rid, (start, length) in zip(rids, columns, strict=True)
    )


def wrap(owner: Any, name: str, around: Any) -> None:
    """Put ``around(inner, *args, **options)`` in the place of a method of one object."""
    inner = getattr(owner, name)
    setattr(owner, name, lambda *args, **options: around(inner, *args, **options))
