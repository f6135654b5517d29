"""What tests share: models, in ``$MINISCHED_HOME`` as for users, and the command line."""

import shlex
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minisched.cli.app import main
from minisched.models.fetch import fetch
from minisched.models.tiny import write_tiny_llama

from .llama_kinds import write_kinds

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts into the background deaf to Ctrl-C, which tests press.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
def settings_are_put_back() -> Iterator[None]:
    """A device changes how often Python switches threads; once closed, it is as it was."""
    before = sys.getswitchinterval()
    yield
    assert sys.getswitchinterval() == before, "a device was left open"
