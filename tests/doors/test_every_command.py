"""Every command: the example that its help gives, typed as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from minisched.cli.app import COMMANDS, app
from tests.doors.conftest import Door

GROUP: Any = typer.main.get_command(app)
MUSEUM = GROUP.get_command(None, "museum").commands
NAMES = [*(name for name in COMMANDS if name != "museum"), *(f"museum {name}" for name in MUSEUM)]
ANSWERS = {  # exit code, how the first line begins, files that are written
    "compare": (0, "loop +steps +tokens", "out/compare.html out/explore.html out/vllm_async.json"),
    "run": (0, r"r0: 162 184 249 8 156 53 96 203  \(length\)", ""),
    "diagrams": (2, "minisched: .*run it in a git clone", ""),
    "check": (0, "out/serial.json: serial on sim hash, virtual clock", ""),
    "view": (0, r"decode: at most \d+ requests in the running set", ""),
    "stepper": (0, "out/stepper.html", "out/stepper.html"),
    "replay": (0, "virtual ms +p50 +p90 +p99", ""),
    "sweep": (0, "6 cells: 6 ok", "out/sweep"),
    "presets": (0, "preset +GiB", ""),
    "learn": (0, "lesson +exercises right", ""),
    "models": (0, "architecture +transformers .* mlx-lm", ""),
    "doctor": (0, "name +works", ""),
    "museum list": (0, "Who owns memory", ""),
    "museum run": (0, "The host may rewrite a pinned buffer before its copy has run", ""),
}
LONG = {  # these take minutes
    "bench": (0, "", ""),
    "calibrate": (0, "", ""),
    "map": (0, "", ""),
}
DOWNLOADS = {  # these install or download
    "fetch": (0, "", ""),
    "fidelity": (0, "", ""),
}


def example(name: str) -> str:
    """The line that a command's help gives as its example."""
    first, *rest = name.split()
    command = MUSEUM[rest[0]] if rest else GROUP.get_command(None, first)
    return str(command.epilog.partition("\n")[0].removeprefix("Example: "))


def test_every_command_has_a_door() -> None:
    assert sorted(NAMES) == sorted([*ANSWERS, *LONG, *DOWNLOADS])


def opens(door: Door, folder: Path, name: str, expected: tuple[int, str, str]) -> None:
    """The example of a command ends as it should, and leaves the files that it names."""
    code, begins, files = expected
    answer = door(example(name))
    assert answer.code == code, answer.err
    assert re.match(begins, answer.first), answer.first
    assert all((folder / file).exists() for file in files.split())


@pytest.mark.parametrize("name", ANSWERS)
def test_the_example_of_its_help_opens(door: Door, tmp_path: Path, name: str) -> None:
    opens(door, tmp_path, name, ANSWERS[name])


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*LONG, *DOWNLOADS])
def test_a_long_example_of_its_help_opens(door: Door, tmp_path: Path, name: str) -> None:
    opens(door, tmp_path, name, {**LONG, **DOWNLOADS}[name])
