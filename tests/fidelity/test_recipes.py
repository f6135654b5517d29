"""The recipes' patches fit the originals, and those that record make runs that ``check`` judges."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from minisched.bench.peers.peer import environment, interpreter
from minisched.checking import Check, check_runs
from minisched.checks.reading import read_recorded

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "lessons/site/docs/recipes.md").read_text("utf-8")
SOURCES = os.environ.get("MINISCHED_SOURCES", "")  # where mini-sglang and nano-vllm are checked out
PATCHED = ("mini-sglang", "nano-vllm")
SCRIPTS = {  # that name the packages of an original
    "nano-vllm": "minisched.fidelity.nano_vllm",
    "mini-sglang": "minisched.fidelity.sglang",
}


def patches(name: str) -> list[str]:
    """The patches in an engine's section: for a profile, and for a recording."""
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    return re.findall(r"```diff\n(.*?)```", section, re.S)


def patched(name: str, patch: str, folder: Path) -> Path:
    """A copy of an original with a patch."""
    source = folder / name
    copytree(Path(SOURCES, name), source, ignore=ignore_patterns(".git", "__pycache__"))
    subprocess.run(
        ["git", "apply", "-"], input=patch, cwd=source, text=True, check=True, encoding="utf-8"
    )
    return source


def record(name: str, loop: str, source: Path, folder: Path) -> Path:
    """The file that an original recorded in its own environment."""
    python = interpreter(SCRIPTS[name], lambda doing: None)
    script, file = Path(__file__).with_name("record_original.py"), folder / f"{loop}.json"
    command = [str(python), str(script), name, str(source), loop, str(file)]
    subprocess.run(command, env=environment(), cwd=folder, check=True, timeout=300)
    return file


def word(found: Check, name: str, question: str = "overlaps") -> str:
    """The answer to a question about a run."""
    (answer,) = (it for it in found.answers[name] if it.question == question)
    return answer.word


@pytest.mark.parametrize("name", PATCHED)
def test_an_engine_without_a_profiler_has_a_patch_for_each_way(name: str) -> None:
    profile, recording = patches(name)
    assert 'record_function("step")' in profile and "minisched" not in profile
    assert "from minisched.record import Recorder" in recording and "torch" not in recording
    added = [line for line in recording.splitlines() if line.startswith("+")]
    assert len(added) < 30


@pytest.mark.thorough
@pytest.mark.parametrize("name", PATCHED if SOURCES else ())
def test_the_patch_for_a_profile_fits(name: str, tmp_path: Path) -> None:
    source = patched(name, patches(name)[0], tmp_path)
    for path in source.rglob("*.py"):
        compile(path.read_text("utf-8"), str(path), "exec")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nano-vllm"] if SOURCES else ())
def test_a_recorded_run_of_nano_vllm_is_serial(name: str, tmp_path: Path) -> None:
    source = patched(name, patches(name)[1], tmp_path)
    run = read_recorded(record(name, "serial", source, tmp_path))
    found = check_runs([run])
    assert word(found, run.file) == "no" and found.holds is not False
    lines = "\n".join(found.lines)
    assert "Serial: 0 of 11 steps" in lines and "blocked in the wait" in lines


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mini-sglang"] if SOURCES else ())
def test_recorded_runs_of_mini_sglang_overlap_by_its_overlap_loop_alone(
    name: str, tmp_path: Path
) -> None:
    source = patched(name, patches(name)[1], tmp_path)
    loops = ("mini_normal", "mini_overlap")
    normal, overlap = (read_recorded(record(name, loop, source, tmp_path)) for loop in loops)
    found = check_runs([normal, overlap])
    assert word(found, normal.file) == "no" and word(found, overlap.file) == "yes"
    assert word(found, overlap.file, "identical") == "yes" and found.holds
