"""Our verdicts against torch's own stream sanitizer (``torch/cuda/_sanitizer.py``, CSAN).

What it sees: every torch operator that the main thread calls, as a kernel on the current stream
with the tensors that it reads and writes; recorded and awaited events, and synchronization of the
host. From these it keeps a vector clock a stream, as we do. What it does not see: cells (a tensor
is its data pointer: two rows of one buffer are one thing, and a view that begins elsewhere is
another one); what the host reads or writes itself, pinned memory among it; that memory was freed (a
new tensor in the same place starts afresh, so a tensor freed under a kernel is nobody's race);
kernels that no operator stands for; and other threads, for which the mode is off.

So both can judge what two streams do to one tensor. Its state machine runs without a GPU: it is fed
with our programs here. With a GPU, it watches real runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.cuda import _sanitizer as csan

from minisched.checks.races import find_races
from minisched.loops.registry import LOOPS
from minisched.trace import Act, Trace
from minisched.trace.cells import spans_of
from minisched.trace.lanes import is_host
from tests.test_races import NO_WAIT, made, traced

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


class Report(NamedTuple):
    """One message of the sanitizer: the tensor, and each access as (stream, operator)."""

    pointer: int
    current: tuple[int, str]
    previous: tuple[int, str]


REPORT = re.compile(
    r"CSAN detected a possible data race on tensor with data pointer (\d+)\n"
    r"Access by stream (\d+) during kernel:\n(.*?)\n"
    r".*?Previous access by stream (\d+) during kernel:\n(.*?)\n",
    re.S,
)


def reports(stderr: str) -> list[Report]:
    """The messages in what a process has said."""
    return [
        Report(int(found[1]), (int(found[2]), found[3]), (int(found[4]), found[5]))
        for found in REPORT.finditer(stderr)
    ]


# -- its state machine, fed with our programs --------------------------------------------------


def by_csan(trace: Trace) -> list[Report]:
    """What the sanitizer says of the ops of a program, each a kernel; the host touches nothing."""
    handler, pointers, said = csan.EventHandler(), dict[tuple[str, int], int](), list[Any]()
    names = {item.id: f"{item.name} {item.step}" for item in trace.slices}
    streams = sorted({act.lane for act in trace.program if not is_host(act.lane)})
    touched: dict[str, set[int]] = {}
    events = set[int]()
    for act in trace.program:
        if is_host(act.lane):
            if act.kind == "wait" and act.op in events:
                handler._handle_event_synchronization(act.op)
            continue
        stream = streams.index(act.lane) + 1
        for first, last in spans_of(act.at):
            for cell in range(first, last + 1):
                pointer = pointers.setdefault((act.resource, cell), 1000 + len(pointers))
                touched.setdefault(act.kind, set()).add(pointer)
        if act.kind == "wait" and act.op in events:
            handler._handle_event_wait(act.op, stream)
        elif act.kind == "end":
            reads, writes = touched.pop("read", set()), touched.pop("write", set())
            aliases: dict[int, list[str]] = {pointer: [] for pointer in reads | writes}
            said += handler._handle_kernel_launch(
                stream, reads - writes, writes, set(), names.get(act.op, str(act.op)), aliases
            )
            events.add(act.op)
            handler._handle_event_creation(act.op)
            handler._handle_event_record(act.op, stream)
    return reports("".join(map(str, said)))


HOST_LOOPS = [(loop, LOOPS[loop].relays[0]) for loop in ("serial", "overlap", "mini_overlap")]


@pytest.mark.parametrize(
    ("loop", "relay"), [*HOST_LOOPS, ("overlap", "pool"), ("vllm_async", "prev_sampled")]
)
def test_it_has_nothing_to_say_of_healthy_loops(loop: str, relay: str) -> None:
    trace = traced(loop, relay)
    assert find_races(trace) == [] == by_csan(trace)


@pytest.mark.parametrize(("loop", "relay"), HOST_LOOPS)
def test_it_says_the_same_of_a_copy_that_does_not_wait(loop: str, relay: str) -> None:
    trace = traced(loop, relay, NO_WAIT)
    said, [race] = by_csan(trace), find_races(trace)
    steps = {(report.previous[1], report.current[1]) for report in said}
    assert steps == {(f"sample {step}", f"copy {step}") for step in range(1, race.count + 1)}
    assert race.missing_edge == "copy of step 1 does not wait for sample of step 1"


Step = tuple[int, int, int, int]  # what, which stream, which op, which cell and how


@given(steps=st.lists(st.tuples(*(st.integers(0, n) for n in (4, 2, 3, 5))), max_size=14))
@settings(max_examples=150, deadline=None)
def test_it_finds_a_race_where_we_do(steps: list[Step]) -> None:
    """One host, three streams: ops, streams that wait for ops, and a host that does."""
    acts: list[Act] = []
    ops: list[int] = []
    for what, which, back, how in steps:
        lane, known = f"s{which}", ops[-1 - back % len(ops)] if ops else 0
        if what < 3:
            ops.append(len(ops) + 1)
            kind, at = ("read", "write")[how % 2], str(how // 3)
            acts += [Act("host", "launch", ops[-1]), Act(lane, "begin", ops[-1])]
            acts += [Act(lane, kind, ops[-1], "kv", at), Act(lane, "end", ops[-1])]
        elif known:
            acts.append(Act("host" if what == 3 else lane, "wait", known))
    trace = made(acts)
    races = [race for race in find_races(trace) if race.kind == "race"]
    assert bool(races) == bool(by_csan(trace))


def test_its_messages_are_understood() -> None:
    handler = csan.EventHandler()
    handler._handle_kernel_launch(7, set(), {100}, set(), "aten::copy_(Tensor x)", {100: ["x"]})
    found = handler._handle_kernel_launch(8, {100}, set(), set(), "aten::add(Tensor y)", {100: []})
    said = f"a line before\n{found[0]}\nand one after\n{found[0]}"
    report = Report(100, (8, "aten::add(Tensor y)"), (7, "aten::copy_(Tensor x)"))
    assert reports(said) == [report, report]
    assert reports("nothing of it") == []


# -- real streams ------------------------------------------------------------------------------

PROGRAM = """
import json, sys
from minisched.checks.races import find_races
from minisched.core import Request, SamplingParams
from minisched.devices.cost import NO_COST
from minisched.devices.registry import open_device
from minisched.loops.run import run_loop
from minisched.museum.patch import put_in
from minisched.scheduler import SchedulerConfig
from tests.support import hash_model
from tests.test_races import NO_WAIT

loop, relay, has_bug = sys.argv[1], sys.argv[2], sys.argv[3] == "bug"
device, model = open_device("cuda"), hash_model("cuda", frozenset())
requests = [Request(f"r{i}", [i + 1, 2, 3], SamplingParams(max_new_tokens=6)) for i in range(3)]
try:
    with put_in([NO_WAIT] if has_bug else []):
        run_loop(loop, device, model, requests, SchedulerConfig(), NO_COST, relay)
except Exception as error:  # the sanitizer raises where it finds something
    print(f"stopped: {type(error).__name__}", file=sys.stderr)
trace = device.recorder.trace(loop, device.name, model.name, device.clock)
print(json.dumps([str(race) for race in find_races(trace)]))
"""


def watched(loop: str, relay: str, has_bug: bool) -> tuple[list[str], list[Report]]:
    """What we say of a run on the GPU, and what the sanitizer says, which watches it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, loop, relay, "bug" if has_bug else "healthy"],
        capture_output=True, text=True, timeout=300, check=True, cwd=ROOT,
        env={**os.environ, "TORCH_CUDA_SANITIZER": "1"},
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]), reports(done.stderr)


@NO_GPU
@pytest.mark.cuda
@pytest.mark.parametrize(("loop", "relay"), HOST_LOOPS)
def test_on_a_gpu_both_have_nothing_to_say(loop: str, relay: str) -> None:
    assert watched(loop, relay, has_bug=False) == ([], [])


@NO_GPU
@pytest.mark.cuda
@pytest.mark.parametrize(("loop", "relay"), HOST_LOOPS)
def test_on_a_gpu_both_see_the_copy_that_does_not_wait(loop: str, relay: str) -> None:
    """It stops at the first, which is the copy reading what the forward stream has written."""
    ours, theirs = watched(loop, relay, has_bug=True)
    assert any("copy of step 1 does not wait for sample of step 1" in race for race in ours)
    assert "copy_" in theirs[0].current[1]
    assert theirs[0].current[0] != theirs[0].previous[0]
