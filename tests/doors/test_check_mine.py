"""Check mine: a profile, a recorded run, a loop in a file, in one command each."""

import json
import shutil
from pathlib import Path

import pytest

from tests.doors.conftest import ROOT, Door
from tests.support import every

PROFILES = sorted((ROOT / "minisched" / "learn" / "traces").glob("*.gz"))
GOOD = '''
from collections import deque


def one_ahead(engine):
    """Process each result one turn later, while the device runs the next step."""
    in_flight = deque()
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            delay = engine.must_delay_sample(batch)
            pending = engine.run_batch(batch, delay_sample=delay)
            if in_flight:
                engine.process_batch_result(in_flight.popleft())
            if delay:
                engine.update_vocab_mask(pending)
                engine.launch_batch_sample_if_needed(pending)
            in_flight.append(pending)
        elif in_flight:
            engine.process_batch_result(in_flight.popleft())
        else:
            engine.on_idle()
        yield batch
'''
PROCESSES_TWICE = GOOD.replace(
    "in_flight.append(pending)",
    "in_flight.append(pending)\n            engine.process_batch_result(pending)",
)


@pytest.mark.parametrize("profile", every(3, PROFILES), ids=lambda path: path.name)
def test_a_profile_gets_an_answer(door: Door, tmp_path: Path, profile: Path) -> None:
    """Both torch.profiler's and Nsight's, of a step alone and of several."""
    shutil.copyfile(profile, tmp_path / profile.name)
    answer = door(f"minisched check {profile.name}")
    assert (answer.code, answer.err) == (0, "")
    assert answer.first.startswith(f"{profile.name}: ") and "overlaps?" in answer.out


def test_a_recorded_run_gets_five_answers(door: Door) -> None:
    answer = door("minisched check out/overlap.json")
    assert (answer.code, answer.first) == (
        0,
        "out/overlap.json: overlap on sim hash, virtual clock",
    )
    assert all(
        f"{word}? " in answer.out for word in ("identical", "leaks", "races", "overlaps", "busy")
    )


def test_a_good_loop_holds_every_law(door: Door, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD, "utf-8")
    answer = door("minisched check --loop mine.py:one_ahead --workloads 3")
    assert (answer.code, answer.err) == (0, "")
    assert "✓ every law held in all 3 cases" in answer.out


def test_a_broken_loop_leaves_its_trace_and_its_picture(door: Door, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROCESSES_TWICE, "utf-8")
    answer = door("minisched check --loop mine.py:one_ahead --workloads 1 --out found")
    assert answer.code == 1 and "broke a law" in answer.out
    (again,) = {
        line.strip()
        for line in answer.out.splitlines()
        if line.strip().startswith("minisched check --workloads")
    }
    assert door(again).code == 1, "the line that repeats it works as printed"
    files = {path.suffix: path for path in (tmp_path / "found").iterdir()}
    assert json.loads(files[".json"].read_text("utf-8"))["loop"] and files[".svg"].stat().st_size


def test_a_loop_of_ones_own_is_compared_and_run(door: Door, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD, "utf-8")
    compared = door("minisched compare --loops mine.py:one_ahead --json")
    assert compared.code == 0 and json.loads(compared.out)["identical"]
    assert door("minisched run --loop mine.py:one_ahead --max-new-tokens 4").code == 0
