"""Traces of other programs: read as far as they carry the lanes, judged, and refused in a sentence.

In ``profiles/``, ``torch_*`` and ``nsys_*`` are runs of our own as these profilers would have seen
them, with ``facts`` of the run. The others have the structure of one step each of SGLang and vLLM
on MI300X, kernels are fewer; ``oracle`` is what Meta's HolisticTraceAnalysis 0.5.0 says of idle
time (``get_temporal_breakdown``, and ``get_idle_time_breakdown`` by stream; exact:
``HTA_DISABLE_NS_ROUNDING=1``).
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minisched as ms
from minisched.checks.ahead import overlap_verdict
from minisched.checks.causes import idle_gaps, launches
from minisched.checks.findings import OverlapFindings, report
from minisched.checks.foreign import NotAProfile, read_foreign
from minisched.checks.overlap import length, union
from minisched.checks.profiled import is_step
from minisched.checks.speed import blocked_words, busy_words, idle_words
from minisched.export.chrome import to_chrome
from minisched.export.pictures.waits import run_with
from minisched.trace.events import is_host

PROFILES = Path(__file__).parent / "profiles"
ENGINES = sorted([*PROFILES.glob("sglang_*"), *PROFILES.glob("vllm_*")])
SERIAL = (PROFILES / "torch_serial.json").read_text("utf-8")
ZERO = 4_435_969_168_245_134  # nanoseconds: profilers do not begin at 0
SYNC = "cudaStreamSynchronize"


def put(name: str, folder: Path) -> Path:
    """The file as its profiler gives it; or in gzip, of the name ``gzip_...``."""
    path = folder / name
    if name.startswith("nsys"):
        with closing(sqlite3.connect(path)) as database:
            database.executescript((PROFILES / f"{name}.sql").read_text("utf-8"))
    else:
        data = (PROFILES / f"{name.replace('gzip', 'torch')}.json").read_bytes()
        path.write_bytes(gzip.compress(data) if name.startswith("gzip") else data)
    return path


# -- what a file carries is what ran ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["torch_serial", "torch_overlapped", "torch_partly", "torch_blocked", "gzip_overlapped",
     "nsys_serial", "nsys_blocked"],
)  # fmt: skip
def test_runs_are_told_apart_and_what_blocks_is_named(name: str, tmp_path: Path) -> None:
    """Blocked is vllm-omni #4442: overlap with one blocking read a step is enabled, yet serial."""
    kind = name.partition("_")[2]
    facts = json.loads((PROFILES / f"torch_{kind}.json").read_text("utf-8"))["facts"]
    read = read_foreign(put(name, tmp_path), "launch")  # which is around what a step launches
    found, trace = report(read.trace), read.trace
    told = found.verdict
    assert (read.lacks, told.word, trace.device) == ((), facts["word"], "CUDA")
    assert (told.pairs, told.ahead) == (facts["pairs"], facts["ahead"])
    assert sum(told.blocking.values()) == len(facts["dry_ns"])
    within = f"{SYNC} (aten::item)" if kind == "blocked" else SYNC
    assert {*told.blocking} <= {within} and (within in told.sentence) == bool(told.blocking)
    for lane, ran in (("forward", "forward"), ("device 0 stream 20 copy", "copy")):
        times = [[item.start, item.end, item.step] for item in trace.on(lane)]
        assert times == facts[ran]
    assert [edge.kind for edge in trace.edges].count("launch") == facts["launches"]
    assert found.bubble_ns == facts["idle_ns"] == sum(found.causes.values())
    assert found.causes.get("host wait", 0) == sum(facts["dry_ns"])
    assert {*found.causes} <= {"host wait"}
    assert length(union(i for i in trace.slices if i.name == "wait")) == facts["wait_ns"]
    assert {"schedule", "process", "prepare", "output"} <= {item.name for item in trace.slices}
    assert (found.largest is None) == (kind == "overlapped")
    named = {item.attrs.get("kernel") for item in trace.slices}
    assert "GpuMetrics" not in named, "a copy is not called by the first text of the file"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    path = put("nsys_serial", tmp_path)
    for tables, said in (("RUNTIME", ["no launches", "no blocking calls"]),
                         ("KERNEL MEMCPY GRAPH_TRACE", ["no ops of a device"])):  # fmt: skip
        with closing(sqlite3.connect(path)) as database:
            for name in tables.split():
                database.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{name}")
        theirs = read_foreign(path)
        assert all(word in line for word, line in zip(said, theirs.lacks, strict=False))
        assert theirs.lacks and overlap_verdict(theirs.trace).word == "unknown"


# -- engines: what a step is -----------------------------------------------------------------------

Event = tuple[str, str, float, float, int]  # kind, name, start, end, number of what is launched
TO_HOST = "Memcpy DtoH (Device -> Pageable)"


def judged(path: Path, events: Iterable[Event], step: str = "") -> OverlapFindings:
    """What is said of a file with these events, in microseconds."""
    places: dict[str, Any] = {
        "mark": {"cat": "user_annotation", "pid": 251, "tid": 242},
        "call": {"cat": "cuda_runtime", "pid": 251, "tid": 242},
        "op": {"cat": "kernel", "pid": 9, "tid": 3},
        "copy": {"cat": "gpu_memcpy", "pid": 9, "tid": 3},
    }
    written = []
    for kind, name, start, end, number in events:
        about = {"stream": 3, "device": 9} if kind in ("op", "copy") else {}
        times = {"ts": ZERO // 1000 + start, "dur": end - start}
        args = {**about, "correlation": number} if number else {}
        written.append({"ph": "X", "name": name, **places[kind], **times, "args": args})
    path.write_text(
        json.dumps({"hip_runtime_version": 0, "traceEvents": written}), encoding="utf-8"
    )
    found = read_foreign(path, step)
    return report(found.trace, found.lacks, found.steps)


SPELLINGS = (
    "step[DECODE bs=32]", "step[EXTEND bs=15 toks=15360]", "step[MIXED bs=2]", "step[WEIRD bs=3]",
    "scheduler.run_batch", "execute_context_3(128)_generation_2(2)",
    "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
    "execute_1_context_3(sq128sk256)", "execute_new_1_cached_2", "step", "Step 12", "iteration#3",
    "[Executor] _forward_step 7: 1 ctx reqs, 128 ctx tokens, 2 gen reqs", "ProfilerStep#3",
    "step, op_id = 314290",
)  # fmt: skip
NO_STEPS = ("scheduler.get_next_batch_to_run", "optimizer.step#Adam.step", "decode", "stepper",
            "aten::step", "execute_model", "step forward", "post_step 3")  # fmt: skip


def test_steps_may_be_marked_by_another_thread_than_the_one_that_launches(tmp_path: Path) -> None:
    """As in torch's training: the backward pass is launched by a thread of its own."""
    events = list[Any]()
    for step in range(5):
        at = 10_000 * step
        events += [
            ("user_annotation", f"ProfilerStep#{step}", 7, "", at, at + 9_990, 0),
            ("cuda_runtime", "cudaLaunchKernel", 7, "", at + 10, at + 20, 10 * step + 1),
            ("kernel", "forward", 0, "3", at + 200, at + 3_000, 10 * step + 1),
            ("user_annotation", "backward", 8, "", at + 30, at + 90, 0),
            ("cuda_runtime", "cudaLaunchKernel", 8, "", at + 40, at + 50, 10 * step + 2),
            ("cuda_runtime", "cudaLaunchKernel", 8, "", at + 60, at + 70, 10 * step + 3),
            ("kernel", "backward", 0, "3", at + 3_000, at + 9_000, 10 * step + 2),
            ("kernel", "update", 0, "3", at + 9_000, at + 9_900, 10 * step + 3),
        ]
    read = read_foreign(as_events(tmp_path / "t.json", *events))
    found = report(read.trace, read.lacks, read.steps)
    assert (found.verdict.steps, found.verdict.pairs, found.verdict.ahead) == (5, 4, 0)
    assert "it has 5, the first of which is: ProfilerStep#0." in read.steps
    assert [item.step for item in read.trace.on("forward")] == [
        n for n in range(1, 6) for _ in "abc"
    ]


def test_steps_are_named_by_engines() -> None:
    assert all(map(is_step, SPELLINGS)) and not any(map(is_step, NO_STEPS))


@pytest.mark.parametrize("ahead", [True, False])
def test_marked_steps_are_judged(tmp_path: Path, ahead: bool) -> None:
    """A loop that launches a step of 1 ms before the one before has ended, or only afterwards."""
    events, free, at = list[Event](), 200, 0
    for number in range(2, 12, 2):
        events += [
            ("mark", f"turn {number} of mine", at + 10, at + 90, 0),
            ("call", "hipLaunchKernel", at + 50, at + 55, number),
            ("op", "forward", free, free + 1000, number),
            ("call", "hipMemcpyAsync", at + 60, at + 65, number + 1),
            ("copy", "Memcpy DtoH (Device -> Host)", free + 1000, free + 1005, number + 1),
        ]
        at = free + (500 if ahead else 1100)
        free = max(free + 1005, at + 70)
    found = judged(tmp_path / "t.json", events, "turn * of mine").verdict
    assert (found.pairs, found.ahead) == (4, 4 if ahead else 0)
    assert found.word == ("overlapped" if ahead else "serial")
    assert judged(tmp_path / "t.json", events).verdict.word == "unknown"
    with pytest.raises(NotAProfile, match=r"yours\* names no range around a launch\."):
        judged(tmp_path / "t.json", events, "yours*")


# -- engines: idle time ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ENGINES, ids=lambda path: path.stem)
def test_idle_time_is_the_oracles(path: Path) -> None:
    """On each stream by cause, and over all streams, to the nanosecond."""
    exact, read = (
        json.loads(path.read_text("utf-8"))["oracle"]["exact"],
        read_foreign(path),
    )
    trace, found = read.trace, dict[int, Counter[str]]()
    assert read.lacks == ()
    for lane in {item.lane for item in trace.slices if not is_host(item.lane)}:
        by_cause = found[len(trace.on(lane))] = Counter[str]()
        for gap in idle_gaps(lane, trace.on(lane), launches(trace)):
            by_cause[gap.cause] += gap.duration / 1000
    for stream, causes in exact["streams"].items():
        here = found[max(found) if len(found) == 1 or stream == "3" else min(found)]
        assert {cause: ns for cause, ns in causes.items() if ns} == pytest.approx(here, abs=0.01)
    told = report(trace, read.lacks, read.steps)  # every figure on idle time is of the same time
    assert told.idle_percent == pytest.approx(100 * exact["idle"] / exact["whole"], abs=1e-3)
    assert sum(told.causes.values()) == told.bubble_ns == sum(told.phases.values())
    assert told.bubble_ns / 1000 == pytest.approx(exact["idle"], abs=0.01)
    assert set(told.causes) <= {"host wait", "kernel wait", "blocked host", "other"}
    if path.stem == "sglang_extend":  # a kernel that waits long is not charged to the host
        assert told.causes["blocked host"] + told.causes["other"] == 493_244_000
        assert told.causes["host wait"] < 1_000_000 and told.causes["other"] < 100_000
        assert "hipMemcpyWithStream (aten::copy_)" in blocked_words(trace, told)


def copies_that_block(path: Path, call: str) -> OverlapFindings:
    """Return the findings on steps that are launched early and wait for a copy in a blocked call.

    This is the shape of ``negative_queue_length_values_check`` of Holistic Trace Analysis. The host
    launches a step and is then in a copy of unpinned memory for 149 ms. The step begins 63 ms after
    its predecessor, although it was launched before that one had ended.
    """
    events = list[Event]()
    for step in range(1, 6):
        at = 150_000 * step
        events += [
            ("mark", f"ProfilerStep#{step}", at, at + 149_900, 0),
            ("call", "cudaLaunchKernel", at + 10, at + 15, step),
            ("call", call, at + 20, at + 149_000, 100 + step),
            ("copy", TO_HOST, at + 1_000, at + 1_100, 100 + step),
            ("op", "forward", at + 64_000, at + 151_000, step),
        ]
    return judged(path, events)


def test_an_idle_device_is_not_busy_and_the_call_that_blocked_meanwhile_is_named(
    tmp_path: Path,
) -> None:
    found = copies_that_block(tmp_path / "t.json", "cudaMemcpyAsync")
    told, largest = found.verdict, found.largest
    assert (told.ahead, told.pairs, told.word) == (4, 4, "overlapped") and found.idle_percent > 40
    assert not found.is_busy and busy_words(found).startswith("Not busy: the device")
    assert largest is not None and largest.cause == "blocked host" == max(
        found.causes, key=lambda cause: found.causes[cause]
    )
    assert largest.phase == "cudaMemcpyAsync" and largest.percent > 90
    assert "the host was in cudaMemcpyAsync" in largest.sentence
    assert largest.sentence in idle_words(found)
    assert found.advice.startswith("do not block the host in cudaMemcpyAsync: ")
    launched = copies_that_block(tmp_path / "t.json", "cudaLaunchKernel")
    assert launched.largest is not None and launched.largest.cause == "other", "no call blocked"


def test_a_step_of_a_profile_may_have_any_number_of_copies(tmp_path: Path) -> None:
    """Public traces have 25 in 5 steps (``negative_queue_length_values_check``)."""
    events = list[Event]()
    for step in range(1, 5):
        at = 1_000 * step
        events += [("mark", f"ProfilerStep#{step}", at, at + 900, 0)]
        for copy in (10 * step, 10 * step + 1):
            start = at + 100 * (copy % 10)
            events += [("call", "cudaMemcpyAsync", start, start + 10, copy),
                       ("copy", TO_HOST, start + 20, start + 80, copy)]  # fmt: skip
    judged(tmp_path / "t.json", events)
    assert ms.check(tmp_path / "t.json").holds is None, "a profile has no law"


def test_a_short_blocking_call_is_not_the_reason_for_a_long_gap(tmp_path: Path) -> None:
    """As in a worker of vLLM that waits for its engine's process: a queue is no recorded call."""
    events = list[Event]()
    for step in range(1, 6):
        at = 20_000 * step
        events += [
            ("mark", f"step {step}", at, at + 200, 0),
            ("call", "cudaEventSynchronize", at + 5, at + 7, 0),
            ("call", "cudaLaunchKernel", at + 100, at + 105, step),
            ("op", "forward", at + 110, at + 12_110, step),
        ]
    found = judged(tmp_path / "t.json", events)
    assert found.verdict.blocking == {"no recorded call": 4} and found.verdict.word == "serial"
    assert "each time the host had made no recorded call for up to 19.8 ms" in (
        found.verdict.sentence
    )
    assert found.largest is not None and found.largest.phase == ""
    assert "of it the host made no recorded call." in found.largest.sentence


def test_a_host_that_is_late_within_steps_is_told_to_use_a_graph(tmp_path: Path) -> None:
    """Eager kernels of 20 us, launched every 100 us: gaps are within steps, not between them."""
    events, number = list[Event](), 0
    for step in range(5):
        events.append(("mark", f"step {step}", 1_000 * step, 1_000 * step + 990, 0))
        for turn in range(9):
            number += 1
            at = 1_000 * step + 100 * turn
            events += [("call", "cudaLaunchKernel", at, at + 5, number),
                       ("op", "gemm", at + 10, at + 30, number)]  # fmt: skip
    found = judged(tmp_path / "t.json", events)
    assert not found.is_busy and found.verdict.word == "serial"
    assert found.advice.startswith("launch the kernels of a step as one graph: ")


# -- other devices than CUDA and HIP ---------------------------------------------------------------


def as_events(path: Path, *events: tuple[str, str, int, str, int, int, int]) -> Path:
    """Write events of (category, name, thread, device's stream, start, end, correlation)."""
    written = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start,
         "dur": end - start,
         "args": {**({"device": 0, "stream": stream} if stream else {}),
                  **({"correlation": number} if number else {})}}
        for cat, name, thread, stream, start, end, number in events
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": written}), "utf-8")
    return path


@pytest.mark.parametrize(("category", "launch", "wait", "device"), [
    ("xpu_runtime", "urEnqueueKernelLaunch", "urQueueFinish", "XPU"),
    ("xpu_runtime", "zeCommandListAppendLaunchKernel", "zeEventHostSynchronize", "XPU"),
    ("privateuse1_runtime", "AscendCL@aclrtLaunchKernel", "AscendCL@aclrtSynchronizeStream",
     "PrivateUse1"),
])  # fmt: skip
def test_calls_of_other_devices_are_read(
    tmp_path: Path, category: str, launch: str, wait: str, device: str
) -> None:
    events = [
        one
        for at in range(0, 50_000, 10_000)
        for one in (
            ("user_annotation", "step", 7, "", at, at + 9_900, 0),
            (category, launch, 7, "", at + 10, at + 20, at + 1),
            ("kernel", "gemm", 0, "3", at + 30, at + 8_000, at + 1),
            (category, wait, 7, "", at + 40, at + 8_010, 0),
        )
    ]
    read = read_foreign(as_events(tmp_path / "t.json", *events))
    found = report(read.trace, read.lacks)
    assert (read.lacks, read.trace.device, found.verdict.word) == ((), device, "serial")
    assert found.verdict.blocking == {wait: 4}


@pytest.mark.parametrize("ahead", [True, False])
def test_ops_of_mtia_are_linked_to_calls_by_arrows(tmp_path: Path, ahead: bool) -> None:
    """Its ops have no correlation: the arrow that ends at an op has that of the call as its id."""
    events, free = list[Any](), 0
    for number in range(1, 7):
        at = max(0, free - 6_000) if ahead else free + 1_500
        start = max(free, at + 100)
        events += [
            ("user_annotation", "step", 7, "", at, at + 90, 0),
            ("mtia_runtime", "runFunction - job", 7, "", at + 10, at + 20, number),
            ("mtia_ccp_events", "event_wait", 30, "4", at + 20, start, 0),
            ("mtia_ccp_events", "fc-dtype_Float", 30, "4", start, start + 9_000, 0),
            ("mtia_ccp_events", "dma_request", 31, "5", start + 9_000, start + 9_010, 0),
        ]
        events += [] if ahead else [
            ("mtia_runtime", "synchronizeStream", 7, "", at + 30, start + 9_020, 100 + number)
        ]  # fmt: skip
        free = start + 9_010
    path = as_events(tmp_path / "t.json", *events)
    whole = json.loads(path.read_text("utf-8"))
    ops = [item for item in whole["traceEvents"] if item["name"] == "fc-dtype_Float"]
    for number, op in enumerate(ops, 1):
        end = {"pid": op["pid"], "tid": op["tid"], "ts": op["ts"]}
        whole["traceEvents"].append({"ph": "f", "cat": "ac2g", "id": number, "bp": "e", **end})
    for item in whole["traceEvents"]:
        if item["name"] == "dma_request" if "name" in item else False:
            item["args"]["direction"] = "DEVICE_TO_HOST"
    path.write_text(json.dumps(whole), "utf-8")
    read = read_foreign(path)
    found = report(read.trace, read.lacks)
    assert (read.trace.device, found.verdict.pairs) == ("MTIA", 5)
    assert (found.verdict.ahead, found.is_busy) == ((5, True) if ahead else (0, False))
    assert {item.name for item in read.trace.on("device 0 stream 5 copy")} == {"copy"}
    assert not any(item.attrs.get("kernel") == "event_wait" for item in read.trace.slices)


def test_events_of_a_device_in_a_category_that_is_not_read_are_named(tmp_path: Path) -> None:
    events = [("tpu_ops", "job", 3, "1", at, at + 5, 0) for at in range(0, 90, 10)]
    ranges = ("cpu_op", "aten::add", 7, "", 0, 100, 0), ("tpu_runtime", "run", 7, "", 1, 2, 0)
    [first, second] = read_foreign(as_events(tmp_path / "t.json", *events, *ranges)).lacks
    assert "are not read: tpu_ops (9 events), tpu_runtime (1 events)." in first
    assert "--device-lane" in second and "'thread 7'" in second
    alone = read_foreign(as_events(tmp_path / "t.json", ranges[0])).lacks
    assert alone[0] == "It has no ops of a device: only the CPU was profiled."


def in_tables_of_their_own(tables: dict[str, tuple[str, list[Any]]]) -> None:
    """Move times and places into ``rocpd_timestamp`` and ``rocpd_track``, as some versions do."""
    times, tracks = list[Any](), list[Any]()
    places = ("pid", "tid", "agent_id", "queue_id", "stream_id")
    for name in ("region", "kernel_dispatch", "memory_copy"):
        columns = tables[name][0].split()
        kept = [it for it in columns if it not in (*places, "start", "end")]
        moved = list[Any]()
        for row in tables[name][1]:
            said = dict(zip(columns, row, strict=True))
            times += [(len(times) + at, "g", said[end]) for at, end in ((1, "start"), (2, "end"))]
            tracks.append((len(tracks) + 1, "g", *(said.get(place) for place in places)))
            ids = (len(times) - 1, len(times), len(tracks))
            moved.append((*(said[it] for it in kept), *ids))
        tables[name] = " ".join([*kept, "start_id end_id track_id"]), moved
    tables["timestamp"] = "id guid value", times
    tables["track"] = " ".join(["id guid", *places]), tracks


def as_rocpd(
    path: Path, ahead: bool, suffix: str = "_0c1f", has_views: bool = True, has_tracks: bool = False
) -> Path:
    """Write what rocprofv3 records of six steps: a range, a launch, a kernel, a copy, a wait."""
    strings = ["MARKER_CORE_RANGE_API", "HIP_RUNTIME_API_EXT", "KERNEL_DISPATCH", "MEMORY_COPY",
               "roctxThreadRangeA", "hipGraphLaunch", "hipMemcpyAsync", "hipEventSynchronize",
               "MEMORY_COPY_DEVICE_TO_HOST"]  # fmt: skip
    events, regions, kernels, copies = list[Any](), list[Any](), list[Any](), list[Any]()

    def event(category: str, stack: int, extdata: str = "{}") -> int:
        """Record an event, and return its id."""
        row = (len(events) + 1, "g", strings.index(category) + 1, stack, 0, extdata)
        events.append(row)
        return len(events)

    def region(
        name: str, category: str, stack: int, start: int, end: int, said: str = "{}"
    ) -> None:
        """Record a range or a call of thread 5."""
        number = event(category, stack, said)
        regions.append((len(regions) + 1, "g", 1, 5, start, end, strings.index(name) + 1, number))

    free = 0
    for step in range(6):
        at = max(0, free - 6_000_000) if ahead else free + 1_500_000
        start, stack = max(free, at + 60_000), 10 * step
        end = start + 9_000_000
        message = json.dumps({"message": f"step {step}"})
        hip = "HIP_RUNTIME_API_EXT"
        region("roctxThreadRangeA", "MARKER_CORE_RANGE_API", stack + 1, at, at + 50_000, message)
        region("hipGraphLaunch", hip, stack + 2, at + 5_000, at + 9_000)
        kernels.append(
            (step + 1, "g", 1, 5, 2, 1, 1, 3, start, end, event("KERNEL_DISPATCH", stack + 2))
        )
        region("hipMemcpyAsync", hip, stack + 3, at + 10_000, at + 12_000)
        copies.append(
            (step + 1, "g", 1, 5, end, end + 9_000, 9, 0, 2, 4, event("MEMORY_COPY", stack + 3))
        )
        if not ahead:
            region("hipEventSynchronize", hip, stack + 4, at + 20_000, end + 9_500)
        free = end + 9_000
    tables: dict[str, tuple[str, list[Any]]] = {
        "string": ("id guid string", [(at, "g", text) for at, text in enumerate(strings, 1)]),
        "event": ("id guid category_id stack_id parent_stack_id extdata", events),
        "region": ("id guid pid tid start end name_id event_id", regions),
        "info_kernel_symbol": ("id guid kernel_name display_name", [(1, "g", "_Z4gemm", "gemm()")]),
        "kernel_dispatch": (
            "id guid pid tid agent_id kernel_id queue_id stream_id start end event_id", kernels),
        "memory_copy": (
            "id guid pid tid start end name_id dst_agent_id src_agent_id stream_id event_id",
            copies),
    }  # fmt: skip
    if has_tracks:
        in_tables_of_their_own(tables)
    with closing(sqlite3.connect(path)) as database:
        for name, (columns, rows) in tables.items():
            named = ", ".join(f'"{column}"' for column in columns.split())
            database.execute(f'CREATE TABLE "rocpd_{name}{suffix}" ({named})')
            marks = ", ".join("?" * len(columns.split()))
            database.executemany(f'INSERT INTO "rocpd_{name}{suffix}" VALUES ({marks})', rows)
            if has_views:
                view = f'CREATE VIEW "rocpd_{name}" AS SELECT * FROM "rocpd_{name}{suffix}"'
                database.execute(view)
        database.commit()
    return path


@pytest.mark.parametrize("has_tracks", [False, True])
@pytest.mark.parametrize("has_views", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_database_of_rocprofv3_is_read(
    tmp_path: Path, ahead: bool, has_views: bool, has_tracks: bool
) -> None:
    path = tmp_path / "x_results.db"
    read = read_foreign(as_rocpd(path, ahead, has_views=has_views, has_tracks=has_tracks))
    found, trace = report(read.trace, read.lacks, read.steps), read.trace
    assert (trace.loop, trace.device) == ("rocprofv3", "HIP")
    assert (found.verdict.pairs, found.verdict.ahead) == (5, 5 if ahead else 0)
    assert found.is_busy is ahead and [*found.verdict.blocking] == (
        [] if ahead else ["hipEventSynchronize"]
    )
    assert {item.attrs["kernel"] for item in trace.on("forward")} == {"gemm()"}
    assert len(trace.on("device 2 stream 4 copy")) == 6
    assert read.steps.endswith("it has 6, the first of which is: step 0.")


@pytest.mark.parametrize(("statement", "says"), [
    ("ALTER TABLE rocpd_event_0c1f DROP COLUMN guid", "a table lacks column 'guid'."),
    ("UPDATE rocpd_region_0c1f SET start = 'x' WHERE id = 1", "a row has start = 'x' and end = "),
    ("UPDATE rocpd_kernel_dispatch_0c1f SET end = 1 WHERE id = 6", "and end = 1."),
])  # fmt: skip
def test_a_damaged_database_of_rocprofv3_is_one_sentence(
    tmp_path: Path, statement: str, says: str
) -> None:
    path = as_rocpd(tmp_path / "x.db", ahead=True, has_views=False)
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()
    with pytest.raises(NotAProfile, match="is a damaged rocprofv3 database: ") as caught:
        read_foreign(path)
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["forward", "thread 9", "9"])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_thread_or_a_range_of_the_host_may_be_the_device(
    tmp_path: Path, name: str, ahead: bool
) -> None:
    """The host's steps are marked; in one loop each waits for its own op, in one for the last."""
    events, free = list[Any](), 0
    for step in range(6):
        start = max(0, free - 9_000) if ahead else free + 500
        op = max(free + 20, start + 2_000)
        events += [
            ("user_annotation", "step", 7, "", start, op + (0 if ahead else 10_010), 0),
            ("user_annotation", "schedule", 7, "", start, start + 1_900, 0),
            ("user_annotation", "forward", 9, "", op, op + 10_000, 0),
            ("cpu_op", "aten::mm", 9, "", op + 10, op + 9_000, 0),
        ]
        free = op + 10_000 + step
    path = as_events(tmp_path / "t.json", *events)
    read = read_foreign(path, device_lane=name)
    found = report(read.trace, read.lacks, read.steps)
    assert (found.verdict.pairs, found.verdict.ahead) == (5, 5 if ahead else 0)
    assert found.verdict.word == ("overlapped" if ahead else "serial")
    assert f"The launches of {name} are not recorded: the n-th of 6 steps" in read.lacks[0]
    assert read.trace.device == name and (found.idle_percent > 10) is not ahead
    with pytest.raises(NotAProfile, match="--device-lane gpu names no stream, thread or range"):
        read_foreign(path, device_lane="gpu")


PROGRAM = """
import queue, sys, threading, time, torch
from torch.profiler import profile, record_function

jobs, done, stop = queue.Queue(), queue.Queue(), threading.Event()

def device():
    weight = torch.randn(64, 64)
    while (step := jobs.get()) is not None:
        with record_function("forward"):
            torch.mm(weight, weight)
            time.sleep(0.02)
        done.put(step)

def run(ahead):
    for step in range(8):
        with record_function("step"):
            with record_function("schedule"):
                time.sleep(0.005)
            jobs.put(step)
            if step >= ahead:
                done.get()
    for step in range(ahead):
        done.get()

every = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
with profile(experimental_config=every) as seen:
    thread = threading.Thread(target=device)
    thread.start()
    run(int(sys.argv[1]))
    jobs.put(None)
    thread.join()
seen.export_chrome_trace(sys.argv[2])
"""


@pytest.mark.thorough
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_profile_of_a_real_program_with_a_thread_as_its_device(
    tmp_path: Path, ahead: int
) -> None:
    """A program of torch without a GPU, with serial and with overlapped steps."""
    pytest.importorskip("torch")
    path = tmp_path / "t.json"
    subprocess.run([sys.executable, "-c", PROGRAM, str(ahead), path], check=True, timeout=300)
    read = read_foreign(path, device_lane="forward")
    found = report(read.trace, read.lacks, read.steps)
    assert found.verdict.pairs == 7
    assert found.verdict.ahead >= 5 if ahead else found.verdict.ahead == 0, found.verdict.sentence


def test_a_stream_may_be_named_as_the_device(tmp_path: Path) -> None:
    path = put("torch_serial", tmp_path)
    usual, other = (
        read_foreign(path, device_lane=name).trace for name in ("", "device 0 stream 20")
    )
    assert usual.on("device 0 stream 20 copy") and len(other.on("forward")) == len(
        usual.on("device 0 stream 20 copy")
    )


# -- files -----------------------------------------------------------------------------------------

OWN = to_chrome(run_with("overlap", "grammar"))
DAMAGED = {
    b"{": "is not JSON",
    b"[" * 100_000: "is nested too deep",
    b"{}": "lacks a list of traceEvents",
    b'{"rocprofiler-sdk-tool": [{}]}': "is the JSON of rocprofv3, which is not read: record",
    b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1' + b"0" * 400 + b', "dur": 1}]':
        r"traceEvents\[0\] has ts = 10{59}, but it must be a number of microseconds\.",
    b"[]": "is neither a minisched trace .* nor a Chrome trace of a profiler",
    b'[{"ph": "X", "cat": "kernel", "name": "k"}]':
        r"traceEvents\[0\] lacks ts, a number of microseconds\.",
    b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -5}]':
        r"traceEvents\[0\] has dur = -5, but it must be a number of microseconds from 0\.",
    OWN.encode(): "is this program's Chrome export",
    gzip.compress(b"[]", mtime=0)[:-9]: "its gzip is damaged",
    b"SQLite format 3\x00" + b"\x01" * 200: "damaged Nsight Systems export",
    b"\n\x0cB\x08\x92\x01\x05\x82\x02\x02en" * 9: "is a Perfetto trace in protobuf: convert it",
    b"\nid,tokens\n": "is no trace: neither a minisched trace",
}  # fmt: skip


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"])
@pytest.mark.parametrize("has_a_row", [True, False])
def test_an_sqlite_file_without_columns_is_one_sentence(
    tmp_path: Path, table: str, has_a_row: bool
) -> None:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE {table}(a)")
        if has_a_row:
            database.execute(f"INSERT INTO {table} VALUES (1)")
        database.commit()
    with pytest.raises(NotAProfile, match=r"damaged .* export: a table lacks column 'start'\."):
        read_foreign(path)


@pytest.mark.parametrize("data", DAMAGED, ids=lambda data: repr(data[:24]))
def test_a_damaged_file_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(NotAProfile, match=DAMAGED[data]) as caught:
        read_foreign(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and message.endswith(".") and "\n" not in message


@given(st.data())
def test_no_damage_gives_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """Cut anywhere, or with any value of any event replaced: read, or refused in one sentence."""
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    whole = json.loads(data.draw(st.sampled_from([SERIAL, OWN])))
    event = data.draw(st.sampled_from(whole["traceEvents"]))
    holder = data.draw(st.sampled_from([event, *(v for v in event.values() if type(v) is dict)]))
    key = data.draw(st.sampled_from(sorted(holder) or ["name"]))
    holder[key] = data.draw(st.sampled_from([None, "x", -1, 1e30, [], {}, True]))
    text = json.dumps(whole)
    cut = data.draw(st.sampled_from([len(text), len(text), len(text) // 2]))
    path.write_text(text[:cut], "utf-8")
    try:
        report(read_foreign(path).trace)
    except NotAProfile as error:
        said = str(error)
        assert said.endswith(".") and "Error" not in said and "int()" not in said, "Python's words"


def test_reading_takes_a_small_multiple_of_the_file(tmp_path: Path) -> None:
    """As a list of dictionaries its events take five times the file."""
    path, events = tmp_path / "large.json", json.loads(SERIAL)["traceEvents"]
    moved = [{**event, "ts": event.get("ts", 0) + turn * 300_000}
             for turn in range(2_000_000 // len(SERIAL) + 1) for event in events]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": [{}, *moved]}), "utf-8")
    tracemalloc.start()
    try:
        found = read_foreign(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.trace.slices) > 1500 and most < 4 * path.stat().st_size
