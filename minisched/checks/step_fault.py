"""Faults of one step that a case injects into its engine: a failing op, copy, mask or transfer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..core import Lease, ScheduleBatch
from ..devices.base import NO_LABEL, Label
from ..engine.engine import Engine
from ..features.history import History
from ..loops.pd import PrefillEngine
from ..models.base import ForwardBatch
from ..worker import Step
from .case import FAILURES, Failure

# -- Conditions of a step, which the case names ----------------------------------------------------


def shared_by(lease: Lease) -> set[int]:
    """Return the pages of a lease that the prefix cache has."""
    return {*lease.pages[: lease.shared_pages]}


def rows_that_share(engine: Engine, batch: ScheduleBatch) -> Iterator[int]:
    """Yield the rows with cached pages that another open lease has too."""
    live = {req.lease for req in engine.scheduler.live.values() if req.lease}
    for row, lease in enumerate(batch.leases):
        others = live.union(batch.leases) - {lease}
        if any(not shared_by(lease).isdisjoint(shared_by(other)) for other in others):
            yield row


def unwritten_pages(engine: Engine, batch: ScheduleBatch) -> dict[int, Lease]:
    """Return the shared pages that a step in flight will fill, with their leases."""
    unwritten = engine.scheduler.prefix_cache.unwritten.get(batch.step, ())
    return {block.page: lease for lease, block in unwritten}


def rows_that_read_own(engine: Engine, batch: ScheduleBatch) -> Iterator[int]:
    """Yield the rows that read pages which another row of the same step fills."""
    pages = unwritten_pages(engine, batch)
    for row, lease in enumerate(batch.leases):
        if any(pages[page] is not lease for page in shared_by(lease) & {*pages}):
            yield row


def rows_read_later(engine: Engine, batch: ScheduleBatch) -> Iterator[int]:
    """Yield the rows that fill pages which a request outside the step reads."""
    pages, live = unwritten_pages(engine, batch), engine.scheduler.live.values()
    others = {req.lease for req in live if req.lease} - {*batch.leases}
    read = {pages[page] for lease in others for page in shared_by(lease) & {*pages}}
    yield from (row for row, lease in enumerate(batch.leases) if lease in read)


def stale_rows(engine: Engine, batch: ScheduleBatch) -> Iterator[int]:
    """Yield the rows of requests that have lost their lease, where late tokens count."""
    is_stale = engine.scheduler.output_processor.is_stale
    for row, (req, lease) in enumerate(zip(batch.reqs, batch.leases, strict=True)):
        if req.lease is not lease and is_stale(req):
            yield row


def spoiled_rows(engine: Engine, batch: ScheduleBatch) -> Iterator[int]:
    """Yield the rows that may have read pages of a failed step."""
    yield from (row for row, lease in enumerate(batch.leases) if lease.is_spoiled)


CONDITIONS: dict[str, Callable[[Engine, ScheduleBatch], Iterator[int]]] = {
    "shares cached pages": rows_that_share,
    "reads pages that it fills itself": rows_that_read_own,
    "fills pages that a later step reads": rows_read_later,
    "has a row of a lost lease": stale_rows,
    "has a row that read a failed page": spoiled_rows,
}
"""The steps that ``Failure.when`` describes, by the rows that make them so, when the op runs."""


# -- The faults ------------------------------------------------------------------------------------


class BadLuck(RuntimeError):
    """The error of a device in an injected fault."""


POSTPROCESS = "post-processing raises"
OTHER_OP = "another op fails"
USUAL_OPS = ("forward", "sample", "copy", "copy logprobs", "page table", "recv")
"""Ops that other faults fail, and two that can't: the pass of a lost step, and a stage that gets
nothing from the stage before it."""
NO_MEMORY = "tried to allocate 2.00 GiB"  # the message of CUDA in torch


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a method of one object by ``around(inner, *args, **options)``."""
    inner = getattr(owner, name)
    setattr(owner, name, lambda *args, **options: around(inner, *args, **options))


@dataclass(eq=False)
class StepFault:
    """One injected fault, of ``FAILURES``: in the first step that ``of`` describes.

    ``touched`` are the requests that may end because of it. No other request may change.
    """

    kind: str
    of: Failure
    is_hit: bool = False
    touched: set[str] = field(default_factory=set)
    committed: dict[tuple[int, int], ScheduleBatch] = field(default_factory=dict)  # engine, step

    def put_in(self, engine: Engine) -> None:
        """Change an engine before it starts."""
        worker, is_cut = engine.worker, len(engine.worker.page_tables) > 1
        if self.of.when or self.kind == POSTPROCESS:
            self.follow(engine)
        if self.kind in ("copy fails", OTHER_OP):
            wrap(worker, "queue", partial(self.queue, engine))
        elif self.kind == "inputs find no memory":
            wrap(worker, "ship", partial(self.ship, engine))
        elif self.kind == "mask finds no memory":
            for feature in engine.scheduler.input_processor.features:
                if isinstance(feature, History):
                    wrap(feature, "make_adjustments", partial(self.adjust, engine, feature))
        elif self.kind == "transfer fails":
            if isinstance(engine, PrefillEngine):
                wrap(engine, "copy_kv", self.copy_kv)
        elif self.kind == POSTPROCESS:
            wrap(engine.device, "host", partial(self.postprocess, engine))
        elif self.kind == "NaN logits":
            logits = "compute_logits" if is_cut else "forward"
            wrap(worker.model, logits, partial(self.compute_nan, engine))
        else:
            forward = "forward_layer" if is_cut else "forward"
            name = "sample" if self.kind == "sampling raises" else forward
            wrap(worker.model, name, partial(self.fail, engine))

    def follow(self, engine: Engine) -> None:
        """Keep the batches of the steps, which a condition reads."""
        before = engine.scheduler.on_commit

        def committed(batch: ScheduleBatch) -> None:
            """Keep a batch."""
            self.committed[id(engine), batch.step] = batch
            if before is not None:
                before(batch)

        engine.scheduler.on_commit = committed

    def rows_of(self, step: ForwardBatch | ScheduleBatch, engine: Engine) -> list[int]:
        """Return the rows of a step that ``of`` describes."""
        if self.of.when:
            batch = self.committed[id(engine), step.step]
            return list(CONDITIONS[self.of.when](engine, batch))
        if isinstance(step, ForwardBatch):
            columns = step.extents
        else:
            columns = zip(step.starts, map(len, step.ids), strict=True)
        return [
            row
            for row, (rid, (start, length)) in enumerate(zip(step.rids, columns, strict=True))
            if rid == self.of.rid and start <= self.of.position < start + length
        ]

    def is_due(self, step: ForwardBatch | ScheduleBatch, engine: Engine) -> bool:
        """Return whether this step is the one; called once for each step."""
        return not self.is_hit and bool(self.rows_of(step, engine))

    def nan_row(self, step: ForwardBatch, engine: Engine) -> int:
        """Return the row of the failing step that gets NaN logits."""
        return self.rows_of(step, engine)[0]

    def copy_of(self, step: Step) -> str:
        """Return which copy fails: of tokens, or of requested log-probabilities."""
        wants = any(req.params.return_logprob for req in step.batch.reqs)
        return "copy logprobs" if wants else "copy"

    def hit(self, *rids: str) -> None:
        """Record that the fault has hit these requests."""
        self.is_hit = True
        self.touched.update(rids)

    # -- in place of the engine's methods

    def fail(self, engine: Engine, inner: Any, *args: Any) -> Any:
        """Raise in the model's call for the step."""
        batch = next(arg for arg in args if isinstance(arg, ForwardBatch))
        if not self.is_due(batch, engine):
            return inner(*args)
        self.hit(*batch.rids)
        if self.kind == "out of device memory":
            raise MemoryError(NO_MEMORY)
        raise BadLuck(FAILURES[self.kind])

    def compute_nan(
        self, engine: Engine, forward: Any, batch: ForwardBatch, ids: Any, *args: Any
    ) -> Any:
        """Compute a step's logits, with NaN in one row."""
        logits, nan = forward(batch, ids, *args), float("nan")
        if self.is_due(batch, engine):
            row = self.nan_row(batch, engine)
            self.hit(batch.rids[row])
            first = sum(batch.logit_lens[:row])  # the rows that it samples from are its last ones
            for at in range(first, first + batch.logit_lens[row]):
                logits[at] = [nan] * len(logits[at]) if isinstance(logits, list) else nan
        return logits

    def queue(
        self, engine: Engine, inner: Any, step: Step, name: str, run: Any, *args: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Queue an op of a step; one copy fails when it runs, or when the host waits for it.

        The state of the host that a condition describes changes until then. With ``OTHER_OP`` it is
        the first op of the step that no other fault fails, if it has one. In every second step in
        which the device drafts, it is the draft op, because that follows ``verify``.
        """
        drafts_late = getattr(engine.worker, "drafter", None) and step.batch.step % 2
        never = (*USUAL_OPS, "verify") if drafts_late else USUAL_OPS

        def fail_if_due(run: Any, *args: Any) -> Any:
            """Run, or fail as such an op does."""
            if self.is_due(step.batch, engine):
                self.hit(*step.batch.rids)
                raise BadLuck(f"{self.kind}: it {FAILURES[self.kind]}")
            return run(*args)

        if self.kind == OTHER_OP:
            run = partial(fail_if_due, run) if name not in never else run
        elif name == self.copy_of(step) and self.of.when:
            wrap(step, "read", fail_if_due)
        elif name == self.copy_of(step):
            run = partial(fail_if_due, run)
        return inner(step, name, run, *args, **options)

    def ship(self, engine: Engine, inner: Any, step: Step) -> None:
        """Bring the inputs of a step to the device, or find no memory for them."""
        if self.is_due(step.batch, engine):
            self.hit(*step.batch.rids)
            raise MemoryError(NO_MEMORY)
        inner(step)

    def adjust(
        self, engine: Engine, feature: History, inner: Any, batch: ScheduleBatch, *args: Any
    ) -> Any:
        """Make the masks and penalties of a step, or find no memory for them."""
        if feature.has_history(batch) and self.is_due(batch, engine):
            self.hit(*batch.rids)
            raise MemoryError(NO_MEMORY)
        return inner(batch, *args)

    def postprocess(
        self, engine: Engine, inner: Any, phase: str, cost: int, label: Label = NO_LABEL,
        *args: Any,
    ) -> Any:  # fmt: skip
        """Begin a phase of the host; the post-processing of one step raises instead."""
        batch = self.committed.get((id(engine), label.step))
        if phase == "postprocess" and batch is not None and self.is_due(batch, engine):
            self.hit(*batch.rids)
            raise BadLuck(FAILURES[self.kind])
        return inner(phase, cost, label, *args)

    def copy_kv(self, inner: Any, rid: str, *args: Any) -> None:
        """Transfer KV of a request on ``pd``, or fail."""
        if rid == self.of.rid and not self.is_hit:
            self.hit(rid)
            raise BadLuck("the KV did not arrive")
        inner(rid, *args)
