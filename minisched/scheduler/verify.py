"""Steps that carry drafts: what is committed for them, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from ..core import Output, Request, Result, ScheduleBatch
from ..memory import LeasePool
from .output_processor import OutputProcessor

Propose = Callable[[Sequence[int], int], list[int]]


def add_verifies(
    leases: LeasePool,
    propose: Propose | None,
    batch: ScheduleBatch,
    reqs: list[Request],
    draft_lens: Sequence[int] | None = None,
) -> None:
    """Advance each by one position for sure, and reserve memory as if every draft were right.

    A row's input is the last token and the drafts behind it. Where a step before it is in flight,
    only the device knows both, and where they belong: then all are None. ``draft_lens`` is the
    plan's.
    """
    if draft_lens is None:
        draft_lens = [req.next_draft_len for req in reqs]
    rows = enumerate(zip(reqs, draft_lens, strict=True), len(batch.reqs))
    for index, (req, most_drafts) in rows:
        lease, start = req.lease, req.computed_len
        assert lease is not None
        ids = input_ids(propose, req, most_drafts)
        reach = req.reach_with(len(ids) - 1)
        if lease.sent_pages * leases.allocator.page_size < reach:
            batch.new_pages[index] = leases.extend(lease, reach)
        lease.last_step = batch.step
        batch.leases.append(lease)
        batch.starts.append(start)
        batch.ids.append(ids)
        req.computed_len, req.device_len = start + 1, req.device_len + 1
        req.num_draft_tokens_in_flight += len(ids) - 1
    batch.reqs += reqs
    batch.delivers += [True] * len(reqs)


def input_ids(propose: Propose | None, req: Request, count: int) -> tuple[int | None, ...]:
    """The last token and up to ``count`` drafts behind it."""
    if req.computed_len >= req.known_len:
        return (None,) * (1 + count)
    if propose is not None:  # prompt lookup on the host (vLLM ``ngram_proposer.py``)
        drafts = propose(req.known_tokens(0, req.known_len), count)
    else:
        drafts = req.spec_token_ids
    return (req.output_ids[-1], *drafts[:count])


def process(batch: ScheduleBatch, result: Result, rows: OutputProcessor) -> list[Output]:
    """What a step that may carry drafts means: a row has several tokens, or none."""
    outputs: list[Output] = []
    tokens_by_row, drafts_of = accepted_tokens(batch, result), drafts_by_row(batch, result)
    broken = rows_with_nan(batch, result)
    columns = zip(batch.rows, batch.sample_lens, tokens_by_row, drafts_of, strict=True)
    for at, (row, num_samples, tokens, drafts) in enumerate(columns):
        req, lease = row.req, row.lease
        had = len(req.output_ids)
        if req.lease is not lease:
            is_stale = row.deliver and rows.is_stale(req)
            for token in tokens if is_stale else [None]:
                if token is None or not req.finished:
                    outputs += rows.late(batch, req, lease, token)
        elif row.deliver:
            settle(req, num_samples - 1, len(tokens), drafts)
            for token in tokens:
                if not req.finished:
                    lease.settled_len = req.known_len
                    outputs.append(rows.hear(req, token))
        outputs += rows.end_if_nan(batch, req, lease) if at in broken else []
        if at < batch.num_extend_reqs:
            rows.cache_prompt(batch, at)
        if num_samples > 1 and (gained := len(req.output_ids) - had):
            rows.retraction.recorder.mark(  # added up in ``checks/answers.py``
                "verified", step=batch.step, rid=req.rid, drafts=num_samples - 1,
                accepted=gained - 1,
            )  # fmt: skip
    return outputs


def accepted_tokens(batch: ScheduleBatch, result: Result) -> list[Sequence[int]]:
    """The tokens of each row that count, [num_reqs][num_accepted_tokens]; none from NaN on."""
    if result.num_accepted_tokens is None:
        return [[]] * len(batch.reqs)
    return [
        result.tokens[places.start : next(nan_among(places, result), places.stop)]
        for places in accepted_places(batch, result)
    ]


def rows_with_nan(batch: ScheduleBatch, result: Result) -> set[int]:
    """Which rows have a token that was chosen from NaN among those that count."""
    if not result.nan_samples:
        return set()
    places = enumerate(accepted_places(batch, result))
    return {row for row, mine in places if any(True for _ in nan_among(mine, result))}


def accepted_places(batch: ScheduleBatch, result: Result) -> Iterator[range]:
    """Where among the samples each row's tokens that count are."""
    firsts = accumulate(batch.sample_lens, initial=0)
    for first, count in zip(firsts, result.num_accepted_tokens or (), strict=False):
        yield range(first, first + count)


def nan_among(places: range, result: Result) -> Iterator[int]:
    """Those of the samples at ``places`` that were chosen from NaN."""
    return (at for at in places if at in result.nan_samples)


def settle(req: Request, num_drafts: int, num_tokens: int, drafts: Sequence[int]) -> None:
    """A step has come back with ``num_tokens`` for a request: give back what was rejected.

    One token was counted when the step was committed, the accepted drafts are counted now.
    """
    req.num_draft_tokens_in_flight -= num_drafts
    req.computed_len += num_tokens - 1
    req.device_len += num_tokens - 1
    req.spec_token_ids = list(drafts)


def drafts_by_row(batch: ScheduleBatch, result: Result) -> Iterator[Sequence[int]]:
    """What was drafted for each row's next step, k tokens; nothing where the host proposes."""
    k = len(result.drafts) // len(batch.reqs)
    for at in range(len(batch.reqs)):
        yield result.drafts[at * k : at * k + k]
