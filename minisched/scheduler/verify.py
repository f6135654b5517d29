"""Steps that carry drafts: what is committed for them, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from ..core import ForwardMode, Request, Result, ScheduleBatch
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
    if not batch.num_extend_reqs:
        batch.mode = ForwardMode.TARGET_VERIFY
    if draft_lens is None:
        draft_lens = [req.next_draft_len for req in reqs]
    rows = enumerate(zip(reqs, draft_lens, strict=True), len(batch.reqs))
    for index, (req, most_drafts) in rows:
        lease, start = req.lease, req.computed_len
        assert lease is not None
        ids = input_ids(propose, req, most_drafts)
        reach = req.reach(len(ids) - 1)
        if lease.sent_pages * leases.allocator.page_size < reach:
            batch.new_pages[index] = leases.extend(lease, reach)
        lease.last_step = batch.step
        batch.leases.append(lease)
        batch.starts.append(start)
        batch.ids.append(ids)
        req.computed_len, req.device_len = start + 1, req.device_len + 1
        req.num_draft_tokens_in_flight += len(ids) - 1
    batch.reqs += reqs
    batch.start_unknown = [None in ids for ids in batch.ids]


def input_ids(propose: Propose | None, req: Request, count: int) -> tuple[int | None, ...]:
    """The last token and up to ``count`` drafts behind it."""
    if req.computed_len >= req.known_len:
        return (None,) * (1 + count)
    if propose is not None:  # prompt lookup on the host (vLLM ``ngram_proposer.py``)
        drafts = propose(req.known_tokens(0, req.known_len), count)
    else:
        drafts = req.spec_token_ids
    return (req.output_ids[-1], *drafts[:count])


def process(batch: ScheduleBatch, result: Result, rows: OutputProcessor) -> None:
    """What a step that may carry drafts means: of each row several tokens, or none.

    Of what a row has sampled ``num_accepted_tokens`` count, and none from the first on that was
    chosen from NaN. One token was counted when the step was committed; the accepted drafts are
    counted now, and what was rejected is given back.
    """
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
            req.num_draft_tokens_in_flight -= num_samples - 1
            req.computed_len += len(tokens) - 1
            req.device_len += len(tokens) - 1
            req.spec_token_ids = list(result.drafts[at * k : at * k + k])
            for token in tokens:
                if not req.finished:
                    lease.settled_len = req.known_len
                    rows.hear(req, token)
        if good < end:
            rows.end_if_nan(batch, req, lease)
        if at < batch.num_extend_reqs:
            rows.cache_prompt(batch, at)
        if num_samples > 1 and (gained := len(req.output_ids) - had):
            rows.retraction.recorder.mark(  # added up in ``checks/answers.py``
                "verified", step=batch.step, rid=req.rid, drafts=num_samples - 1,
                accepted=gained - 1,
            )  # fmt: skip
