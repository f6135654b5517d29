"""Simulated steps next to a drawing of them as profilers show steps; no GPU was measured.

A profiler knows no phases and no steps. It records ranges (if the engine sets some), calls into the
CUDA runtime, kernels and copies, with a row for each thread and stream. ``ROWS`` lists which of
them stand for which phase of a step. The times are those of the simulated run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..checks.overlap import intersection, union
from ..trace import Trace
from .layout import View, shown
from .runs import LEGEND, lanes_of
from .scene import LaneItem, LaneRow, Lanes, Part, Scene
from .units import ms

Calls = Mapping[str, Sequence[str]]  # its name -> phases or ops; the first gives the look
RUNTIME = {"cudaGraphLaunch": ["launch"], "cudaEventSynchronize": ["wait"]}
COPY = {"Memcpy DtoH": ["copy"]}
PROFILERS: dict[str, Mapping[str, Calls]] = {  # rows of each profiler, and their calls
    "Nsight Systems": {
        "NVTX ranges, if set": {
            name: [name] for name in ("receive", "schedule", "prepare", "process", "output")
        },
        "CUDA API": RUNTIME,
        "Kernels, stream 7": {"CUDA graph": ["forward"], "argmax": ["sample"]},
        "Memory, stream 13": COPY,
    },
    "torch.profiler": {
        "python_function": {
            "get_next_batch_to_run": ["schedule"],
            "run_batch": ["prepare", "launch"],
            "process_batch_result": ["process", "wait", "output"],
        },
        "cuda_runtime": RUNTIME,
        "kernel, stream 7": {"gemm, attention, …": ["forward"], "argmax": ["sample"]},
        "gpu_memcpy, stream 13": COPY,
    },
}
NAMED = {
    **LEGEND, "schedule": "schedule: get_next_batch_to_run", "prepare": "prepare: run_batch",
    "launch": "launch: cudaGraphLaunch", "process": "process: process_batch_result",
    "wait": "wait: cudaEventSynchronize", "copy": "copy: Memcpy DtoH", "sample": "sample: argmax",
}  # fmt: skip


def as_profiled(trace: Trace, count: int = 3) -> Scene:
    """Draw ``count`` settled steps as simulated, and as the two profilers show them.

    Raises:
        NothingToShow: no step ran.
    """
    view = shown(trace, count)
    lanes = lanes_of(view, view.duration)
    parts = [Part("As simulated", f"steps {view.first_step} to {view.last_step}", [lanes])]
    for name, rows in PROFILERS.items():
        drawn = [LaneRow(row, items_of(lanes, calls)) for row, calls in rows.items()]
        parts.append(Part(f"As {name} would show it", "a drawing: no GPU was measured",
                          [Lanes(drawn, view.duration)]))  # fmt: skip
    about = (
        f"{trace.loop}, {trace.what_ran}; names are drawn as profilers have them, times are ours"
    )
    note = (
        "A profiler numbers no steps: the range around a launch names the step of its kernels. The "
        "wait for a step's tokens is cudaEventSynchronize, within process_batch_result."
    )
    return Scene(finding(view), about, parts, NAMED, [note])


def items_of(lanes: Lanes, calls: Calls) -> list[LaneItem]:
    """Return the items of a profiler's row, by the profiler's names, one for each call."""
    called = {kind: (call, kinds[0]) for call, kinds in calls.items() for kind in kinds}
    items = [item for row in lanes.rows for item in row.spans if item.kind in called]
    found = list[LaneItem]()
    for item in sorted(items, key=lambda item: item.start):
        call, look = called[item.kind]
        if found and found[-1].end == item.start and found[-1].label == call:
            found[-1] = replace(found[-1], end=item.end)
        else:
            brief = call.removeprefix("cuda").replace("process_batch_result", "process result")
            about = f"{call}, from {ms(item.start)} ms on"
            found.append(LaneItem(look, item.start, item.end, call, brief, about, item.data))
    return found


def finding(view: View) -> str:
    """Write how long the host is blocked, and whether the device works meanwhile."""
    waits = union(item for item in view.slices if item.name == "wait")
    works = union(item for item in view.slices if item.name in ("forward", "sample"))
    shown = ((view.start, view.end),)
    waits = intersection(waits, shown)
    blocked = sum(end - start for start, end in waits)
    busy = sum(end - start for start, end in intersection(waits, works))
    where = f"{ms(busy)} of it " * (busy != blocked) + "while the device works"
    return f"In a profile the host is blocked for {ms(blocked)} of {ms(view.duration)} ms, {where}"
