"""vLLM's figure: the batch queue, filled before it is harvested."""

from __future__ import annotations

from ...loops.vllm_step import update_from_output
from ...relay.prev_sampled import PrevSampled
from ...scheduler import Scheduler
from ..puml_story import to_story
from ..story import Actor, Story
from ..window import steady_steps
from .runs import run_of
from .words import ON_DEVICE

BATCH_QUEUE = Story(
    actors={
        "core": Actor("EngineCore", "host"),
        "scheduler": Actor("AsyncScheduler", "host"),
        "queue": Actor("batch_queue", "host"),
        "worker": Actor("GPU worker", "device"),
        "copy": Actor("copy stream", "device"),
    },
    says={
        **ON_DEVICE,
        "schedule": ["core -> scheduler: schedule()", "scheduler: schedule\n{ms} ms"],
        "prepare": ["core: prepare inputs of {step}\n{ms} ms"],
        "mark prev sampled": [
            "core ->> worker: inputs of {step}: {path} from prev_sampled_token_ids, "
            "{new} ids from the host"
        ],
        "launch": ["core: launch {step}\n{ms} ms"],
        "put": ["core -> queue: appendleft {step}, in flight: {queue}"],
        "take": ["queue --> core: pop {step}, in flight: {queue}"],
        "wait": ["core: block on {step}\n{ms} ms"],
        "process": [
            "copy ->> core: tokens of {step}",
            "core -> scheduler: update_from_output({step})",
            "scheduler: one placeholder less\nfor {rids}\n{ms} ms",
        ],
        "output": ["core: output of {step}\n{ms} ms"],
    },
    code={
        "schedule": Scheduler.next_batch,
        "update_from_output": update_from_output,
        "prev_sampled_token_ids": PrevSampled,
    },
)


def batch_queue() -> str:
    """Two settled turns with async scheduling, which is the default, on one device."""
    trace = run_of("vllm_async")
    title = "vLLM step_with_batch_queue: launch N+1, then block on N"
    return to_story(trace, BATCH_QUEUE, *(steady_steps(trace, 2) or (1, 2)), title)


PICTURES = {"vllm_cpu_gpu_overlap_batch_queue": batch_queue}
