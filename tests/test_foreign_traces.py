"""Traces of other programs: read as far as they carry the lanes; "it is enabled, yet serial"."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.foreign.foreign import NotATrace, read_foreign
from minisched.checks.foreign.phases import Phases, Range
from minisched.checks.overlap.overlap import (
    Interval,
    gaps,
    intersection,
    length,
    measure,
    span,
    union,
)
from minisched.checks.overlap.report import report
from minisched.checks.overlap.verdict import verdict
from minisched.checks.play import play
from minisched.checks.workload import Workload
from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.devices.registry import open_device
from minisched.engine.engine import Engine
from minisched.export.chrome import to_chrome
from minisched.export.wait_runs import run_with
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Slice, Trace
from minisched.trace.lanes import is_host
from tests.foreign_files import SYNC, to_kineto, to_nsys

FORMATS = ("torch", "gzip", "nsys", "nsys graphs")


def blocks(engine: Engine) -> None:
    """The bug: after each launch something reads a token, as ``.item()`` does."""
    launch, device = engine.launch_batch, engine.device

    def launch_and_read(*args: Any, **options: Any) -> Any:
        pending = launch(*args, **options)
        start = device.now()
        assert pending.copy_done is not None
        pending.copy_done.synchronize()
        item = Slice(device.recorder.new_id(), "host", "wait", start, device.now(),
                     attrs={"within": "aten::item"})  # fmt: skip
        device.recorder.slice(item)
        return pending

    engine.launch_batch = launch_and_read  # type: ignore[method-assign]


def run(loop: str, patch: Any = lambda engine: None) -> Trace:
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    requests = [Request(f"r{i}", [1, 2, 3 + i], params) for i in range(3)]
    workload = Workload(requests, [0, 0, 2], {}, SchedulerConfig())
    device = open_device("sim")
    play(workload, loop, LOOPS[loop].relays[0], {}, device, HashModel(), SIM_COST, patch)
    return device.recorder.trace(loop, "sim", "hash", "virtual")


def written(trace: Trace, path: Path, how: str) -> Path:
    if how == "torch":
        path.write_text(to_kineto(trace), encoding="utf-8")
    elif how == "gzip":
        path.write_bytes(gzip.compress(to_kineto(trace).encode()))
    else:
        to_nsys(trace, path, graphs=how == "nsys graphs")
    return path


def on_device(trace: Trace) -> tuple[Interval, ...]:
    """When any stream of the device ran something: a profiler's device idles between."""
    return union(item for item in trace.slices if not is_host(item.lane))


@pytest.mark.parametrize("how", FORMATS)
def test_serial_and_overlap_are_told_apart(tmp_path: Path, how: str) -> None:
    for loop, word in (("serial", "serial"), ("overlap", "overlapped"), ("mlx_async", "partly")):
        ours = run(loop)
        theirs = read_foreign(written(ours, tmp_path / loop, how))
        assert theirs.lacks == ()
        found, own = verdict(theirs.trace), verdict(ours)
        assert found.word == word and found.sentence.split(":")[0].lower().startswith(word)
        assert (found.pairs, found.ahead) == (own.pairs, own.ahead)
        dry = intersection(own.dry, gaps(on_device(ours)))  # a device that copies does not idle
        assert [end - start for start, end in found.dry] == [b - a for a, b in dry]
        assert found.dry_percent == pytest.approx(100 * length(dry) / span(on_device(ours)))
        assert set(found.blocking) <= {SYNC}, "no operator and no annotation is around it"


@pytest.mark.parametrize("how", FORMATS)
def test_enabled_yet_serial_names_the_call_that_blocks(tmp_path: Path, how: str) -> None:
    """Overlap with one blocking read a step (vllm-omni #4442): its effect is not there."""
    bad = run("overlap", blocks)
    findings = report(read_foreign(written(bad, tmp_path / "bad", how)).trace)
    assert findings.verdict.word == "serial"
    call = f"{SYNC} (aten::item)"
    assert next(iter(findings.verdict.blocking)) == call
    assert call in findings.verdict.sentence and "0 of " in findings.verdict.sentence
    good = report(read_foreign(written(run("overlap"), tmp_path / "good", how)).trace)
    assert good.verdict.word == "overlapped" and not good.verdict.blocking


@pytest.mark.parametrize("how", FORMATS)
def test_what_a_file_carries_is_what_ran(tmp_path: Path, how: str) -> None:
    """Streams, their times, launches and steps are our own run's; the whole report goes through."""
    ours = run("serial")
    theirs = read_foreign(written(ours, tmp_path / "file", how)).trace
    for lane, here in (("forward", "forward"), ("device 0 stream 20 copy", "copy")):
        assert [(s.start, s.end, s.step) for s in theirs.on(lane)] == [
            (s.start, s.end, s.step) for s in ours.on(here)
        ]
    assert theirs.end <= ours.end
    kinds = [edge.kind for edge in theirs.edges]
    assert kinds.count("launch") == sum(item.lane in ("forward", "copy") for item in ours.slices)
    findings = report(theirs)
    idle = length(gaps(on_device(ours)))
    assert findings.bubble_ns == idle == sum(findings.causes.values()) == measure(theirs).bubble_ns
    assert sum(findings.critical.values()) == findings.makespan_ns
    assert list(findings.causes) == ["host wait"]
    waits = length(union(item for item in theirs.slices if item.name == "wait"))
    assert waits == length(union(item for item in ours.slices if item.name == "wait"))


@pytest.mark.parametrize("how", FORMATS)
def test_what_the_host_did_is_called_as_its_authors_called_it(tmp_path: Path, how: str) -> None:
    """By ``record_function`` or an NVTX range: what to make faster is then known by its name."""
    ours = run("serial")
    theirs = read_foreign(written(ours, tmp_path / "file", how)).trace
    assert {"schedule", "process", "prepare", "output"} <= {item.name for item in theirs.slices}
    for phase in ("schedule", "process", "prepare"):
        mine, here = ([i for i in t.slices if i.name == phase] for t in (ours, theirs))
        first = theirs.slices[0].start - ours.slices[0].start
        assert length(union(here)) <= length(union(mine)), "what comes after the last call is left"
        assert {i.end - i.start for i in here} <= {i.end - i.start for i in mine} and first == 0
    largest = report(theirs).largest
    assert largest is not None and largest.phase == "process" and "work" not in largest.sentence


ANNOTATED = [
    Range("1", "ProfilerStep#3", 0, 100, True),
    Range("1", "step 12", 10, 40, True),
    Range("1", "inner", 20, 30, True),
    Range("1", "aten::mul", 41, 60),
    Range("1", "wait", 70, 80, True),
]


@pytest.mark.parametrize(
    ("since", "until", "found"),
    [
        (0, 5, [("work", 0, 5)]),
        (5, 25, [("work", 5, 10), ("step", 10, 20), ("inner", 20, 25)]),
        (35, 75, [("step", 35, 40), ("work", 40, 70), ("wait (annotated)", 70, 75)]),
        (80, 99, [("work", 80, 99)]),
    ],
)
def test_the_outermost_annotation_names_a_piece_of_work(
    since: int, until: int, found: list[tuple[str, int, int]]
) -> None:
    """Inside of a step; but not the profiler's own, nor by names that ours give another meaning."""
    assert list(Phases(ANNOTATED).cut(since, until)) == found
    assert sum(end - start for _, start, end in found) == until - since


def test_a_copy_to_memory_that_is_not_pinned_blocks(tmp_path: Path) -> None:
    """It is called asynchronous, and returns when it is over."""
    events = [
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 0, "dur": 5, "c": 1},
        {"cat": "kernel", "name": "k", "tid": 7, "ts": 10, "dur": 50, "c": 1},
        {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "tid": 1, "ts": 6, "dur": 60, "c": 2},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "tid": 7, "ts": 60,
         "dur": 4, "c": 2},
        {"cat": "cuda_driver", "name": "cuLaunchKernelEx", "tid": 1, "ts": 80, "dur": 5, "c": 3},
        {"cat": "kernel", "name": "k", "tid": 7, "ts": 90, "dur": 50, "c": 3},
    ]  # fmt: skip
    later = [{**e, "ts": int(str(e["ts"])) + 80, "c": int(str(e["c"])) + 2} for e in events[2:]]
    events += later
    whole = [{"ph": "X", "pid": 0, "args": {"correlation": e.pop("c")}, **e} for e in events]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(whole), encoding="utf-8")  # a list alone is a Chrome trace too
    found = verdict(read_foreign(path).trace)
    assert (found.word, found.pairs, found.ahead) == ("serial", 2, 0)
    assert found.blocking == {"cudaMemcpyAsync": 2}
    alone = replace(read_foreign(path).trace, slices=tuple(first_steps(read_foreign(path).trace)))
    assert verdict(alone).word == "unknown"  # two steps say nothing about how a loop works


def first_steps(trace: Trace) -> list[Slice]:
    """The slices of all steps but the last."""
    last = max(item.step for item in trace.slices)
    return [item for item in trace.slices if item.step < last]


def test_real_torch_without_a_gpu(tmp_path: Path) -> None:
    """What torch.profiler writes on a CPU has no GPU lanes, and that is what is said."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "cpu.json"
    x = torch.ones(4, 4)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        (x @ x).sum().item()
    profiler.export_chrome_trace(str(path))
    theirs = read_foreign(path)
    assert theirs.lacks == ("It has no GPU lanes: only the CPU was profiled.",)
    findings = report(theirs.trace, theirs.lacks)
    assert findings.sentences == (*theirs.lacks, "Unknown: nothing ran on a device in this trace.")


def test_real_torch_beside_kernels(tmp_path: Path) -> None:
    """Its own host events, in which a blocking call is put: the operator around it is named."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "cpu.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(4):
            torch.ones(2).sum().item()
    profiler.export_chrome_trace(str(path))
    data = json.loads(path.read_text(encoding="utf-8"))
    more = []
    for at, op in enumerate(e for e in data["traceEvents"] if e["name"] == "aten::item"):
        start, number = op["ts"], 2 * at + 1
        call = {"ph": "X", "cat": "cuda_runtime", "pid": op["pid"], "tid": op["tid"]}
        on_device = {"ph": "X", "pid": 0, "tid": 7}
        short = op["dur"] / 100
        for name, cat, since, length_, what in (
            ("cudaLaunchKernel", "kernel", -3, 5, number),
            ("cudaMemcpyAsync", "gpu_memcpy", -2, 1, number + 1),
        ):
            args = {"correlation": what}
            host = {**call, "name": name, "ts": start + since * short, "dur": short, "args": args}
            name = "Memcpy DtoH (Device -> Pinned)" if cat == "gpu_memcpy" else "sum"
            begins = start + (2 if cat == "kernel" else 8) * short
            op_ = {**on_device, "cat": cat, "name": name, "ts": begins, "dur": length_ * short}
            more += [host, {**op_, "args": {**args, "stream": 7, "device": 0}}]
        more.append({**call, "name": SYNC, "ts": start + short, "dur": 20 * short, "args": {}})
    data["traceEvents"] += more
    path.write_text(json.dumps(data), encoding="utf-8")
    found = verdict(read_foreign(path).trace)
    assert (found.word, found.pairs) == ("serial", 3)
    assert found.blocking == {f"{SYNC} (aten::item)": 3}


@pytest.mark.parametrize("loop", LOOPS)
def test_our_own_chrome_export_is_read_back(tmp_path: Path, loop: str) -> None:
    """Slices, edges and counters are the run's; the report is the same but for the program."""
    device = open_device("sim")
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    requests = [Request(f"r{i}", [1, 2 + i], params, 50_000_000 * i) for i in range(2)]
    ours = run_loop(loop, device, HashModel(), requests, cost=SIM_COST).trace
    path = tmp_path / "run.json"
    path.write_text(to_chrome(ours), encoding="utf-8")
    theirs = read_foreign(path).trace
    assert theirs.slices == ours.slices and theirs.edges == ours.edges
    assert sorted(theirs.counters, key=str) == sorted(ours.counters, key=str)
    assert (theirs.loop, theirs.device, theirs.model, theirs.clock) == (
        ours.loop, ours.device, ours.model, ours.clock,
    )  # fmt: skip
    assert report(theirs).causes.get("arrival") == report(ours).causes.get("arrival")
    assert report(theirs).bubble_ns == report(ours).bubble_ns


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    to_nsys(run("serial"), path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    theirs = read_foreign(path)
    assert theirs.lacks == (
        "It has no launches: nothing says which call of the host started which op.",
        "It has no blocking calls: where the host waited cannot be seen.",
    )
    found = verdict(theirs.trace)
    assert found.word == "unknown"
    assert found.sentence.endswith("does not say which call of the host launched what.")
    for name in ("KERNEL", "MEMCPY", "GRAPH_TRACE"):
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{name}")
    assert read_foreign(path).lacks == ("It has no GPU lanes: only the CPU was profiled.",)


SERIAL = to_kineto(run("serial")).encode()
OWN = to_chrome(run_with("overlap", "grammar")).encode()
DAMAGED = {
    b"": "is no trace",
    b"\x00\x01\x02": "is no trace",
    b"{": "is not JSON",
    b"{}": "lacks a list of traceEvents",
    b'{"traceEvents": 3}': "lacks a list of traceEvents",
    b"[]": "is neither a minisched trace .* nor a Chrome trace of a profiler",
    b'{"version": 1, "loop": "serial", "slices": []}': "is neither a minisched trace",
    b'[{"ph": "X", "cat": "kernel", "name": "k"}]': r"traceEvents\[0\] lacks 'ts'",
    b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon"}]':
        r'traceEvents\[0\] has ts = "soon", but it must be a number\.',
    b'[{}, {"ph": "X", "cat": "kernel", "name": "k", "ts": 1}]':
        r"traceEvents\[1\] lacks 'dur'",
    b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -5}]':
        r"traceEvents\[0\] has dur = -5, but it must be a number of microseconds from 0\.",
    b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": NaN}]': "has dur = NaN",
    b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": "x"}]':
        'has args = "x", but it must be an object',
    b'[{"ph": "X", "cat": "cuda_runtime", "name": "k", "ts": 1, "dur": 1}]': "lacks 'tid'",
    b'{"otherData": {"loop": 1, "device": 1, "model": 1, "clock": 1}, "traceEvents": [{}]}':
        "an event lacks 'ph'",
    gzip.compress(b"[]", mtime=0)[:-9]: "its gzip is damaged",
    b"SQLite format 3\x00" + b"\x01" * 200: "damaged Nsight Systems export",
}  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED, ids=lambda data: repr(data[:24]))
def test_a_damaged_file_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(NotATrace, match=DAMAGED[data]) as caught:
        read_foreign(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and message.endswith(".") and "\n" not in message


def test_other_databases_and_reports(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE birds (name TEXT)")
    with pytest.raises(NotATrace, match="is no Nsight Systems export"):
        read_foreign(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1)")
        database.commit()
    with pytest.raises(NotATrace, match="lacks column 'end'"):
        read_foreign(path)
    to_nsys(run("serial"), path := tmp_path / "damaged.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = start - 1")
        database.commit()
    with pytest.raises(NotATrace, match=r"a row has start = \d+ and end = "):
        read_foreign(path)
    report_file = tmp_path / "run.nsys-rep"
    report_file.write_bytes(b"\x01\x02")
    with pytest.raises(NotATrace, match=r"nsys export --type sqlite run\.nsys-rep"):
        read_foreign(report_file)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damage_gives_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """Cut anywhere, or with any value of any event replaced: read, or refused in one sentence."""
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    whole = json.loads(data.draw(st.sampled_from([SERIAL, OWN])))
    event = data.draw(st.sampled_from(whole["traceEvents"]))
    key = data.draw(st.sampled_from(sorted(event)))
    holder = data.draw(st.sampled_from([event, *(v for v in event.values() if type(v) is dict)]))
    key = data.draw(st.sampled_from(sorted(holder) or [key]))
    holder[key] = data.draw(st.sampled_from([None, "x", -1, 1e30, [], {}, True]))
    text = json.dumps(whole)
    cut = data.draw(st.sampled_from([len(text), len(text), len(text) // 2]))
    path.write_text(text[:cut], encoding="utf-8")
    try:
        report(read_foreign(path).trace)
    except NotATrace as error:
        said = str(error)
        assert said.endswith(".") and "Error" not in said and "int()" not in said, "Python's words"
