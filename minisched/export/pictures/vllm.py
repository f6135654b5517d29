"""vLLM's figure: the batch queue, filled before it is harvested."""

from __future__ import annotations

from ...loops.vllm import execute_model, update_from_output
from ...relay.prev_sampled import PrevSampled
from ...scheduler import Scheduler
from ..layout import make_view
from ..puml_story import Chapter, to_chapters
from ..story import Actor, Story
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
            "core ->> worker: execute_model({step}, non_block=True); "
            "prev_sampled_token_ids: {path}, {new} ids from the host"
        ],
        "launch": ["core: launch {step}\n{ms} ms"],
        "put": ["core -> queue: appendleft the Future of {step}, in flight: {queue}"],
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
        "execute_model": execute_model,
        "schedule": Scheduler.next_batch,
        "update_from_output": update_from_output,
        "prev_sampled_token_ids": PrevSampled,
    },
)


FIRST = {  # in the same moment the next turn begins, so it is told with the launch
    "launch": [
        *BATCH_QUEUE.says["launch"],
        "core -> queue: appendleft the Future of {step}, in flight: {step}",
        "core -> core: there is room: return without waiting",
    ]
}
SECOND = {"put": [], "put 1 2": BATCH_QUEUE.says["put"]}


def batch_queue() -> str:
    """The first turns with async scheduling, the default on one device: fill, then harvest."""
    trace = run_of("vllm_async")
    _, second, third = [item.start for item in trace.on("host") if item.name == "schedule"][:3]
    end = next(item.end for item in trace.on("host") if item.name == "wait" and item.step == 2)
    chapters = [
        Chapter("The queue is empty: fill it", make_view(trace, 0, second, 1, 1), FIRST),
        Chapter("It is full: block on the oldest", make_view(trace, second, third, 1, 2), SECOND),
        Chapter("And so on: launch N+1, block on N", make_view(trace, third, end, 2, 3), {}),
    ]
    title = "vLLM step_with_batch_queue: fill the queue, then launch N+1 and block on N"
    return to_chapters(BATCH_QUEUE, chapters, title)


PICTURES = {"vllm_cpu_gpu_overlap_batch_queue": batch_queue}
