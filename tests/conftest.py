"""What tests share: models, in ``$MINISCHED_HOME`` as for users, and the command line.

Plain ``pytest`` needs what ``.[dev]`` installs and nothing else. Tests that want more (Node's
packages, Chromium, the weights of SmolLM2, an installed wheel) are *thorough*: by the fixture that
brings it along (``NEEDS``), or by ``@pytest.mark.thorough``. ``pytest --thorough`` runs every test,
and ``pytest --thorough -m thorough`` those that plain ``pytest`` leaves out.
"""

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from minisched.cli.app import main
from minisched.models.fetch import fetch
from minisched.models.tiny import write_tiny_llama

from .llama_kinds import write_kinds

os.environ.pop("COLUMNS", None)  # readline sets it for xdist's workers; here nobody looks
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background deaf to Ctrl-C, which tests press.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
NEEDS = {
    "browser": "Chromium",
    "smollm2": "the weights of SmolLM2",
    "weights": "the weights of SmolLM2",
    "plantuml": "Node",
    "pyodide": "Node",
    "wheel_install": "a fresh environment",
}
"""Fixtures and marks of what ``.[dev]`` does not bring, and what it is."""
LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--thorough``."""
    parser.addoption("--thorough", action="store_true", help="run every test, however long")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is left out yet."""
    config.stash[LEFT_OUT] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is thorough, and leave it out unless it was asked for."""
    kept, left = [], []
    for item in items:
        named = {*getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers())}
        needs = [NEEDS[name] for name in NEEDS if name in named]
        if needs:
            item.add_marker("thorough")
        if item.get_closest_marker("thorough") and not config.option.thorough:
            left.append(item)
            config.stash[LEFT_OUT][f"need {needs[0]}" if needs else "take long"] += 1
        else:
            kept.append(item)
    if left:
        items[:] = kept
        config.hook.pytest_deselected(items=left)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells its controller what was left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Every worker leaves out the same tests, so the last one's word is everybody's."""
    left = getattr(node, "workeroutput", {}).get("left_out")
    if left:
        node.config.stash[LEFT_OUT] = Counter(left)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What was left out, and how to run it."""
    left = config.stash[LEFT_OUT]
    if left:
        why = ", ".join(f"{count} {need}" for need, count in left.most_common())
        terminalreporter.write_line(
            f"{left.total()} thorough tests left out ({why}); pytest --thorough runs them too."
        )


def install(folder: str) -> Path:
    """Node's packages of a folder of this repository, once; the others wait.

    Fails with one sentence where there is no npm, or where it fails.
    """
    at = ROOT / folder
    name = f"minisched-{sha256(str(at).encode()).hexdigest()[:16]}.lock"
    with (Path(tempfile.gettempdir()) / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (at / "node_modules").is_dir():
            npm = shutil.which("npm")
            if npm is None:
                pytest.fail(f"npm ci --prefix {folder} needs Node 18 or newer", pytrace=False)
            quiet = ("--no-audit", "--no-fund", "--silent")
            done = subprocess.run(
                [npm, "ci", "--prefix", at, *quiet], capture_output=True, text=True
            )
            if done.returncode:
                shutil.rmtree(at / "node_modules", ignore_errors=True)
                pytest.fail(f"npm ci --prefix {folder} failed: {done.stderr}", pytrace=False)
    return at / "node_modules"


@pytest.fixture(scope="session")
def plantuml() -> Path:
    """The pinned PlantUML renderer, in Node."""
    return install("diagrams/render")


@pytest.fixture(scope="session")
def pyodide() -> Path:
    """The browser's Python, for the lab of the site."""
    return install("lessons/site")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct; downloads 93 MB if it is not on this machine yet."""
    return fetch("smollm2")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama without a tokenizer (``models/tiny.py``)."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny random checkpoints of every kind of model that is taken (``llama_kinds.py``)."""
    return write_kinds(tmp_path_factory.mktemp("kinds"))


@pytest.fixture
def minisched(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs ``minisched`` with arguments; gives exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["minisched", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            main()
        out, err = capsys.readouterr()
        code = exit_info.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


@pytest.fixture
def cli(minisched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The same with a whole command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda line: minisched(*shlex.split(line))


@pytest.fixture
def view(minisched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``minisched view`` with arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(minisched, "view")


@pytest.fixture(autouse=True)
def a_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a test's ``backend`` is ``cuda``, torch sees a GPU that is not there."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if params.get("backend") != "cuda":
        yield
        return
    from .fake_cuda import fake_cuda  # here, for it imports torch

    with fake_cuda():
        yield


@pytest.fixture(autouse=True)
def settings_are_put_back() -> Iterator[None]:
    """A device changes how often Python switches threads; once closed, it is as it was."""
    before = sys.getswitchinterval()
    yield
    assert sys.getswitchinterval() == before, "a device was left open"
