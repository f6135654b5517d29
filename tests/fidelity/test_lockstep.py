"""Two schedulers in lockstep: what is found, blamed, made small and told.

No original is needed but for what is thorough: two of our own presets stand for left and right.
"""

import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from minisched.bench.peers.peer import PeerError
from minisched.cli import fidelity as command
from minisched.fidelity import tables
from minisched.fidelity.case import (
    Arrival,
    FidelityCase,
    Rows,
    ScheduledStep,
    first_turn_apart,
    trimmed,
)
from minisched.fidelity.lockstep import (
    NO_PAGE,
    UNEXPLAINED,
    compare,
    in_words,
    our_schedule,
    say,
    serve,
    simpler,
    switched,
    switches_of,
)
from minisched.fidelity.original import DEVICE, ENTRY, LISTENER, SETTINGS, Original, Turns
from minisched.fidelity.parts import PARTS, Shape
from minisched.fidelity.run import EQUAL, ORIGINALS, Player, dealt, in_lockstep
from minisched.policy.systems import DELIBERATE, find_rules
from minisched.scheduler import SchedulerConfig
from tests.support import many

GOLDEN = Path(__file__).parent / "golden"
SOME = [
    pytest.param(name, part, id=f"{name}, {part}")
    for name, parts in PARTS.items()
    for part in parts
]


def lockstep(rules: str, cases: int, *parts: Shape, system: str = "sglang") -> Any:
    """A preset in lockstep with one that answers otherwise, as if that were the original."""
    shapes = {str(at): shape for at, shape in enumerate(parts)}
    return in_lockstep(system, shapes, partial(our_schedule, rules=rules), "0", cases, 1)


# -- cases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "part"), SOME)
def test_everybody_in_a_case_gets_the_tokens_that_it_says(name: str, part: str) -> None:
    for seed in range(many(1, 5)):
        case = PARTS[name][part].draw(f"{seed}")
        assert FidelityCase.from_json(json.loads(json.dumps(case.as_json()))) == case
        served = serve(case, name, lambda step: None)
        said = {req.rid: tuple(req.output_ids) for req in served}
        limits = {req.rid: req.params.max_new_tokens for req in served}
        assert said == {each.rid: each.outputs[: limits[each.rid]] for each in case.arrivals}


def test_cases_are_dealt_over_the_parts() -> None:
    parts = dict.fromkeys("abc", Shape())
    assert dealt(parts, 5) == {"a": 2, "b": 2, "c": 1} and dealt(parts, 1) == {"a": 1}


def test_what_is_simpler_is_smaller_and_everybody_still_fits() -> None:
    case = Shape(memory="tight", pages=(4,)).draw("a")
    found = list(simpler(case))
    assert found and case not in found
    for small in found:
        assert our_schedule(small, "sglang")


# -- what is found ---------------------------------------------------------------------------------


def test_a_hidden_difference_is_found_made_small_and_told() -> None:
    report = lockstep(f"{switched('sglang')},run_first=decode", 4, Shape())
    found = report.smallest
    assert report.unexplained and report.all_parts.total() == 4
    assert set(report.all_parts) <= {EQUAL, UNEXPLAINED}
    first, second = found.case.arrivals
    assert len(first.prompt) + len(second.prompt) <= 6, "it takes two short requests"
    assert len(found.theirs) <= 6 and found.turn <= 2
    lines = in_words(found, ("left", "right"))
    turns = [("left", found.theirs[found.turn]), ("right", found.ours[found.turn])]
    assert lines[-2:] == [f"turn {found.turn}, {name}: {say(step)}" for name, step in turns]
    assert "run_first=decode" in report.agreeing
    told = report.as_json()
    assert {each["rule"] for each in told["differences"]} == {"unexplained"}
    assert FidelityCase.from_json(told["smallest"]["case"]) == found.case
    assert told["smallest"]["theirs"]["mode"] == "decode"
    assert told["smallest"]["ours"]["mode"] == "extend"


def test_a_rule_that_differs_on_purpose_is_blamed_by_its_name() -> None:
    answer = f"free_rule={DELIBERATE['mini-sglang']['free_rule'].answer}"
    shape = Shape("mini_overlap", memory="tight")
    report = lockstep(f"mini-sglang,{answer}", 30, shape, system="mini-sglang")
    assert answer in report.all_parts and not report.unexplained and report.smallest is None
    assert {found.rule for _, found in report.differences} == {answer}


def test_an_original_that_ends_without_a_page_is_a_reason_of_its_own() -> None:
    """With pages of 16, mini-sglang admits both of these requests into its one page."""
    config = SchedulerConfig(kv_tokens=16, page_size=16, max_running_requests=2)
    arrivals = Arrival("a", 0, (2,), (4,), 1), Arrival("b", 0, (45,), (49,), 1)
    case = FidelityCase("mini_overlap", config, arrivals)
    for mode, rule in (("Cannot evict 16, only 0 is evictable", NO_PAGE), ("0", UNEXPLAINED)):
        found = compare(case, "mini-sglang", [ScheduledStep(f"AssertionError: {mode}")])
        assert found and found.rule == rule and found.ours[0].rids == {"a"}


def test_every_rule_that_differs_on_purpose_has_another_answer_and_a_reason() -> None:
    for system, rules in DELIBERATE.items():
        for name, item in rules.items():
            assert getattr(find_rules(system), name) != item.answer and item.reason
            assert find_rules(f"{system},{name}={item.answer}")


def test_a_scheduler_that_stops_with_an_error_differs_there() -> None:
    case = FidelityCase(
        "serial", SchedulerConfig(kv_tokens=4), (Arrival("a", 0, (5,) * 9, (7,), 1),)
    )
    step = our_schedule(case, "sglang")[-1]
    assert step.mode.startswith("ValueError: ") and "9" in step.mode


def test_schedules_part_where_one_goes_on_and_turns_of_nothing_at_the_end_count_for_nothing() -> (
    None
):
    step = ScheduledStep("extend", (Rows("a", 0, 1),))
    assert first_turn_apart([step], [step, ScheduledStep(), step]) == 2
    assert trimmed([ScheduledStep(), step, ScheduledStep(), ScheduledStep()]) == [
        ScheduledStep(),
        step,
    ]
    assert first_turn_apart([step], [step]) is None


# -- the original's side ---------------------------------------------------------------------------


def test_a_case_that_nobody_can_go_on_with_ends_and_one_that_raises_says_so() -> None:
    case = Shape().draw("b")
    stuck = Turns(case)
    assert stuck.play(lambda: stuck.begin(False, {})) == []
    assert len(stuck.steps) < case.last_turn + 20
    broken = Turns(case)

    def stop() -> None:
        broken.begin(False, {})
        raise MemoryError("no pages")

    assert broken.play(stop) == [ScheduledStep("MemoryError: no pages")]


def test_who_loses_memory_in_a_turn_is_noted_in_it() -> None:
    turns = Turns(Shape().draw("c"))
    lost = iter(({}, {"a": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 2}))
    turns.play(lambda: turns.begin(False, next(lost)))
    assert [step.retracted for step in turns.steps[:3]] == [("a",), ("b",), ("a",)]


@pytest.mark.parametrize("name", ORIGINALS)
def test_no_stand_in_takes_the_place_of_what_decides(name: str) -> None:
    original = ORIGINALS[name]
    assert {item.kind for item in original.stand_ins} <= {DEVICE, SETTINGS, LISTENER, ENTRY}
    assert all(item.replaces for item in original.stand_ins)
    for item in original.stand_ins:
        place, _, name = item.name.partition(":")
        if not name:  # a whole package or module
            assert not any(f"{each}.".startswith(f"{place}.") for each in original.deciding), place


# -- the page --------------------------------------------------------------------------------------


def test_a_figure_has_its_place_in_a_page_and_a_place_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(
        "A <!-- n -->1<!-- / -->.\n\n<!-- table -->..<!-- / -->\n", "utf-8"
    )
    page = tables.filled("page.md", n=2, table="one\ntwo")
    assert page == "A <!-- n -->2<!-- / -->.\n\n<!-- table -->\n\none\ntwo\n\n<!-- / -->\n"
    for figures in ({"n": 1}, {"n": 1, "table": "", "more": ""}):
        with pytest.raises(ValueError, match=r"do not agree on the figures in it: (table|more)"):
            tables.filled("page.md", **figures)


def test_the_tables_of_the_page_are_those_of_the_code_and_of_the_last_counts() -> None:
    kept, page = (
        json.loads(tables.KEPT.read_text("utf-8")),
        (tables.ROOT / tables.PAGE).read_text("utf-8"),
    )
    made = tables.filled(tables.PAGE, **tables.tables(kept))
    assert made == page, "python -m minisched.fidelity.tables"
    for told in kept.values():
        parts = told["parts"].values()
        assert sum(part["cases"] for part in parts) == told["cases"] > 0
        assert sum(part["equal"] for part in parts) == told["equal"]


def test_an_original_that_nobody_has_counted_yet_leaves_its_place_in_the_page() -> None:
    made = tables.tables({})
    assert "<!-- parts of vllm -->not counted yet<!-- / -->" in tables.filled(tables.PAGE, **made)


# -- the command -----------------------------------------------------------------------------------


def test_without_the_original_the_command_says_so(cli: Any, monkeypatch: Any) -> None:
    def no_wheel(*arguments: object) -> None:
        raise PeerError("torch==2.13.0 can't be installed: no route to the index.")

    monkeypatch.setattr("minisched.bench.peers.peer.interpreter", no_wheel)
    said = "minisched: SGLang can't be run here: torch==2.13.0 can't be installed: no route to the"
    assert cli("fidelity sglang") == (2, "", f"{said} index.\n")


def test_the_command_counts_by_part_and_tells_what_no_rule_explains(
    cli: Any, monkeypatch: Any
) -> None:
    def play(original: Original, *of_the_call: Any) -> Any:
        return lockstep(rules, 4, Shape(), Shape("overlap"))

    monkeypatch.setattr(command, "play", play)
    rules = "sglang,run_first=decode"
    code, out, _ = cli("fidelity sglang --cases 4")
    assert (code == 1 and "✗" in out and "turn 0, SGLang" in out) or "turn 1, SGLang" in out
    rules = "sglang"
    code, out, _ = cli("fidelity sglang --cases 4 --json")
    assert code == 0 and json.loads(out)["equal"] == 4 and not json.loads(out)["differences"]


# -- the originals themselves ----------------------------------------------------------------------


SOURCES = os.environ.get("MINISCHED_SOURCES", "")  # where mini-sglang and nano-vllm are checked out
HERE = [name for name, item in ORIGINALS.items() if SOURCES or item.distribution]
TOKENS, ZERO = ("prompt", "outputs"), ord("0")
KEPT = {path.stem: json.loads(path.read_text("utf-8")) for path in GOLDEN.glob("*.json")}


def text_of(case: FidelityCase) -> dict[str, Any]:
    """A case as one object, with a letter for each token."""
    data = case.as_json()
    for each in data["arrivals"]:
        each |= {name: "".join(chr(ZERO + it) for it in each[name]) for name in TOKENS}
    return data


def case_of(data: dict[str, Any]) -> FidelityCase:
    """The case of ``text_of``."""
    arrivals = [
        {**each, **{name: [ord(letter) - ZERO for letter in each[name]] for name in TOKENS}}
        for each in data["arrivals"]
    ]
    return FidelityCase.from_json({**data, "arrivals": arrivals})


@pytest.fixture(scope="session")
def original() -> Callable[[str], Player]:
    """Starts an original, in its environment below ``$MINISCHED_HOME``; others wait meanwhile."""

    def start(name: str) -> Player:
        source = None if ORIGINALS[name].distribution else Path(SOURCES, name)
        with FileLock(Path(tempfile.gettempdir()) / "minisched-originals.lock"):
            return Player(ORIGINALS[name], source, lambda doing: None)

    return start


@pytest.mark.parametrize("name", HERE)
def test_an_original_decides_by_its_own_files_as_it_did_when_its_schedules_were_kept(
    original: Callable[[str], Player], golden: Callable[[str, str], None], name: str
) -> None:
    with original(name) as player:
        told, item = player.about, ORIGINALS[name]
        assert set(told["files"]) == set(item.deciding)
        if item.distribution:
            assert all(found["is_published"] for found in told["files"].values())
        named = {each.name.rpartition(".")[2] for each in item.stand_ins}
        assert set(told["overridden"]) <= named
        cases = {part: text_of(shape.draw(f"{part} kept")) for part, shape in PARTS[name].items()}
        cases |= {key: each["case"] for key, each in KEPT.get(name, {}).get("kept", {}).items()}
        kept = [
            json.dumps({key: {"case": case, "schedule": [*map(say, player.play(case_of(case)))]}})
            for key, case in cases.items()
        ]
    lines = ",\n".join(line[1:-1] for line in kept)
    golden(f"{name}.json", f'{{"version": "{told["version"]}", "kept": {{\n{lines}\n}}}}\n')


@pytest.mark.parametrize(("name", "cases"), [("sglang", 100), ("vllm", 60)])
def test_ours_agrees_up_to_the_rules_that_differ_on_purpose(
    original: Callable[[str], Player], cli: Any, name: str, cases: int
) -> None:
    original(name).peer.close()  # it has an environment now
    code, out, err = cli(f"fidelity {name} --cases {cases} --seed 1 --json")
    report = json.loads(out)
    assert (code, report["unexplained"], report["cases"]) == (0, 0, cases), err


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name in KEPT for key in KEPT[name]["kept"]]
)
def test_ours_does_what_an_original_did_in_a_case_that_was_kept(name: str, key: str) -> None:
    kept = KEPT[name]["kept"][key]
    case, theirs = case_of(kept["case"]), kept["schedule"]
    purpose = (f"{name},{switch}" for switch in switches_of(name))
    answers = (list(map(say, our_schedule(case, it))) for it in (name, *purpose, switched(name)))
    assert any(ours == theirs for ours in answers), f"minisched fidelity {name}"
