"""MLX's figure: two lazy graphs in flight."""

from __future__ import annotations

from ...devices.base import Device
from ...loops.mlx_async import MlxTpModelWorker
from ..recipes import trace_of
from ..story import Actor, Story, to_story

TWO_GRAPHS = Story(
    actors={
        "loop": Actor("Scheduler\\nmlx_async", "host"),
        "jobs": Actor("Graphs in flight\\npending_curr, pending_next", "relay"),
        "device": Actor("Device", "device"),
    },
    says={
        "schedule": ["loop: commit the next step\n{ms} ms"],
        "launch": ["loop: build the graph of {step}\n{ms} ms"],
        "put": ["loop ->> jobs: async_eval(tokens of {step}, caches): in flight {queue}"],
        "take": ["jobs --> loop: finalize {step}, left: {queue}"],
        "wait": ["loop: block on the tokens of {step}\n{ms} ms"],
        "process": ["device ->> loop: tokens of {step}", "loop: process {step} ({rids})\n{ms} ms"],
        "mark wasted row": ["loop -> loop: {rid} has ended: its row of {step} was wasted"],
        "relay": ["jobs -> device: {step} was built on the lazy tokens of {src}"],
        "forward": ["device: forward {step} ({rids})\n{ms} ms"],
        "sample": ["device: sample {step}\n{ms} ms"],
    },
    code={"async_eval": Device.flush, "finalize": MlxTpModelWorker.finalize_mlx_result},
)


def two_graph_chain() -> str:
    """Two chained steps, of which the first ends a request; and the fresh one after them."""
    trace = trace_of("lazy_chain")
    wasted = min(int(mark.attrs["step"]) for mark in trace.marks if mark.name == "wasted row")
    return to_story(
        trace,
        TWO_GRAPHS,
        wasted - 1,
        wasted + 1,
        title="MLX: two lazy graphs in flight, until a request ends",
    )


PICTURES = {"mlx_two_graph_chain": two_graph_chain}
