"""``minisched check`` as a user meets it: recorded runs, random workloads, bad input, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from minisched.checks.judge import judge
from minisched.checks.many import case_of
from minisched.cli.check_picture import offence_in, picture
from minisched.export import native
from minisched.export.chrome import to_chrome
from minisched.museum.exhibit import Exhibit
from minisched.museum.patch import Edit, put_in

FAR = 300  # seconds; only ends a hang
NO_WAIT = Edit("worker.worker:Worker.launch_copy", "self.copy_stream.wait(last)", "pass")
LOCKED = Edit("memory.lease_pool:LeasePool.release", "self.tree.dec_lock_ref(lease.node)", "pass")
BREAKS = Edit(
    "scheduler.results:Results.process",
    "self.batches_in_flight -= 1",
    "self.batches_in_flight -= 1 // (batch.step != 4 or self.batches_in_flight < 2)",
)
"""In the fourth step of a loop with more than one batch in flight something is wrong."""
COUNTS = ("cases", "identical", "races", "leaks", "workloads", "requests", "aborted", "refused")


# -- random workloads ------------------------------------------------------------------------------


def test_workloads_that_hold(cli: Any) -> None:
    code, out, err = cli("check --workloads 3 --json")
    result = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert all(isinstance(result[name], int) for name in COUNTS)
    assert result["cases"] == result["identical"] == sum(result["loops"].values()) > 20
    assert (result["races"], result["leaks"], result["failures"]) == (0, 0, [])
    assert (result["workloads"], result["seed"], result["model"]) == (3, 0, "hash")
    assert sum(result["axes"]["page size"].values()) == 3


def test_the_same_seed_prints_the_same_and_another_does_not(cli: Any) -> None:
    line = "check --workloads 9 --loop overlap --loop pd --json --seed "
    first, again, other = (cli(line + rest)[1] for rest in ("40", "40 --jobs 2", "41"))
    assert first == again != other
    assert set(json.loads(first)["loops"]) == {"overlap", "pd"}


def test_people_are_told_what_held(cli: Any) -> None:
    code, out, _ = cli("check --workloads 2 --seed 1")
    assert code == 0 and "2 workloads (seeds 1 to 2)" in out
    assert "every law held" in out and "✗" not in out
    assert all(law in out for law in ("identity", "race", "leak", "livelock", "ownership"))


def test_what_was_drawn_is_counted_and_what_never_was_is_named(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    line = "check --workloads 3 --jobs 1 --loop overlap"
    never = json.loads(cli(line + " --json")[1])["never"]
    assert never["pool"] == ["too small"] and "sampling" not in never
    assert "loop" not in never, "it was chosen"
    _, out, _ = cli(line)
    lacking = sum(map(len, never.values()))
    assert f"{lacking} never, on {len(never)} axes" in " ".join(out.split())
    assert "never drawn" not in out
    _, out, _ = cli(line + " --axes")
    assert max(map(len, out.splitlines())) <= 80
    for axis, values in never.items():
        assert f"never drawn: {axis} {values[0]}" in " ".join(out.split())
    assert "crowded ×" in out


def test_a_bug_is_told_with_the_line_that_repeats_it(cli: Any, tmp_path: Path) -> None:
    line = "check --workloads 2 --jobs 1 --loop overlap:pool --out found"
    with put_in([NO_WAIT]):
        code, out, _ = cli(line)
        assert code == 1 and "2 of 2 cases broke a law" in out
        again = next(row for row in out.splitlines() if "minisched check --workloads 1" in row)
        code, repeated, _ = cli(again.strip().removeprefix("minisched ") + " --json")
        failures = json.loads(repeated)["failures"]
    assert code == 1 and "race" in {item["law"] for item in failures}
    assert all(item["sentence"] in " ".join(out.split()) for item in failures)
    assert "made as small as it could be" in out and "comes at turn" in out
    [baseline] = (tmp_path / "found").glob("*-oracle.json")
    [trace] = {*(tmp_path / "found").glob("*.json")} - {baseline}
    assert native.read(trace).program and not native.read(baseline).program
    line = next(row for row in out.splitlines() if row.startswith("  minisched check found"))
    assert line.split()[2:] == [str(p.relative_to(tmp_path)) for p in (baseline, trace)]
    assert f"name {line.split()[2]} before it" in cli(f"check {line.split()[3]}")[1]
    code, told, _ = cli(line.strip().removeprefix("minisched "))
    assert code == 1 and "does not wait for" in told
    [picture] = (tmp_path / "found").glob("*.svg")
    assert "what did it, by number" in "".join(ElementTree.parse(picture).getroot().itertext())


def test_json_has_every_failure_with_what_repeats_it(cli: Any) -> None:
    with put_in([LOCKED]):
        code, out, _ = cli("check --workloads 4 --jobs 1 --loop serial --json")
    result = json.loads(out)
    assert code == 1 and result["leaks"] > 0 and result["races"] == 0
    assert all(set(item) == {"seed", "loop", "law", "sentence"} for item in result["failures"])
    assert (
        len({item["seed"] for item in result["failures"] if item["law"] == "leak"})
        == (result["leaks"])
    )


@pytest.mark.parametrize("device", ["thread", "mlx"])
def test_workloads_in_real_time(cli: Any, device: str) -> None:
    code, out, _ = cli(f"check --workloads 2 --seed 16 --device {device} --json")
    result = json.loads(out)
    assert code == 0, result["failures"]
    assert result["device"] == device and result["cases"] == result["identical"] > 10
    assert "pd" not in result["loops"]


# -- recorded runs ---------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A folder with a serial run, one that overlaps, its Chrome export, and one with two bugs."""
    traces = {loop: judge(case_of(14, loop)).trace for loop in ("serial", "overlap")}
    with put_in([NO_WAIT, LOCKED]):
        traces["bug"] = judge(case_of(14, "overlap")).trace
    for name, trace in traces.items():
        native.write(trace, tmp_path / f"{name}.json")
    (tmp_path / "chrome.json").write_text(to_chrome(traces["overlap"]))
    return tmp_path


def answers(out: str) -> list[dict[str, str]]:
    """The answers of each run, by question."""
    questions = ("identical", "leaks", "races", "overlaps")
    return [{name: run[name]["answer"] for name in questions} for run in json.loads(out)["runs"]]


def test_two_healthy_runs(cli: Any, recorded: Path) -> None:
    code, out, _ = cli("check serial.json overlap.json --json")
    assert code == 0 and json.loads(out)["holds"]
    serial, overlap = answers(out)
    assert serial == {"identical": "yes", "leaks": "no", "races": "no", "overlaps": "no"}
    assert overlap == {**serial, "overlaps": "yes"} or overlap["overlaps"] == "partly"


def test_a_run_with_bugs_beside_its_baseline(cli: Any, recorded: Path) -> None:
    code, out, _ = cli("check overlap.json bug.json --draw found.svg")
    told = out.partition("bug.json: ")[2]
    assert code == 1 and told.count("✗") == 3
    assert "copy of step 1 does not wait for sample of step 1" in told
    assert "was taken for r0" in told
    title = ElementTree.parse(recorded / "found.svg").getroot()[0].text
    assert title and title in told
    assert cli("check bug.json --draw found.txt")[0] == 1
    assert "!!" in (recorded / "found.txt").read_text()


@pytest.mark.parametrize(
    ("name", "question", "says"),
    [
        ("token_after_abort", "ends", "a heard a token of step 1"),
        ("ring_lapped", "relay", "step 8 reads future slot 1 for a"),
    ],
)
def test_what_nobody_asks_is_told_if_it_is_so(
    cli: Any, tmp_path: Path, name: str, question: str, says: str
) -> None:
    """A delivery behind the end, and a step that reads another one's future slot."""
    exhibit: Exhibit = import_module(f"minisched.museum.bugs.{name}").EXHIBIT
    found = exhibit.with_bug()
    native.write(found.trace, tmp_path / "bug.json")
    code, out, _ = cli("check bug.json --draw found.svg")
    assert code == 1 and f"✗ {question}?" in out and says in out
    svg = (tmp_path / "found.svg").read_text()
    title = ElementTree.fromstring(svg)[0].text
    assert title and title in out
    if question == "ends":
        broken = next(item for item in found.findings if item.law == question)
        assert picture(found.trace, offence_in(found, broken), ".svg") == svg, "of a workload too"
    native.write(exhibit.healthy().trace, tmp_path / "healthy.json")
    code, out, _ = cli("check healthy.json")
    assert code == 0 and f"{question}?" not in out


def test_what_a_file_does_not_carry_is_said(cli: Any, recorded: Path) -> None:
    code, out, _ = cli("check chrome.json")
    assert code == 0 and out.count("Nothing to judge") == 3
    assert "✓ leaks" not in out and "✓ races" not in out
    _, out, _ = cli("check chrome.json --json")
    unknown = dict.fromkeys(("identical", "leaks", "races"), "unknown")
    assert unknown.items() <= answers(out)[0].items() and json.loads(out)["holds"] is None
    code, out, _ = cli("check chrome.json serial.json --json")
    assert code == 0 and answers(out)[0]["identical"] == "unknown" and json.loads(out)["holds"]
    assert "no tokens are recorded in chrome.json" in out


def test_runs_of_two_workloads_are_not_compared(cli: Any, recorded: Path) -> None:
    for seed in (2, 4, 6):
        native.write(judge(case_of(seed, "serial")).trace, recorded / "other.json")
        code, out, err = cli("check serial.json other.json --json")
        assert (code, out) == (2, "") and "Another workload" in err


def test_runs_of_two_lengths_say_so_and_never_none(cli: Any, tmp_path: Path) -> None:
    for name, length in (("long", 9), ("short", 6)):
        cli(f"compare --requests 3 --max-new-tokens {length} --loops serial --out {name}")
    code, out, _ = cli("check long/serial.json short/serial.json")
    assert code == 1 and "ended earlier: after 6 tokens, the baseline after 9" in out
    assert "were both asked for as many?" in out and "None" not in out
    code, out, _ = cli("check short/serial.json long/serial.json")
    assert code == 1 and "ended later: after 9 tokens, the baseline after 6" in out


@pytest.mark.parametrize(
    ("edit", "says", "kept"),
    [
        (LOCKED, "MemoryLeak", ["serial.json"]),
        (BREAKS, "ZeroDivisionError", ["serial.json", "overlap.json"]),
    ],
)
def test_a_run_that_stops_leaves_its_trace(
    cli: Any, tmp_path: Path, edit: Edit, says: str, kept: list[str]
) -> None:
    with put_in([edit]):
        code, out, err = cli("compare --requests 3 --max-new-tokens 9 --out c")
        assert (code, out) == (1, "") and says in err and err.strip().count("\n") == 0
        assert json.loads(cli("compare --requests 3 --max-new-tokens 9 --out c --json")[1])["files"]
    files = [f"c/{name}" for name in kept]
    assert sorted(str(p.relative_to(tmp_path)) for p in (tmp_path / "c").iterdir()) == sorted(files)
    assert err.rstrip().endswith(f"minisched check {' '.join(files)}")
    code, out, _ = cli(f"check {' '.join(files)}")
    assert code == 1 and f"it stopped with {says}" in out
    has_leak = "was taken for r0" in out
    assert has_leak == (edit is LOCKED)  # what is held in the middle of a run is no leak


def test_a_loop_named_like_an_emoji_is_printed_as_it_is(cli: Any, recorded: Path) -> None:
    trace = replace(judge(case_of(14, "overlap:ring")).trace, loop="overlap:ring:" + "x" * 60)
    native.write(trace, recorded / "ring.json")
    out = cli("check ring.json")[1]
    assert out.splitlines()[0].endswith("x on sim hash, virtual clock") and ":ring:" in out


def test_nothing_to_draw_is_said_and_no_error(cli: Any, recorded: Path) -> None:
    code, _, err = cli("check serial.json --draw none.svg")
    assert code == 0 and "nothing was found that could be drawn" in err
    assert not (recorded / "none.svg").exists()


# -- bad input, and Ctrl-C -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says"),
    {
        "--workloads 0": "--workloads is 0, but it must be at least 1.",
        "--seed -1": "--seed is -1, but it must be at least 0.",
        "--jobs 0": "--jobs is 0, but it must be at least 1.",
        "--device abacus": "unknown device 'abacus'",
        "--loop nosuch": "unknown loop 'nosuch'",
        "--loop pd --device thread": "loop 'pd' does not run on device 'thread'",
        "--loop overlap:lazy": "relay 'lazy'",
        "--loop vllm_async:pool:depth=soon": "option 'depth' of loop 'vllm_async' is 'soon'",
        "--draw x.svg": "--draw is about recorded runs, but none is named",
        "serial.json --seed 3": "--seed draws workloads, but serial.json is a recorded run",
        "serial.json --loop overlap": "--loop draws workloads",
        "serial.json --draw x.png": "--draw is x.png, but its name must end in .svg or .txt.",
        "nosuch.json": "nosuch.json can't be read: No such file or directory.",
        "text.md": "text.md is no trace",
        "list.json": "list.json is neither a minisched trace",
        "--out text.md --workloads 1": "--out text.md is a file, but it must be a folder.",
    }.items(),
)
def test_bad_input_is_one_sentence(cli: Any, recorded: Path, line: str, says: str) -> None:
    (recorded / "text.md").write_text("A text.\n")
    (recorded / "list.json").write_text("[]")
    code, out, err = cli(f"check {line}")
    assert (code, out) == (2, "")
    assert says in err and err.startswith("minisched: ") and err.count("\n") == 1


def test_a_variant_that_its_relay_refuses_is_bad_input(cli: Any) -> None:
    code, _, err = cli("check --workloads 1 --loop vllm_async:prev_sampled:depth=4")
    assert code == 2 and "allows at most 2" in err


def test_ctrl_c_ends_every_process_and_says_so(tmp_path: Path) -> None:
    line = "check --workloads 4000 --jobs 2 --json"
    started = subprocess.Popen(
        [sys.executable, "-m", "minisched", *line.split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C reaches all of a group
    )
    wait_until(lambda: len(alive_in_group(started.pid)) >= 4)  # itself, a helper, two that work
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=FAR)
    assert (started.returncode, out) == (130, "")
    assert err == "minisched: interrupted.\n"
    wait_until(lambda: not alive_in_group(started.pid))  # the helper notices it a little later


def wait_until(condition: Callable[[], bool]) -> None:
    """Look every now and then."""
    ends = time.monotonic() + FAR
    while time.monotonic() < ends:
        if condition():
            return
        time.sleep(0.1)
    pytest.fail(f"nothing happened for {FAR} seconds")


def alive_in_group(group: int) -> list[str]:
    """The processes of a group that are more than an entry nobody has read yet (state Z)."""
    if sys.platform == "linux":
        stats = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                stats.append(entry.read_text().rpartition(") ")[2].split())
        return [" ".join(stat) for stat in stats if int(stat[2]) == group and stat[0] != "Z"]
    told = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True)
    rows = [row.split() for row in told.stdout.splitlines()]
    return [" ".join(row) for row in rows if int(row[0]) == group and row[1][0] != "Z"]
