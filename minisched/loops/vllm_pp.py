"""vLLM with pipeline parallelism: the batch queue as deep as there are stages."""

from __future__ import annotations

from functools import partial

from ..worker.pipeline import PipelineWorker
from . import refused
from .spec import LoopSpec
from .vllm_batch_queue import vllm_batch_queue

ONLY = "its stages are streams of the simulated device, which alone has a model cut into layers"
TAKES = "every token over the host: its first stage reads before the last one has sampled"


def vllm_pp(stages: int) -> LoopSpec:
    """vLLM ``v1/engine/core.py:step_with_batch_queue`` over so many pipeline stages.

    ``max_concurrent_batches`` is the number of stages where async scheduling is off: a stage is
    busy all the time only if every stage has a batch, and no request may be in two of them, since
    its next token is known when the last stage has sampled it. In steady state a step takes
    ``max(slowest stage, h, c, latency / batches in flight)``, with the copy c of its tokens to the
    host; the latency is that of all stages, the copy and the host, and a single request pays all
    of it for every token. Requests that come together share a batch, and leave the other stages
    idle.
    """
    return LoopSpec(
        vllm_batch_queue, depth=stages, relays=("host",), options={"depth": stages},
        rules="vllm", settings={"keep_stale_outputs": True},
        worker=partial(PipelineWorker, stages=stages),
        takes=TAKES, devices=("sim",), only=ONLY, refuses=refused.VLLM_PP,
        source="vLLM v1/engine/core.py:step_with_batch_queue, v1/worker/gpu_worker.py",
    )  # fmt: skip
