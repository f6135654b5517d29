"""vLLM's async scheduling: a request is scheduled again before its last token is known.

The loop is the batch queue of ``vllm.py``. What is new is which requests it may schedule. A relay
brings a token to the next step on the device, so the scheduler need not have it: it adds the tokens
of a step to ``num_computed_tokens`` at once, and to every request that is not a prompt in chunks
one *output placeholder*, which the result takes off again. So two batches in flight are two steps
of the same requests, and the host's work is hidden behind the device, as in ``overlap``.

Placeholders decide who may run. A request whose tokens in flight reach its length is left out
(``is_length_foreseen``); who reads a stop token is in one more batch, and that row is wasted. What
is computed, less the placeholders, is what was computed from tokens that the host knows: only that
may be hashed for the prefix cache (``memory/prefix_cache.py``).
"""

from __future__ import annotations

from ..core import Request
from ..engine.engine import Engine
from .design import design
from .vllm import vllm_batch_queue


def is_length_foreseen(req: Request) -> bool:
    """Whether a running request is left out, because what is in flight will reach its length.

    ``num_computed_tokens + 2 - num_output_placeholders >= num_prompt_tokens + max_tokens``, where
    there are placeholders (vLLM ``v1/core/sched/scheduler.py:schedule``). It counts on one new
    token of what is in flight, because drafts may be rejected.
    """
    placeholders = req.num_output_placeholders
    return placeholders > 0 and req.computed_len + 2 - placeholders >= req.max_device_len


def count_placeholders(engine: Engine, depth: int) -> None:
    """Let placeholders decide who may run, with two batches in flight, as vLLM has.

    With more of them (``depth``, which vLLM does not offer) its rule lets a request run up to
    ``depth - 2`` steps too far, and what counts is every token that is in flight.
    """
    if depth <= 2:
        engine.scheduler.decode.ends_in_flight = is_length_foreseen


design(
    "vllm_async",
    follows="vLLM v1/core/sched/async_scheduler.py, with step_with_batch_queue",
    relays=("prev_sampled", "pool", "token_pool", "ring", "fill_device"),
    begins=count_placeholders,
    refuses={
        "NGRAM": "async scheduling leaves the newest tokens on the device, so vLLM takes only "
        "drafters that run there: EAGLE, MTP, a draft model, ngram_gpu (config/vllm.py)"
    },
)(vllm_batch_queue)
