"""The law *positions*: each position is computed once, in order; the cache gets all written pages.

A request's steps compute its positions under a lease without a gap: a gap is KV that later steps
read although no step wrote it. A page that enters the prefix cache has its KV written by steps that
have returned, or will be written by the step that is planned with it (rule ``prompt_pages``).
The other way round, a prompt is in the cache with all its whole pages once it is computed, and a
request that ends by itself leaves all of its whole pages there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from ..core import FinishReason, Lease, Outputs, Request, Result, ScheduleBatch
from ..devices.base import Buffer
from ..engine.engine import Engine
from ..models.base import ForwardBatch, Model
from ..models.hash import HashModel
from ..policy.rules import Rules
from ..trace import Mark, Trace
from ..trace.cells import spans_of
from .history import MarkMoment, Offence, heard, many
from .leaks import is_kv


class Positions:
    """Follows the committed steps of one scheduler; ``gaps`` are the sentences found so far."""

    def __init__(self) -> None:
        self.gaps: list[str] = []
        self.next: dict[Lease, tuple[int, int]] = {}  # least and largest start of the next row

    def look(self, batch: ScheduleBatch) -> None:
        """Check that each row starts where the step before ended; rejected drafts count twice.

        With drafts in flight only the device knows where a row starts: at ``start``, or later by
        all drafts of the steps in flight.
        """
        for at, (lease, start, ids) in enumerate(
            zip(batch.leases, batch.starts, batch.ids, strict=True)
        ):
            least, largest = self.next.get(lease, (start, start))
            if not least <= start <= largest:
                self.gaps.append(
                    f"step {batch.step} computes {lease.rid} from position {start} on, but the "
                    f"steps before it have computed the positions up to {largest - 1}"
                )
            end = (largest if None in ids else start) + len(ids)
            self.next[lease] = end if at < batch.num_extend_reqs else start + 1, end
            counted, least_end = batch.reqs[at].computed_len, self.next[lease][0]
            if counted != least_end:
                self.gaps.append(
                    f"step {batch.step} computes {lease.rid} up to position {least_end - 1}, but "
                    f"the scheduler counts the positions up to {counted - 1} as computed"
                )


class Ids:
    """Checks that forward passes take tokens; ``wrong`` are the sentences so far.

    The hash model computes with any integer, but a model with an embedding can't.
    """

    def __init__(self, model: Model) -> None:
        self.wrong: list[str] = []
        if not isinstance(model, HashModel):
            return
        forward = model.forward_layer

        def forward_layer(
            layer: int, batch: ForwardBatch, hidden: list[int], page_table: Buffer
        ) -> list[int]:
            """Check the ids that the first layer takes."""
            if layer == 0 and isinstance(hidden, list):
                self.wrong += (
                    f"the forward pass of step {batch.step} takes {token}, which is no token: the "
                    f"vocabulary has {model.vocab_size}"
                    for token in hidden
                    if not 0 <= token < model.vocab_size
                )
            return forward(layer, batch, hidden, page_table)

        model.forward_layer = forward_layer  # type: ignore[method-assign]


class Cached:
    """Follows what enters the prefix cache of an engine; ``missing`` are the sentences so far."""

    def __init__(self, engine: Engine) -> None:
        self.missing: list[str] = []
        self.reqs: dict[Lease, Request] = {}
        self.enters_launched = False  # a chunk enters before the next one is scheduled
        scheduler = engine.scheduler
        if scheduler.prefix_cache.is_off:
            return
        self.page_size = scheduler.config.page_size
        self.shares_outputs = scheduler.config.beam_width == 1  # not the KV of a beam
        process, close = scheduler.process, scheduler.leases.close
        rules = scheduler.config.in_force
        shares_chunks = rules.chunks_enter == "each" and rules.enters_cache != "launched"
        self.enters_launched = rules.enters_cache == "launched" and rules.run_first != "unified"
        shares_running = rules.output_pages == "running" and self.shares_outputs

        def processed(batch: ScheduleBatch, result: Result) -> Outputs:
            """Check the prompts that a step has completed, once its result is processed."""
            self.reqs |= dict(zip(batch.leases, batch.reqs, strict=True))
            outputs = process(batch, result)
            for row in batch.rows[: batch.num_extend_reqs] if not result.error else ():
                holds = row.req.lease is row.lease and not row.lease.is_released
                if holds and row.deliver:
                    self.judge(row.req, row.lease, len(row.req.prompt), "has computed its prompt")
                elif holds and shares_chunks:
                    self.judge(row.req, row.lease, row.end, "has computed a chunk")
            for row in batch.rows[batch.num_extend_reqs :] if shares_running else ():
                holds = row.req.lease is row.lease and not row.lease.is_released
                if holds and not result.error:
                    self.judge(row.req, row.lease, row.req.known_len - 1, "has a new token")
            return outputs

        def closed(lease: Lease) -> None:
            """Check a request that ends by itself; the KV of its last token is not computed."""
            req = self.reqs.pop(lease, None)
            if req is not None and req.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                length = req.known_len - 1 if self.shares_outputs else len(req.prompt)
                self.judge(req, lease, length, "ends")
            elif (
                req is not None
                and req.finish_reason is None
                and scheduler.lets_go_early
                and req.device_len == req.max_device_len
            ):
                self.judge(req, lease, len(req.prompt), "lets go of its memory")
            close(lease)

        scheduler.process, scheduler.leases.close = processed, closed  # type: ignore[method-assign]

    def look(self, batch: ScheduleBatch) -> None:
        """Check the launched chunks of prompts that a step continues."""
        for row in batch.rows[: batch.num_extend_reqs] if self.enters_launched else ():
            self.judge(row.req, row.lease, row.start, "has launched a chunk")

    def judge(self, req: Request, lease: Lease, length: int, event: str) -> None:
        """Compare the cached pages of a request with the whole pages of ``length`` tokens."""
        pages = length // self.page_size
        if lease.shared_pages < pages and not lease.is_spoiled:
            self.missing.append(
                f"{req.rid} {event}, and the prefix cache has {lease.shared_pages} of its "
                f"{many(pages, 'whole page')}"
            )


WRITERS = ("kv transfer",)  # lanes that write KV for no step of their own


def enters_planned(rules: Rules) -> bool:
    """Return whether a page may enter the prefix cache before it is written."""
    return rules.prompt_pages == "scheduled" or rules.enters_cache != "settled"


def find_unwritten(
    trace: Trace, is_planned: bool, failed_ops: Set[int] = frozenset()
) -> Iterator[Offence]:
    """Yield the pages that entered the prefix cache although some of their KV was never written.

    Only a write after the page's allocation counts. If pages enter when their step is planned
    (``is_planned``), they are judged once it has returned. An op in ``failed_ops`` wrote nothing.
    """
    for side, marks in heard(trace).items():
        yield from Written(trace, side, marks, is_planned, failed_ops).unwritten()


class Written:
    """The KV of one scheduler's pages, mark by mark."""

    def __init__(
        self, trace: Trace, side: str, marks: Sequence[tuple[Mark, MarkMoment]], is_planned: bool,
        failed_ops: Set[int],
    ) -> None:  # fmt: skip
        self.marks, self.is_planned = marks, is_planned
        self.by_step: defaultdict[int, list[tuple[str, int, int]]] = defaultdict(list)
        self.sent: list[tuple[int, str, int, int]] = []  # end of the transfer, and what it wrote
        slices = {item.id: item for item in trace.slices}
        writes = [act for act in trace.program if act.kind == "write" and is_kv(act.resource, side)]
        self.memories = {act.resource for act in writes}
        for act in writes:
            ran = slices.get(act.op)
            if ran is None or act.op in failed_ops:
                continue
            for first, last in spans_of(act.at):
                if act.lane in WRITERS:
                    self.sent.append((ran.end, act.resource, first, last))
                else:
                    self.by_step[ran.step].append((act.resource, first, last))
        self.allocated: dict[int, int] = {}  # by page, the newest step that was committed before
        self.slots: defaultdict[tuple[str, int], set[int]] = defaultdict(set)  # written ones
        self.entered: dict[int, tuple[int, MarkMoment]] = {}  # by page, the step to wait for

    def unwritten(self) -> Iterator[Offence]:
        """Yield an offence for each cached page with slots that no step has written."""
        page_size = launched = 0
        added: dict[int, tuple[int, MarkMoment]] = {}  # as ``entered``, before the mark ``insert``
        for mark, now in self.marks:
            of, pages = mark.attrs, mark.attrs.get("pages", ())
            match mark.name:
                case "kv pool":
                    page_size = int(of.get("page_size", 0))
                case "commit":
                    launched = int(of["step"])
                case "page alloc":
                    for page in pages:
                        self.allocated[page] = launched
                        for memory in self.memories:
                            self.slots[memory, page].clear()
                case "radix add":
                    pages = of["page_ids"]
                    step = launched if self.is_planned else 0
                    added |= dict.fromkeys(pages, (step, now))
                case "block add":
                    step = launched + 1 if self.is_planned else 0
                    added |= dict.fromkeys(pages, (step, now))
                case "insert":
                    self.entered |= added
                    added.clear()
                case "row free":  # pages that a released lease left without a hash: not found
                    added.clear()
                case "block forget" | "page free":
                    for page in pages:
                        self.entered.pop(page, None)
                case "tokens" if page_size:
                    self.write(int(of["step"]), now.time, page_size)
                    yield from self.missing(int(of["step"]), page_size)

    def write(self, step: int, time: int, page_size: int) -> None:
        """Note what a returned step, and each transfer that has ended, has written."""
        for memory, first, last in self.by_step.pop(step, ()):
            for slot in range(first, last + 1):
                if self.allocated.get(slot // page_size, step) < step:
                    self.slots[memory, slot // page_size].add(slot)
        for end, memory, first, last in self.sent:
            for slot in range(first, last + 1) if end <= time else ():
                self.slots[memory, slot // page_size].add(slot)

    def missing(self, step: int, page_size: int) -> Iterator[Offence]:
        """Yield the pages with unwritten KV, once their step has returned."""
        for page, (until, entered) in list(self.entered.items()):
            if step < until:
                continue
            del self.entered[page]
            slots = range(page * page_size, (page + 1) * page_size)
            for memory in sorted(self.memories):
                lacking = [slot for slot in slots if slot not in self.slots[memory, page]]
                if lacking:
                    sentence = (
                        f"page {page} entered the prefix cache {entered}, but no step has written "
                        f"slot {lacking[0]} of it ({memory})"
                    )
                    yield Offence(sentence, entered.slices, "unwritten", time=entered.time)
