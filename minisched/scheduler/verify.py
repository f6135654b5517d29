"""Steps with drafts: their commit, and the delivery of their results.

The input of a row is its last token and the drafts after it. Its next position depends on the
number of accepted drafts, so while a step is in flight only the device knows where the next one
begins. ``Drafts`` replaces the parts of a scheduler that this touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from ..core import ForwardMode, Request, RequestPart, Result, ScheduleBatch
from ..core.feature import Feature
from .scheduler import Scheduler

Propose = Callable[[Sequence[int], int], list[int]]
"""Returns drafts after known tokens, at most that many (vLLM ``ngram_proposer.py``)."""

# -- One request -----------------------------------------------------------------------------------


@dataclass(eq=False)
class Drafting(RequestPart):
    """The drafts of one request."""

    req: Request
    most: int  # drafts that a step may carry for it
    num_in_flight: int = 0  # launched, and neither accepted nor rejected yet
    spec_token_ids: list[int] = field(default_factory=list)  # drafts that the host knows

    @property
    def next_len(self) -> int:
        """Return the number of drafts for the next step: none passes the request's length."""
        return max(0, min(self.most, self.req.max_device_len - self.req.device_len - 1))

    def reach(self, num_drafts: int) -> int:
        """Return the positions that need memory if all drafts of the next step are accepted."""
        return self.req.device_len + self.num_in_flight + num_drafts

    def on_retract(self) -> None:
        """Forget the drafts of the lost lease."""
        self.num_in_flight, self.spec_token_ids = 0, []


def drafting(req: Request) -> Drafting:
    """Return the drafts of a request, in an engine that speculates."""
    part = req.part(Drafting)
    assert part is not None
    return part


def reach(req: Request) -> int:
    """Return the positions that a request's next step may need memory for."""
    part = drafting(req)
    return part.reach(part.next_len)


# -- One step --------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class VerifyBatch(ScheduleBatch):
    """A batch with drafts in its decoding rows."""

    # [num_reqs] True: only the device knows the first position, as drafts before it are in flight;
    # ``starts`` is the position if none of them is accepted
    start_unknown: Sequence[bool] = ()
    # [num_reqs] positions for which each row has memory at the commit: its lease may be released
    # before the step is laid out
    room: Sequence[int] = ()

    @cached_property
    def sample_lens(self) -> list[int]:
        """Return the number of tokens that each row samples: one, and one for each draft."""
        first = self.num_extend_reqs
        return [1] * first + list(map(len, self.ids[first:]))

    def drafts(self, at: int) -> Sequence[int]:
        """Return a row's own drafts, or those that came back with the step that drafted them."""
        ids, num_drafts = self.ids[at], self.sample_lens[at] - 1
        own = [token for token in ids[len(ids) - num_drafts :] if token is not None]
        return own or drafting(self.reqs[at]).spec_token_ids[:num_drafts]

    def sample_position(self, at: int, num_newest: int = 0) -> int:
        """Return the position after the tokens that the host knows now."""
        return self.reqs[at].known_len + num_newest


@dataclass(frozen=True)
class VerifyResult(Result):
    """The tokens of a step with drafts, and the numbers of accepted ones."""

    num_accepted_tokens: Sequence[int] | None = None  # [num_reqs]
    drafts: Sequence[int] = ()  # for the next step, [num_reqs * k], or none


def accepted_tokens(batch: ScheduleBatch, result: Result) -> dict[str, Sequence[int]]:
    """Return the accepted tokens of a result that is not processed yet, by request id.

    A step without drafts has one for each row. With drafts, the result has drafts for the next
    step, too. They are noted now, because a mask of the next step needs them. A result with an
    error has neither.
    """
    if result.error:
        return {}
    if not isinstance(result, VerifyResult):
        rows = zip(batch.rows, result.tokens, strict=True)
        return {r.req.rid: (t,) for r, t in rows if r.deliver and r.req.lease is r.lease}
    found, first, k = dict[str, Sequence[int]](), 0, len(result.drafts) // len(batch.reqs)
    columns = zip(batch.rows, batch.sample_lens, result.num_accepted_tokens or (), strict=True)
    for at, (row, num_samples, count) in enumerate(columns):
        if row.deliver and row.req.lease is row.lease:
            found[row.req.rid] = result.tokens[first : first + count]
            drafting(row.req).spec_token_ids = list(result.drafts[at * k : at * k + k])
        first += num_samples
    return found


# -- The scheduler ---------------------------------------------------------------------------------


class Drafts(Feature):
    """Gives each request drafts, and replaces the parts of a scheduler that depend on them.

    ``propose`` looks drafts up on the host; None: the device makes them.
    """

    def __init__(self, num_draft_tokens: int, propose: Propose | None = None) -> None:
        self.num_draft_tokens, self.propose = num_draft_tokens, propose
        self.planned: dict[Request, int] = {}  # drafts that one budget allows, by request

    def attach(self, scheduler: Scheduler) -> None:
        """Replace its batch, its decodes, its delivery, and the memory of a next step."""
        self.scheduler = scheduler
        scheduler.batch_class = VerifyBatch
        scheduler.add_decodes, scheduler.deliver = self.add_decodes, self.deliver
        scheduler.leases.reach = reach
        if scheduler.unified is not None:
            scheduler.unified.wanted = self.wanted

    def part_of(self, req: Request) -> Drafting:
        """Return the drafts of a request."""
        return Drafting(req, self.num_draft_tokens)

    def wanted(self, req: Request, left: int) -> tuple[int, int]:
        """Return the tokens of a request, with as many drafts as the budget allows, and its reach.

        (vLLM ``num_scheduled_spec_tokens``.)
        """
        part = drafting(req)
        self.planned[req] = num_drafts = min(part.next_len, left - 1)
        return 1 + num_drafts, part.reach(num_drafts)

    def add_decodes(self, batch: ScheduleBatch, reqs: list[Request]) -> None:
        """Advance each request by one position, and reserve memory as if every draft were right.

        If the step before is in flight, only the device knows the last token, the drafts and their
        positions: then all of them are None.
        """
        assert isinstance(batch, VerifyBatch)
        if not batch.num_extend_reqs:
            batch.mode = ForwardMode.TARGET_VERIFY
        leases, planned = self.scheduler.leases, self.planned
        self.planned = {}
        # a mixed step degrades its decodes to one token (SGLang ``mix_with_running``)
        is_plain = self.scheduler.unified is None and batch.num_extend_reqs > 0
        for index, req in enumerate(reqs, len(batch.reqs)):
            lease, start, part = req.lease, req.computed_len, drafting(req)
            assert lease is not None
            ids = self.input_ids(req, 0 if is_plain else planned.get(req, part.next_len))
            end = part.reach(len(ids) - 1)
            if lease.sent_pages * leases.allocator.page_size < end:
                batch.new_pages[index] = leases.extend(lease, end)
            lease.last_step = batch.step
            batch.leases.append(lease)
            batch.starts.append(start)
            batch.ids.append(ids)
            req.computed_len, req.device_len = start + 1, req.device_len + 1
            part.num_in_flight += len(ids) - 1
        batch.reqs += reqs
        batch.start_unknown = [None in ids for ids in batch.ids]
        batch.room = [len(lease.pages) * leases.allocator.page_size for lease in batch.leases]

    def draft_late(self, batch: VerifyBatch, newest: Mapping[str, Sequence[int]]) -> None:
        """Look drafts up after tokens that the host learns between the commit and the launch.

        ``newest`` are the tokens of the step in flight, by request id. The commit has fixed the
        number of drafts; missing ones repeat the last token. A row without new tokens has no use:
        its request has ended, or its last step has failed.
        """
        assert self.propose is not None
        unknown, batch.start_unknown = batch.start_unknown, [False] * len(batch.reqs)
        for at, (req, lease) in enumerate(zip(batch.reqs, batch.leases, strict=True)):
            if not unknown[at]:
                continue
            tokens = newest.get(req.rid, ()) if req.lease is lease else ()
            count, drafts = len(batch.ids[at]) - 1, list[int]()
            if tokens:
                drafts = self.propose([*req.known_tokens(0, req.known_len), *tokens], count)
                batch.starts[at] += len(tokens) - 1
            last = tokens[-1] if tokens else 0
            batch.ids[at] = (last, *drafts, *[last] * (count - len(drafts)))

    def input_ids(self, req: Request, count: int) -> tuple[int | None, ...]:
        """Return the last token and up to ``count`` drafts after it."""
        if req.computed_len >= req.known_len:
            return (None,) * (1 + count)
        if self.propose is not None:
            drafts = self.propose(req.known_tokens(0, req.known_len), count)
        else:
            drafts = drafting(req).spec_token_ids
        return (req.output_ids[-1], *drafts[:count])

    def deliver(self, batch: ScheduleBatch, result: Result) -> None:
        """Let each request learn its accepted tokens.

        Of the sampled tokens of a row ``num_accepted_tokens`` count, up to the first one that was
        sampled from NaN. The commit has counted one token. The accepted drafts are counted now, and
        the positions of rejected ones are released.
        """
        assert isinstance(result, VerifyResult)
        rows = self.scheduler.output_processor
        k = len(result.drafts) // len(batch.reqs)  # 0 where the host proposes
        firsts = accumulate(batch.sample_lens, initial=0)
        counts = result.num_accepted_tokens or [0] * len(batch.reqs)
        columns = zip(batch.rows, batch.sample_lens, firsts, counts, strict=False)
        for at, (row, num_samples, first, count) in enumerate(columns):
            req, lease, had = row.req, row.lease, len(row.req.output_ids)
            end = first + count
            good = next((place for place in range(first, end) if place in result.nan_samples), end)
            tokens = result.tokens[first:good]
            if req.lease is not lease:
                is_stale = row.deliver and rows.is_stale(req)
                for token in tokens if is_stale else [None]:
                    if token is None or not req.finished:
                        rows.late(batch, req, lease, token)
            elif row.deliver:
                part = drafting(req)
                part.num_in_flight -= num_samples - 1
                req.computed_len += len(tokens) - 1
                req.device_len += len(tokens) - 1
                part.spec_token_ids = list(result.drafts[at * k : at * k + k])
                for token in tokens:
                    if not req.finished:
                        lease.settled_len = req.known_len
                        rows.hear(req, token)
            if good < end:
                rows.end_if_nan(batch, req, lease)
            if at < batch.num_extend_reqs:
                rows.cache_prompt(batch, at)
            if num_samples > 1 and (gained := len(req.output_ids) - had):
                self.scheduler.recorder.mark(  # added up in ``checks/answers.py``
                    "verified", step=batch.step, rid=req.rid, drafts=num_samples - 1,
                    accepted=gained - 1,
                )  # fmt: skip
