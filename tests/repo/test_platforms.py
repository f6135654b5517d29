"""The package also runs where Unix's own modules and calls are missing, as on Windows."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import every

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path
    for folder in ("minisched", "tests", "lessons")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "node_modules" not in path.parts
]
AS_ON_WINDOWS = """
import asyncio, multiprocessing, os, shutil, signal, subprocess, sys, tempfile  # with Unix's parts
for name in ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "readline", "syslog"):
    sys.modules[name] = None
for name in ("fork", "sched_getaffinity", "getuid", "geteuid", "killpg", "setsid", "sysconf",
             "sysconf_names", "mkfifo", "getpgid"):
    vars(os).pop(name, None)
for name in ("pthread_sigmask", "SIG_BLOCK", "SIGALRM", "alarm", "SIGKILL", "SIGHUP", "SIGUSR1",
             "SIGPIPE", "setitimer"):
    vars(signal).pop(name, None)
os.devnull = "NUL"
"""
EVERY_MODULE = """
import importlib, pkgutil
import minisched
for found in pkgutil.walk_packages(minisched.__path__, "minisched."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""
COMMAND = """
import sys
from minisched.cli.app import main
sys.argv = ["minisched", *{words}]
main()
"""


def as_on_windows(code: str, folder: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    """Run code in a new Python that lacks what Windows lacks, after ``first``."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", first + AS_ON_WINDOWS + code], capture_output=True, text=True,
        encoding="utf-8", cwd=folder, env=env, timeout=300,
    )  # fmt: skip


@pytest.mark.thorough
def test_every_module_is_imported(tmp_path: Path) -> None:
    libraries = (
        "import mlx_lm; from transformers import AttentionInterface"  # builds for Unix may use Unix
    )
    done = as_on_windows(EVERY_MODULE, tmp_path, libraries)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "line", every(2, ["compare --requests 2", "doctor", "museum list", "check --workloads 2"])
)
def test_a_command_runs(tmp_path: Path, line: str) -> None:
    done = as_on_windows(COMMAND.format(words=line.split()), tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr[-2000:]


@pytest.mark.thorough
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_the_types_are_right_on_each_platform(tmp_path: Path, platform: str) -> None:
    """mypy finds each name that Python lacks on a platform."""
    command = [sys.executable, "-m", "mypy", "--platform", platform, "--cache-dir", tmp_path]
    done = subprocess.run([*command, "minisched"], capture_output=True, text=True,
                          encoding="utf-8", cwd=ROOT)  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


def without_an_encoding(code: str) -> list[int]:
    """Return the lines at which a text is read or written without the name of an encoding."""
    found = []
    for call in ast.walk(ast.parse(code)):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        named = {word.arg for word in call.keywords}
        positional = {"read_text": 1, "write_text": 2}.get(name, 99)
        is_text = name in ("read_text", "write_text") or (
            name in ("run", "Popen", "check_output") and "text" in named
        )
        if is_text and "encoding" not in named and len(call.args) < positional:
            found.append(call.lineno)
    return found


def test_every_text_has_an_encoding() -> None:
    """Windows has another default than UTF-8; ruff's PLW1514 sees ``open`` and known paths."""
    assert without_an_encoding("path.read_text()\nrun(it, text=True)\npath.read_text('utf-8')") == [
        1,
        2,
    ]
    sources = {path: path.read_text("utf-8") for path in SOURCES}
    assert len(sources) > 500
    found = {path.name: lines for path, code in sources.items()
             if (lines := without_an_encoding(code))}  # fmt: skip
    assert not found
