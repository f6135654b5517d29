"""TensorRT-LLM's overlap loop: launch step N, apply N-1's tokens, sample N, then settle N-1.

The body follows ``_torch/pyexecutor/py_executor.py:_executor_loop_overlap``, line by line. It was
read, not run: its scheduler needs ``tensorrt_llm.bindings``, a compiled package for CUDA. So it is
no part of ``minisched fidelity``.

Like ``overlap``, it has two steps in flight, and a token stays on the device for the next step. The
sampler has one cell for each request's slot, as in the relay ``pool``. The differences:

- *Each* step is launched in two parts. Between them the host waits for the tokens of N-1
  (``_update_requests``). ``overlap`` launches a step as a whole, unless a mask or a penalty needs
  those tokens. So the host pays ``launch sample`` in each step, and the copy and the sampling are
  one chain: a settled step takes max(d, h, c + l + s, (d + h + c) / 2), where the launch l of the
  sampling s is a part of h.
- *Guided decoding* needs no case of its own: when N is sampled, its masks know each token before
  it. The host builds them while the device runs N's forward pass.
- *Drafts* and grammars combine for the same reason, without the barrier of
  ``overlap_drafts.py``.
- *Settled late.* Clients receive the tokens of N-1, and its memory is released, after N is sampled
  (``_process_previous_batch``). ``overlap`` does both in this place, too.
- *Retiring.* A request with its last step launched is ``GENERATION_TO_COMPLETE``. It is in no
  further step. It keeps its row and pages until that step is settled. (``early_exit``, #8587;
  before, each length stop wasted a row, as a stop token still does.)
- *One budget* (``max_num_tokens``) has decodes and prompts in one step. ``overlap`` has steps of
  their own for prompts.
- *Two admission policies.* ``GUARANTEED_NO_EVICT``, the default, admits a request if the pages for
  the rest of every admitted request are left; no request is retracted. ``MAX_UTILIZATION`` admits
  it if its prompt fits, and pauses the newest when pages are short.

These answers differ here: a chunk may end within a page, and prompts are cut without
``enable_chunked_prefill``. A prompt does not wait for an equal prefix that is being computed
(``_beneficial_to_skip``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..scheduler.verify import accepted_tokens
from ..worker import Step
from .design import OTHERS, design

GUARANTEED_NO_EVICT = "vllm,reserves=rest,prompt_pages=settled,output_pages=end"
"""TensorRT-LLM's answers as vLLM's with three changed: both have one budget of tokens."""

MAX_UTILIZATION = "vllm,prompt_pages=settled,output_pages=end"


@design(
    "trtllm_max_utilization",
    follows="TensorRT-LLM _executor_loop_overlap with MAX_UTILIZATION",
    relays=("pool",),
    rules=MAX_UTILIZATION,
)
@design(
    follows="TensorRT-LLM _torch/pyexecutor/py_executor.py:_executor_loop_overlap",
    relays=("pool", "ring", *OTHERS),
    depth=2,
    pins=2,
    rules=GUARANTEED_NO_EVICT,
    refuses={
        "beam search": "it needs disable_overlap_scheduler there (docs/features/sampling.md)",
        "NGRAM": "the host looks the drafts up, and TensorRT-LLM overlaps only with drafters that "
        "run on the device (speculative/interface.py:support_overlap_scheduler)",
    },
)
def trtllm_overlap(engine: Engine, early_exit: bool = True) -> Iterator[ScheduleBatch | NoBatch]:
    """TensorRT-LLM ``py_executor.py:_executor_loop_overlap``. Each ``yield`` ends one turn.

    ``early_exit`` (since #8587): an end by length is foreseen; off, it wastes a row.
    """
    engine.scheduler.decode.overrun = 0 if early_exit else 1
    previous_batch: Step | None = None
    while True:
        engine.recv_requests()
        scheduled_batch = engine.get_next_batch_to_run()  # without the tokens of previous_batch
        step: Step | None = None
        if scheduled_batch:
            engine.must_delay_sample(scheduled_batch)
            step = engine.run_batch(scheduled_batch, delay_sample=True)  # _forward_step
            previous_batch = sample_async(engine, step, previous_batch)
        if previous_batch is not None:
            engine.process_batch_result(previous_batch)  # _process_previous_batch
        elif step is None:
            engine.on_idle()
        previous_batch = step
        yield scheduled_batch


def sample_async(engine: Engine, step: Step, previous: Step | None) -> Step | None:
    """Wait for the tokens of the previous step, and launch the sampling of this one.

    (``_update_requests``, ``guided_decoder.execute``, ``_sample_async``.) Return the previous step,
    which is to be settled; None if it has failed, because its requests end first
    (``_handle_errors``).
    """
    newest: Mapping[str, Sequence[int]] = {}
    if previous is not None:
        result = engine.wait_for(previous)
        if result.error:
            engine.process_result(previous, result)
            previous = None
        else:
            newest = accepted_tokens(previous.batch, result)
    if engine.needs_mask(step):
        engine.update_vocab_mask(step, newest)
    engine.launch_batch_sample_if_needed(step)
    return previous
