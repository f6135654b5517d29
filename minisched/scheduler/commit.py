"""Turning a plan into a batch: from here on it is in flight."""

from __future__ import annotations

from ..core import ChunkedReq, ForwardMode, Request, ScheduleBatch
from ..core.logprobs import next_logprob_at
from ..policy import Plan
from ..trace import Recorder
from . import stale_outputs
from .state import SchedulerState
from .verify import add_verifies


def commit(state: SchedulerState, plan: Plan) -> ScheduleBatch:
    """Advance lengths, reserve pages, and freeze what is true now."""
    state.step += 1
    state.leases.launched_step = state.step
    state.batches_in_flight += 1
    batch = ScheduleBatch(state.step, mode_of(state, plan), len(plan.prompts))
    batch.has_wishes = bool(state.wishing)
    if plan.prompts:
        evict_for_prompts(state, plan)
        for req, extend_len in plan.prompts:
            add_prompt(state, batch, req, extend_len)
        joining = zip(batch.reqs, batch.delivers, strict=True)
        ready = [req if done else ChunkedReq(req) for req, done in joining]
        mixed = state.config.enable_mixed_chunk and bool(plan.decodes)
        state.decode.add_reqs(ready, mixed)
        state.new_batch = batch
    if state.config.num_draft_tokens:
        add_verifies(state, batch, plan.decodes, plan.draft_lens)
    else:
        add_decodes(state, batch, plan.decodes)
    state.cur_batch = batch
    record_commit(state.recorder, batch)
    state.on_commit(batch)
    if state.config.keep_stale_outputs:
        stale_outputs.launched(batch)
    return batch


def record_commit(recorder: Recorder, batch: ScheduleBatch) -> None:
    """Say whose memory a step names from now on: the rows of the request table, in batch order.

    ``chunks`` are those of them whose sample is no token: the prompt goes on in a later step.
    """
    if recorder.is_on:
        rows = [lease.row for lease in batch.leases]
        chunks = [row for row, deliver in zip(rows, batch.delivers, strict=True) if not deliver]
        more = {"chunks": " ".join(map(str, chunks))} if chunks else {}
        recorder.mark("commit", step=batch.step, rows=" ".join(map(str, rows)), **more)


def mode_of(state: SchedulerState, plan: Plan) -> ForwardMode:
    """What the batch is: decodes that may carry drafts are there to be verified."""
    mode = plan.mode
    is_verify = mode is ForwardMode.DECODE and state.config.num_draft_tokens
    return ForwardMode.TARGET_VERIFY if is_verify else mode


def add_prompt(state: SchedulerState, batch: ScheduleBatch, req: Request, extend_len: int) -> None:
    """Advance a prompt by ``extend_len`` positions."""
    lease = req.lease
    assert lease is not None
    start, end = req.computed_len, req.computed_len + extend_len
    is_last = end == req.device_len
    batch.new_pages[len(batch.reqs)] = state.leases.extend(lease, end)
    state.prefix_cache.cache_scheduled_req(req, lease, end, batch.step)
    batch.reqs.append(req)
    batch.leases.append(lease)
    batch.starts.append(start)
    batch.ids.append(req.tokens(start, end))
    batch.delivers.append(is_last)
    wanted = next_logprob_at(req.params, len(req.prompt), len(req.input_token_logprobs))
    batch.extend_logprob_start_lens.append(min(max(0, wanted - start), extend_len))
    lease.last_step = batch.step
    lease.num_chunks += 1
    req.computed_len = end
    if is_last:
        req.device_len += 1  # the token that this step samples will exist


def evict_for_prompts(state: SchedulerState, plan: Plan) -> None:
    """Let the cache give up what prompts may take at most: a page more for each of them.

    SGLang ``mem_cache/allocation.py:alloc_paged_token_slots_extend``; with pages of one token
    nothing is estimated there.
    """
    if state.evicts_by_page:
        size = state.allocator.page_size
        tokens = sum(length + size for _, length in plan.prompts)
        state.leases.make_free(state.allocator.pages_for(tokens))


def add_decodes(state: SchedulerState, batch: ScheduleBatch, reqs: list[Request]) -> None:
    """Advance each by one position. Every running request passes here at every step."""
    page_size, step = state.allocator.page_size, batch.step
    if state.evicts_by_page:
        state.leases.make_free(len(reqs))  # a page for each, whether it needs one or not
    for index, req in enumerate(reqs, len(batch.reqs)):
        lease, start, end = req.lease, req.computed_len, req.device_len
        assert lease is not None
        if lease.sent_pages * page_size < end:
            batch.new_pages[index] = state.leases.extend(lease, end)
        lease.last_step = step
        batch.leases.append(lease)
        batch.starts.append(start)
        batch.ids.append((req.output_ids[-1] if start < req.known_len else None,))
        req.computed_len, req.device_len = end, end + 1
    batch.reqs += reqs
    batch.delivers += [True] * len(reqs)
