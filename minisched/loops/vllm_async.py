"""vLLM's async scheduling: a request is scheduled again before its last token is known.

The loop is the batch queue of ``vllm.py``; it may schedule more requests. A relay brings a token to
the next step on the device, so the scheduler does not need it. It adds a step's tokens to
``num_computed_tokens`` at launch, and one *output placeholder* to every request but a prompt in
chunks. The result removes the placeholder. So two batches in flight are two steps of the same
requests, and the host works while the device runs, as in ``overlap``.

Placeholders decide which requests can run. A request is left out if its tokens in flight reach its
length (``is_length_foreseen``). A request with a stop token in flight is in one more batch, and
wastes that row. Computed positions less placeholders were computed from tokens that the host knows;
only those may be hashed for the prefix cache (``memory/prefix_cache.py``).
"""

from __future__ import annotations

from ..core import Request
from ..engine.engine import Engine
from .design import design
from .vllm import NO_BEAMS, vllm_batch_queue


def is_length_foreseen(req: Request) -> bool:
    """Return whether a running request is left out, because its tokens in flight reach its length.

    ``num_computed_tokens + 2 - num_output_placeholders >= num_prompt_tokens + max_tokens``, where
    there are placeholders (vLLM ``v1/core/sched/scheduler.py:schedule``). It counts on one new
    token of what is in flight, because drafts may be rejected.
    """
    placeholders = req.num_output_placeholders
    return placeholders > 0 and req.computed_len + 2 - placeholders >= req.max_device_len


def count_placeholders(engine: Engine, depth: int) -> None:
    """Let placeholders decide which requests can run, with two batches in flight, as in vLLM.

    vLLM does not offer more batches (``depth``). With them its rule would let a request run up to
    ``depth - 2`` steps too far. So every token in flight counts here.
    """
    if depth <= 2:
        engine.scheduler.decode.ends_in_flight = is_length_foreseen


design(
    "vllm_async",
    follows="vLLM v1/core/sched/async_scheduler.py, with step_with_batch_queue",
    relays=("prev_sampled", "request_state", "pool", "token_pool", "ring", "fill_device"),
    begins=count_placeholders,
    refuses={
        "NGRAM": "async scheduling leaves the newest tokens on the device, so vLLM takes only "
        "drafters that run there: EAGLE, MTP, a draft model, ngram_gpu (config/vllm.py)",
        **NO_BEAMS,
    },
)(vllm_batch_queue)
