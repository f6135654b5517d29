"""Lesson 12, your engine: idle time, the call that blocks, and whether steps overlap at all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

from ...checks.overlap import forwards, union
from ...devices.cost import MILLISECOND
from ...trace import Edge, Slice, Trace
from ...trace.events import is_host
from ..exercise import Exercise, Pure
from ..runs import Box, boxes, simulate

Op = tuple[str, float, float]
Call = tuple[str, str, float]
Launched = tuple[int, int, int]

# -- Traces of real engines, with their sources in ``traces/README.md`` ----------------------------

PROFILES = {
    "sglang_decode": "SGLang: one decode step",
    "sglang_extend": "SGLang: one step of prompts",
    "vllm_decode": "vLLM: one decode step",
    "vllm_mixed": "vLLM: one step of prompts and decodes",
    "two_gpus": "PyTorch on two GPUs: one of them",
}


def profile_path(name: str) -> Path:
    """The file of one of ``PROFILES``: torch.profiler's, or of ``two_gpus`` Nsight Systems'.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in PROFILES:
        raise ValueError(f"there is no profile {name!r}; there are {', '.join(PROFILES)}.")
    (path,) = (Path(__file__).parents[1] / "traces").glob(f"{name}.*")
    return path


@cache
def profile(name: str) -> Trace:
    """Return a profile as ``minisched check`` reads it, under its title.

    It has no arrows: there would be one for each of hundreds of kernels.

    Raises:
        ValueError: there is none of that name.
    """
    from ...checks.foreign import read_foreign  # it needs sqlite3, which a browser's Python lacks

    return replace(read_foreign(profile_path(name)).trace, loop=PROFILES[name], edges=())


def joined(trace: Trace, gap_ms: float = 0.0016) -> Trace:
    """Return a profile for a picture of all of it: neighbours of one name are one slice.

    Slices of a lane are joined where less than ``gap_ms`` lies between them: no picture shows it.
    """
    found, newest = list[Slice](), dict[str, int]()
    for item in trace.slices:
        at = newest.get(item.lane)
        if at is not None and found[at].name == item.name:
            before = found[at]
            if item.start - before.end < gap_ms * MILLISECOND:
                found[at] = replace(before, end=max(before.end, item.end))
                continue
        newest[item.lane] = len(found)
        found.append(item)
    return replace(trace, slices=tuple(found))


def readable_profiles() -> list[Trace]:
    """All of them; none in a browser, where only what was made by hand is checked."""
    return [profile(name) for name in PROFILES] if find_spec("_sqlite3") else []


def host_calls(trace: Trace) -> list[tuple[str, str, float]]:
    """The calls of a profile's host, in order: what was called, inside of what, and how many ms."""
    return [
        (str(item.attrs["call"]), str(item.attrs.get("within", "")), item.duration / MILLISECOND)
        for item in trace.slices
        if "call" in item.attrs
    ]


def device_ops(trace: Trace) -> list[tuple[str, float, float]]:
    """The kernels and copies of a profile's device: the stream, start and end in ms."""
    return [
        (item.lane, item.start / MILLISECOND, item.end / MILLISECOND)
        for item in trace.slices
        if not is_host(item.lane)
    ]


# -- How idle the device is ------------------------------------------------------------------------

SMALL: tuple[list[Op], ...] = (
    [("forward", 0, 10)],
    [("forward", 0, 10), ("forward", 20, 30)],
    [("forward", 0, 20), ("copy", 10, 30)],
    [("forward", 0, 30), ("copy", 10, 20), ("forward", 40, 50)],
    [("copy", 25, 30), ("forward", 5, 10), ("forward", 10, 15)],
    [("copy", 0, 10), ("copy", 0, 10), ("forward", 20, 30)],
)


def ops_of_devices() -> Iterator[tuple[list[Op]]]:
    """By hand, then drawn, then the real ones."""
    random = Random(0)
    drawn: list[list[Op]] = [
        [
            (
                random.choice(("forward", "copy", "copy 2")),
                start,
                start + random.randint(1, longest),
            )
            for start in (random.randrange(60) for _ in range(8))
            for longest in (random.choice((9, 9, 9, 60)),)  # some ops hide several others
        ]
        for _ in range(40)
    ]
    every: list[list[Op]] = [*SMALL, *drawn]
    for ops in every + [device_ops(trace) for trace in readable_profiles()]:
        yield (ops,)


def idle_share(ops: list[Op]) -> float:
    """Return the share of the time in which no op runs."""
    busy = union(
        Slice(0, lane, lane, round(start * MILLISECOND), round(end * MILLISECOND), 0)
        for lane, start, end in ops
    )
    whole = busy[-1][1] - busy[0][0]
    return (whole - sum(end - start for start, end in busy)) / whole


def draw_ops(share: Any, ops: list[Op]) -> str:
    """A few ops on their streams."""
    some = ((lane, lane, start, end, at) for at, (lane, start, end) in enumerate(sorted(ops), 1))
    return boxes("what runs when", *some) if len(ops) <= 10 else ""


# -- Which call blocks -----------------------------------------------------------------------------

CALLS = ("cudaLaunchKernel", "cudaMemset", "cudaEventRecord", "cudaMemcpyAsync", "hipMemcpyAsync",
         "cuMemcpyDtoHAsync_v2", "cudaMemcpy", "hipMemcpyWithStream", "cuMemcpyDtoH_v2",
         "cudaStreamSynchronize", "cudaEventSynchronize")  # fmt: skip
PLACES = ("aten::to", "Async Memcpy Synchronize")
BLOCKS = re.compile(r".*Synchronize|.*Memcpy(?!.*Async).*")


def calls_of_hosts() -> Iterator[tuple[list[Call]]]:
    """By hand, then the real ones."""
    launch, sync = ("cudaLaunchKernel", "aten::mul"), ("cudaEventSynchronize", "process")
    yield ([(*launch, 0.5), (*sync, 3.0)],)
    yield ([("cudaGraphLaunch", "replay", 4.0), (*sync, 3.0)],)
    yield ([("cudaDeviceSynchronize", "a", 3.0), (*sync, 2.0), (*launch, 9.0), (*sync, 2.0)],)
    yield ([("cudaMemcpyAsync", "copy", 5.0), ("cudaMemcpy", "aten::item", 1.0)],)
    yield ([("cudaMemcpy", "a", 2.0), ("cudaMemcpy", "b", 2.0), (*sync, 3.0)],)
    random = Random(0)
    yield ([("cudaMemcpy", "a", 0.4), ("cudaMemcpy", "a", 0.45), (*sync, 1.1)],)
    yield ([(*sync, 0.011), *[("cudaMemcpy", "a", 0.004)] * 3],)
    yield ([("cudaMemcpy", "a", 2.0), (*sync, 3.0), ("cudaMemcpy", "a", 2.0)],)
    yield ([(*sync, 0.001)],)
    yield ([(*sync, 0.001), *[("cudaMemcpy", "a", 0.0004)] * 3],)
    yield ([],)
    for size in range(80):
        parts = [2.0**-at for at in random.sample(range(1, 20), 1 + size // 8)]
        # No two sums are equal, and several short calls may take longer than one.
        times = [(random.randint(1, 9) + part) / (1, 99)[size % 2] for part in parts]
        names = random.sample(CALLS, 4)
        yield ([(random.choice(names), random.choice(PLACES), time) for time in times],)
    for trace in readable_profiles():
        yield (host_calls(trace),)


def longest_wait(calls: list[Call]) -> tuple[str, str] | None:
    """The call, and what it was inside of, in which the host was blocked for the longest."""
    blocked = Counter[tuple[str, str]]()
    for call, within, ms in calls:
        if BLOCKS.fullmatch(call):
            blocked[call, within] += ms  # type: ignore[assignment]
    return blocked.most_common(1)[0][0] if blocked else None


def draw_calls(answer: Any, calls: list[Call]) -> str:
    """Draw a few calls in order; those that block are waits."""
    ends = list(accumulate(ms for _, _, ms in calls))
    some = (
        ("host", "wait" if BLOCKS.fullmatch(call) else "launch", end - ms, end, at)
        for at, ((call, _, ms), end) in enumerate(zip(calls, ends, strict=True), 1)
    )
    return boxes("what the host calls", *some) if len(calls) <= 6 else ""


# -- Whether steps overlap -------------------------------------------------------------------------

LOOPS = ("serial", "overlap", "vllm_step", "vllm_async", "mindie_placeholder", "multi_step")


LATE = [(0, 5_000, 900_000), (950_000, 955_000, 1_800_000), (1_500_000, 1_800_000, 2_700_000)]
"""Steps that begin 5 us after their launch, though the device is idle; the last is ahead."""
TWO_STREAMS = [(0, 5_000, 900_000), (10_000, 15_000, 500_000), (600_000, 610_000, 990_000)]
"""The second step ends before the first; the third is launched between their ends."""


@cache
def steps_of(loop: str, device_ms: int) -> list[Launched]:
    """Of each step of a short run, when it was launched, began and ended, in ns."""
    trace = simulate(loop, device_ms=device_ms, requests=1, new_tokens=8).trace
    launched = {item.step: item.end for item in trace.on("host") if item.name == "launch"}
    return [(launched[item.step], item.start, item.end) for item in forwards(trace)]


def steps_of_runs() -> Iterator[tuple[list[Launched]]]:
    """Every loop with a device that is slower than the host, with one that is faster; by chance."""
    yield from ((steps_of(loop, 10),) for loop in LOOPS)
    yield from ((LATE,), (LATE[:1],), ([],), (TWO_STREAMS,))
    random = Random(0)
    for size in range(20):
        steps, launched, ended = list[Launched](), 0, 0
        for _ in range(2 + size // 4):
            launched += random.randint(1, 6)
            began = max(launched, ended) + random.randint(0, 2)
            ended = began + random.randint(1, 6)
            steps.append((launched, began, ended))
        unit = (1, 1000)[size % 2]
        yield ([tuple(unit * time for time in step) for step in steps],)  # type: ignore[misc]
    yield from ((steps_of(loop, 3),) for loop in LOOPS)


def many_ahead(steps: list[Launched]) -> int:
    """How many steps were launched before the one before them had ended."""
    return sum(later[0] < earlier[2] for earlier, later in pairwise(steps))


def draw_steps(answer: Any, steps: list[Launched]) -> str:
    """When each was launched, and when it ran; arrows lead from the one to the other."""
    some, edges = list[Box](), list[Edge]()
    for at, (launched, *ran) in enumerate(steps, 1):
        when, (began, ended) = launched / MILLISECOND, (time / MILLISECOND for time in ran)
        some.append(("host", "launch", max(0, when - 0.3), when, at))
        some.append(("forward", "forward", began, ended, at))
        edges.append(Edge(2 * at - 1, 2 * at, "launch"))
    return boxes(f"{many_ahead(steps)} of them were launched ahead", *some, edges=edges)


EXERCISES = (
    Exercise(
        name="bubble_fraction",
        hole=Pure(ops_of_devices, idle_share, 1e-6, "as a share of the time", draw=draw_ops),
        solution="""
            def bubble_fraction(ops):
                first = done = min(start for stream, start, end in ops)
                idle = 0
                for stream, start, end in sorted(ops, key=lambda op: op[1]):
                    idle += max(0, start - done)
                    done = max(done, end)
                return idle / (done - first)
        """,
        hints=(
            "A copy may run beside a kernel: their time must not be counted twice.",
            "Go through the ops by their start, and remember until when the device is busy.",
            "A gap is there where an op starts later than all before it have ended.",
        ),
        why=(
            "A device is idle when none of its streams has anything. Sorted by start, one number "
            "is enough to know that: the latest end so far. The same pass finds the gaps "
            "themselves, and with them the op that came too late."
        ),
    ),
    Exercise(
        name="blocking_call",
        hole=Pure(calls_of_hosts, longest_wait, draw=draw_calls),
        solution="""
            def blocking_call(calls):
                blocked = {}
                for call, within, ms in calls:
                    if call.endswith("Synchronize") or ("Memcpy" in call and "Async" not in call):
                        blocked[call, within] = blocked.get((call, within), 0) + ms
                return max(blocked, key=blocked.get) if blocked else None
        """,
        hints=(
            "Launching may take long, and is not waiting. Which calls return only when the device "
            "is done?",
            "`...Synchronize`, and a `Memcpy` without `Async`. There may be none.",
            "Add up the milliseconds of each pair of call and place, and take the largest.",
        ),
        why=(
            "A launch that takes long costs the host, but the device goes on. A call that waits "
            "for the device empties its queue: when it returns, nothing is launched, and what the "
            "host does next is a bubble. So look not for the longest call, but for the longest "
            "that waits."
        ),
    ),
    Exercise(
        name="launched_ahead",
        hole=Pure(steps_of_runs, many_ahead, draw=draw_steps),
        solution="""
            def launched_ahead(steps):
                pairs = zip(steps, steps[1:])
                return sum(later[0] < earlier[2] for earlier, later in pairs)
        """,
        hints=(
            "A step is launched ahead if it was launched before the step in front of it had ended.",
            "`zip(steps, steps[1:])` gives each step with the next one.",
        ),
        why=(
            "Overlap is not an option that is set, it is an order in the trace: this step was "
            "launched before that one ended. Where it never is, the device has nothing to go on "
            "with, whatever the log claims. `minisched check` asks the same of a file with three "
            "steps or more."
        ),
    ),
)  # fmt: skip
