"""Races: hand-written programs and what each says, engines with a line changed, foreign files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from minisched.checks.causes import launches
from minisched.checks.history import Offence, Words
from minisched.checks.judge import judge
from minisched.checks.races import find_endless, find_races
from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.export.offence import offence_scene
from minisched.export.scene_svg import to_svg
from minisched.export.scene_text import to_text
from minisched.loops.design import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.museum.exhibit import case
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Mark, Recorder, Slice, Touch, Trace
from minisched.trace.cells import cells_of
from minisched.trace.native import NotATrace, from_json, to_json

README = Path(__file__).resolve().parents[2] / "traces" / "README.md"

# -- programs in a few letters ---------------------------------------------------------------------
# ``a1:w3-9+20,r2@x`` launches op 1 on stream a, which writes KV slots and reads slot 2 for request
# x; ``a<1`` tells a to wait for op 1, ``<1`` the host; ``!f1@x`` is the host's own free. Other
# memory than KV is named: ``weights.r1``.


def made(acts: Iterable[Act], slices: Iterable[Slice] = (), marks: Iterable[Mark] = ()) -> Trace:
    return Trace("made", "none", "none", "wall", tuple(slices), (), (), tuple(marks), tuple(acts))


def touch_of(text: str) -> Touch:
    found = re.fullmatch(r"(?:([\w ]+)\.)?([rwfe])([\d+-]+)(?:@(\w+))?", text)
    assert found, text
    resource, kind, cells, rid = found.groups("")
    return Touch(
        {"r": "read", "w": "write", "f": "free", "e": "release"}[kind],
        resource or "kv",
        cells.replace("+", " "),
        rid,
    )


def recorded(text: str) -> Trace:
    """A program as a device records it, in the order in which the host issued it."""
    p = Recorder()
    for word in text.split():
        if word[0] == "!":
            kind, resource, cells, rid = touch_of(word[1:])
            p.touch(kind, resource, cells_of(str(cells)), rid)
        elif "<" in word:
            lane, _, number = word.partition("<")
            p.wait(int(number), lane)
        else:
            head, _, touches = word.partition(":")
            found = list(map(touch_of, filter(None, touches.split(","))))
            assert p.launch("op", lane=head[0], touches=found) == int(head[1:])
    return made(p.acts)


def launched(*numbers: int) -> list[Act]:
    return [Act("host", "launch", number) for number in numbers]


def op(lane: str, number: int, *touches: tuple[str, str, str]) -> list[Act]:
    inside = [Act(lane, kind, number, resource, at) for kind, resource, at in touches]
    return [Act(lane, "begin", number), *inside, Act(lane, "end", number)]


FREED = "a1:w1 <1 !f1"
PROGRAMS: dict[str, list[tuple[str, str, tuple[int, int] | None]]] = {
    "a1:w1 b2:r1": [("race", "1", (1, 2))],
    "a1:w1 b<1 b2:r1": [],
    "!w0-40 a1:w3-9+20+30-31 b2:r0-4+8+31-40": [("race", "3-4 8 31", (1, 2))],
    f"{FREED} a2:w0-2,r0-2": [],
    f"{FREED} a2:r1": [("use after free", "1", None)],
    "a1:w0-7 <1 !f0-7 a2:w0-2,r0-7": [("use after free", "3-7", None)],
    "!w5 a1:r0-7 !f5": [("race", "5", None)],
    "a1:w1@x <1 !f1@x a2:w1@y,r1@y": [],
    "a1:w1@x !e1@x a2:w1@y,r1@y": [],  # released under op 1; the next owner is on its stream
    "a1:r1@x !e1@x b2:w1@y": [("race", "1", (1, 2))],  # and here it is on another one
    "a1:r1@x !e1@x b<1 b2:w1@y": [],
    "a1:w1@x <1 !e1@x b2:w1@y": [],
    "a1:w1@x !e1@x a2:r1": [("use after free", "1", None)],
    "d1:w1 a<1 a2:r1 b<1 b3:r1 c<1 c4:r1 d<2 d<3 d5:w1": [("race", "1", (4, 5))],
    "a1:w0 a2:w1 b<1 b3:r1": [("race", "1", (2, 3))],  # an old event of the stream
    "!pinned.w1 a1:pinned.r1 !pinned.w1": [("race", "1", None)],
    "!pinned.w1 a1:pinned.r1": [],  # a launch comes behind what the host did
    "a1:kv0.w1 b2:r1": [],
    "a1 b2:value.r1": [("race", "1", (1, 2))],
    "a1 b<1 b2:value.r1": [],
    "a1:future_map.w0 b2:future_map.w0": [("race", "0", (1, 2))],
    "a1:o.w0,w0 b2:o.r0 c3:r0": [("race", "0", (1, 2)), ("race", "0", (1, 3))],
    "a1:r1,w2 b2:w1,r2": [("race", "1", (1, 2))],  # one edge would order both
    "a1:w1 b2:r1 c3:r1": [("race", "1", (1, 2)), ("race", "1", (1, 3))],
}


@pytest.mark.parametrize("text", PROGRAMS)
def test_what_a_program_says(text: str) -> None:
    trace = recorded(text)
    found = find_races(trace)
    told = [(race.kind, cells_in(race), race.missing) for race in found]
    assert sorted(told, key=str) == sorted(PROGRAMS[text], key=str) and not find_endless(trace)
    assert find_races(from_json(to_json(trace))) == found, "a file says the same"


def cells_in(race: Offence) -> str:
    """``3-4 8`` in ``KV slots 3-4 8: ...``."""
    found = re.search(r"[\d-]+( [\d-]+)*$", race.sentence.partition(":")[0])
    return found[0] if found else ""


NEVER: list[tuple[list[Act], tuple[str, ...], tuple[int, ...], int]] = [
    ([*launched(1), Act("a", "wait", 7), *op("a", 1, ("write", "kv", "0"))], ("a",), (7,), 4),
    ([*launched(1, 2), Act("a", "wait", 2), *op("a", 1), Act("b", "wait", 1), *op("b", 2)],
     ("a", "b"), (2, 1), 6),
    ([*launched(1, 2), Act("a", "wait", 7), *op("a", 1), Act("b", "wait", 1), *op("b", 2)],
     ("a", "b"), (7, 1), 6),
    ([Act("host", "wait", 2), *launched(2), *op("a", 2)], ("host", "a"), (2, 2), 4),
]  # fmt: skip


@pytest.mark.parametrize(("acts", "lanes", "ops", "unreached"), NEVER)
def test_what_waits_for_ever_is_told(
    acts: list[Act], lanes: tuple[str, ...], ops: tuple[int, ...], unreached: int
) -> None:
    [found] = find_endless(made(acts))
    said = found.sentence
    assert said.count(" waits for ") == len(lanes)
    assert f"and {unreached} acts are never reached" in said
    for lane, number in zip(lanes, ops, strict=True):
        assert re.search(rf"the {lane}( stream)? waits for (the launch of )?op {number}\b", said)


CELLS = [
    ("kv", "17"), ("kv", "3-7 9"), ("kv", "1 3 5 7 9 11"), ("prefill kv", "3"), ("future map", "3"),
    ("page table", "128-131"), ("page table", "60-70"), ("token pool", "131"),
    ("token pool", "131-133"), ("token pool", "60-70"), ("token pool", "3 5 9-12 14"),
    ("host output 1", "0-1"), ("output 0", "0"), ("inputs", "4"), ("value", "8"), ("a mask", "0"),
]  # fmt: skip


def test_the_words(golden: Callable[[str, str], None]) -> None:
    marks = [Mark("row length", 0, {"page table": 64, "token pool": 64})]
    words = Words(made([], [Slice(8, "forward", "sample", 0, 1, 3)], marks))
    lines = [f"{resource} {at}: {words.cells(resource, at)}" for resource, at in CELLS]
    for text in PROGRAMS:
        lines += ["", text, *(f"  {race}" for race in find_races(recorded(text)))]
    for acts, *_ in NEVER:
        lines += ["", *(str(found) for found in find_endless(made(acts)))]
    golden("races.txt", "\n".join(lines) + "\n")


def test_a_step_that_was_committed_before_a_release_may_read_after_it() -> None:
    slices = [Slice(9, "host", "process", 0, 1, 3), Slice(1, "a", "forward", 2, 3, 4)]
    read = [*launched(1), *op("a", 1, ("read", "kv", "7"))]
    for step, kinds in ((4, []), (3, ["use after free"])):
        release = Act("host", "release", 9, "kv", "7", step=step)
        assert [race.kind for race in find_races(made([release, *read], slices))] == kinds


@pytest.mark.parametrize(
    ("on", "rule", "is_race"),
    [
        ("overlap:pool", "at_once", False),
        ("overlap:token_pool", "at_once", True),
        ("overlap:token_pool", "lease", False),
        ("mini_overlap:token_pool", "at_once", True),
        ("mini_overlap:token_pool", "", False),
    ],
)
def test_memory_is_released_early_only_where_one_stream_writes_it(
    on: str, rule: str, is_race: bool
) -> None:
    """A second stream copies the next owner's prompt, while a wasted row of the last one runs."""
    workload = case("a: 18 -> 2; b: 7 3 5 -> 1", on, kv=4, eos={10}, free_rule=rule)
    verdict = judge(workload)
    assert [item.law for item in verdict.findings if item.law == "race"] == ["race"] * is_race
    assert verdict.holds or is_race


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_free_comes_behind_every_use_also_of_a_later_step(kind: str) -> None:
    touches = [("write", "page table", "0-3"), (kind, "kv", "7")]
    slices = [Slice(9, "host", "process", 8, 9, 13), Slice(1, "a", "forward", 5, 20, 14)]
    frees = [Act("host", "free", 9, "kv", "7"), Act("host", "free", 9, "page table", "0-3")]
    [race] = find_races(made([*launched(1), *frees, *op("a", 1, *touches)], slices))
    verb = {"read": "reads", "write": "writes"}[kind]
    assert re.search(rf"frees what .* {verb}, and", race.sentence)
    assert (race.missing, race.waits) == ((1, 9), "free")
    cured = [*launched(1), Act("host", "wait", 1), *frees, *op("a", 1, *touches)]
    assert not find_races(made(cured, slices))


# -- a line of the engine changed ------------------------------------------------------------------

NO_WAIT = Edit(
    "worker.worker:Worker.launch_sample", "self.copy_stream.wait(step.next_token_ids)", "pass"
)
ONE_SLOT = Edit("worker.worker:Worker.__init__", "max(pins, depth)", "1")
ONE_BUFFER = Edit(
    "worker.worker:Worker.__init__",
    'self.outputs = [device.memory(f"output {i}", size) for i in range(depth)]',
    'self.outputs = [device.memory("output 0", size)]',
)

Fact = tuple[str, str, tuple[str, str]]  # kind, memory up to its number, names of what did it
NO_COPY_WAIT: Fact = ("race", "device output buffer", ("sample 1", "copy 1"))
CHANGED: list[tuple[str, str, Edit, set[Fact]]] = [
    *((loop, LOOPS[loop].relays[0], NO_WAIT, {NO_COPY_WAIT})
      for loop in ("serial", "overlap_thread", "mini_overlap")),
    ("overlap", "pool", ONE_SLOT, {("race", "the inputs of step", ("sample 1", "prepare 2"))}),
    ("overlap", "pool", ONE_BUFFER, {("race", "device output buffer", ("copy 1", "sample 2")),
                                     ("race", "host output buffer", ("process 1", "copy 2"))}),
]  # fmt: skip


@pytest.mark.parametrize(("loop", "relay", "edit", "facts"), CHANGED)
def test_a_changed_engine_is_seen_and_told_once(
    loop: str, relay: str, edit: Edit, facts: set[Fact]
) -> None:
    """Although an edge that is missing is missing in every step."""
    params, found = SamplingParams(max_new_tokens=6), set[Fact]()
    requests = [Request(f"r{i}", [i + 1, 2, 3, 4, 5], params) for i in range(4)]
    config = SchedulerConfig(kv_tokens=200, context_len=64, chunked_prefill_size=8)
    with put_in([edit]):
        trace = run_loop(loop, SimDevice(), HashModel(), requests, config, SIM_COST, relay).trace
    names = {item.id: f"{item.name} {item.step}" for item in trace.slices}
    for race in find_races(trace):
        first, second = race.slices
        found.add((race.kind, re.sub(r" \d.*", "", race.sentence), (names[first], names[second])))
        assert race.missing == (race.slices if race.kind == "race" else None)
        if edit is NO_WAIT:
            count = sum(item.name == "sample" for item in trace.slices)
            assert race.sentence.endswith(f"; {count} such pairs")
            assert "(copy stream; r0, r1)" in str(race) and "(forward stream; r0, r1)" in str(race)
        drawn = to_svg(scene := offence_scene(trace, race))
        assert race.slices and all(f'data-offence="{one}"' in drawn for one in race.slices)
        if race.missing:
            assert f'data-missing="{race.missing[0]} {race.missing[1]}"' in drawn
            assert "\nmissing: " in to_text(scene)
    assert found == facts


# -- any file in the documented schema -------------------------------------------------------------


def example() -> Any:
    [text] = re.findall(r"^```json\n(.*?)^```", README.read_text(encoding="utf-8"), re.S | re.M)
    return json.loads(text)


def test_the_example_of_the_readme_is_caught_and_cured() -> None:
    data = example()
    trace = from_json(json.dumps(data))
    [race] = find_races(trace)
    said = " ".join(README.read_text(encoding="utf-8").rpartition("\n\n    ")[2].split())
    assert str(race) == said and set(launches(trace)) == {2, 3, 5, 6}
    at = data["program"].index({"lane": "copy", "kind": "begin", "op": 6})
    data["program"].insert(at, {"lane": "copy", "kind": "wait", "op": 5})
    assert not find_races(from_json(json.dumps(data)))


@pytest.mark.parametrize(
    ("at", "fields", "says"),
    [
        (0, {"kind": "fork"}, "program[0] has kind = 'fork', but it must be one of launch, "),
        *((5, {"at": at}, f"program[5] has at = {at!r}, but cells are written in order")
          for at in ("3-", "5-3", "-1", "1 1", "1.5", "2-4 3", "9" * 17)),
        (5, {"at": 1.5}, "program[5] has at = "),
        (5, {"at": ""}, "program[5] is a read, but it lacks cells (at)"),
        (5, {"resource": ""}, "program[5] is a read, but it lacks a resource"),
        (4, {"at": "1"}, "program[4] is a wait and touches nothing, but it has a resource or"),
        (4, {"op": 0}, "program[4] has op = 0, but an op is a number above 0"),
        (4, {"lane": ""}, "program[4] has no lane"),
        (1, {"op": 2}, "program[1] is a second launch of op 2"),
        (9, {"op": 2}, "program[9] is a second begin of op 2"),
        (8, {"op": 3}, "program[8] is an end of op 3, which has not begun on its lane"),
        (0, {"op": 9}, "program[6] is a begin of op 2, which no ac"),
        (8, {"kind": "say"}, "program[9] is a begin of op 5, but"),
    ],
)  # fmt: skip
def test_an_act_that_is_none_gets_a_sentence(at: int, fields: dict[str, Any], says: str) -> None:
    data = example()
    data["program"][at].update(fields)
    with pytest.raises(NotATrace, match=re.escape(says)) as caught:
        from_json(json.dumps(data), "engine.json")
    assert str(caught.value).startswith("engine.json is a damaged minisched trace: ")
