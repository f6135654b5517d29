"""The installed package, alone: every command works in any folder, and writes nowhere else.

A wheel in an environment of its own has no torch, no MLX, no Node, and no checkout around it.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from minisched.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
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
    "museum list": "museum list",
    "museum run": "museum run pinned_buffer_rewritten",
}
NEEDS = {  # what each says that cannot work here; fetch would ask the network
    "diagrams": ("diagrams", "run it in a git clone"),
    "diagrams --check": ("diagrams --check", "run it in a git clone"),
    "bench": ("bench mutation", "needs mutmut"),
    "calibrate": ("calibrate --device thread --model nowhere", ""),
    "fetch": ("fetch gpt5", "smollm2"),
    "first-run": ("first-run", "first-run needs the package 'torch'"),
}


@pytest.fixture(scope="module")
def wheel_install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its two dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "minisched", source / "minisched", ignore=ignore)
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


def installed(environment: Path) -> set[Path]:
    """Every file of the environment but Python's own compiled ones."""
    return {path for path in environment.rglob("*") if "__pycache__" not in path.parts}


def commands(group: Any = None, prefix: str = "") -> Iterator[str]:
    """The names of all commands, as ``--help`` lists them."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name


def test_every_command_is_tried() -> None:
    assert {*commands()} <= {*WORKS, *NEEDS}


@pytest.mark.parametrize("name", WORKS)
def test_a_command_works_from_a_wheel(name: str, wheel_install: Path, folder: Path) -> None:
    before = installed(wheel_install)
    done = call(wheel_install, folder, WORKS[name])
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert installed(wheel_install) == before


@pytest.mark.parametrize("name", NEEDS)
def test_what_cannot_work_says_so_in_one_sentence(
    name: str, wheel_install: Path, folder: Path
) -> None:
    line, sentence = NEEDS[name]
    before = installed(wheel_install), installed(folder)
    done = call(wheel_install, folder, line)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert sentence in done.stderr and done.stderr.startswith("minisched: ")
    assert (installed(wheel_install), installed(folder)) == before


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in {*WORKS, *NEEDS}}))
def test_a_command_says_what_it_is_for(name: str, wheel_install: Path, folder: Path) -> None:
    done = call(wheel_install, folder, f"{name} --help")
    assert done.returncode == 0 and "Usage" in done.stdout
