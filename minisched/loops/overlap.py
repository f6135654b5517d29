"""Overlap scheduling: while the device runs step N, the host processes N-1 and schedules N+1.

To schedule a decode step, the host needs to know that there will be a token, not which one. Only
the forward pass reads the token, on the device, where the previous step leaves it. A token of N-1
that the host does not know yet goes into N's inputs as minus its future slot in the FutureMap
(``relay/future_map.py``). N-1 stores its sampled token into that slot. N's forward op first
replaces every negative id. Both run on one stream, in order, so the host waits for neither.

The consequences:

- ``depth``: two steps are in flight, one running and one queued after it. Each has output buffers
  of its own.
- ``overrun``: the host sees a stop token one step late, so the request runs in one extra batch and
  wastes that row. A length stop wastes none: the host knows the length without the token.
- ``pins``: the host continues while the device still reads shipped arrays. The arrays of the last
  steps are pinned (SGLang ``batch_record_buf``), or their memory would be reused.
- delayed sampling: a grammar's mask, or a penalty, needs every earlier token. The forward pass does
  not. So N is launched without its sampling, which follows after N-1 is processed.
- late drafting: ``NGRAM`` looks drafts up on the host, after the newest token. So N is scheduled
  while N-1 runs, and launched when the tokens of N-1 have arrived. They are processed while the
  device runs N (``look_drafts_up``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..worker import Step
from .design import OTHERS, design
from .overlap_drafts import advance_pending_grammar, look_drafts_up

# SGLang has no NGRAM_GPU. Where its spec v2 overlaps (STANDALONE), vLLM's can do so as well: both
# leave tokens, drafts and lengths on the device for the next step.


@design(
    "overlap_pool_indexed",
    follows="SGLang managers/scheduler.py:event_loop_overlap since #25862",
    relays=("pool", "ring", *OTHERS),
)
@design(
    follows="SGLang managers/scheduler.py:event_loop_overlap",
    relays=("ring", "pool", *OTHERS),
    depth=2,
    pins=2,
)
def overlap(
    engine: Engine,
    disable_consecutive_prefill_overlap: bool = False,
    delay_sample: bool = False,
    enable_skip_finishing_decode: bool = True,
    supports_grammar_overlap: bool = True,
) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``managers/scheduler.py:event_loop_overlap``. Each ``yield`` ends one turn.

    A settled step takes max(d, h, c, (d + h + c) / 2), with device d, host h, copy c. A cell of the
    FutureMap belongs to a token in a ring of them, or, since #25862, to a row of the request table.

    ``disable_consecutive_prefill_overlap``: see ``is_disable_overlap_for_batch``. ``delay_sample``:
    every batch is sampled late (the original does so for each grammar, even if the host knows all
    tokens). ``enable_skip_finishing_decode`` (since 0.5.23): an end by length is foreseen; off, it
    wastes a row (``overrun`` 1). ``supports_grammar_overlap`` (since 0.5.17, #31488): a step with
    drafts and a grammar overlaps.
    """
    engine.scheduler.decode.overrun = 0 if enable_skip_finishing_decode else 1
    result_queue: deque[Step] = deque()
    last_batch: ScheduleBatch | NoBatch = NoBatch.IDLE
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()  # knows the results up to the one before the last
        if batch and engine.scheduler.config.speculative_algorithm == "NGRAM" and result_queue:
            look_drafts_up(engine, batch, result_queue[-1])
        disable_overlap = is_disable_overlap_for_batch(
            engine, batch, last_batch, disable_consecutive_prefill_overlap, supports_grammar_overlap
        )
        if disable_overlap and batch:  # the last result first: nothing overlaps in this turn
            engine.recording.must_wait(batch, disable_overlap, "forward")
            engine.process_batch_result(result_queue.popleft())
        if batch:
            delay = engine.must_delay_sample(batch) or delay_sample
            # an id of it that the host does not know becomes minus its future slot
            result_queue.append(engine.run_batch(batch, delay_sample=delay))
            has_drafts = bool(engine.scheduler.config.speculative_algorithm)
            if delay and has_drafts and supports_grammar_overlap:
                advance_pending_grammar(engine, result_queue)
        if last_batch and not disable_overlap:
            engine.process_batch_result(result_queue.popleft())  # the device runs ``batch``
        elif not batch:
            engine.on_idle()
        if batch and (delayed := result_queue[-1]).delay_sample_func is not None:
            engine.update_vocab_mask(delayed)  # its tokens are known
            engine.launch_batch_sample_if_needed(delayed)
        last_batch = batch
        yield batch


def is_disable_overlap_for_batch(
    engine: Engine,
    batch: ScheduleBatch | NoBatch,
    last_batch: ScheduleBatch | NoBatch,
    disable_consecutive_prefill_overlap: bool,
    supports_grammar_overlap: bool,
) -> str:
    """Return why the last result must be processed before ``batch`` is launched, or nothing.

    SGLang (``managers/scheduler.py``) has two reasons. A prefill follows a prefill and the option
    is set (``SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP``): the first tokens are sent sooner. Or a
    decode batch has drafts and a grammar, and its algorithm does not overlap with a grammar. Since
    #31488 that is only NGRAM. (SGLang does not check that the last token is in flight; its
    penalties are one token late.)
    """
    if batch and batch.num_extend_reqs:
        follows_prefill = bool(last_batch and last_batch.num_extend_reqs)
        return "prefill" if disable_consecutive_prefill_overlap and follows_prefill else ""
    algorithm = engine.scheduler.config.speculative_algorithm
    if batch and (algorithm == "NGRAM" or (algorithm and not supports_grammar_overlap)):
        return engine.missing_history(batch)
    return ""
