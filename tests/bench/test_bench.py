"""What benches make of their measurements, whom they ask in turn, and that each part runs small.

No time is asserted: what is slow on one machine is fast on another. Peers are stood in for.
"""

import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import astuple, replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from textwrap import dedent
from typing import Any, ClassVar, Self

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched.bench import recording
from minisched.bench.arm import SETTLING, Arm, Spent, running
from minisched.bench.case import Case
from minisched.bench.generation import side_by_side
from minisched.bench.generation.load import Load
from minisched.bench.generation.side_by_side import OURS, Contest, Rival
from minisched.bench.kept import keep
from minisched.bench.limit import limit as limits
from minisched.bench.limit.parts import Shape, parts
from minisched.bench.overlap import cells as overlap_cells
from minisched.bench.overlap.shares import AIM, rows_of
from minisched.bench.overlap.step import ROUND, Step, rounds_of, typical
from minisched.bench.overlap.ways import PROCESS, PYTHON, QUICK, SERIAL, SLEEP
from minisched.bench.peers.peer import Peer, PeerError
from minisched.bench.rows import Figure, SideBySide, as_json, not_measured
from minisched.bench.scheduling import phases, scheduler
from minisched.bench.scheduling.engines import PAGE, Minisched, RunAhead, Workload
from minisched.bench.simulator.made_trace import make_trace
from minisched.bench.simulator.simulator import PEER, Replays, speed
from minisched.cli.bench import name_of
from minisched.cli.bench_call import BenchCall
from minisched.core import Request, SamplingParams
from minisched.defaults import overlapped_loop
from minisched.devices.cost import SIM_COST
from minisched.devices.registry import open_device
from minisched.devices.thread import ThreadDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.models.hash_torch import HashTorch
from minisched.models.llama_torch import LlamaTorch
from minisched.models.registry import open_model
from minisched.scheduler import SchedulerConfig
from minisched.trace import NullRecorder, Recorder, Slice

times = st.floats(0.01, 100.0)


def quiet(doing: str) -> None:
    """Nobody reads it."""


def hash_case(new_tokens: int, batch: int = 1) -> Case:
    model: Any = HashTorch(eos_ids=frozenset())
    return overlap_cells.make_case("thread", model, batch, new_tokens)


# -- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "aim", "at_most", "met"), [
    (2.0, None, False, None), (2.0, 3.0, False, False), (3.0, 3.0, False, True),
    (2.0, 3.0, True, True), (4.0, 3.0, True, False), (None, 3.0, True, None),
])  # fmt: skip
def test_an_aim_is_a_floor_or_a_ceiling(
    value: float | None, aim: float | None, at_most: bool, met: bool | None
) -> None:
    assert Figure("it", value, value, value, "us", aim, at_most).met is met


def test_ours_and_theirs_take_turns_and_a_ratio_is_taken_repetition_by_repetition() -> None:
    ours = {"a": iter([1.0, 2.0]).__next__, "b": lambda: 3.0, "c": lambda: 5.0}
    theirs = {"a": lambda: 2.0, "b": lambda: 2.0, "c": None}
    why = {"a": "so", "b": "so"}
    turns: list[str] = []
    part = SideBySide("peer", ours, theirs, [("b", "a")], reason="none", slower=why)
    rows = {row.name: row for row in part.figures(2, turns.append)}
    names = ["minisched: a", "peer: a", "minisched: b", "peer: b", "minisched: c"]
    assert turns == [f"{name}, repetition {n} of 2" for n in (1, 2) for name in names]
    assert {name: (row.min, row.max, row.met, row.reason) for name, row in rows.items()} == {
        "minisched: a": (1.0, 2.0, None, ""),
        "peer: a": (2.0, 2.0, None, ""),
        "minisched / peer: a": (0.5, 1.0, True, ""),
        "minisched: b": (3.0, 3.0, None, ""),
        "peer: b": (2.0, 2.0, None, ""),
        "minisched / peer: b": (1.5, 1.5, False, "1.0 us more: so"),
        "minisched: c": (5.0, 5.0, None, ""),
        "peer: c": (None, None, None, "none"),
        "minisched / peer: c": (None, None, None, "none"),
        "growth: b / a": (1.5, 3.0, False, ""),
    }


@pytest.mark.parametrize(("call", "name"), [
    (BenchCall("overlap"), "overlap"),
    (BenchCall("overlap", device="mlx"), "overlap-device-mlx"),
    (BenchCall("cuda", model="8B", repetitions=7), "cuda-model-8B"),
    (BenchCall("hidden", model="/some/where", repetitions=1), "hidden-model-where-repeat-1"),
])  # fmt: skip
def test_both_files_say_the_same_and_a_part_of_a_part_has_files_of_its_own(
    tmp_path: Path, call: BenchCall, name: str
) -> None:
    rows = [Figure("a", 2.0, 1.0, 3.0, "ms", 2.5, at_most=True), not_measured("b", "ms", "why")]
    document = as_json(rows)
    data, table = keep(name_of(call), document, tmp_path)
    assert data.stem == table.stem == name and json.loads(data.read_text()) == document
    text = table.read_text()
    assert (
        "| a | 2 | 1 | 3 | ms | 2.5 | yes |" in text and "| b | - | - | - | ms |  | why |" in text
    )


# -- loops that take turns ---------------------------------------------------------------------


@pytest.fixture(scope="module", params=["thread", "mlx"])
def subject(request: Any, tiny_llama: Path) -> tuple[str, Any]:
    """A device, and a model that keeps its KV in itself."""
    return request.param, open_model(str(tiny_llama), request.param)


@given(
    st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=9), min_size=1, max_size=3),
    st.lists(st.integers(0, 5), max_size=4),
)
@settings(max_examples=5)
def test_loops_that_take_turns_give_what_they_give_alone(
    subject: tuple[str, Any], asked: list[list[int]], turns: list[int]
) -> None:
    """And a turn is a step: after so many turns so many forward passes were launched."""
    device, model = subject
    params = SamplingParams(max_new_tokens=SETTLING + sum(turns) + 3, ignore_eos=True)
    requests = [Request(f"r{at}", prompt, params) for at, prompt in enumerate(asked)]
    case = Case(device, model, requests, SchedulerConfig())
    alone = run_loop("serial", open_device(device), model, list(case.requests), case.config)
    with ExitStack() as stack:
        loops = ["serial", *[overlapped_loop(device)] * 2]
        arms = [stack.enter_context(running(case, loop, together=True)) for loop in loops]
        for done in accumulate(turns):
            for arm, count in zip(arms, [done - launched(arms[0]) + SETTLING] * 3, strict=True):
                arm.go_on(count)
                assert launched(arm) == SETTLING + done
        assert [arm.finish().outputs for arm in arms] == [alone.outputs] * 3


def launched(arm: Arm) -> int:
    """How many steps a loop has launched so far."""
    so_far = arm.engine.device.recorder.trace(arm.loop, "", "", "virtual")
    return len({item.step for item in so_far.on("host") if item.name == "launch"})


def test_whatever_happens_devices_are_closed_and_settings_are_given_back() -> None:
    before = threading.active_count(), torch.get_num_threads()
    case = hash_case(50)
    with pytest.raises(KeyboardInterrupt), running(case, "serial"), running(case, "overlap") as arm:
        arm.go_on(2)
        raise KeyboardInterrupt
    assert (threading.active_count(), torch.get_num_threads()) == before
    for order in ((0, 1), (1, 0)):
        try:
            torch.set_num_threads(4)
            devices = [ThreadDevice(), ThreadDevice()]
            assert [device.torch_threads for device in devices] == [3, 3], "they compute alike"
            devices[order[0]].close()
            assert torch.get_num_threads() == 1
            devices[order[1]].close()
            assert torch.get_num_threads() == 4
        finally:
            torch.set_num_threads(before[1])


# -- overlap: what is hidden of what could be ---------------------------------------------------


@given(host=times, device=times, share=st.floats(0.0, 1.0))
def test_what_is_hidden_is_a_share_of_what_could_be(
    host: float, device: float, share: float
) -> None:
    serial, hideable = host + device, min(host, device)
    assume(abs(hideable - 1.0) > 1e-6)
    taken = serial - share * hideable
    beside = [Step(taken, device, host, hideable / 4)]
    steps = {SERIAL: [Step(serial, device, host, 0.0)], PYTHON: beside, QUICK: beside}
    rows = {row.name: row for row in rows_of("it", {**steps, PROCESS: [], SLEEP: []})}
    found = {name.removeprefix("it: "): row.median for name, row in rows.items()}
    assert len(rows) == 8 and found["host"] == pytest.approx(host)
    assert found["side by side"] == pytest.approx(25.0)
    assert found["hidden"] == pytest.approx(100 * share, abs=1e-6)
    assert rows["it: hidden"].aim == (AIM if hideable > 1.0 else None)
    over, speed = found["makespan / max(host, device)"], found["speed-up / ideal"]
    assert over and speed and over * speed == pytest.approx(1.0)
    assert over == pytest.approx(taken / max(host, device))


@given(
    steps=st.lists(st.tuples(*[st.floats(0.1, 10.0)] * 4), min_size=1, max_size=9),
    slow=st.data(),
)
def test_a_machine_that_drifts_changes_nothing_of_what_runs_beside(
    steps: list[tuple[float, float, float, float]], slow: st.DataObject
) -> None:
    """Each round may be any number of times slower, for both loops: a step stays as it was."""
    factors = slow.draw(st.lists(st.floats(0.2, 5.0), min_size=len(steps), max_size=len(steps)))
    one = Step(*steps[0])
    serial = [Step(8.0, 4.0, 4.0, 0.0).times(factor) for factor in factors]
    found = typical([one.times(factor) for factor in factors], serial)
    speed = median(step.whole_ms for step in serial) / 8.0
    assert astuple(found.times(1 / speed)) == pytest.approx(astuple(one))


@pytest.mark.parametrize(("loop", "percent"), [("serial", 0.0), ("overlap", 100.0)])
def test_what_ran_side_by_side_is_read_off_the_trace(loop: str, percent: float) -> None:
    """On ``sim``, where a step of the host is shorter than the device's: all of it is hidden."""
    model: Any = HashModel()
    case = overlap_cells.make_case("sim", model, 2, SETTLING + 3 * ROUND)
    run = run_loop(loop, open_device("sim"), model, list(case.requests), case.config, SIM_COST)
    first, *others = rounds_of(run.trace, 3)
    assert 0 < first.host_ms < first.device_ms <= first.whole_ms and len(others) == 2
    assert first.beside_percent == pytest.approx(percent)
    assert all(astuple(step) == pytest.approx(astuple(first), rel=0.1) for step in others)


# -- scheduler and host: workloads are what they are called ------------------------------------


@pytest.mark.parametrize(
    "engine_of", [Minisched, pytest.param(RunAhead, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("load", [
    scheduler.DECODING, replace(scheduler.POOL_FULL, waiting=5),
    replace(scheduler.BATCH_FULL, waiting=5),
    replace(scheduler.AFTER_OTHERS, running=8, finished=20, distinct=20),
], ids=["decoding", "pool full", "batch full", "after others"])  # fmt: skip
def test_those_who_run_decode_and_nobody_else(
    engine_of: Callable[[Workload], Minisched], load: Workload
) -> None:
    """``step_us`` raises if anybody else takes part; nobody must have ended, and pages be begun."""
    engine = engine_of(load)
    if load.finished and engine_of is Minisched:  # the history leaves its prompts in the tree
        tree: Any = engine.scheduler.tree
        assert tree.total_size == load.distinct + load.running * (load.prompt_len // PAGE)
    before = engine.scheduler.num_used_tokens
    scheduler.timed(engine, 1, 1)
    _, taken_part = scheduler.timed(engine, scheduler.WARM_UP - 2, scheduler.STEPS)
    assert taken_part == load.running * scheduler.STEPS
    assert len(engine.scheduler.waiting_queue) == load.waiting
    assert len(engine.scheduler.running_batch) == load.running
    assert engine.scheduler.num_used_tokens == before + load.running * PAGE


def test_what_lies_between_phases_is_neither_work_nor_the_devices_time() -> None:
    spans = [("schedule", 0, 10), ("prepare", 11, 20), ("launch", 22, 30), ("wait", 60, 90),
             ("process", 95, 100), ("output", 103, 110), ("schedule", 117, 130)]  # fmt: skip
    turn = [Slice(at, "host", name, start, end) for at, (name, start, end) in enumerate(spans)]
    assert [phases.spent(turn, name) for name in phases.STEP_PHASES] == [10, 9, 8, 5, 7]
    assert phases.between_phases(turn) == (11 - 10) + (22 - 20) + (103 - 100) + (117 - 110)
    turns = phases.split(phases.record(3, 4))
    assert len(turns) == phases.SETTLED + phases.TURNS
    assert {tuple(item.name for item in turn) for turn in turns} == {
        tuple(name for name, _, _ in spans)
    }


# -- peers in their own processes --------------------------------------------------------------

ECHO = """
    import sys
    from minisched.bench.peers.serve import serve

    def start(settings):
        if settings.get("refuse"):
            raise ValueError("no such model")
        print("a library talks")

        def answer(question):
            if question.get("die"):
                sys.exit("out of memory")
            return {"sum": settings["base"] + question["add"]}

        return answer

    serve(start)
"""


def test_a_peer_answers_one_question_at_a_time_or_says_why_not(tmp_path: Path) -> None:
    script, python = tmp_path / "echo.py", tmp_path / "python"
    script.write_text(dedent(ECHO), encoding="utf-8")
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}"\n', encoding="utf-8")
    python.chmod(python.stat().st_mode | stat.S_IEXEC)
    with Peer(python, "echo", {"base": 40}, os.environ) as peer:
        assert [peer.ask({"add": number})["sum"] for number in (1, 2)] == [41, 42]
        with pytest.raises(PeerError, match="echo: KeyError: 'add'"):
            peer.ask({})
        assert peer.ask({"add": 3}) == {"sum": 43}
        with pytest.raises(PeerError, match="echo has ended: out of memory"):
            peer.ask({"die": True})
    assert peer.process.poll() is not None
    with pytest.raises(PeerError, match="echo: ValueError: no such model"):
        Peer(python, "echo", {"refuse": True}, os.environ)


# -- generation: processes in turn -------------------------------------------------------------

RIVALS = (
    Rival("slow", "slow", "slow_peer", 1.2),
    Rival("other", "other", "other_peer", 3.0, "both wait for memory"),
    Rival("gone", "gone", "gone", 1.0),
)
WARM_UP = 2  # new tokens of the question that nobody times


class StandIn:
    """A process that answers at once: ours takes a second, others two; one can't be asked."""

    asked: ClassVar[list[str]] = []

    def __init__(self, python: Path, script: str, *others: object) -> None:
        self.script = script
        if script == "gone":
            raise PeerError("gone broke.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.asked.append(f"{self.script} ends")

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        asked, new_tokens = question["prompts"], question["new_tokens"]
        self.asked.append(f"{self.script} {len(asked)}x{new_tokens}")
        tokens = [[1] * new_tokens for _ in asked]
        if self.script == "slow_peer":
            tokens[0][0] = 2
        ttft = 9.0 if new_tokens == WARM_UP else 0.5
        return {"seconds": 1.0 if self.script == "own" else 2.0, "ttft": ttft, "tokens": tokens}


def test_processes_take_turns_after_a_question_that_nobody_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StandIn, "asked", [])
    monkeypatch.setattr(side_by_side, "Peer", StandIn)
    monkeypatch.setattr(side_by_side, "environment", lambda *which: Path("python"))
    found = Contest("case", "own", RIVALS, {}, {}, [Load((3, 5), 4)])
    rows = {row.name.rpartition(", 4 new: ")[2]: row for row in found.figures(2, quiet, Path("x"))}
    turn = ["own 2x4", "slow_peer 2x4", "other_peer 2x4"]
    warm_ups = [asked.replace("x4", f"x{WARM_UP}") for asked in turn]
    ends = ["other_peer ends", "slow_peer ends", "own ends"]
    assert StandIn.asked == [*warm_ups, *turn, *turn, *ends]
    assert {name: (row.median, row.met, row.reason) for name, row in rows.items()} == {
        OURS: (8.0, None, ""),
        "slow": (4.0, None, ""),
        "other": (4.0, None, ""),
        f"{OURS} / slow": (2.0, True, ""),
        f"{OURS} / other": (2.0, False, "both wait for memory"),
        f"{OURS} / gone": (None, None, "gone broke"),
        f"{OURS}, TTFT": (500.0, None, ""),
        "slow, TTFT": (500.0, None, ""),
        "other, TTFT": (500.0, None, ""),
        "slow, tokens equal to ours": (7 / 8, None, ""),
        "other, tokens equal to ours": (1.0, None, ""),
    }


# -- limit: parts that are a whole step --------------------------------------------------------


def test_a_step_reads_each_weight_and_what_is_remembered_once(tiny_llama: Path) -> None:
    model = LlamaTorch(tiny_llama)
    w, (kv_heads, d) = model.weights, model.kv_shape
    found = parts(model, Shape(batch=3, extend=1, before=99))
    matrices = [*w.qkv, *w.out, *w.gate_up, *w.down, w.head]
    remembered = 2 * model.num_layers * 3 * 100 * kv_heads * d
    assert found["step"].num_bytes == 4 * (sum(m.numel() for m in matrices) + remembered)
    assert found["qkv"].operations == 2 * 3 * sum(m.numel() for m in w.qkv)
    for shape in (Shape(3, 1, 70), Shape(1, 66, 0), Shape(2, 40, 5)):
        with torch.inference_mode():
            logits, *_ = (part.run() for part in parts(model, shape).values())
        assert isinstance(logits, torch.Tensor) and logits.isfinite().all()
        assert logits.shape == (shape.batch, model.vocab_size)


# -- simulator and tracing ---------------------------------------------------------------------


def test_the_simulator_takes_turns_with_a_peer_on_the_same_requests(tmp_path: Path) -> None:
    make_trace(tmp_path / "a.csv", 50)
    make_trace(tmp_path / "b.csv", 50)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    replays, said = Replays(tmp_path / "a.csv", 5), list[str]()
    answer = {"seconds": 2.0, "steps": 10, "requests": 5}
    rows = {row.name: row for row in speed(replays, lambda question: answer, "", 2, said.append)}
    turns = [line.split(",")[0] for line in said]
    assert turns == ["minisched serial", "minisched overlap", "vidur"] * 2
    assert rows[f"{PEER}: requests"].median == 2.5 and rows[f"{PEER}: steps"].median == 5
    taken = rows[f"minisched serial / {PEER}: time for steps"]
    ours = rows["minisched serial: steps"]
    assert (taken.aim, taken.at_most) == (1.0, True) and ours.max
    assert taken.min == pytest.approx(5 / ours.max)
    missing = [row for row in speed(replays, None, "no", 1, quiet) if row.median is None]
    assert [(row.reason, "vidur" in row.name) for row in missing] == [("no", True)] * 4


def test_recording_is_measured_with_and_without_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    go_on = Arm.go_on

    def noted(arm: Arm, turns: int) -> Spent:
        asked.append(type(arm.engine.device.recorder).__name__)
        return go_on(arm, turns)

    monkeypatch.setattr(Arm, "go_on", noted)
    rows = recording.recording(hash_case(15), "overlap", 2, quiet)
    one, other = Recorder.__name__, NullRecorder.__name__
    assert asked == [one, other, *[one, one, other, other] * 2] * 2  # the prompts first
    assert [(row.aim, row.at_most) for row in rows[2:]] == [(1.03, True), (3.0, True)]
    pairs = [(Spent(round(1020 * slow), 320), Spent(1000 * slow, 300)) for slow in (1000, 5000)]
    *steps, by_the_clock, own = recording.rows_of("it", [pairs, pairs])
    assert by_the_clock.median == pytest.approx(1.02), "although the machine drifts"
    assert by_the_clock.met and own.median and len(steps) == 2


# -- each part, small, as a user calls it ------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("line", [
    "hidden --model hash --requests 2 --max-new-tokens 20",
    "overlap --device mlx --model small --requests 2",
    "limit --model {llama} --dtype float32",
    "simulator --requests 20",
    "tracing --device thread --model hash --max-new-tokens 20",
])  # fmt: skip
def test_a_part_measures_all_its_rows(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path, line: str
) -> None:
    monkeypatch.setattr(overlap_cells, "WORKS_MS", (0.0, 1.0))
    monkeypatch.setattr(overlap_cells, "MEASURE_S", 0.0)
    monkeypatch.setattr("minisched.cli.bench_hidden.WORKS_MS", (1.0,))
    monkeypatch.setattr("minisched.cli.bench_tracing.SLICES", 600)
    monkeypatch.setattr("minisched.cli.bench_simulator.LENGTHS", (300, 600))
    monkeypatch.setattr(limits, "DECODES", (Shape(1, 1, 9), Shape(2, 1, 9)))
    monkeypatch.setattr(limits, "PREFILL", Shape(1, 8, 0))
    code, out, _ = cli(f"bench {line.format(llama=tiny_llama)} --repeat 1 --json")
    rows = json.loads(out)["rows"]
    assert code == 0 and len(rows) > 4
    assert all(row["median"] is not None or "checkout" in row["reason"] for row in rows)
