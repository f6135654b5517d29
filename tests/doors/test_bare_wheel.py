"""A wheel in an environment of its own: no torch, no MLX, no Node, no checkout around it."""

import shlex
import shutil
import subprocess
import venv
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

import pytest

from minisched.cli.app import COMMANDS
from tests.doors.conftest import GIVEN

CALLS: dict[str, str | tuple[str, str]] = {
    "compare": "compare --requests 2 --max-new-tokens 4",
    "run": "run --requests 2 --max-new-tokens 4",
    "check": "check out/serial.json out/overlap.json",
    "view": "view overlap out/overlap.json --form text",
    "stepper": "stepper out/serial.json out/overlap.json",
    "replay": "replay requests.csv",
    "sweep": "sweep grid.toml --jobs 1",
    "map": "map --loops overlap",
    "learn": "learn --no-open",
    "presets": "presets",
    "models": "models --json",
    "doctor": "doctor",
    "museum": "museum run pinned_buffer_rewritten",
    # what each says that cannot work here; fetch would ask the network
    "diagrams": ("diagrams --check", "run it in a git clone"),
    "bench": ("bench cuda", ""),
    "calibrate": ("calibrate --device thread --model nowhere", ""),
    "fetch": ("fetch gpt5", "smollm2"),
    "fidelity": ("fidelity nobody", "sglang"),
}


@pytest.fixture(scope="module")
def wheel_install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, its two dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--force-reinstall", wheel], check=True)
    return folder


def test_a_wheel_brings_the_plugin_of_pytest(wheel: Path) -> None:
    with ZipFile(wheel) as files:
        [name] = (name for name in files.namelist() if name.endswith("/entry_points.txt"))
        entries = ConfigParser()
        entries.read_string(files.read(name).decode())
        assert entries["pytest11"]["minisched"] == "minisched.pytest_plugin"
        assert "minisched/pytest_plugin.py" in files.namelist()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_a_wheel_works_or_says_in_one_sentence_why_not(
    wheel_install: Path, compared: Path, tmp_path: Path, name: str
) -> None:
    """In any folder, and nothing is written elsewhere."""
    own = {"PATH": str(wheel_install / "bin"), "HOME": str(tmp_path),
           "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip

    def call(line: str) -> subprocess.CompletedProcess[str]:
        command = [wheel_install / "bin" / "minisched", *shlex.split(line)]
        return subprocess.run(
            command, cwd=tmp_path, env=own, capture_output=True, text=True, encoding="utf-8"
        )

    shutil.copyfile(GIVEN / "lengths.csv", tmp_path / "requests.csv")
    shutil.copyfile(GIVEN / "grid.toml", tmp_path / "grid.toml")
    shutil.copytree(compared, tmp_path / "out")
    before = {*wheel_install.rglob("*")}
    if isinstance(line := CALLS[name], str):
        done = call(line)
        assert (done.returncode, done.stderr.strip()) == (0, "")
    else:
        done = call(line[0])
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert line[1] in done.stderr and done.stderr.startswith("minisched: ")
    assert {*wheel_install.rglob("*")} == before
