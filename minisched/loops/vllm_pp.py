"""vLLM over the stages of a pipeline: the batch queue is as deep as there are stages.

Every token comes over the host, so no request is in two batches at once: each stage works on other
requests. The loop is that of ``vllm.py``; what is here is how deep it is, and of which ops a step
is made (``worker/pipeline.py``).
"""

from __future__ import annotations

from typing import Any

from ..scheduler.config import ALGORITHMS
from ..worker.pipeline import pipeline
from .design import design
from .vllm import vllm_batch_queue


def over_stages(stages: int) -> dict[str, Any]:
    """The design over so many pipeline stages; follows ``v1/worker/gpu_worker.py``.

    ``max_concurrent_batches`` is the number of stages where async scheduling is off: a stage is
    busy all the time only if every stage has a batch, and no request may be in two of them, since
    its next token is known when the last stage has sampled it. In steady state a step takes
    ``max(slowest stage, h, c, latency / batches in flight)``, with the copy c of its tokens to the
    host; the latency is that of all stages, the copy and the host, and a single request pays all
    of it for every token. Requests that come together share a batch, and leave the other stages
    idle.
    """
    return {
        "follows": "vLLM v1/engine/core.py:step_with_batch_queue, v1/worker/gpu_worker.py",
        "depth": stages,
        "options": {"depth": stages},
        "recipe": pipeline(stages),
        "refuses": {
            "other relays": "every token over the host: its first stage reads before the last one "
            "has sampled",
            "real devices": "its stages are streams of the simulated device, which alone has a "
            "model cut into layers",
            **dict.fromkeys(
                ALGORITHMS,
                "drafts are made behind the last stage, and the first one would have to get them; "
                "vLLM does not combine them (docs/features/speculative_decoding; of late EAGLE 3 "
                "alone)",
            ),
        },
    }


design("vllm_pp2", **over_stages(2))(vllm_batch_queue)
design("vllm_pp4", **over_stages(4))(vllm_batch_queue)
