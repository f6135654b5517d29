"""The installed package, alone: every command works in any folder, and writes nowhere else.

A wheel in an environment of its own has no torch, no MLX, no Node, and no checkout around it.
"""

import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import typer

from minisched.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
WORKS = {
    "compare": "compare --requests 2 --max-new-tokens 4",
    "run": "run --requests 2 --max-new-tokens 4",
    "check": "check out/serial.json out/overlap.json",
    "view": "view overlap out/overlap.json --form text",
    "watch": "watch out/overlap.json --at 12",
    "stepper": "stepper out/serial.json out/overlap.json",
    "replay": "replay requests.csv",
    "scenario": "scenario long-document --json",
    "presets": "presets",
    "doctor": "doctor",
    "museum": "museum run pinned_buffer_rewritten",
    "help": "--help",
}
NEEDS = {  # what each says that cannot work here; fetch would ask the network
    "diagrams": ("diagrams --check", "run it in a git clone"),
    "bench": ("bench cuda", ""),
    "calibrate": ("calibrate --device thread --model nowhere", ""),
    "fetch": ("fetch gpt5", "smollm2"),
    "first-run": ("first-run", "first-run needs the package 'torch'"),
}


@pytest.fixture(scope="module")
def wheel_install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its two dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(
        ROOT / "minisched", source / "minisched", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, source], check=True)
    venv.create(folder / "venv", with_pip=True)
    (wheel,) = folder.glob("*.whl")
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, *pip[1:], "install", wheel], check=True)
    return folder / "venv"


@pytest.fixture(scope="module")
def folder(wheel_install: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another folder, with what a comparison leaves and a file of requests."""
    folder = tmp_path_factory.mktemp("elsewhere")
    rows = ["arrived_at,num_prefill_tokens,num_decode_tokens", "0,20,4", "0.5,30,6"]
    (folder / "requests.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert call(wheel_install, folder, "compare").returncode == 0
    return folder


def call(environment: Path, folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A command line of the installed package."""
    command = [environment / "bin" / "minisched", *shlex.split(line)]
    own = {"PATH": str(environment / "bin"), "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=300)


def files(*folders: Path) -> set[Path]:
    """Every file but Python's own compiled ones."""
    found = {path for folder in folders for path in folder.rglob("*")}
    return {path for path in found if "__pycache__" not in path.parts}


def test_every_command_is_tried() -> None:
    commands: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {*commands} == {*WORKS, *NEEDS} - {"help"}


@pytest.mark.parametrize("line", WORKS.values(), ids=WORKS)
def test_a_command_works_from_a_wheel(wheel_install: Path, folder: Path, line: str) -> None:
    before = files(wheel_install)
    done = call(wheel_install, folder, line)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert files(wheel_install) == before


@pytest.mark.parametrize(("line", "said"), NEEDS.values(), ids=NEEDS)
def test_what_cannot_work_says_so_in_one_sentence(
    wheel_install: Path, folder: Path, line: str, said: str
) -> None:
    before = files(wheel_install, folder)
    done = call(wheel_install, folder, line)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr and done.stderr.startswith("minisched: ")
    assert files(wheel_install, folder) == before
