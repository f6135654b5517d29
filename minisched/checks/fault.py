"""Faults of one step on the device: its forward pass, its logits, its sampling, its copy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..core import ScheduleBatch
from ..devices.base import Device
from ..engine.engine import Engine
from ..loops.pd import PrefillEngine
from ..models.base import ForwardBatch
from ..worker import Step
from ..worker.worker import COPY, StepOp
from .case import Failure, Workload

# -- A fault: something outside the scheduler that goes wrong once, at a place that can be chosen

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


class BadLuck(RuntimeError):
    """What the device says when one of these faults makes it fail."""


class ForwardRaises(Fault):
    """The ``at``-th forward pass raises (in a pipeline, one of its stages)."""

    name: ClassVar[str] = "forward raises"
    says: ClassVar[str] = "the device is out of luck"

    def put_in(self, engine: Engine) -> None:
        """Wrap the model's pass, or its layers where these run in stages."""
        is_cut = len(engine.worker.page_tables) > 1
        wrap(engine.worker.model, "forward_layer" if is_cut else "forward", self.around)

    def around(self, forward: Any, *args: Any) -> Any:
        """Raise instead, once."""
        batch = next(arg for arg in args if isinstance(arg, ForwardBatch))
        if self.is_due(batch):
            self.hit(*batch.label.rids)
            raise self.error()
        return forward(*args)

    def error(self) -> Exception:
        """What is raised."""
        return BadLuck(self.says)


class OutOfMemory(ForwardRaises):
    """A forward pass finds no memory; every other time it is an array that is shipped."""

    name: ClassVar[str] = "out of device memory"
    says: ClassVar[str] = "out of device memory (tried to allocate 2.00 GiB)"

    def put_in(self, engine: Engine) -> None:
        """Wrap the pass, or what brings arrays to the device.

        A step ships several, so not each is a chance: it would always be in the first step.
        """
        self.num_arrays, self.each = 0, 1 + self.pick // 2 % 9
        if self.pick % 2:
            super().put_in(engine)
        else:
            wrap(engine.device.xp, "asarray", self.around_array)

    def around_array(self, asarray: Any, values: Any) -> Any:
        """Find no memory, once. Which step that was, the requests' reasons say."""
        self.num_arrays += 1
        if self.num_arrays % self.each == 0 and self.is_due():
            self.hit()
            raise self.error()
        return asarray(values)

    def error(self) -> Exception:
        """As CUDA says it through torch, or Python."""
        return MemoryError("tried to allocate 2.00 GiB")


class SamplingRaises(Fault):
    """The ``at``-th sampling raises."""

    name: ClassVar[str] = "sampling raises"
    says: ClassVar[str] = "no token could be chosen"

    def put_in(self, engine: Engine) -> None:
        """Wrap the model's sampling."""
        wrap(engine.worker.model, "sample", self.around)

    def around(self, sample: Any, logits: Any, batch: ForwardBatch) -> Any:
        """Raise instead, once."""
        if self.is_due(batch):
            self.hit(*batch.label.rids)
            raise BadLuck(self.says)
        return sample(logits, batch)


class NotNumbers(Fault):
    """The logits of one row of the ``at``-th forward pass are NaN, and of no other."""

    name: ClassVar[str] = "NaN logits"
    says: ClassVar[str] = "not numbers (NaN)"

    def put_in(self, engine: Engine) -> None:
        """Wrap what gives logits."""
        is_cut = len(engine.worker.page_tables) > 1
        wrap(engine.worker.model, "compute_logits" if is_cut else "forward", self.around)

    def around(self, forward: Any, batch: ForwardBatch, ids: Any, *args: Any) -> Any:
        """Spoil the row's logits, once: those that it samples from are its last ones.

        Raises:
            BadLuck: a step was given what marks NaN, for a token.
        """
        if isinstance(ids, list) and ids and min(ids) < 0:
            raise BadLuck(f"{min(ids)} is no token")
        logits = forward(batch, ids, *args)
        if self.is_due(batch):
            row = self.pick % len(batch.rows)
            if self.computing is not None:
                row = batch.label.rids.index(self.computing.rid)
            self.hit(batch.label.rids[row])
            first = sum(batch.logit_lens[:row])
            for at in range(first, first + batch.logit_lens[row]):
                nan = float("nan")
                logits[at] = [nan] * len(logits[at]) if isinstance(logits, list) else nan
        return logits


@dataclass(eq=False)
class CopyFails(Fault):
    """The ``at``-th copy fails: of tokens or log-probabilities to the host, or of KV on ``pd``."""

    name: ClassVar[str] = "copy fails"
    says: ClassVar[str] = "did not arrive"
    failing: tuple[Step | None, str] = (None, "")  # and which of its copies

    def put_in(self, engine: Engine) -> None:
        """Wrap what launches it; a transfer is one launch of its own."""
        if isinstance(engine, PrefillEngine) and self.pick % 2:
            wrap(engine, "copy_kv", self.around_transfer)
        else:
            wrap(engine.worker, "queue", self.around)

    def around(self, queue: Any, step: Step, op: StepOp) -> Any:
        """Launch a copy that raises, once."""
        if op.name == COPY.name and self.is_due(step.batch):
            self.hit(*step.batch.rids)
            wants = any(req.params.return_logprob for req in step.batch.reqs)
            self.failing = step, "logprobs" if wants and self.pick % 2 else COPY.gives
        if (step, op.gives) == self.failing:
            op = replace(op, run=fail)
        return queue(step, op)

    def around_transfer(self, copy: Any, rid: str, *args: Any) -> None:
        """Fail to send a request's KV, once."""
        if self.is_due():
            self.hit(rid)
            raise BadLuck("the KV did not arrive")
        copy(rid, *args)


def fail(*args: Any) -> Any:
    """A copy that does not arrive."""
    raise BadLuck("the copy did not arrive")


STEP_FAULTS: dict[str, type[Fault]] = {
    kind.name: kind for kind in (ForwardRaises, OutOfMemory, SamplingRaises, NotNumbers, CopyFails)
}
"""What may go wrong in a step that a workload names, by name."""


def step_fault(failure: Failure) -> Fault:
    """What is to go wrong in the step of a workload's failure; out of memory is the pass itself."""
    return STEP_FAULTS[failure.kind](at=0, pick=1, computing=failure)
