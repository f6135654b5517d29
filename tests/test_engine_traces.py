"""Traces as SGLang and vLLM give them: what a step is, when a device idles, and how it is said."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.cli.check_traces import check_traces
from minisched.trace.lanes import is_host
from tests.engine_shapes import DECODE, MIXED, SHAPES, Profile, facts, vllm_piecewise
from tests.foreign_files import to_nsys
from tests.test_foreign_traces import run

ANSWERS = json.loads((Path(__file__).parent / "engine_idle.json").read_text(encoding="utf-8"))
SPELLINGS = (
    "step[DECODE bs=32]", "step[EXTEND bs=15 toks=15360]", "step[MIXED bs=2]", "step[WEIRD bs=3]",
    "scheduler.run_batch", DECODE, MIXED, "execute_context_3(128)_generation_2(2)",
    "execute_1_context_3(sq128sk256)", "execute_new_1_cached_2", "step", "Step 12", "iteration#3",
    "[Executor] _forward_step 7: 1 ctx reqs, 128 ctx tokens, 2 gen reqs", "ProfilerStep#3",
    "step, op_id = 314290",
)  # fmt: skip


def checked(path: Path, *step: str) -> dict[str, Any]:
    """What ``minisched check --json`` says of one file; ``step`` is its ``--step``."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert check_traces([path], None, True, *step) == 0
    (found,) = json.loads(out.getvalue())["runs"]
    return dict(found)


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    path = tmp_path / f"{request.param}.json"
    path.write_text(SHAPES[request.param]().text(), encoding="utf-8")
    return request.param, path


def written(profile: Profile, path: Path) -> Path:
    path.write_text(profile.text(), encoding="utf-8")
    return path


# --- what a step is -------------------------------------------------------------------------


def test_one_step_in_many_graphs_is_one_step(tmp_path: Path) -> None:
    """vLLM's piecewise graphs: 25 launches of graphs were taken for 25 steps that overlap."""
    found = checked(written(vllm_piecewise(), tmp_path / "t.json"))["overlaps"]
    assert found["answer"] == "unknown" and found["figures"]["verdict"]["pairs"] == 0
    assert found["sentence"].startswith("Only one step was recorded")
    assert "the device never waited for the host" in found["sentence"]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from([None, *SPELLINGS]))
def test_steps_are_the_marks_however_many_graphs(
    tmp_path_factory: pytest.TempPathFactory, steps: int, pieces: int, mark: str | None
) -> None:
    """Without a mark and a result none is known, however often a graph is launched."""
    path = tmp_path_factory.getbasetemp() / "graphs.json"
    path.write_text(vllm_piecewise(steps, pieces, mark).text(), encoding="utf-8")
    found = checked(path)["overlaps"]
    figures = found["figures"]["verdict"]
    assert figures["pairs"] == (steps - 1 if mark else 0)
    assert found["answer"] == ("yes" if mark and steps >= 3 else "unknown")
    if mark is None:
        assert any("record_function" in line and "--step" in line for line in found["details"])
    elif steps < 3:
        assert "Unknown" not in found["sentence"], "a step or two get the answer that fits them"


def test_every_spelling_is_a_step_and_no_phase_is() -> None:
    from minisched.checks.foreign.phases import step_named

    assert all(map(step_named, SPELLINGS))
    others = ("scheduler.get_next_batch_to_run", "optimizer.step#Adam.step", "decode", "stepper",
              "aten::step", "execute_model", "step forward", "post_step 3")  # fmt: skip
    assert not any(map(step_named, others))


def loop(steps: int, ahead: bool, host: Callable[[Profile, int, float], None]) -> Profile:
    """A loop that launches a step of 1 ms before the one before has ended, or only afterwards."""
    made, device, at = Profile(), 200.0, 0.0
    for step in range(steps):
        host(made, step, at)
        number = made.call("hipLaunchKernel", at + 50, at + 55)
        made.op("forward", device, device + 1_000, number)
        number = made.call("hipMemcpyAsync", at + 60, at + 65)
        made.op("Memcpy DtoH (Device -> Host)", device + 1_000, device + 1_005, number)
        at = device + (500 if ahead else 1_100)
        device = max(device + 1_005, at + 70)
    return made


def marked(name: str) -> Callable[[Profile, int, float], None]:
    return lambda made, step, at: made.mark(name.format(step), at + 10, at + 90)


@pytest.mark.parametrize("ahead", [True, False])
def test_marked_steps_are_judged(tmp_path: Path, ahead: bool) -> None:
    path = written(loop(5, ahead, marked("turn {} of mine")), tmp_path / "t.json")
    found = checked(path, "turn * of mine")["overlaps"]
    assert found["answer"] == ("yes" if ahead else "no")
    verdict = found["figures"]["verdict"]
    assert (verdict["pairs"], verdict["ahead"]) == (4, 4 if ahead else 0)
    repeated = checked(path)["overlaps"]
    assert repeated["answer"] == found["answer"], "they are repeated, too"
    assert any("is repeated to the end, 5 times" in line for line in repeated["details"])


def layers(made: Profile, at: float, count: int) -> float:
    """A forward pass that brings something to the host after each layer; when it ends."""
    for name in ["embedding", *["layer"] * count, "head"]:
        number = made.call("cudaLaunchKernel", at, at + 5)
        made.op(name, at + 10, at + 50, number)
        number = made.call("cudaMemcpyAsync", at + 6, at + 60)
        made.op("Memcpy DtoH (Device -> Pageable)", at + 51, at + 55, number)
        at += 100
    return at


@pytest.mark.parametrize(("steps", "found"), [(1, 0), (2, 0), (3, 3), (5, 5)])
def test_layers_that_are_repeated_are_no_steps(tmp_path: Path, steps: int, found: int) -> None:
    """Each brings something to the host; but behind the last one comes what comes once a step."""
    made, at = Profile(), 0.0
    for _ in range(steps):
        at = layers(made, at, 8)
    verdict = checked(written(made, tmp_path / "t.json"))["overlaps"]["figures"]["verdict"]
    assert verdict["pairs"] == max(0, found - 1)


@pytest.mark.parametrize("until", ["it is done", "it has begun"])
def test_kernels_that_the_host_waits_for_are_steps(tmp_path: Path, until: str) -> None:
    """With no copy at all, what ends a step is a call that blocks until the device is done."""
    made, ends = Profile(), 300 if until == "it is done" else 40
    for at in range(0, 14 * 500, 500):
        number = made.call("cudaLaunchKernel", at, at + 5)
        made.op("forward", at + 10, at + 290, number)
        made.call("cudaStreamSynchronize", at + 6, at + ends)
    found = checked(written(made, tmp_path / "t.json"))["overlaps"]
    assert found["answer"] == ("no" if until == "it is done" else "unknown")
    if found["answer"] == "no":
        assert "0 of 13 steps" in found["sentence"]
        assert any("the same launch up to a call that blocks" in line for line in found["details"])


def test_step_says_what_it_does_not_find(
    tmp_path: Path, cli: Callable[[str], tuple[int, str, str]]
) -> None:
    path = written(loop(4, True, marked("mine")), tmp_path / "t.json")
    code, out, err = cli(f"check {path} --step your*")
    assert (code, out) == (2, "")
    assert err == (
        f"minisched: {path}: --step your* names no range around a launch. The most frequent ranges "
        "are mine, 4 times.\n"
    )
    own = Path(__file__).resolve().parents[1] / "traces" / "overlap.json"
    for line, said in (
        (f"check {own} --step x", "this one's own numbers its steps itself."),
        ("check --step x", "--step is about recorded runs, but none is named."),
        ("check --faults --step x", "--step is x, but --faults reads no trace."),
    ):
        code, out, err = cli(line)
        assert (code, out) == (2, "") and err.endswith(f"{said}\n") and err.count("\n") == 1


# --- idle time ------------------------------------------------------------------------------


def test_idle_time_is_the_oracles(shape: tuple[str, Path]) -> None:
    """On each stream by cause, and over all streams; to the nanosecond where it does not round.

    Rounded, each op begins up to 1 us later there and ends up to 1 us earlier: so each of the gaps
    between ops, those of no length too, is longer by less than 2 us, and none is shorter.
    """
    from minisched.checks.foreign.foreign import read_foreign
    from minisched.checks.overlap.idle import device_gaps, idle_gaps
    from minisched.checks.overlap.launches import launches

    name, path = shape
    trace = read_foreign(path).trace
    exact, rounded = ANSWERS[name]["exact"], ANSWERS[name]["rounded"]
    ops = [item for item in trace.slices if not is_host(item.lane)]
    idle = sum(gap.duration for gap in device_gaps(trace, "forward")) / 1000
    assert idle == pytest.approx(exact["idle"], abs=0.01)
    assert 0 <= rounded["idle"] - idle < 2 * len(ops)
    found = {}
    for lane in {item.lane for item in ops}:
        by_cause: Counter[str] = Counter()
        for gap in idle_gaps(trace.on(lane), launches(trace)):
            by_cause[gap.cause] += gap.duration / 1000
        found[len(trace.on(lane))] = by_cause
    for stream, causes in exact["streams"].items():
        here = found[max(found) if len(found) == 1 or stream == "3" else min(found)]
        assert {cause: ns for cause, ns in causes.items() if ns} == pytest.approx(here, abs=0.01)
        for cause, us in rounded["streams"][stream].items():
            assert 0 <= us - here[cause] < 2 * len(ops)


def test_the_oracles_answers_are_kept_as_it_gives_them(tmp_path: Path) -> None:
    """Where it is installed, it is asked anew; where it is not, its answers are those of a file."""
    assert set(ANSWERS) == set(SHAPES)
    if find_spec("hta") is not None:
        paths = {name: written(make(), tmp_path / f"{name}.json") for name, make in SHAPES.items()}
        assert dict(facts(paths)) == ANSWERS


def test_one_definition_of_idle_time(shape: tuple[str, Path]) -> None:
    """Every figure on idle time is of the same time, and the first sentence on it says which."""
    name, path = shape
    found = checked(path)["overlaps"]
    figures, exact = found["figures"], ANSWERS[name]["exact"]
    idle = figures["bubble_ns"] / 1000
    assert idle == pytest.approx(exact["idle"], abs=0.01)
    assert figures["idle_percent"] == pytest.approx(100 * exact["idle"] / exact["whole"], abs=1e-3)
    assert (
        sum(figures["causes"].values()) == figures["bubble_ns"] == sum(figures["phases"].values())
    )
    assert set(figures["causes"]) <= {"host wait", "kernel wait", "other"}
    dry = sum(end - start for start, end in figures["verdict"]["dry"])
    assert dry == figures["causes"].get("host wait", 0)
    said = [line for line in (found["sentence"], *found["details"]) if "idle" in line.lower()]
    assert said[0].startswith("Idle is a device while neither a kernel nor a copy runs on any")
    assert f"({figures['idle_percent']:.1f} %)" in said[0] and "nothing ran" not in str(found)
    assert not any("% of that speed" in line for line in found["details"])


def test_a_kernel_that_waits_long_for_the_device_is_not_charged_to_the_host(tmp_path: Path) -> None:
    """SGLang's extend step: launched 0.12 ms after the side stream's op, begun 493 ms later."""
    found = checked(written(SHAPES["sglang_extend"](), tmp_path / "t.json"))["overlaps"]
    causes = found["figures"]["causes"]
    assert causes["other"] == 493_244_000 and causes["host wait"] < 1_000_000
    (line,) = [line for line in found["details"] if "resolve_future_token_ids_kernel" in line]
    assert "launched 493.244 ms before it began" in line and "a step" not in line
    assert any("hipMemcpyWithStream (aten::copy_)" in line for line in found["details"])


def test_two_devices_are_two(tmp_path: Path) -> None:
    """Each with its own streams and launcher; where they idle is added up, and said of which."""
    made = loop(4, False, marked("step"))
    other = loop(4, True, marked("step"))
    for event in other.events:
        args = event["args"]
        args["correlation"] = args.get("correlation", 0) + 500
        event["tid"] += 1
        if "device" in args:
            args["device"] = event["pid"] = 8
    made.events += other.events
    found = checked(written(made, tmp_path / "t.json"))["overlaps"]
    assert found["figures"]["devices"] == 2 and "on device 8" in found["sentence"]
    assert any("of 2 devices, added up" in line for line in found["details"])
    assert any("on device 9 before forward (host wait)" in line for line in found["details"])


# --- how it is said -------------------------------------------------------------------------


def test_whose_calls_they_are_is_said(
    shape: tuple[str, Path], tmp_path: Path, cli: Callable[[str], tuple[int, str, str]]
) -> None:
    _, out, _ = cli(f"check {shape[1]}")
    head = out.splitlines()[0]
    assert "torch.profiler on HIP" in head and "cuda" not in head.lower()
    path = written(loop(4, True, marked("step")), tmp_path / "nvidia.json")
    path.write_text(path.read_text(encoding="utf-8").replace('"hip', '"cuda'), encoding="utf-8")
    assert "torch.profiler on CUDA" in cli(f"check {path}")[1]


def test_long_names_are_told_whole_once(tmp_path: Path) -> None:
    long = f"prepare_{'x' * 60}_for_the_next"

    def host(made: Profile, step: int, at: float) -> None:
        made.mark(f"step {step}", at + 10, at + 90)
        made.mark(long, at + 12, at + 49)

    found = checked(written(loop(5, False, host), tmp_path / "t.json"))["overlaps"]
    every = [found["sentence"], *found["details"]]
    assert sum(line.count(long) for line in every) == 1 and every[-1].endswith(f" is {long}.")
    assert sum("…" in line for line in every) >= 2
    rest = " ".join(every[:-1])
    assert max(map(len, re.findall(r"\S+", rest))) <= 50


def test_calls_that_microseconds_in_floats_let_touch_are_two(tmp_path: Path) -> None:
    """One begins a nanosecond before the other has ended: it is no call inside of the other."""
    made = loop(4, True, marked("step"))
    for event in made.events:
        if event["name"] == "hipMemcpyAsync":
            event["ts"] -= 5.001
    trace = checked(written(made, tmp_path / "t.json"))["overlaps"]
    assert trace["figures"]["verdict"]["pairs"] == 3
    from minisched.checks.foreign.foreign import read_foreign

    launched = read_foreign(tmp_path / "t.json").trace.edges
    assert sum(edge.kind == "launch" for edge in launched) == 8


def test_a_copy_is_not_called_by_the_first_text_of_the_file(tmp_path: Path) -> None:
    """In Nsight's table of texts, number 0 is a text like others; copies have no name at all."""
    from minisched.checks.foreign.foreign import read_foreign

    to_nsys(run("serial"), tmp_path / "t.sqlite")
    trace = read_foreign(tmp_path / "t.sqlite").trace
    named = {str(item.attrs["kernel"]) for item in trace.slices if "kernel" in item.attrs}
    assert "memcpy" in named and "GpuMetrics" not in named
