"""Does it overlap: the metrics by hand, and what every moment of idle time is charged to.

How long a step takes is in ``tests/loops/test_rhythm.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.ahead import overlap_verdict
from minisched.checks.causes import ARRIVAL, HOST, bubbles, by_cause, by_phase, lost_ns
from minisched.checks.course import course_of
from minisched.checks.findings import report
from minisched.checks.overlap import ideal_speedup, measure, step_intervals, union, with_waits
from minisched.checks.speed import busy_words
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, SIM_COST, CostModel
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.export.pictures.waits import run_with
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Edge, Mark, Slice, Trace
from minisched.trace.events import is_forward, is_host
from tests.support import LOOP_OPTIONS, VOCAB, Workload, demanding, fresh, many, play

US = 1000


def asks(rid: str, count: int, arrival: int = 0, prompt: Any = (1, 2, 3)) -> Request:
    """One that ends by length; arrivals are in milliseconds."""
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    return Request(rid, prompt, params, arrival * MILLISECOND)


def run(
    loop: str, *requests: Request, config: SchedulerConfig | None = None,
    cost: CostModel = SIM_COST, **options: Any,
) -> Trace:  # fmt: skip
    again = [Request(r.rid, r.prompt, r.params, r.arrival_time) for r in requests]
    return run_loop(loop, SimDevice(), HashModel(), again, config, cost, **options).trace


def by_hand(*ran: tuple[str, str, int, int, int], edges: str = "", marks: Any = ()) -> Trace:
    """Slices of (lane, name, start, end, step) in microseconds; launch edges as ``1-2 3-4``."""
    slices = tuple(
        Slice(at, lane, name, start * US, end * US, step)
        for at, (lane, name, start, end, step) in enumerate(ran, 1)
    )
    pairs = (map(int, edge.split("-")) for edge in edges.split())
    arrows = tuple(Edge(src, dst, "launch") for src, dst in pairs)
    return Trace("odd", "cuda", "", "wall", slices, arrows, (), marks)


# -- the metrics -----------------------------------------------------------------------------------


def test_a_trace_worked_out_by_hand() -> None:
    # Time:      0    5    10   15   20   25   30
    # host       ssss ssss .... pppp ssss ....      (. is a wait)
    # forward         ffff ffff           ffff
    # copy                      cc
    trace = by_hand(
        ("host", "schedule", 0, 10, 1), ("forward", "forward", 5, 12, 1),
        ("host", "wait", 10, 15, 1), ("forward", "sample", 12, 15, 1), ("copy", "copy", 15, 17, 1),
        ("host", "process", 15, 20, 1), ("host", "schedule", 20, 25, 2),
        ("forward", "forward", 25, 30, 2), ("host", "wait", 25, 30, 2),
        marks=(Mark("wasted row", 20), Mark("retraction", 3), Mark("wasted row", 21)),
    )  # fmt: skip
    found = measure(trace, tokens=2)
    assert (found.makespan_ns, found.device_busy_ns) == (30 * US, 15 * US)
    assert (found.copy_busy_ns, found.host_busy_ns) == (2 * US, 20 * US), "waits are not work"
    assert (found.host_hidden_ns, found.host_hidden_percent) == (5 * US, 25)
    assert (found.bubbles, found.bubble_ns) == (((15 * US, 25 * US),), 10 * US)
    assert (found.wasted_rows, found.tokens, found.device_busy_percent) == (2, 2, 50)
    assert ideal_speedup(found) == 30 / 20 and step_intervals(trace) == [20 * US]
    one = by_hand(("forward", "forward", 10, 20, 1), ("host", "process", 20, 90, 1))
    assert measure(one).bubbles == (), "idle before the first and after the last is no bubble"


# -- any run: each slice has its reason ------------------------------------------------------------

PHASES = ("schedule", "prepare", "launch", "process", "output")
few = st.one_of(st.just(0), st.integers(1, 9), st.integers(1, 60))
HOST_PHASES = ("receive", "schedule", "prepare", "advance step", "launch", "launch eager", "fill",
               "postprocess", "mask", "process", "output")  # fmt: skip
OPS = ("forward_base", "forward_per_token", "sample", "copy", "verify", "draft", "recv", "logprobs")
costs = st.builds(
    lambda host, ops: CostModel(host, **ops),
    st.fixed_dictionaries(dict.fromkeys(HOST_PHASES, few)),
    st.fixed_dictionaries(dict.fromkeys(OPS, few)),
)


def played(
    workload: Workload, loop: str, relay: str, options: Mapping[str, Any], cost: CostModel
) -> Trace:
    """The trace of a fresh copy of a workload; who comes when goes by turns, not by time."""
    device, workload = open_device("sim"), fresh(workload)
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, relay, dict(options), device, model, cost)
    return Trace.of(device.recorder, loop, "sim", "hash", "virtual")


@given(st.sampled_from(LOOP_OPTIONS), demanding(max_requests=4), costs)
@settings(max_examples=many(40, 120))
def test_any_run_is_explained_to_the_nanosecond(
    item: Any, workload: Workload, cost: CostModel
) -> None:
    loop, relay, options = item
    trace = played(workload, loop, relay, options, cost)
    course = course_of(trace)
    assert course.ran.keys() == course.slices.keys(), "no lane waits for ever"
    check_bubbles(trace)
    found = report(trace)
    told = found.verdict
    assert found.bound.ns <= trace.end == found.makespan_ns == sum(found.critical.values())
    assert told.ahead + len(told.late) == told.pairs < max(1, told.steps)
    assert len(told.dry) == sum(told.blocking.values())


def check_bubbles(trace: Trace) -> None:
    """They wait for what ran meanwhile, have known causes, and make up what marks say was lost."""
    found, slices = bubbles(trace), {item.id: item for item in trace.slices}
    causes, lost = by_cause(found), lost_ns(trace)
    assert sum(causes.values()) == measure(trace).bubble_ns == sum(by_phase(found).values())
    named = {reason: ns for reason, ns in lost.items() if ns and reason != HOST}
    assert {cause: causes.get(cause, 0) for cause in named} == named
    others = {"host", "copy", "mask", "upload", "stage", "transfer", "all to all"}
    assert causes.keys() - named.keys() <= others
    for bubble in found:
        assert bubble.start < bubble.end <= slices[bubble.op].start
        assert slices[bubble.op].lane == bubble.lane
        busy = union(trace.on(bubble.lane))
        assert not any(start < bubble.end and end > bubble.start for start, end in busy)
        if bubble.cause == ARRIVAL:
            continue
        waited = bubble.during
        assert waited is not None
        assert waited.start <= bubble.start and bubble.end <= waited.end
        assert (waited.lane, waited.name) == (bubble.where, bubble.phase) != (bubble.lane, "")
        assert bubble.cause != "host" or is_host(waited.lane)
        assert bubble.cause != "stage" or is_forward(waited.lane)


@pytest.mark.parametrize("loop", ["pd", "mixed", "vllm_pp2", "mindie_dual"])
def test_a_report_adds_up_with_late_requests_and_two_schedulers(loop: str) -> None:
    trace = run(loop, *(asks(f"r{i}", 4, 40 * i) for i in range(3)))
    assert trace.end >= report(trace).bound.ns
    check_bubbles(trace)
    trace = run("vllm_pp2", asks("a", 4), asks("b", 4))
    assert bubbles(replace(trace, program=())) == bubbles(trace), "edges tell the same"


def test_overlap_is_the_remedy_for_serial_and_has_no_idle_time() -> None:
    serial, overlap = (run(loop, asks("a", 6), asks("b", 6)) for loop in ("serial", "overlap"))
    largest = report(serial).largest
    assert largest is not None and (largest.cause, largest.phase) == ("host", "process")
    assert report(overlap).largest is None and overlap.end < serial.end


# -- what idle time is charged to ------------------------------------------------------------------

ONE = [asks("r", 4, prompt=[1, 2])]
IDLE: list[tuple[str, Trace, dict[str, int | bool]]] = [
    *((f"{phase} alone", run("serial", *ONE, cost=CostModel({phase: 7}, forward_base=5)),
       {"host": 3 * 7}) for phase in ("schedule", "prepare", "launch", "output")),
    ("a token over the host", run("serial", *ONE),
     {"copy": 3 * 500 * US, "host": 3 * (800 + 2200 + 1000 + 500 + 2200) * US}),
    ("overlap", run("overlap", *ONE), {"copy": False, "host": False}),
    ("prompts on their way", run("mini_overlap", asks("a", 2), Request(
        "b", [3, 4], asks("b", 2).params, 10), cost=CostModel({"launch": 1}, 2, copy=50)),
     {"upload": True}),
    ("grammar", run_with("mindie_plugin", "grammar"), {"grammar": True}),
    ("penalties", run_with("mlx_async", "penalties"), {"penalty": True}),
    ("stages", run("vllm_pp2", *ONE), {"stage": True}),
    ("slow KV", run("pd", *(asks(f"r{i}", 2) for i in range(2)), bytes_per_second=10**6),
     {"transfer": True}),
    ("nobody there", run("serial", asks("a", 2), asks("b", 2, 2000)), {ARRIVAL: True}),
    ("a host that sleeps", by_hand(
        ("host", "launch", 0, 2, 1), ("forward", "forward", 2, 6, 1), ("host", "launch", 9, 10, 2),
        ("forward", "forward", 10, 12, 2), edges="1-2 3-4"), {"unknown": 3 * US, "host": 1 * US}),
]  # fmt: skip


@pytest.mark.parametrize(("trace", "wanted"), [row[1:] for row in IDLE], ids=[r[0] for r in IDLE])
def test_idle_time_has_its_cause(trace: Trace, wanted: dict[str, int | bool]) -> None:
    """Nanoseconds, or whether there are some."""
    causes = by_cause(bubbles(trace))
    assert sum(causes.values()) == measure(trace).bubble_ns
    for cause, ns in wanted.items():
        assert bool(causes.get(cause)) is ns if isinstance(ns, bool) else causes[cause] == ns


def test_a_program_that_waits_in_a_circle_and_a_trace_of_nothing_are_no_crash() -> None:
    slices = tuple(
        Slice(at, lane, "forward", start * US, (start + 1) * US, at)
        for at, (lane, start) in enumerate([("stage 0", 0), ("stage 1", 0), ("stage 0", 4)], 1)
    )
    program = (
        Act("stage 0", "wait", 2), Act("stage 0", "begin", 1), Act("stage 0", "begin", 3),
        Act("stage 1", "wait", 1), Act("stage 1", "begin", 2),
    )  # fmt: skip
    circle = Trace("odd", "sim", "hash", "virtual", slices, (), (), (), program)
    assert report(circle).causes == {"unknown": 3 * US} and report(circle).unknown_percent == 100
    nothing = replace(circle, slices=(), program=())
    assert report(nothing).verdict.word == "unknown"


# -- the verdict -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "word"),
    [("serial", "serial"), ("overlap", "overlapped"), ("mlx_async", "overlapped"),
     ("vllm_step", "serial"), ("vllm_async", "overlapped"), ("multi_step", "partly")],
)  # fmt: skip
def test_the_verdict_on_our_own_loops(loop: str, word: str) -> None:
    trace = run(loop, asks("r", 30))
    found = overlap_verdict(trace)
    gaps = len({(item.lane, item.op) for item in bubbles(trace)})
    assert (found.word, sum(found.blocking.values())) == (word, gaps), "it ran dry where it idled"


@pytest.mark.parametrize(("blocked", "works_from", "reason"), [
    ((10, 30), 30, "no call had blocked the host"),
    ((10, 60), 60, "had just been blocked in the wait for a step's tokens"),
    ((10, 60), 80, "had just been blocked in the wait for a step's tokens"),
    ((49, 51), 51, "no call had blocked the host"),
    ((49, 51), 80, "had made no recorded call for 0.029 ms"),
    ((10, 30), 80, "had made no recorded call for 0.05 ms"),
])  # fmt: skip
def test_a_call_is_blamed_only_for_a_gap_of_which_it_covers_a_good_part(
    blocked: tuple[int, int], works_from: int, reason: str
) -> None:
    """The device is done at 50, and the host has launched the next step at 90.

    The host was blocked once, worked from ``works_from`` on, and recorded nothing in between.
    """
    trace = by_hand(
        ("host", "launch", 0, 10, 1), ("forward", "forward", 10, 50, 1),
        ("host", "wait", *blocked, 0), ("host", "process", works_from, 80, 1),
        ("host", "launch", 80, 90, 2), ("forward", "forward", 90, 120, 2),
        ("host", "launch", 90, 100, 3), ("forward", "forward", 120, 140, 3),
        edges="1-2 5-6 7-8",
    )  # fmt: skip
    found = overlap_verdict(trace)
    assert sum(found.blocking.values()) == 1 and reason in found.sentence


def test_a_device_whose_ops_take_no_time_cannot_run_dry() -> None:
    trace = run("serial", asks("a", 6), cost=CostModel({"schedule": US}))
    found = overlap_verdict(trace)
    assert found.word == "serial" and not found.dry
    assert found.sentence.endswith("; the device has only ops of no duration.")


def test_a_device_that_idles_is_not_busy_however_early_its_steps_are_launched() -> None:
    """Three steps are launched in time, but each waits for something else on the device."""
    for pause, is_busy in ((0, True), (1, True), (60, False)):
        ran, edges, at = list[tuple[str, str, int, int, int]](), "", 10
        for step in range(1, 5):
            ran += [("host", "launch", 2 * step, 2 * step + 1, step),
                    ("forward", "forward", at, at + 40, step)]  # fmt: skip
            edges += f" {2 * step - 1}-{2 * step}"
            at += 40 + pause
        found = report(by_hand(*ran, edges=edges))
        told = found.verdict
        assert (told.ahead, told.pairs, told.word) == (3, 3, "overlapped")
        assert found.is_busy is is_busy and busy_words(found).startswith(
            "Busy: " if is_busy else "Not busy: the device worked for 0.16 ms of 0.34 ms (47.1 %)"
        )


def turns(host: int, device: int, pause: int, count: int = 6) -> Trace:
    """Return serial or overlapped turns, in microseconds.

    The host works for ``host`` and launches a step of ``device`` at the end of that work. Before
    the next turn it pauses.
    """
    ran, edges, at = list[tuple[str, str, int, int, int]](), "", 0
    for step in range(1, count + 1):
        start, launched = at, at + host
        ran += [("host", "schedule", start, launched - 2, step),
                ("host", "launch", launched - 2, launched, step),
                ("forward", "forward", launched, launched + device, step)]  # fmt: skip
        edges += f" {3 * step - 1}-{3 * step}"
        at = launched + pause
    return by_hand(*ran, edges=edges)


def test_a_host_without_a_pause_is_overlapped_and_the_limit() -> None:
    """No step is launched before the previous one has ended, yet nothing is left to overlap."""
    found = report(turns(host=100, device=60, pause=0))
    assert found.verdict.word == "overlapped"
    assert (found.verdict.ahead, found.verdict.pauseless, found.verdict.percent) == (0, 5, 100)
    assert found.verdict.sentence.startswith(
        "Overlapped and bound by its host: 0 of 5 steps (0 %) were launched before the previous "
        "one had ended, and before 5 more the host worked without a pause; "
    )
    assert not found.is_busy and found.advice.startswith("make the host's work shorter")
    for device, pause in ((60, 60), (9, 9), (60, 20)):
        paused = report(turns(100, device, pause))
        assert paused.verdict.word == "serial", "the host works 90 % of the time, but not meanwhile"
        assert paused.advice.startswith("launch each step before")


def during_a_wait(name: str, tail: int) -> Trace:
    """Four serial steps; the host waits in a slice of this name, which ends ``tail`` us late."""
    slices, program, at = list[Slice](), list[Act](), 0
    for step in range(1, 5):
        launch, op, wait, process = range(4 * step, 4 * step + 4)
        times = [
            ("launch", "host", launch, 0, 10),
            ("forward", "forward", op, 10, 110),
            (name, "host", wait, 10, 110 + tail),
            ("process", "host", process, 180, 200),
        ]
        slices += [Slice(number, lane, what, (at + start) * US, (at + end) * US, step)
                   for what, lane, number, start, end in times]  # fmt: skip
        program += [
            Act("host", "launch", op, during=launch), Act("forward", "begin", op),
            Act("forward", "end", op), Act("host", "wait", op, during=wait),
        ]  # fmt: skip
        at += 200
    ordered = tuple(sorted(slices, key=lambda item: (item.start, item.end, item.id)))
    return Trace("odd", "cuda", "", "wall", ordered, (), (), (), tuple(program))


@pytest.mark.parametrize("name", ["item()", "tolist", "forward"])
def test_a_slice_during_a_wait_is_waiting_whatever_its_name(name: str) -> None:
    found, wanted = report(during_a_wait(name, 5)), report(during_a_wait("wait", 5))
    assert (found.bound, found.largest) == (wanted.bound, wanted.largest)
    assert (found.causes, found.critical) == (wanted.causes, wanted.critical)
    assert found.bound.lane == "forward" and found.verdict.blocking == {name: 3}
    assert f"blocked in {name}." in found.verdict.sentence
    work = report(during_a_wait("item()", 60)), report(during_a_wait("wait", 60))
    assert work[0].bound == work[1].bound, "a tail of 60 us after 100 us of waiting"


def test_work_that_begins_with_a_wait_is_work() -> None:
    trace = during_a_wait("post", 60)
    moved = [replace(item, start=item.end - 90 * US) if item.name == "post" else item
             for item in trace.slices]  # fmt: skip
    assert with_waits(trace) is not trace
    assert with_waits(replace(trace, slices=tuple(moved))).slices == tuple(moved)
