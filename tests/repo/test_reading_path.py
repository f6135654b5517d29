"""The engine in one sitting: nine files from a request to a token, and what a step opens of more.

The README names the nine in their order. A settled decode step runs in them, and beside them only
in what records, what costs time and what answers.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from minisched.core import ForwardMode, Lease, Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.design import find_loop
from minisched.loops.run import make_engine
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.worker import Step, Worker

MOST_FILES = 16
MOST_LINES = 3_900  # it may only be lowered
MOST_ON_THE_PATH = 2_260  # this as well

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def reading_path() -> list[Path]:
    """The nine files, as the README numbers them."""
    listed = re.findall(r"^\d\. `(minisched/[\w/]+\.py)`", README, re.MULTILINE)
    return [ROOT / path for path in listed]


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def entered(loop: str) -> set[Path]:
    """The package's files that one settled decode turn of a loop enters."""
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    requests = [Request(f"r{i}", [5 + i, 2, 3], params) for i in range(4)]
    frontend = Frontend(requests)
    engine = make_engine(loop, SimDevice(), HashModel(), SchedulerConfig(), frontend, SIM_COST)
    turns = find_loop(loop).start(engine)
    files: set[str] = set()

    def trace(frame: FrameType, event: str, arg: Any) -> None:
        files.add(frame.f_code.co_filename)

    for _ in range(12):
        batch = next(turns)
    assert batch and batch.mode is ForwardMode.DECODE and len(batch.reqs) == 4
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        next(turns)
    finally:
        sys.settrace(before)
    own = str(ROOT / "minisched")
    return {Path(name) for name in files if name.startswith(own)}


@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_a_settled_decode_step_is_read_in_sixteen_files(loop: str) -> None:
    found = entered(loop)
    listing = sorted((str(path.relative_to(ROOT)), lines_of(path)) for path in found)
    total = sum(count for _, count in listing)
    assert len(found) <= MOST_FILES and total <= MOST_LINES, (len(found), total, listing)


def test_the_path_is_nine_files_and_a_settled_step_enters_all_of_them() -> None:
    path = reading_path()
    assert len(path) == 9 and path[-1].stem == "overlap"
    assert set(path) <= entered("overlap")
    assert sum(map(lines_of, path)) <= MOST_ON_THE_PATH


# -- what the path knows of features ---------------------------------------------------------------

FEATURES = re.compile(
    r"grammar|penalt|logprob|stop.?string|stale|draft|verif|specul|\bmasks?\b(?!\()|_mask|regex"
    r"|logit_bias",
    re.I,
)
MOST_NAMED = 15  # lines; it may only be lowered
THE_DOOR = ("overlap.py", "feature.py")


def test_the_path_names_few_features() -> None:
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in (*reading_path(), ROOT / "minisched/engine/engine.py")
        if path.name not in THE_DOOR
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FEATURES.search(line)
    ]
    assert len(found) <= MOST_NAMED, "\n".join(found)


@pytest.mark.parametrize(("kind", "most"), [(Request, 16), (Lease, 10), (Step, 15)])
def test_the_nouns_have_few_fields(kind: type, most: int) -> None:
    found = [item.name for item in fields(kind)]
    assert len(found) <= most, found


def test_a_worker_is_made_of_few_parts() -> None:
    found = [*signature(Worker).parameters]
    assert len(found) <= 10, found


def test_only_the_wiring_and_pd_import_a_feature() -> None:
    """No folder above ``features`` does (``test_topics.py``), and no plain loop."""
    loops = (ROOT / "minisched/loops").glob("*.py")
    found = {path.stem for path in loops if "..features" in path.read_text(encoding="utf-8")}
    assert found == {"run", "pd"}


def test_each_file_of_the_path_opens_with_a_paragraph() -> None:
    for path in reading_path():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert len(docstring.split("\n\n")) > 1 and len(docstring.split()) > 40, path
