"""SGLang's figures: the overlap event loop, and the FutureMap between two steps."""

from __future__ import annotations

from ...core import ModelWorkerBatch
from ...engine.engine import Engine
from ...relay.future_map import FutureMapRing
from ..layout import steady_steps
from ..recipes import trace_of
from ..story import ON_DEVICE, Actor, Story, to_story

EVENT_LOOP = Story(
    actors={
        "scheduler": Actor("Scheduler", "host"),
        "queue": Actor("result_queue", "host"),
        "worker": Actor("forward stream", "device"),
        "copy": Actor("copy stream", "device"),
    },
    says={
        **ON_DEVICE,
        "schedule": [
            "scheduler -> scheduler: recv_requests(), get_next_batch_to_run()",
            "scheduler: schedule\n{ms} ms",
        ],
        "prepare": ["scheduler: prepare {step}\n{ms} ms"],
        "launch": ["scheduler: launch {step}\n{ms} ms"],
        "put": [
            "scheduler ->> worker: run_batch({step}), does not wait",
            "scheduler -> queue: append {step}, now: {queue}",
        ],
        "take": ["queue --> scheduler: popleft: {step}, left: {queue}"],
        "wait": ["scheduler: synchronize on copy_done of {step}\n{ms} ms"],
        "process": [
            "copy ->> scheduler: copy_done: tokens of {step} are on the host",
            "scheduler -> scheduler: process_batch_result({step})",
            "scheduler: process {step}\n{ms} ms",
        ],
        "output": [
            "scheduler: output of {step}\n{ms} ms",
            "scheduler -> scheduler: launch_batch_sample_if_needed(): no sampling is delayed here",
        ],
    },
    code={
        "recv_requests": Engine.recv_requests,
        "launch_batch_sample_if_needed": Engine.launch_batch_sample_if_needed,
        "get_next_batch_to_run": Engine.get_next_batch_to_run,
        "run_batch": Engine.run_batch,
        "process_batch_result": Engine.process_batch_result,
    },
)

FUTURE_MAP = Story(
    actors={
        "scheduler": Actor("Scheduler", "host"),
        "map": Actor("token_ids_map\\n(FutureMap)", "relay"),
        "worker": Actor("forward stream", "device"),
        "copy": Actor("copy stream", "device"),
    },
    says={
        **ON_DEVICE,
        "mark future slots": [
            "scheduler -> map: alloc_future_indices(): slots {slots} for the tokens of {step}",
            "scheduler -> scheduler: input_ids of {step}: minus ({reads})",
        ],
        "launch": ["scheduler: launch {step}\n{ms} ms"],
        "put": ["scheduler ->> worker: step {step}"],
        "relay": ["map --> worker: resolve_future: slots {reads} hold the tokens of {src}"],
        "sample end": [
            "worker -> map: store_to_map: slots {slots}",
            "worker ->> copy: tokens of {step}",
        ],
        "process": ["copy ->> scheduler: tokens of {step}", "scheduler: process {step}\n{ms} ms"],
    },
    code={
        "alloc_future_indices": FutureMapRing.alloc_future_indices,
        "input_ids": ModelWorkerBatch,
        "resolve_future": FutureMapRing.resolve_future,
        "store_to_map": FutureMapRing.store_to_map,
    },
)


def event_loop() -> str:
    """Two settled turns: what the host does while the device runs a step."""
    trace = trace_of("overlap")
    title = "SGLang event_loop_overlap: the host works on the steps before and after"
    return to_story(trace, EVENT_LOOP, *(steady_steps(trace, 2) or (1, 2)), title)


def future_map() -> str:
    """Three steps with a ring for two requests: the third one's slots are the first one's again."""
    title = "SGLang FutureMap: a token reaches the next step without the host"
    trace = trace_of("future_map")
    first, _ = steady_steps(trace, 3) or (1, 3)
    return to_story(trace, FUTURE_MAP, first, first + 2, title)


PICTURES = {
    "sglang_cpu_gpu_overlap_event_loop": event_loop,
    "sglang_futuremap_overlap": future_map,
}
