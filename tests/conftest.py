"""What tests share: models, in ``$MINISCHED_HOME`` as for users, and the command line.

Plain ``pytest`` needs what ``.[dev]`` installs and nothing else, and three minutes of two cores. A
test that wants more (Node's packages, Chromium, the weights of SmolLM2, an installed wheel) is
*thorough*: by the fixture that brings it along (``NEEDS``), or by ``@pytest.mark.thorough``.
``pytest --thorough`` runs every test, with more seeds (``support.py:many``) and Hypothesis's large
profile. The last lines name the tests that took longer than ``LONGEST_S`` and are not thorough.
``pytest --thorough --after-plain`` leaves out the tests that plain ``pytest`` has just run alike.
"""

import gc
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import settings

from minisched.bench.tiny_llama import write_tiny_llama
from minisched.cli.app import main
from minisched.models.fetch import fetch
from tests.support import LLAMAS, OTHERS

os.environ.pop("COLUMNS", None)  # readline sets it for xdist's workers; here nobody looks
# Many tests start a command. Without bytecode each start takes 0.4 s longer.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
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
    "original": "a fresh environment",
}
"""Fixtures and marks of what ``.[dev]`` does not bring, and what it is."""
MAY_DIFFER = re.compile(r"\bmany\b|hypothesis|importorskip|skipif|pytest\.skip")
"""What a file has whose tests draw more with ``--thorough``, or need more than ``.[dev]``."""
FIRST = ("site", "original")
"""Fixtures that take minutes: their tests come first, on one worker, and no other one waits."""
LEFT_OUT = pytest.StashKey[Counter[str]]()
LONGEST_S = 5.0  # of CPU time, for a test of plain pytest
PROFILES = {
    "plain": settings(max_examples=25, deadline=None, derandomize=True, database=None),
    "large": settings(max_examples=100, deadline=None, derandomize=True, database=None),
}
"""The same draws everywhere, so that a red test is about the change."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--thorough``, ``--after-plain`` and ``--golden-update``."""
    parser.addoption("--thorough", action="store_true", help="run every test, with more seeds")
    parser.addoption(
        "--after-plain",
        action="store_true",
        help="leave out what plain pytest runs in the same way",
    )
    parser.addoption("--golden-update", action="store_true", help="write the golden files anew")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is left out yet; how much is drawn (``support.py:many``)."""
    config.stash[LEFT_OUT] = Counter()
    if config.option.thorough:
        os.environ["MINISCHED_THOROUGH"] = "1"  # the workers of xdist inherit it
    for name, profile in PROFILES.items():
        settings.register_profile(name, profile)
    settings.load_profile("large" if config.option.thorough else "plain")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Take one worker with a GPU: ``-n auto`` would put a process for each core on one card."""
    if shutil.which("nvidia-smi") is None:
        return None
    import torch  # here, for it takes two seconds

    return 1 if torch.cuda.is_available() else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is thorough, and leave it out unless it was asked for; put the slowest first."""
    kept, left = [], []
    paths = {item.path for item in items if config.option.after_plain}
    differ = {path for path in paths if MAY_DIFFER.search(path.read_text("utf-8"))}
    for item in items:
        named = {*getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers())}
        needs = [NEEDS[name] for name in NEEDS if name in named]
        if needs:
            item.add_marker("thorough")
        is_thorough = item.get_closest_marker("thorough")
        if config.option.after_plain and not (is_thorough or item.path in differ):
            left.append(item)
        elif is_thorough and not config.option.thorough:
            left.append(item)
            config.stash[LEFT_OUT][f"need {needs[0]}" if needs else "take long"] += 1
        else:
            kept.append(item)
    items[:] = sorted(kept, key=place)
    if left:
        config.hook.pytest_deselected(items=left)


def place(item: pytest.Item) -> int:
    """Return where a test comes: those of a fixture in ``FIRST`` before the others."""
    names = getattr(item, "fixturenames", ())
    return next((at for at, name in enumerate(FIRST) if name in names), len(FIRST))


def pytest_collection_finish() -> None:
    """Let the collector of garbage look only at objects of the tests, and at many together."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def cpu_s() -> float:
    """Seconds of the processor that this process and its ended children have taken."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keep the time of a test that takes too long; it does not fail, for a machine may be slow."""
    before = cpu_s()
    yield
    took = cpu_s() - before
    may_take_long = item.config.option.thorough or item.get_closest_marker("thorough")
    if took > LONGEST_S and not may_take_long:
        item.user_properties.append(("cpu_s", took))


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
    """Name what took long, then what was left out, and how to run it."""
    for report in terminalreporter.getreports("passed"):
        for took in [value for name, value in report.user_properties if name == "cpu_s"]:
            terminalreporter.write_line(
                f"{report.nodeid} took {took:.1f} s of CPU time, more than {LONGEST_S:g} s. "
                "If it does so on a quiet machine, draw fewer examples in it, or mark it thorough."
            )
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
    with FileLock(Path(tempfile.gettempdir()) / name):
        packages = json.loads((at / "package-lock.json").read_text(encoding="utf-8"))["packages"]
        if not all((at / name).is_dir() for name in packages):
            npm = shutil.which("npm")
            if npm is None:
                pytest.fail(f"npm ci --prefix {folder} needs Node 18 or newer", pytrace=False)
            quiet = ("--no-audit", "--no-fund", "--silent")
            done = subprocess.run(
                [npm, "ci", "--prefix", at, *quiet],
                capture_output=True,
                text=True,
                encoding="utf-8",
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


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of that name in ``golden/`` beside the test.

    ``--golden-update`` writes the file instead; what changed is read as a diff.
    """

    def compare(name: str, text: str) -> None:
        file = request.path.parent / "golden" / name
        if request.config.option.golden_update:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
        assert text == file.read_text("utf-8"), f"see golden/{name}, or pytest --golden-update"

    return compare


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama without a tokenizer."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny random checkpoints of every kind of model that is taken (``support.py``)."""
    from tests.models.zoo import random_model  # torch takes seconds, before any test begins

    folder = tmp_path_factory.mktemp("kinds")
    folders = {kind: folder / kind.replace(" ", "_") for kind in (*LLAMAS, *OTHERS)}
    for kind, more in LLAMAS.items():
        write_tiny_llama(folders[kind], more=more)
    for kind, more in OTHERS.items():
        random_model(**{"model_type": "llama", "num_hidden_layers": 2, **more}).save_pretrained(
            folders[kind]
        )
    return folders


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """So that an oracle and the thread device, which takes one less than torch would, agree."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or callspec.params.get("backend") != "cuda":
        yield
        return
    from tests.devices.fake_cuda import fake_cuda  # here, for it imports torch

    with fake_cuda():
        yield


@pytest.fixture(autouse=True)
def settings_are_put_back() -> Iterator[None]:
    """A device changes how often Python switches threads; once closed, it is as it was."""
    before = sys.getswitchinterval()
    yield
    assert sys.getswitchinterval() == before, "a device was left open"
