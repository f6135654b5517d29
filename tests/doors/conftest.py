"""A door: what a user types, in a folder of their own, with minisched installed from its wheel.

The environment shares the packages of the one that runs the tests, so it is made in seconds; the
checkout is not on its path. ``test_bare_wheel.py`` has one with nothing but what the wheel brings.
"""

import os
import shlex
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import made_once

ROOT = Path(__file__).resolve().parents[2]
GIVEN = ROOT / "tests" / "cli" / "given"


@dataclass(frozen=True)
class Answer:
    """What a command gave back; ``first`` is the first line with words that it printed."""

    code: int
    out: str
    err: str

    @property
    def first(self) -> str:
        return (self.out or self.err).strip().partition("\n")[0].strip()


Door = Callable[[str], Answer]


def copy_of_the_sources(folder: Path) -> Path:
    """A folder with all that the package is made of, and nothing else."""
    skip = shutil.ignore_patterns("__pycache__", "site")
    for name in ("minisched", "lessons"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    (folder / ".ci").mkdir()
    pages = [path.name for path in ROOT.glob("*.md")]
    for name in (".ci/package.py", "pyproject.toml", "LICENSE", *pages):
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def build_wheel(folder: Path) -> None:
    """Build the wheel from a copy of what it is made of."""
    source = copy_of_the_sources(folder / "source")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    build = [sys.executable, "-m", "pip", "wheel", *quiet, "-w", str(folder), str(source)]
    subprocess.run(build, check=True, timeout=300)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once for all of pytest's workers."""
    return next(made_once(tmp_path_factory, "wheel", build_wheel).glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, and with the packages of this one."""

    def install(folder: Path) -> None:
        venv.create(folder, with_pip=False)
        (packages,) = folder.glob("lib/python*/site-packages")
        # An editable install is not seen: Python reads no .pth file of a folder from a .pth file.
        (packages / "shared.pth").write_text("\n".join(site.getsitepackages()), "utf-8")
        into = ["--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index"]
        into.append("--force-reinstall")  # also where PYTHONPATH names a checkout
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *into, str(wheel)], check=True, timeout=300)

    return made_once(tmp_path_factory, "installed", install) / "bin"


def type_in(folder: Path, programs: Path, line: str) -> Answer:
    """Type a line in a folder, as a user would whose path begins with these programs."""
    kept = {name: os.environ[name] for name in ("LANG", "MINISCHED_HOME") if name in os.environ}
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "COLUMNS": "100",
           "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    command = shlex.split(line)
    command[0] = str(programs / command[0])
    done = subprocess.run(
        command,
        cwd=folder,
        env=kept | own,
        capture_output=True,
        text=True,
        timeout=600,
        encoding="utf-8",
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def compared(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``minisched compare`` leaves in ``out``, made once."""

    def compare(folder: Path) -> None:
        assert type_in(folder, installed, "minisched compare").code == 0

    return made_once(tmp_path_factory, "compared", compare) / "out"


@pytest.fixture
def door(installed: Path, compared: Path, tmp_path: Path) -> Door:
    """Type a line in a fresh folder that has ``out``, ``requests.csv`` and ``grid.toml``."""
    shutil.copytree(compared, tmp_path / "out")
    shutil.copyfile(GIVEN / "lengths.csv", tmp_path / "requests.csv")
    shutil.copyfile(GIVEN / "grid.toml", tmp_path / "grid.toml")
    return lambda line: type_in(tmp_path, installed, line)
