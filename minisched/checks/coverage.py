"""Situations: the corners that a run has reached, for ``minisched check --coverage``.

A law finds a bug only in a run that reaches it. ``SITUATIONS`` has one predicate for each corner.
``Observed`` observes a run for them; the rest is in its trace. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from typing import NamedTuple

from ..core import NoBatch, Request, Result, ScheduleBatch
from ..core.batch import Outputs
from ..core.sampling import is_text
from ..engine.engine import Engine
from ..memory import BlockPool
from ..memory.block_pool import Block
from ..record import Value
from .judge import Verdict
from .step_fault import CONDITIONS

# -- Moments of a run, as the scheduler sees them --------------------------------------------------


LACKS = ("memory", "unified")  # the reasons of retractions for lack of memory


class Retracted(NamedTuple):
    """A request that loses its lease, at that moment."""

    req: Request
    reason: str  # of ``policy/retraction.py``, or one of ``LACKS``
    num_outputs: int
    is_chunked: bool  # its prompt is being computed in chunks
    is_in_flight: bool  # a step with it has not returned
    has_equals: bool  # another running request has its priority
    has_twin: bool  # another running request has as many outputs and prompt tokens


def size_of(req: Request) -> tuple[int, int]:
    """Return how many tokens a request has generated, and how many its prompt has."""
    return len(req.output_ids), len(req.prompt)


class FailedStep(NamedTuple):
    """A step with an error as its result, before the scheduler processes it."""

    conditions: frozenset[str]  # those of ``step_fault.py`` that it meets
    is_chunk: bool  # it computes a chunk of a prompt that is not the last one
    is_followed: bool  # a later step in flight has one of its requests


class Observed:
    """The moments of one run; ``watch`` attaches to an engine before it starts."""

    def __init__(self) -> None:
        self.retractions = list[Retracted]()
        self.failed = list[FailedStep]()
        self.starving = list[bool]()  # after each decision, whether a step waits for memory
        self.spoiled_nan = False  # a row that read a failed page has NaN logits
        self.forgotten = False  # the cache has dropped a page that a failed step left unwritten
        self.held_retired = False  # duplicate pages wait for a transfer
        self.aborted_between_chunks = False
        self.interrupted = 0  # requests that an interrupt has ended
        self.sent_again = set[str]()  # "finished", "live", "in use", "used before"

    def watch(self, engine: Engine) -> None:
        """Wrap the scheduler's public methods."""
        scheduler, names = engine.scheduler, set[str]()
        retraction, prefill, leases = scheduler.retraction, scheduler.prefill, scheduler.leases
        receive, abort, next_batch = scheduler.receive, scheduler.abort, scheduler.next_batch
        process, retract, cache = scheduler.process, retraction.retract, scheduler.page_cache
        in_flight = dict[int, ScheduleBatch]()
        on_commit = scheduler.on_commit

        def received(reqs: Iterable[Request]) -> None:
            """Record the requests that came before, or have an id that came before."""
            reqs = list(reqs)
            for req in filter(lambda req: is_text(req.rid), reqs):
                live = scheduler.live.get(req.rid)
                if req.finished or live is req:
                    self.sent_again.add("finished" if req.finished else "live")
                elif live is not None or req.rid in names:
                    self.sent_again.add("in use" if live is not None else "used before")
                names.add(req.rid)
            receive(reqs)

        def aborted(rid: str, error: str = "") -> None:
            """Record an abort of a live request."""
            if (req := scheduler.live.get(rid)) is not None:
                self.aborted_between_chunks |= req is prefill.chunked_req
                self.interrupted += engine.frontend.interrupted
            abort(rid, error)

        def decided() -> ScheduleBatch | NoBatch:
            """Record whether a step waits for memory."""
            batch = next_batch()
            self.starving.append(retraction.starved)
            retired = leases.retired.entries
            self.held_retired |= any(leases.is_held(lease) for lease, _, _ in retired)
            return batch

        def retracted(req: Request, reason: str) -> None:
            """Record a retraction."""
            lease, running = req.lease, retraction.running_reqs
            self.retractions.append(Retracted(
                req, reason, len(req.output_ids), req is prefill.chunked_req,
                lease is not None and lease.last_step > leases.returned_step,
                any(other.priority == req.priority for other in running if other is not req),
                any(size_of(other) == size_of(req) for other in running if other is not req),
            ))  # fmt: skip
            retract(req, reason)

        def committed(batch: ScheduleBatch) -> None:
            """Record a step as in flight."""
            in_flight[batch.step] = batch
            if on_commit is not None:
                on_commit(batch)

        def processed(batch: ScheduleBatch, result: Result) -> Outputs:
            """Record a failed step, or a row with NaN."""
            del in_flight[batch.step]
            if result.error:
                self.failed.append(failed_step(engine, batch, in_flight.values()))
            of_samples = chain(*map(repeat, batch.leases, batch.sample_lens))
            self.spoiled_nan |= any(
                lease.is_spoiled and at in result.nan_samples
                for at, lease in enumerate(of_samples if result.nan_samples else ())
            )
            return process(batch, result)

        scheduler.receive, scheduler.abort = received, aborted  # type: ignore[method-assign]
        scheduler.next_batch, scheduler.process = decided, processed  # type: ignore[method-assign]
        scheduler.on_commit = committed
        retraction.retract = retracted  # type: ignore[method-assign]
        if isinstance(cache, BlockPool):
            forget = cache.forget

            def forgotten(node: Sequence[Block]) -> None:
                """Record pages that are dropped."""
                self.forgotten |= any(block.block_hash for block in node)
                forget(node)

            cache.forget = forgotten  # type: ignore[method-assign]


def failed_step(
    engine: Engine, batch: ScheduleBatch, in_flight: Iterable[ScheduleBatch]
) -> FailedStep:
    """Return what the scheduler shows of a failed step, before it processes its result."""
    return FailedStep(
        frozenset(when for when, rows_of in CONDITIONS.items() if [*rows_of(engine, batch)]),
        batch.chunked_req is not None,
        any(not {*batch.reqs}.isdisjoint(later.reqs) for later in in_flight),
    )


# -- The situations --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """A run that is over: its moments, its verdict, and the marks of its trace by name."""

    ran: Observed
    verdict: Verdict
    marks: dict[str, list[dict[str, Value]]] = field(default_factory=dict)

    def has_hit(self, *kinds: str) -> bool:
        """Return whether an injected fault of one of these kinds has occurred."""
        return any(failure.kind in kinds for failure in self.verdict.hit)

    def retracted(self, is_it: Callable[[Retracted], object], *reasons: str) -> bool:
        """Return whether a request was retracted for one of these reasons, in such a moment."""
        reasons = reasons or LACKS
        return any(item.reason in reasons and is_it(item) for item in self.ran.retractions)

    def failed(self, when: str) -> bool:
        """Return whether a step has failed that meets a condition."""
        return any(when in step.conditions for step in self.ran.failed)

    def starving_turned(self, to: bool) -> bool:
        """Return whether a step has begun to wait for memory, or ended to."""
        return any(old != to == new for old, new in pairwise([False, *self.ran.starving]))

    @property
    def rejected(self) -> bool:
        """Return whether a step has rejected a draft."""
        seen = self.marks.get("verified", ())
        return any(int(mark["accepted"]) < int(mark["drafts"]) for mark in seen)

    @property
    def lost_tokens(self) -> bool:
        """Return whether the token of a retracted request was dropped."""
        wasted = {mark["rid"] for mark in self.marks.get("wasted row", ())}
        return any(item.is_in_flight and item.req.rid in wasted for item in self.ran.retractions)

    @property
    def searches(self) -> bool:
        """Return whether the requests search with beams."""
        return self.verdict.workload.config.beam_width > 1

    @property
    def forks(self) -> bool:
        """Return whether two beams of a search, after its first token, extend the same one."""
        marks = (mark.attrs for mark in self.verdict.trace.marks if mark.name == "beams")
        return any(it["length"] > 1 and len({*it["parents"]}) < len(it["parents"]) for it in marks)

    @property
    def wants_logprobs(self) -> bool:
        """Return whether a request wants log-probabilities, so that no step is mixed with it."""
        requests = self.verdict.workload.requests
        return any(getattr(req.params, "return_logprob", False) for req in requests)


SITUATIONS: dict[str, Callable[[Evidence], object]] = {
    # Memory is short.
    "a running request is retracted": lambda it: it.retracted(lambda one: not one.is_chunked),
    "one of two requests of equal size is retracted": lambda it: it.retracted(
        lambda one: one.has_twin),
    "a prompt is retracted between its chunks": lambda it: it.retracted(lambda one: one.is_chunked),
    "a request is retracted while a step has it": lambda it: it.retracted(
        lambda one: one.is_in_flight),
    "the late token of a retracted request is dropped": lambda it: it.lost_tokens,
    "the late token of a retracted request is kept": lambda it: "stale output" in it.marks,
    "a request with a grammar is retracted after a token": lambda it: it.retracted(
        lambda one: one.req.params.regex and one.num_outputs),
    "a request with penalties is retracted after a token": lambda it: it.retracted(
        lambda one: one.req.params.has_penalties and one.num_outputs),
    "a request with log-probabilities is retracted": lambda it: it.retracted(
        lambda one: one.req.params.return_logprob and one.num_outputs),
    "a search is retracted after a token": lambda it: it.searches and it.retracted(
        lambda one: one.num_outputs),
    "a draft is rejected in a run that retracts": lambda it: (
        it.rejected and it.retracted(lambda one: True)),
    "a step waits for memory": lambda it: it.starving_turned(True),
    "a step that waited for memory goes on": lambda it: it.starving_turned(False),
    "prompts and decodes are not mixed for lack of memory": lambda it: (
        "not mixed" in it.marks and not it.wants_logprobs),
    "a request is preempted by priority": lambda it: it.retracted(lambda one: True, "priority"),
    "a request is preempted, and another has its priority": lambda it: it.retracted(
        lambda one: one.has_equals, "priority"),
    "memory is released at the launch of a last token": lambda it: "last launch" in it.marks,
    "a cached page is evicted": lambda it: "radix evict" in it.marks or "block evict" in it.marks,
    "two beams of a search extend one": lambda it: it.forks,
    "two requests compute the same page": lambda it: any(
        mark["duplicates"] for mark in it.marks.get("insert", ())),
    "duplicate pages wait for a transfer": lambda it: it.ran.held_retired,
    # A step fails.
    "a step fails": lambda it: it.ran.failed,
    "a chunk of a prompt fails": lambda it: any(step.is_chunk for step in it.ran.failed),
    **{
        f"a step fails that {when}": lambda it, when=when: it.failed(when)  # type: ignore[misc]
        for when in CONDITIONS
    },
    "a reader of failed pages is computed again": lambda it: it.retracted(
        lambda one: True, "failed prefix"),
    "the cache forgets a failed page": lambda it: it.ran.forgotten,
    "a step fails, and a step in flight has its requests": lambda it: any(
        step.is_followed for step in it.ran.failed),
    "a step is lost before its launch": lambda it: any(
        item.name == "page table" for item in it.verdict.trace.slices),
    "the inputs of a step find no memory": lambda it: it.has_hit("inputs find no memory"),
    "the mask of a step finds no memory": lambda it: it.has_hit("mask finds no memory"),
    "a transfer fails": lambda it: it.has_hit("transfer fails"),
    "a copy to the host fails": lambda it: it.has_hit("copy fails"),
    "the post-processing of a step fails": lambda it: it.has_hit("post-processing raises"),
    "a row has NaN": lambda it: it.has_hit("NaN logits"),
    "a row that read a failed page has NaN": lambda it: it.ran.spoiled_nan,
    # Clients.
    "requests are sent for a later time": lambda it: it.verdict.workload.delay,
    "a request is aborted between its chunks": lambda it: it.ran.aborted_between_chunks,
    "an interrupt aborts requests": lambda it: it.ran.interrupted,
    "a request is sent again after its end": lambda it: "finished" in it.ran.sent_again,
    "a request is sent again while it is live": lambda it: "live" in it.ran.sent_again,
    "an id is used again after its request": lambda it: "used before" in it.ran.sent_again,
    "an id is used while it is in use": lambda it: "in use" in it.ran.sent_again,
    "the cache is flushed": lambda it: any(
        mark["done"] for mark in it.marks.get("flush cache", ())),
    "a flush is refused": lambda it: any(
        not mark["done"] for mark in it.marks.get("flush cache", ())),
}  # fmt: skip
"""A predicate for each situation, in the order of the table of ``check --coverage``."""


def situations(ran: Observed, verdict: Verdict) -> tuple[str, ...]:
    """Return the names of the situations that occurred in a run, in order."""
    marks = dict[str, list[dict[str, Value]]]()
    for mark in verdict.trace.marks:
        marks.setdefault(mark.name, []).append(mark.attrs)
    evidence = Evidence(ran, verdict, marks)
    return tuple(name for name, occurs in SITUATIONS.items() if occurs(evidence))
