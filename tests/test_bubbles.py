"""Every bubble has a cause, and the causes make up the bubbles, on every loop."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.bubbles import bubbles, by_cause, by_phase
from minisched.checks.overlap.overlap import measure, union
from minisched.checks.overlap.report import report
from minisched.checks.overlap.verdict import verdict
from minisched.checks.overlap.waits import ARRIVAL, HOST, lost_ns
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, SIM_COST, CostModel
from minisched.devices.registry import open_device
from minisched.export.wait_runs import run_with
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Edge, Slice, Trace
from minisched.trace.lanes import is_forward, is_host
from tests.support import LOOP_OPTIONS, Workload, demanding
from tests.timed_plays import costs, played

law = settings(max_examples=50, deadline=None)
US = 1000


def tokens(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, ignore_eos=True)


def run(
    loop: str, requests: list[Request], config: SchedulerConfig | None = None,
    cost: CostModel = SIM_COST, **options: Any,
) -> Trace:  # fmt: skip
    device = open_device("sim")
    return run_loop(loop, device, HashModel(), requests, config, cost, **options).trace


@law
@given(st.sampled_from(LOOP_OPTIONS), demanding(max_requests=4), costs)
def test_the_causes_make_up_the_bubbles(item: Any, workload: Workload, cost: CostModel) -> None:
    """Exactly; none is unknown on a virtual clock; and marks and counters say what they said."""
    trace = played(workload, *item, cost)
    found = bubbles(trace)
    causes, lost = by_cause(found), lost_ns(trace)
    assert sum(causes.values()) == measure(trace).bubble_ns == sum(by_phase(found).values())
    assert "unknown" not in causes and "message" not in causes
    named = {reason: ns for reason, ns in lost.items() if ns and reason != HOST}
    assert {cause: causes.get(cause, 0) for cause in named} == named
    others = {"host", "token", "copy", "mask", "upload", "stage", "memory"}
    assert causes.keys() - named.keys() <= others


@law
@given(st.sampled_from(LOOP_OPTIONS), demanding(max_requests=4), costs)
def test_a_bubble_waits_for_what_ran_meanwhile(
    item: Any, workload: Workload, cost: CostModel
) -> None:
    """On another lane, all the time; its own device did nothing, and the op came later."""
    trace = played(workload, *item, cost)
    slices = {item.id: item for item in trace.slices}
    for bubble in bubbles(trace):
        assert bubble.start < bubble.end <= slices[bubble.op].start
        assert slices[bubble.op].lane == bubble.lane
        busy = union(trace.on(bubble.lane))
        assert not any(start < bubble.end and end > bubble.start for start, end in busy)
        if bubble.cause == ARRIVAL:
            continue
        (number,) = bubble.waited_for
        waited = slices[number]
        assert waited.start <= bubble.start and bubble.end <= waited.end
        assert (waited.lane, waited.name) == (bubble.where, bubble.phase) != (bubble.lane, "")
        if bubble.cause == "host":
            assert is_host(waited.lane)
        if bubble.cause == "stage":
            assert is_forward(waited.lane)


@pytest.mark.parametrize("phase", ["schedule", "prepare", "launch", "output"])
def test_the_phase_that_costs_is_the_phase_that_is_named(phase: str) -> None:
    cost = CostModel({phase: 7}, forward_base=5)
    trace = run("serial", [Request("r", [1, 2], tokens(4))], cost=cost)
    assert by_phase(bubbles(trace)) == {("host", phase): 3 * 7}


def test_a_token_that_goes_over_the_host() -> None:
    """Its copy and its processing; the rest of the turn is the host's ordinary work."""
    copy, process, rest = 500 * US, 2200 * US, (800 + 2200 + 1000 + 500) * US
    causes = by_cause(bubbles(run("serial", [Request("r", [1, 2], tokens(4))])))
    assert causes == {"token": 3 * (copy + process), "host": 3 * rest}
    assert bubbles(run("overlap", [Request("r", [1, 2], tokens(4))])) == []


def test_a_copy_that_brings_no_token_to_the_next_step() -> None:
    """mini-sglang's tokens stay on the device, and its serial loop waits for the copy anyway."""
    causes = by_cause(bubbles(run("mini_normal", [Request("r", [1, 2], tokens(4))])))
    assert causes["copy"] == 3 * 500 * US and "token" not in causes


def test_prompts_on_their_way() -> None:
    """Of the second request, when the first one's step is over long since."""
    cost = CostModel({"launch": 1}, forward_base=2, copy=50)
    later = [Request("a", [1, 2], tokens(2)), Request("b", [3, 4], tokens(2), 10)]
    causes = by_cause(bubbles(run("mini_overlap", later, cost=cost)))
    assert causes["upload"] > 0


def test_nobody_is_there() -> None:
    later = 2000 * MILLISECOND
    trace = run("serial", [Request("a", [1], tokens(2)), Request("b", [2], tokens(2), later)])
    nobody = [bubble for bubble in bubbles(trace) if bubble.cause == ARRIVAL]
    assert sum(bubble.duration for bubble in nobody) == lost_ns(trace)[ARRIVAL]
    assert nobody[-1].sentence.endswith("nobody is there to be served.")


def test_a_request_that_waits_for_memory() -> None:
    """The second prompt finds no room until the first request's result has come back."""
    requests = [Request("a", range(8), tokens(1)), Request("b", range(8, 16), tokens(1))]
    config = SchedulerConfig(kv_tokens=9, page_size=1, disable_radix_cache=True, context_len=9)
    trace = run("overlap", requests, config)
    causes = by_cause(bubbles(trace))
    assert causes["memory"] > 0
    more = SchedulerConfig(kv_tokens=32, page_size=1, disable_radix_cache=True, context_len=9)
    assert "memory" not in by_cause(bubbles(run("overlap", requests_again(requests), more)))


def requests_again(requests: list[Request]) -> list[Request]:
    return [Request(req.rid, req.prompt, req.params) for req in requests]


def test_masks_and_what_waits_for_them() -> None:
    """A loop that says so, and one in which building masks is a part of every turn."""
    assert "grammar" in by_cause(bubbles(run_with("mindie_plugin", "grammar")))
    assert "penalty" in by_cause(bubbles(run_with("mlx_async", "penalties")))
    slow = CostModel({"mask": 9}, forward_base=2, sample=1)
    one = SamplingParams(max_new_tokens=4, regex="a+b", ignore_eos=True)
    trace = run("serial", [Request("r", [1], one)], cost=slow)
    masks = sum(item.name == "mask" for item in trace.slices)
    assert masks > 1 and by_cause(bubbles(trace)) == {"mask": masks * (9 - 2)}


def test_a_later_stage_waits_for_the_one_before() -> None:
    found = bubbles(run("vllm_pp2", [Request("r", [1, 2], tokens(4))]))
    assert {bubble.lane for bubble in found if bubble.cause == "stage"} == {"stage 0", "stage 1"}


def test_two_schedulers() -> None:
    """KV that is slow to come is a transfer, and no work of the host."""
    requests = [Request(f"r{i}", [1, 2, 3], tokens(2)) for i in range(2)]
    trace = run("pd", requests, bytes_per_second=10**6)
    causes = by_cause(bubbles(trace))
    assert sum(causes.values()) == measure(trace).bubble_ns
    assert max(causes, key=lambda cause: causes[cause]) == "transfer"


def test_what_nothing_explains_is_unknown_and_its_share_is_said() -> None:
    """A host that sleeps between two launches, on a wall clock."""
    trace = by_hand(
        ("host", "launch", 0, 2, 1), ("forward", "forward", 2, 6, 1),
        ("host", "launch", 9, 10, 2), ("forward", "forward", 10, 12, 2),
        edges=(Edge(1, 2, "launch"), Edge(3, 4, "launch")),
    )  # fmt: skip
    findings = report(trace)
    assert findings.causes == {"unknown": 3 * US, "host": 1 * US}
    assert findings.unknown_percent == 75
    assert "Nothing recorded explains 75.0 % of the idle time." in findings.sentences
    assert findings.critical == {
        "": 7 * US,
        "host: launch": 3 * US,
        "forward: forward": 2 * US,
    }, "the host did nothing that was recorded from 2 to 9"


def test_without_a_program_edges_tell_the_same() -> None:
    for loop in ("serial", "mindie_placeholder", "vllm_pp2"):
        trace = run(loop, [Request(f"r{i}", [1, 2 + i], tokens(4)) for i in range(2)])
        assert bubbles(replace(trace, program=())) == bubbles(trace)


@pytest.mark.parametrize(
    ("loop", "word"),
    [("serial", "serial"), ("overlap", "overlapped"), ("mlx_async", "overlapped"),
     ("vllm_step", "serial"), ("vllm_async", "overlapped"), ("multi_step", "partly")],
)  # fmt: skip
def test_the_verdict_on_our_own_loops(loop: str, word: str) -> None:
    trace = run(loop, [Request("r", [1, 2], tokens(30))])
    found = verdict(trace)
    assert found.word == word
    assert (found.dry_percent == 0) == (measure(trace).bubble_ns == 0)
    dry = sum(end - start for start, end in found.dry)
    assert dry == measure(trace).bubble_ns, "the device ran dry whenever it idled"


def test_nobody_there_is_no_dry_spell() -> None:
    """Requests so far apart that each runs alone: the loop overlaps nevertheless."""
    apart = [Request(f"r{i}", [i], tokens(2), 900 * i * MILLISECOND) for i in range(3)]
    found = verdict(run("overlap", apart))
    assert found.word == "overlapped" and found.ahead == found.pairs > 0 and not found.dry


def by_hand(*ran: tuple[str, str, int, int, int], edges: tuple[Edge, ...]) -> Trace:
    """A trace of (lane, name, start, end, step) in microseconds; ids count from 1."""
    slices = tuple(
        Slice(at, lane, name, start * US, end * US, step)
        for at, (lane, name, start, end, step) in enumerate(ran, 1)
    )
    return Trace("odd", "cuda", "", "wall", slices, edges, (), ())


def test_a_device_that_waits_for_another_stream_is_not_dry() -> None:
    """All steps were launched at once; the second one starts late, for whatever reason."""
    trace = by_hand(
        ("host", "launch", 0, 1, 1), ("host", "launch", 1, 2, 2), ("host", "launch", 2, 3, 3),
        ("forward", "forward", 3, 5, 1), ("forward", "forward", 9, 12, 2),
        ("forward", "forward", 12, 15, 3),
        edges=(Edge(1, 4, "launch"), Edge(2, 5, "launch"), Edge(3, 6, "launch")),
    )  # fmt: skip
    found = verdict(trace)
    assert (found.word, found.dry) == ("overlapped", ())
    assert found.sentence.endswith(
        "the device never ran dry, as what ended its gaps had been launched before them."
    )


@pytest.mark.parametrize(("until", "blocks"), [(3, False), (6, True)])
def test_a_call_is_blamed_only_if_it_blocked_until_the_device_was_dry(
    until: int, blocks: bool
) -> None:
    """The device is done at 5. A host that was blocked until 3 has been at work since then."""
    trace = by_hand(
        ("host", "launch", 0, 1, 1), ("forward", "forward", 1, 5, 1),
        ("host", "wait", 1, until, 0), ("host", "launch", 8, 9, 2),
        ("forward", "forward", 9, 12, 2),
        ("host", "launch", 9, 10, 3), ("forward", "forward", 12, 14, 3),
        edges=(Edge(1, 2, "launch"), Edge(4, 5, "launch"), Edge(6, 7, "launch")),
    )  # fmt: skip
    found = verdict(trace)
    assert found.dry == ((5 * US, 9 * US),)
    assert ("no blocking call" in found.blocking) is not blocks
    assert ("the host was blocked in" in found.sentence) is blocks


@pytest.mark.parametrize("loop", LOOPS)
def test_a_report_can_be_read_and_stored(loop: str) -> None:
    findings = report(run(loop, [Request(f"r{i}", [1, 2 + i], tokens(4)) for i in range(2)]))
    data = json.loads(json.dumps(findings.to_json()))
    assert data["causes"] == findings.causes and data["verdict"]["word"] == findings.verdict.word
    assert sum(data["phases"].values()) == sum(data["causes"].values()) == data["bubble_ns"]
    assert sum(data["critical"].values()) == data["makespan_ns"]
    assert 0 < data["bound"]["percent"] <= 100
    for sentence in findings.sentences:
        assert sentence[0].isupper() and sentence.endswith(".") and "  " not in sentence


def test_a_program_that_waits_in_a_circle_is_no_crash() -> None:
    """Of a run that never happened: two lanes wait for each other. All idle time is unknown."""
    slices = tuple(
        Slice(at, lane, "forward", start * US, (start + 1) * US, at)
        for at, (lane, start) in enumerate([("stage 0", 0), ("stage 1", 0), ("stage 0", 4)], 1)
    )
    program = (
        Act("stage 0", "wait", 2), Act("stage 0", "begin", 1), Act("stage 0", "begin", 3),
        Act("stage 1", "wait", 1), Act("stage 1", "begin", 2),
    )  # fmt: skip
    trace = Trace("odd", "sim", "hash", "virtual", slices, (), (), (), program)
    assert report(trace).causes == {"unknown": 3 * US}


def test_a_report_on_nothing() -> None:
    empty = Trace("none", "sim", "hash", "virtual", (), (), (), ())
    assert report(empty).sentences == ("Unknown: nothing ran on a device in this trace.",)
