"""Races in whole runs with a line of the engine changed, and in files that others wrote; drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from minisched.checks.case import Case
from minisched.checks.draw.designs import read_design
from minisched.checks.draw.draw import draw
from minisched.checks.judge import judge
from minisched.checks.leaks.pending import find_pending
from minisched.checks.offence import Offence
from minisched.checks.overlap.launches import launches
from minisched.checks.races import find_races, offence_of
from minisched.core import Request, SamplingParams
from minisched.devices.base import Device
from minisched.devices.cost import NO_COST, SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.export import offence as pictures
from minisched.export.native import NotATrace, from_json
from minisched.export.offence_text import to_text
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import many, open_device

README = Path(__file__).resolve().parents[2] / "traces" / "README.md"
SVG = "{http://www.w3.org/2000/svg}"

NO_WAIT = Edit("worker.worker:Worker.launch_copy", "    self.copy_stream.wait(last)\n", "")
ONE_SLOT = Edit("worker.batch_record:BatchRecord.__init__", "max(2, depth)", "1")
FREE_AT_ONCE = Edit(
    "memory.free_rule:lease", "    return lease.last_step <= steps.returned\n", "    return True\n"
)
ONE_BUFFER = Edit("worker.output_ring:OutputRing.__init__", "range(depth)", "range(1)")
TWICE = Edit(
    "worker.touches:Touches.follow",
    "        weakref.finalize(inputs, self.program.touch, *freed).atexit = False\n",
    "        for _ in range(2):\n"
    "            weakref.finalize(inputs, self.program.touch, *freed).atexit = False\n",
)
NEXT_SLOT = Edit(
    "relay.future_map:FutureMapRing.bind",
    "-row.lease.future_slot if",
    "-row.lease.future_slot - 7 if",
)


def traced(loop: str, relay: str, *edits: Edit) -> Trace:
    """Four requests on the simulator, with some lines of the code changed."""
    params = SamplingParams(max_new_tokens=6)
    requests = [Request(f"r{i}", [i + 1, 2, 3, 4, 5], params) for i in range(4)]
    config = SchedulerConfig(kv_tokens=200, context_len=64, chunked_prefill_size=8)
    with put_in(edits):
        return run_loop(loop, SimDevice(), HashModel(), requests, config, SIM_COST, relay).trace


# -- a line of the engine changed ------------------------------------------------------------------

Fact = tuple[str, str, tuple[str, str]]  # kind, memory without numbers, names of what did it
NO_COPY_WAIT: Fact = ("race", "output", ("sample 1", "copy 1"))
CHANGED: list[tuple[str, str, Edit, set[Fact]]] = [
    *((loop, LOOPS[loop].relays[0], NO_WAIT, {NO_COPY_WAIT})
      for loop in ("serial", "overlap", "overlap_thread", "mini_overlap")),
    ("overlap", "pool", ONE_SLOT, {("race", "inputs", ("sample 1", "prepare 2"))}),
    ("overlap", "pool", ONE_BUFFER, {("race", "output", ("copy 1", "sample 2")),
                                     ("race", "host output", ("process 1", "copy 2"))}),
    ("overlap", "ring", FREE_AT_ONCE, {("race", "kv", ("forward 9", "process 8"))}),
    ("overlap", "ring", TWICE, {("double free", "inputs", ("prepare 3", "prepare 3"))}),
    ("overlap", "ring", NEXT_SLOT, {("unwritten", "future map", ("forward 4", "forward 4"))}),
]  # fmt: skip


@pytest.mark.parametrize(("loop", "relay", "edit", "facts"), CHANGED)
def test_a_changed_engine_is_seen_and_told_once(
    loop: str, relay: str, edit: Edit, facts: set[Fact]
) -> None:
    """Although an edge that is missing is missing in every step."""
    trace = traced(loop, relay, edit)
    slices = {item.id: item for item in trace.slices}
    found = set[Fact]()
    for race in find_races(trace):
        names = [
            f"{one.name} {one.step}" for one in (slices[race.first.op], slices[race.second.op])
        ]
        found.add((race.kind, re.sub(r" ?\d+", "", race.resource), (names[0], names[1])))
        assert race.missing == ((race.first.op, race.second.op) if race.kind == "race" else None)
        assert len(race.also) == (edit is FREE_AT_ONCE), "the row of the page table"
        if edit is NO_WAIT:
            assert race.count == sum(item.name == "sample" for item in trace.slices)
            assert "(copy stream; r0, r1)" in str(race) and "(forward stream; r0, r1)" in str(race)
        offence = offence_of(race, trace)
        drawn = pictures.draw(trace, offence)
        assert offence.slices and all(f'data-offence="{one}"' in drawn for one in offence.slices)
    assert found == facts


STOPS = SamplingParams(max_new_tokens=8, stop_token_ids=frozenset(range(128, 256)))


@pytest.mark.parametrize("relay", ["token_pool", "pool"])
@pytest.mark.parametrize("rule", ["lease", "deferred", "at_once"])
def test_a_row_handed_on_too_early_races_where_two_streams_write_it(rule: str, relay: str) -> None:
    """mini-sglang #89; and ``at_once`` is harmless while one stream writes."""
    long = SamplingParams(max_new_tokens=3, ignore_eos=True)
    requests = [Request("a", [1, 2, 3], STOPS), Request("b", range(20, 32), long)]
    config = SchedulerConfig(max_running_requests=1, disable_radix_cache=True, free_rule=rule)
    cost = CostModel({"schedule": 5, "launch": 1, "process": 5}, 30, 0, 2, 1)
    run = run_loop("mini_overlap", SimDevice(), HashModel(), requests, config, cost, relay)
    races = find_races(run.trace)
    if rule == "at_once" and relay == "token_pool":
        [race] = races
        assert race.where.startswith("token-pool cell (row 1, position ")
        assert [who.partition("(")[2] for who in race.who] == [
            "forward stream; a)", "scheduler stream; b)",
        ]  # fmt: skip
    else:
        assert races == []


# -- on every clock --------------------------------------------------------------------------------


def acts_by_lane(case: Case) -> dict[str, list[tuple[str, str, str]]]:
    """What each lane did in its own order, as far as it orders or touches anything.

    A lane need not be told that it comes after itself. When a device closes, it says every signal
    that nobody has said, on a wall clock only.
    """
    trace = judge(case).trace
    ran_on = {act.op: act.lane for act in trace.program if act.kind == "begin"}
    lanes: dict[str, list[tuple[str, str, str]]] = {}
    for act in trace.program:
        if act.kind != "wait" or ran_on.get(act.op) != act.lane:
            cells = act.at if act.resource != "value" else ""
            lanes.setdefault(act.lane, []).append((act.kind, act.resource, cells))
    while lanes["host"][-1][0] == "say":
        lanes["host"].pop()
    return lanes


@pytest.mark.parametrize("device", ["thread", "mlx"])
@pytest.mark.parametrize(
    "loop", ["overlap_thread", "mindie_plugin", "mindie_dual", "overlap", "vllm_async:pool:depth=4"]
)
def test_what_lanes_do_is_the_same_on_every_clock(loop: str, device: str) -> None:
    """A wait that a wall clock alone records never happened: it would hide whatever it orders."""
    for seed in (0, 1, 3, 4, 9)[: many(1, 5)]:
        drawn = draw(seed)
        simulated = replace(drawn.on(read_design(loop)), cost=NO_COST)
        assert acts_by_lane(drawn.on(read_design(loop), device)) == acts_by_lane(simulated)


DEVICES = ["sim", "thread", "mlx"]


def handed_over(device: Device, unrelated: bool) -> Trace:
    """A thread writes and says so; the host reads without asking. It may make another signal."""
    said = device.signal("written")

    def work() -> None:
        device.recorder.program.touch("write", "shared", [1])
        said.set()

    with device.host("one", 10):
        call = device.thread("worker thread").launch(work, name="work", cost=5)
    device.idle_until(device.now() + 1_000_000)
    while not said.done:  # nobody asks by ``query``: that would be to wait for it
        device.idle_until(device.now() + 1_000_000)
    if unrelated:
        device.signal("of nobody here")
    with device.host("two", 10):
        device.recorder.program.touch("read", "shared", [1])
    call.synchronize()
    device.close()
    return device.recorder.trace("made", device.name, "none", device.clock)


@pytest.mark.parametrize("unrelated", [False, True])
@pytest.mark.parametrize("name", DEVICES)
def test_a_new_signal_hides_no_race_on_any_clock(name: str, unrelated: bool) -> None:
    [race] = find_races(handed_over(open_device(name), unrelated))
    assert (race.resource, race.second.lane) == ("shared", "host")


# -- any file in the documented schema -------------------------------------------------------------


def example(change: Callable[[list[dict[str, Any]]], object] = lambda program: None) -> Any:
    """The example of the README, with its program changed."""
    [text] = re.findall(r"^```json\n(.*?)^```", README.read_text(encoding="utf-8"), re.S | re.M)
    data = json.loads(text)
    change(data["program"])
    return data


def test_the_example_of_the_readme_is_caught_and_cured() -> None:
    trace = from_json(json.dumps(example()))
    [race] = find_races(trace)
    said = " ".join(README.read_text(encoding="utf-8").rpartition("\n\n    ")[2].split())
    assert str(race) == said and set(launches(trace)) == {2, 3, 5, 6}
    data = example()
    at = data["program"].index({"lane": "copy", "kind": "begin", "op": 6})
    data["program"].insert(at, {"lane": "copy", "kind": "wait", "op": 5})
    assert find_races(from_json(json.dumps(data))) == []


def test_what_is_in_flight_where_a_recording_stops_is_no_leak() -> None:
    """Nobody waits for step 2 of the example; it is one once its requests have all ended."""
    data = example()
    assert find_pending(from_json(json.dumps(data))) == []
    for rid, left in (("a", []), ("b", ["the forward of step 2", "the copy of step 2"])):
        ended = {"name": "finish", "time": 980000, "attrs": {"rid": rid, "reason": "length"}}
        data["marks"].append(ended)
        assert [leak.what for leak in find_pending(from_json(json.dumps(data)))] == left


@pytest.mark.parametrize(
    ("at", "fields", "says"),
    [
        (0, {"kind": "fork"}, "has kind = 'fork', but it must be one of launch, "),
        *((5, {"at": at}, f"has at = {at!r}, but cells are written in order")
          for at in ("3-", "3 2", "5-3", "-1", "1 1", "x", "1.5", "2-4 3", "9" * 17)),
        *((5, {"at": at}, "has at = ") for at in (1.5, -1, [1], None)),
        (5, {"at": ""}, "is a read, but it lacks cells (at)"),
        (5, {"resource": ""}, "is a read, but it lacks a resource"),
        (4, {"at": "1"}, "is a wait and touches nothing, but it has a resource or"),
        (4, {"op": 0}, "has op = 0, but an op is a number above 0"),
        (4, {"op": "x"}, 'has op = "x"'),
        (4, {"lane": ""}, "has no lane"),
        (1, {"op": 2}, "is a second launch of op 2"),
        (9, {"op": 2}, "is a second begin of op 2"),
        (8, {"op": 3}, "is an end of op 3, which has not begun on its lane"),
    ],
)  # fmt: skip
def test_an_act_that_is_none_gets_a_sentence(at: int, fields: dict[str, Any], says: str) -> None:
    data = example(lambda program: program[at].update(fields))
    with pytest.raises(NotATrace, match=re.escape(f"program[{at}] {says}")) as caught:
        from_json(json.dumps(data), "engine.json")
    assert str(caught.value).startswith("engine.json is a damaged minisched trace: ")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


SAYS_TWICE = [{"lane": lane, "kind": "say", "op": 99} for lane in "ab"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data["program"][0].update(op=9), "program[6] is a begin of op 2, which nobo"),
        (lambda data: data["program"][8].update(kind="say"), "program[9] is a begin of op 5, but"),
        (lambda data: data["program"].extend(SAYS_TWICE), "program[22] says signal 99, which lane"),
        (lambda data: data["slices"][1].update(id=1), "two slices have the same id"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_rest_gets_a_sentence(
    change: Callable[[Any], object], says: str
) -> None:
    data = example()
    change(data)
    with pytest.raises(NotATrace, match=re.escape(says)):
        from_json(json.dumps(data))


# -- drawn -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[NO_WAIT, FREE_AT_ONCE], ids=["op", "host"])
def raced(request: pytest.FixtureRequest) -> tuple[Trace, Offence]:
    trace = traced("overlap", "ring", request.param)
    return trace, offence_of(find_races(trace)[0], trace)


def test_the_two_are_framed_in_red_and_the_edge_between_them_is_missing(
    raced: tuple[Trace, Offence],
) -> None:
    trace, offence = raced
    root = ElementTree.fromstring(pictures.draw(trace, offence))
    boxes = {item.get("data-id"): item for item in root.iter() if item.get("data-id")}
    frames = [item for item in root.iter() if item.get("data-offence")]
    assert sorted(int(item.get("data-offence", "")) for item in frames) == sorted(offence.slices)
    for frame in frames:
        box = boxes[frame.get("data-offence")]
        for name in ("x", "y"):
            assert float(frame.get(name, 0)) == pytest.approx(float(box.get(name, 0)) - 1, abs=0.2)
    assert offence.missing
    [missing] = [item.get("data-missing") for item in root.iter() if item.get("data-missing")]
    assert missing == "{} {}".format(*offence.missing)
    drawn = {(item.get("data-src"), item.get("data-dst")) for item in root.iter()}
    assert tuple(map(str, offence.missing)) not in drawn, "the edge that is said to be missing"
    says = [text for item in root.iter(f"{SVG}text") if "missing: " in (text := item.text or "")]
    assert says and f"-> {says[0]}" in to_text(trace, offence)
