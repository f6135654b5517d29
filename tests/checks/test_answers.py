"""What ``check`` answers, of recorded runs and of random workloads: facts, and exit codes.

Nothing to judge is never a green tick. Its words are in ``tests/cli/golden/check.txt``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import minisched
from minisched.checking import law_rows, verdict_on_cases
from minisched.checks.judge import Finding, judge
from minisched.checks.laws import LAWS, lacking
from minisched.checks.many import CaseTally, Tried, case_of
from minisched.museum.patch import Edit, put_in
from minisched.trace import Act, Mark, Slice, Trace, native

NO_WAIT = Edit(
    "worker.worker:Worker.launch_sample", "self.copy_stream.wait(step.next_token_ids)", "pass"
)
LOCKED = Edit("memory.pool:LeasePool.release", "self.cache.dec_lock_ref(lease.node)", "pass")
BREAKS = Edit(
    "scheduler.scheduler:Scheduler.process",
    "self.leases.came_back(batch.step)",
    "self.leases.came_back(batch.step // (batch.step != 4 or self.batches_in_flight < 2))",
)
"""In the fourth step of a loop with more than one batch in flight something is wrong."""
QUESTIONS = ("identical", "leaks", "races", "overlaps")


def answers(out: str) -> list[tuple[str, ...]]:
    return [tuple(run[name]["answer"] for name in QUESTIONS) for run in json.loads(out)["runs"]]


# -- random workloads ------------------------------------------------------------------------------


def test_a_bug_is_told_with_the_line_that_repeats_it(cli: Any, tmp_path: Path) -> None:
    line = "check --workloads 2 --seed 3 --jobs 1 --loop overlap:pool --out found"
    with put_in([NO_WAIT]):
        code, out, _ = cli(line)
        assert code == 1 and "2 of 2 cases broke a law" in out
        again = next(row for row in out.splitlines() if "minisched check --workloads 1" in row)
        code, repeated, _ = cli(again.strip().removeprefix("minisched ") + " --json")
        failures = json.loads(repeated)["failures"]
    assert code == 1 and "race" in {item["law"] for item in failures}
    assert all(item["sentence"] in " ".join(out.split()) for item in failures)
    [baseline] = (tmp_path / "found").glob("*-oracle.json")
    [trace] = {*(tmp_path / "found").glob("*.json")} - {baseline}
    assert native.read(trace).program and not native.read(baseline).program
    line = next(row for row in out.splitlines() if row.startswith("  minisched check found"))
    assert line.split()[2:] == [str(p.relative_to(tmp_path)) for p in (baseline, trace)]
    code, told, _ = cli(line.strip().removeprefix("minisched "))
    assert code == 1 and "does not wait for" in told
    assert [*(tmp_path / "found").glob("*.svg")]


def test_the_same_seed_says_the_same_on_any_number_of_processes(cli: Any) -> None:
    line = "check --workloads 3 --jobs 1 --loop overlap --loop pd --json --seed "
    code, out, _ = cli(line + "40")
    assert code == 0 and json.loads(out)["cases"] == json.loads(out)["identical"] == 6
    assert cli(line.replace("jobs 1", "jobs 2") + "40")[1] == out != cli(line + "41")[1]


# -- recorded runs ---------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A folder with a serial run, one that overlaps, and one with two bugs."""
    traces = {loop: judge(case_of(1, loop)).trace for loop in ("serial", "overlap")}
    with put_in([NO_WAIT, LOCKED]):
        traces["bug"] = judge(case_of(1, "overlap")).trace
    for name, trace in traces.items():
        native.write(trace, tmp_path / f"{name}.json")
    return tmp_path


def test_the_answers_of_recorded_runs(cli: Any, recorded: Path) -> None:
    code, out, _ = cli("check serial.json overlap.json bug.json --draw found.svg --json")
    assert (code, json.loads(out)["holds"]) == (1, False)
    serial, overlap, bug = answers(out)
    assert serial == ("yes", "no", "no", "no") and overlap[:3] == ("yes", "no", "no")
    assert overlap[3] in ("yes", "partly") and bug[:3] == ("no", "yes", "yes")
    told = cli("check overlap.json bug.json")[1]
    title = ElementTree.parse(recorded / "found.svg").getroot()[0].text
    assert title and title in told and told.partition("bug.json: ")[2].count("✗") == 5


def test_runs_of_two_lengths_say_so(cli: Any) -> None:
    for name, count in (("long", 9), ("short", 6)):
        cli(f"compare --requests 3 --max-new-tokens {count} --loops serial --out {name}")
    code, out, _ = cli("check long/serial.json short/serial.json")
    said = " ".join(out.split())
    assert code == 1 and "ended earlier: after 6 tokens, the base" in said and "None" not in said


@pytest.mark.parametrize(("edit", "kept"), [(LOCKED, ["serial"]), (BREAKS, ["serial", "overlap"])])
def test_a_run_that_stops_leaves_its_trace(
    cli: Any, tmp_path: Path, edit: Edit, kept: list[str]
) -> None:
    error = "MemoryLeak" if edit is LOCKED else "ZeroDivisionError"
    with put_in([edit]):
        code, out, err = cli("compare --requests 3 --max-new-tokens 9 --out c")
    assert (code, out) == (1, "") and error in err and err.strip().count("\n") == 0
    files = [f"c/{name}.json" for name in kept]
    assert sorted(str(p.relative_to(tmp_path)) for p in (tmp_path / "c").iterdir()) == sorted(files)
    assert err.rstrip().endswith(f"minisched check {' '.join(files)}")
    code, out, _ = cli(f"check {' '.join(files)}")
    assert code == 1 and f"it stopped with {error}" in out
    held = "was taken for r0" in out
    assert held == (edit is LOCKED), "what is held in the middle of a run is no leak"


def test_a_picture_and_a_folder_need_fitting_names(cli: Any) -> None:
    Path("list.json").write_text("[]", encoding="utf-8")
    for line, says in (
        ("list.json --draw x.png", "--draw is x.png, but its name must end in .svg or .txt."),
        ("--out list.json --workloads 1", "--out list.json is a file, but it must be a folder."),
    ):
        code, out, err = cli(f"check {line}")
        assert (code, out) == (2, "") and says in err


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_ctrl_c_ends_every_process_and_says_so(tmp_path: Path) -> None:
    line = "-m minisched check --workloads 4000 --jobs 2 --json"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = subprocess.Popen(
        [sys.executable, *line.split()], cwd=tmp_path, start_new_session=True, **pipes
    )
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
    while len(children.read_text(encoding="utf-8").split()) < 2:
        time.sleep(0.1)
    time.sleep(2)
    os.killpg(started.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches all of a group
    # Its pipes are every child's, and end with the last one.
    assert started.communicate(timeout=300) == ("", "minisched: interrupted.\n")
    assert started.returncode == 130


# -- nothing to judge ------------------------------------------------------------------------------

EMPTY = Trace("mine", "cuda", "", "wall", (), (), (), ())
LANES = replace(EMPTY, slices=tuple(
    Slice(2 * step + at, lane, name, 10 * step + at, 10 * step + at + 4, step)
    for step in (1, 2, 3, 4)
    for at, (lane, name) in enumerate((("host", "launch"), ("forward", "forward")))
))  # fmt: skip
ORDER = tuple(
    Act(lane, kind, 2 * step + 1)
    for step in (1, 2, 3, 4)
    for lane, kind in (("host", "launch"), ("forward", "begin"), ("forward", "end"),
                       ("host", "wait"))
)  # fmt: skip


READ = Act("forward", "read", 3, "kv", "1-2")
WRITE, READ_TOO = (Act("host", kind, 2, "kv", "1-2") for kind in ("write", "read"))


@pytest.mark.parametrize(
    ("acts", "answer"),
    [
        ((), "unknown"),
        (ORDER, "unknown"),
        ((*ORDER, WRITE), "unknown"),  # one lane
        ((*ORDER, READ_TOO, READ), "unknown"),
        ((*ORDER, WRITE, Act("forward", "write", 3, "x", "1-2")), "unknown"),
        ((WRITE, *ORDER[:2], READ, *ORDER[2:]), "no"),
        ((*ORDER[:1], WRITE, ORDER[1], READ, *ORDER[2:]), "yes"),
    ],
)
def test_races_take_what_two_lanes_touch(acts: tuple[Act, ...], answer: str) -> None:
    found = minisched.check(trace := replace(LANES, program=acts))
    [races] = [it for (its,) in [found.answers.values()] for it in its if it.question == "races"]
    assert (races.word, races.holds) == (answer, answer != "yes")
    assert found.holds is {"unknown": None, "no": True, "yes": False}[answer]
    assert bool(lacking("race", trace)) == (answer == "unknown")


def test_nothing_to_judge_is_no_tick_and_a_run_that_stopped_is_never_fine(cli: Any) -> None:
    native.write(EMPTY, Path("empty.json"))
    native.write(LANES, Path("lanes.json"))
    for files in ("lanes.json lanes.json", "empty.json"):
        code, out, _ = cli(f"check {files} --json")
        assert code == 0 and json.loads(out)["holds"] is None
        assert {found[:3] for found in answers(out)} == {("unknown",) * 3}
        assert "✓" not in cli(f"check {files}")[1]
    trace = replace(LANES, marks=(Mark("stopped", 50, {"error": "KeyError: 3"}),))
    assert minisched.check(trace).holds is False


@pytest.mark.parametrize("law", LAWS)
def test_cases_in_which_nothing_happened(law: str) -> None:
    empty, full = Tried(0, "overlap", (), True, 1, 1, 0, (law,)), Tried(1, "pd", (), True, 1, 0, 0)
    for tried, ticks in (([empty, full], True), ([empty], False), ([], False)):
        tally = CaseTally(0, 1, "sim", tried)
        assert verdict_on_cases(tally).startswith("✓ every law held") is ticks
        assert tally.as_json()["unjudged"][law] == (empty in tried)


def test_a_law_that_a_stopped_run_could_not_show_is_neither_kept_nor_broken() -> None:
    stopped = Tried(0, "pd", (Finding("crash", "KeyError: 3"),), False, 1, 0, 0, ("logprobs",))
    rows = law_rows(CaseTally(0, 1, "sim", [stopped]))
    told = {law: (sign, held) for sign, law, held, _ in rows}
    assert told["crash"] == ("✗", "0") and told["race"] == ("✓", "1")
    assert told["identity"] == told["logprobs"] == ("?", "0")
