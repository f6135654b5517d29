"""Check mine: a profile and a loop in a file, in one command each.

``tests/cli`` has the other answers of ``check`` about them.
"""

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


@pytest.mark.parametrize("profile", every(5, PROFILES), ids=lambda path: path.name)
def test_a_profile_gets_an_answer(door: Door, tmp_path: Path, profile: Path) -> None:
    """Both torch.profiler's and Nsight's, of a step alone and of several."""
    shutil.copyfile(profile, tmp_path / profile.name)
    answer = door(f"minisched check {profile.name}")
    assert (answer.code, answer.err) == (0, "")
    assert answer.first.startswith(f"{profile.name}: ") and "overlaps?" in answer.out


def test_a_good_loop_holds_every_law(door: Door, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD, "utf-8")
    answer = door("minisched check --loop mine.py:one_ahead --workloads 3")
    assert (answer.code, answer.err) == (0, "")
    assert "✓ every law held in all 3 cases" in answer.out
