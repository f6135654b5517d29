"""``record.py``: the example engines, threads and tasks, a copy of the file alone, and a GPU."""

from __future__ import annotations

import asyncio
import re
import runpy
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import minisched as ms
from minisched.record import Recorder
from minisched.trace import Trace
from minisched.trace.native import read
from tests.devices.fake_cuda import fake_cuda

ROOT = Path(__file__).parents[2]
FILE, DOCS = ROOT / "minisched" / "record.py", ROOT / "lessons" / "site" / "docs"
PAGE = (DOCS / "your_engine.md").read_text("utf-8")
ENGINES = {  # the line with the bug, and the line that repairs it
    "thread": ("NUM_BUFFERS = 1", "NUM_BUFFERS = 2"),
    "asyncio": ("FREES_ON_ABORT = False", "FREES_ON_ABORT = True"),
    "torch": ("COPY_WAITS = False", "COPY_WAITS = True"),
}


def play(text: str, folder: Path) -> Path:
    """Run an engine, as its own program would, and return its trace."""
    engine, out = folder / "engine.py", folder / "engine.json"
    engine.write_text(text, "utf-8")
    before, sys.argv = sys.argv, ["engine.py", str(out)]
    try:
        runpy.run_path(str(engine), run_name="__main__")
    finally:
        sys.argv = before
    return out


@pytest.mark.parametrize("name", ENGINES)
def test_check_finds_the_bug_of_each_engine_on_the_page(name: str, tmp_path: Path) -> None:
    source = (DOCS / "engines" / f"{name}_engine.py").read_text("utf-8")
    [told] = re.findall(rf"\(engines/{name}_engine\.py\) \|.*?\| `(.*?)` \|", PAGE)
    wrong, right = ENGINES[name]
    assert source.count(wrong) == 1
    for text, holds in ((source, False), (source.replace(wrong, right), True)):
        found = ms.check(play(text, tmp_path))
        assert found.holds is holds, str(found)
        assert (told in str(found)) is not holds


def test_the_lines_of_the_page_record_a_step(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    assert sum("rec." in line for line in code.splitlines()) <= 10
    exec(compile(code, "your_engine.md", "exec"), {})
    trace = read(tmp_path / "engine.json")
    assert [(item.lane, item.name, item.step) for item in trace.slices] == [
        ("host", "launch", 7), ("forward", "forward", 7), ("host", "wait", 7),
    ]  # fmt: skip
    assert [act.kind for act in trace.program] == ["launch", "begin", "write", "end", "wait"]


def test_the_file_works_alone_and_is_short(tmp_path: Path) -> None:
    text = FILE.read_text("utf-8")
    assert len(text.splitlines()) <= 350
    (tmp_path / "record.py").write_text(text, "utf-8")
    line = (
        "from record import Recorder; import sys; rec = Recorder()\n"
        "with rec.host('launch', step=1): op = rec.launch('forward', step=1, touches=())\n"
        "rec.ended(op, 5, 9); rec.save('out.json', 'mine'); print('minisched' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert done.stdout.strip() == "False" and read(tmp_path / "out.json").on("forward")


def test_a_saved_file_is_the_trace_in_memory(tmp_path: Path) -> None:
    rec = Recorder()
    with rec.host("launch", step=1, rids=["a"], tokens=3) as here:
        op = rec.launch("forward", step=1, touches=[("read", "kv", [3, 1, 2], "a")], uses=[9])
    rec.edge("launch", here, op)
    rec.edge("launch", here, 99)  # which never runs
    rec.ended(op, rec.now(), rec.now())
    rec.counter("running", 1)
    rec.token("a", 5, step=1)
    rec.save(str(tmp_path / "a.json"), "mine", "gpu", "llama")
    trace = read(tmp_path / "a.json")
    assert trace == Trace.of(rec, "mine", "gpu", "llama", "wall")
    assert trace.slices[0].start == 0 and len(trace.edges) == 1
    assert [(act.resource, act.at) for act in trace.program if act.kind == "read"] == [
        ("value", "9"), ("kv", "1-3"),
    ]  # fmt: skip


def test_a_recorder_that_is_off_keeps_nothing() -> None:
    rec = Recorder(is_on=False)
    with rec.host("launch", step=1):
        op = rec.launch("forward", step=1)
    with rec.run(op):
        rec.touch("read", "kv", "1")
    rec.wait(op)
    rec.token("a", 1, step=1)
    rec.is_on = True
    with rec.run(op):  # it was launched before
        pass
    assert not any(rec.in_order("wall").values())


def test_an_op_with_touches_refuses_further_ones() -> None:
    rec = Recorder()
    op = rec.launch("forward", step=1, touches=())
    with rec.run(op), pytest.raises(RuntimeError, match=f"op {op} has touches from its launch"):
        rec.touch("read", "kv", "1")
    assert rec.here() == ("host", 0)


# -- threads and tasks -----------------------------------------------------------------------------


def owners_hold(rec: Recorder, lanes: set[str], count: int) -> None:
    """Each lane has its own slices and acts, and none is lost."""
    assert {item.lane for item in rec.slices} == {act.lane for act in rec.acts} == lanes
    slices = {item.id: item.lane for item in rec.slices}
    assert len(slices) == len(rec.slices) == count * len(lanes)
    assert len(rec.acts) == count * len(lanes)
    assert all(slices[act.op] == act.lane == act.resource for act in rec.acts)


def test_threads_record_on_their_own_lanes() -> None:
    rec, gate = Recorder(), threading.Barrier(6)

    def work(lane: str) -> None:
        rec.enter(lane)
        gate.wait()
        for step in range(300):
            with rec.host("work", step=step):
                rec.touch("write", lane, [step])

    lanes = {f"{number} thread" for number in range(6)}
    threads = [threading.Thread(target=work, args=(lane,)) for lane in sorted(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owners_hold(rec, lanes, 300)


def test_tasks_keep_their_lane_while_others_run() -> None:
    rec = Recorder()

    async def work(lane: str) -> None:
        rec.enter(lane)
        for step in range(50):
            with rec.host("work", step=step):
                await asyncio.sleep(0)
                rec.touch("write", lane, [step])

    async def all_of_them(lanes: set[str]) -> None:
        await asyncio.gather(*map(work, lanes))

    lanes = {f"{number} thread" for number in range(5)}
    asyncio.run(all_of_them(lanes))
    owners_hold(rec, lanes, 50)


def test_two_recorders_on_one_thread_do_not_mix() -> None:
    one, other = Recorder(), Recorder()
    with one.host("launch", step=1) as first:
        with other.host("launch", step=1):
            op = other.launch("forward")
        one.touch("read", "kv", "1")
    other.wait(op)
    assert [act.lane for act in one.acts] == ["host"] and first
    assert [(act.kind, act.op) for act in other.acts] == [("launch", op), ("wait", op)]


# -- a GPU, as far as the fake one shows it --------------------------------------------------------


@pytest.mark.parametrize("is_right", [False, True])
def test_the_torch_engine_records_the_streams_of_a_gpu(tmp_path: Path, is_right: bool) -> None:
    source = (DOCS / "engines" / "torch_engine.py").read_text("utf-8")
    text = source.replace(*ENGINES["torch"]) if is_right else source
    with fake_cuda():
        out = play(text, tmp_path)
    trace = read(out)
    assert trace.device == "cuda" and ms.check(out).holds is is_right
    for lane in ("forward", "copy"):
        assert [item.step for item in trace.on(lane)] == list(range(1, 13))
        assert all(one.end <= other.start for one, other in pairwise(trace.on(lane)))
    if is_right:
        ends = {item.step: item.end for item in trace.on("forward")}
        assert all(ends[item.step] <= item.start for item in trace.on("copy"))
