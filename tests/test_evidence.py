"""Nothing to judge is never a green tick: each verdict of ``check`` where nothing was there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import minisched
import minisched.cli.check_workloads
from minisched.checks.evidence import LOOKED_AT, lacking
from minisched.checks.faults.count import Counted
from minisched.checks.faults.matrix import places, try_all
from minisched.checks.judge import Verdict, judge
from minisched.checks.many import LAWS, Tried, case_of
from minisched.checks.tally import Tally
from minisched.cli.check_faults import report
from minisched.cli.check_tables import print_tally
from minisched.export import native
from minisched.museum import exhibits, refuted
from minisched.museum.page import page
from minisched.museum.standing import nothing_broken, standing_of
from minisched.trace import Act, Mark, Slice, Trace

EMPTY = Trace("mine", "cuda", "", "wall", (), (), (), ())
LANES = Trace(
    "mine", "cuda", "", "wall",
    tuple(
        Slice(2 * step + at, lane, name, 10 * step + at, 10 * step + at + 4, step)
        for step in (1, 2, 3, 4)
        for at, (lane, name) in enumerate((("host", "launch"), ("forward", "forward")))
    ),
    (), (), (),
)  # fmt: skip
ORDER = tuple(
    act
    for step in (1, 2, 3, 4)
    for act in (
        Act("host", "launch", 2 * step + 1, during=2 * step),
        Act("forward", "begin", 2 * step + 1),
        Act("forward", "end", 2 * step + 1),
        Act("host", "wait", 2 * step + 1),
    )
)


def touch(lane: str, kind: str, resource: str = "kv") -> Act:
    return Act(lane, kind, 3 if lane == "forward" else 2, resource, "1-2")


@pytest.mark.parametrize(
    ("acts", "missing"),
    [
        ((), "no accesses are recorded"),
        (ORDER, "no accesses are recorded"),
        ((*ORDER, touch("host", "write")), "that one lane changes and another one touches"),
        (
            (*ORDER, touch("host", "read"), touch("forward", "read")),
            "that one lane changes and another one touches",
        ),
        (
            (*ORDER, touch("host", "write"), touch("forward", "write", "lengths")),
            "that one lane changes and another one touches",
        ),
    ],
    ids=["no program", "order alone", "one lane", "only reads", "nothing shared"],
)
def test_races(cli: Any, tmp_path: Path, acts: tuple[Act, ...], missing: str) -> None:
    native.write(replace(LANES, program=acts), tmp_path / "t.json")
    code, out, _ = cli("check t.json")
    assert code == 0 and "✓" not in out and "? races?" in out
    assert missing in out and "No race" not in out
    found = json.loads(cli("check t.json --json")[1])
    assert found["holds"] is None and found["runs"][0]["races"]["answer"] == "unknown"


def test_races_with_something_to_judge(cli: Any, tmp_path: Path) -> None:
    """The other side: ordered is a tick, and not ordered a race."""
    write, read = touch("host", "write"), Act("forward", "read", 3, "kv", "1-2")
    good = (write, *ORDER[:2], read, *ORDER[2:])
    native.write(replace(LANES, program=good), tmp_path / "good.json")
    assert "✓ races?" in cli("check good.json")[1]
    bad = (*ORDER[:1], write, ORDER[1], read, *ORDER[2:])
    native.write(replace(LANES, program=bad), tmp_path / "bad.json")
    code, out, _ = cli("check bad.json")
    assert code == 1 and "✗ races?" in out


@pytest.mark.parametrize(
    "marks", [(), (Mark("tokens", 9, {"step": 1, "rids": "", "tokens": ""}),)], ids=["no", "empty"]
)
def test_identical(cli: Any, tmp_path: Path, marks: tuple[Mark, ...]) -> None:
    for name in ("a", "b"):
        native.write(replace(LANES, marks=marks), tmp_path / f"{name}.json")
    code, out, _ = cli("check a.json b.json")
    assert (
        code == 0 and "✓" not in out and out.count("? identical?  Nothing to judge: no token") == 2
    )


def test_leaks_and_overlaps(cli: Any, tmp_path: Path) -> None:
    native.write(EMPTY, tmp_path / "t.json")
    code, out, _ = cli("check t.json")
    assert code == 0 and "✓" not in out
    assert "? leaks?      Nothing to judge: no memory is recorded in this file." in out
    assert "? overlaps?   Nothing to judge: no device is recorded in this file." in out


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_no_case_at_all(
    cli: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_tally(Console(), Tally(0, 3, "sim", []), 0.1, 1)
    out = said(capsys)
    assert "✓" not in out and "Nothing to judge: no loop takes these workloads" in out
    monkeypatch.setattr(minisched.cli.check_workloads, "try_workloads", lambda *args: iter(()))
    code, out, _ = cli("check --workloads 3 --loop overlap")
    assert code == 0 and "✓" not in out and "every law held" not in out


@pytest.mark.parametrize("law", LOOKED_AT)
def test_cases_in_which_nothing_happened(law: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One case of two is enough for a tick, none is not."""
    empty = Tried(0, "overlap", (), True, 1, 1, 0, (law,))
    full = Tried(1, "overlap", (), True, 1, 0, 0)
    tally = Tally(0, 1, "sim", [empty])
    print_tally(Console(), tally, 0.1, 1)
    out = said(capsys)
    assert "could be judged by." in out and law in out and "every law held" not in out
    assert tally.as_json()["unjudged"][law] == 1
    print_tally(Console(), Tally(0, 2, "sim", [empty, full]), 0.1, 1)
    assert "✓ every law held in all 2 cases." in said(capsys)


def test_what_is_drawn_has_something_to_judge() -> None:
    """Of the workloads that are really drawn, nearly all give a law something to look at; but not
    everybody wants log-probabilities, or gives up."""
    verdicts = [judge(case_of(seed, "overlap")) for seed in range(12)]
    for law in LAWS:
        judged = [verdict for verdict in verdicts if not verdict.lacking(law)]
        assert len(judged) >= {"logprobs": 2, "abort": 6}.get(law, 10), law


def test_faults_that_hit_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    [cell, *_] = try_all(places("sim", 0, 1, ("overlap",))[:1], 1)
    assert cell.trial.survived
    nobody = cell._replace(trial=cell.trial._replace(is_hit=False))
    report(Console(), Counted("sim", 0, [nobody]), 0.1)
    out = said(capsys)
    assert "✓" not in out and "Nothing to judge: of 1 trials none hit" in out


def empty_verdict() -> Verdict:
    verdict = judge(case_of(1, "overlap"))
    return replace(verdict, trace=replace(EMPTY, loop="overlap"), findings=())


def test_the_museum() -> None:
    """A bug that is caught, beside healthy code that did nothing."""
    exhibit = next(item for item in exhibits() if item.law == "race")
    real = exhibit.judge_by
    bug, calls = exhibit.with_bug(), iter([True, False] * 2)
    lazy = replace(exhibit, judge_by=lambda case: bug if next(calls) else empty_verdict())
    standing = standing_of(lazy)
    assert standing.caught_by == "race" and not standing.is_good
    assert standing.lacking == "no accesses are recorded"
    parts = {part.heading: part for part in page(lazy)}
    healthy = parts["Without it, on the same requests"]
    assert healthy.kind != "good" and "nothing to judge" in healthy.body
    assert standing_of(replace(exhibit, judge_by=real)).is_good
    item = refuted()[0]
    assert nothing_broken(item)
    assert not nothing_broken(replace(item, judge_by=lambda case: empty_verdict()))


@pytest.mark.parametrize("law", LAWS)
def test_nothing_lacks_where_a_law_broke_or_all_is_there(law: str) -> None:
    assert lacking(law, EMPTY)
    traces = (judge(case_of(seed, "overlap")).trace for seed in range(40))
    assert any(not lacking(law, trace) for trace in traces)


def test_a_run_that_stopped_is_never_fine(cli: Any, tmp_path: Path) -> None:
    """Whatever else its file lacks; the command and the library say the same."""
    trace = replace(LANES, marks=(Mark("stopped", 50, {"error": "KeyError: 3"}),))
    path = tmp_path / "stopped.json"
    path.write_text(native.to_json(trace), encoding="utf-8")
    code, out, _ = cli(f"check {path} --json")
    assert (code, json.loads(out)["holds"], minisched.check(trace).holds) == (1, False, False)
