"""A plugin of pytest: recorded runs of an engine are tests, and a fixture holds a run to a limit.

``pytest --minisched 'traces/*.json.gz' --minisched-require 'busy>=95%'`` makes a test of each file.
In a test, ``minisched_trace.path`` is the place for a file, and ``minisched_trace.require(...)``
checks it. Settings in the ini file: ``minisched_traces``, ``minisched_require`` (both one per line)
and ``minisched_step``.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

STEP_HELP = "the ranges of a profiler's trace that are steps; * is any text"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and the settings of the ini file."""
    group = parser.getgroup("minisched", "recorded runs of an engine")
    group.addoption(
        "--minisched", action="append", default=[], metavar="GLOB",
        help="check these files: of torch.profiler, of Nsight Systems, or in minisched's format",
    )  # fmt: skip
    group.addoption(
        "--minisched-require", action="append", default=[], metavar="REQUIREMENT",
        help="what each file must meet: 'busy>=95%%', 'no blocking aten::item', 'no races'",
    )  # fmt: skip
    group.addoption("--minisched-step", default="", metavar="NAME", help=STEP_HELP)
    parser.addini("minisched_traces", "files to check, one pattern a line", "linelist", [])
    parser.addini("minisched_require", "what each file must meet, one a line", "linelist", [])
    parser.addini("minisched_step", STEP_HELP, default="")


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Make a test of each named file.

    Raises:
        pytest.UsageError: a pattern matches no file, or a requirement is none.
    """
    if not (patterns := [*config.getoption("--minisched"), *config.getini("minisched_traces")]):
        return
    needed = required_by(config)
    folder = config.rootpath
    for pattern in patterns:
        if not (found := sorted(glob.glob(pattern, root_dir=folder, recursive=True))):
            raise pytest.UsageError(f"--minisched {pattern} matches no file in {folder}.")
        for name in found:
            item = TraceItem.from_parent(session, name=f"minisched[{name}]", path=folder / name)
            item.needed = needed
            items.append(item)


def required_by(config: pytest.Config) -> tuple[str, ...]:
    """Return the requirements of the command line and of the ini file.

    Raises:
        pytest.UsageError: one is not understood.
    """
    from .checks.requirements import requirement

    needed = (*config.getoption("--minisched-require"), *config.getini("minisched_require"))
    try:
        for text in needed:
            requirement(text)
    except ValueError as error:
        raise pytest.UsageError(f"--minisched-require: {error}") from None
    return needed


def step_of(config: pytest.Config) -> str:
    """Return the name of the ranges that are steps."""
    return str(config.getoption("--minisched-step") or config.getini("minisched_step"))


class TraceItem(pytest.Item):
    """The test of one file."""

    needed: tuple[str, ...] = ()

    def runtest(self) -> None:
        """Check the file; without anything to judge, the test is skipped."""
        found = check_file(self.path, self.needed, step_of(self.config))
        if found.holds is None:
            pytest.skip(f"nothing to judge, and no requirement is given\n{found}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """Return the sentences of the check, without a traceback."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the place and the name for reports."""
        return self.path, None, self.name


class TraceGate:
    """The file of one test; ``path`` is where the test writes it."""

    def __init__(self, path: Path, needed: tuple[str, ...], step: str) -> None:
        self.path, self.needed, self.step = path, needed, step

    def require(self, *requirements: str, path: str | Path = "", step: str = "") -> Any:
        """Check the file, or ``path``; return the result (``minisched.checking.Check``).

        ``requirements`` come in addition to those of the command line and of the ini file.

        Raises:
            AssertionError: a law is broken, or a requirement is not met.
            ValueError: the file can't be read, or a requirement is none.
        """
        needed = (*self.needed, *requirements)
        return check_file(Path(path or self.path), needed, step or self.step)


@pytest.fixture
def minisched_trace(request: pytest.FixtureRequest, tmp_path: Path) -> TraceGate:
    """Return the place for a recorded run, with ``require`` to check it."""
    needed = required_by(request.config)
    return TraceGate(tmp_path / "trace.json", needed, step_of(request.config))


def check_file(path: Path, needed: Iterable[str], step: str) -> Any:
    """Check a file.

    Raises:
        AssertionError: a law is broken, or a requirement is not met; the message is the answers.
        ValueError: the file can't be read.
    """
    from .checking import check_this

    found = check_this([path], None, 0, [], "sim", 1, step, require=list(needed))
    if found.holds is False:
        raise AssertionError(str(found))
    return found
