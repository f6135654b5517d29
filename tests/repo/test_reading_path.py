"""The engine in one sitting: ten files from a request to a token, and the door to the features.

Both READMEs name the eleven in their order. A settled decode step runs in the ten, and in six files
for records, costs and answers.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path
from types import CodeType, FrameType
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
MOST_ON_THE_PATH = 2_350  # this as well

ROOT = Path(__file__).resolve().parents[2]
READMES = ("README.md", "README.zh-CN.md")
THE_PATH = (
    "core/request core/batch memory/pool policy/decode scheduler/scheduler engine/engine "
    "worker/worker relay/future_map devices/sim loops/overlap core/feature"
)


def reading_path() -> list[Path]:
    """The eleven files, in their order."""
    return [ROOT / f"minisched/{name}.py" for name in THE_PATH.split()]


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def called_in_a_settled_turn(loop: str) -> list[CodeType]:
    """The package's functions that one settled decode turn of a loop calls, in order."""
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    requests = [Request(f"r{i}", [5 + i, 2, 3], params) for i in range(4)]
    frontend = Frontend(requests)
    engine = make_engine(loop, SimDevice(), HashModel(), SchedulerConfig(), frontend, SIM_COST)
    turns = find_loop(loop).start(engine)
    called: list[CodeType] = []

    def trace(frame: FrameType, event: str, arg: Any) -> None:
        called.append(frame.f_code)

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
    return [code for code in called if code.co_filename.startswith(own)]


def entered(loop: str) -> set[Path]:
    """The files of these functions."""
    return {Path(code.co_filename) for code in called_in_a_settled_turn(loop)}


def test_the_page_tells_the_calls_of_a_settled_turn_in_their_order() -> None:
    page = (ROOT / "lessons/site/docs/the_code.md").read_text(encoding="utf-8")
    block = re.search(r"```text\noverlap\n(.*?)```", page, re.DOTALL)
    assert block is not None
    told = ["overlap", *(line.split()[0] for line in block[1].splitlines())]
    called = [code.co_qualname for code in called_in_a_settled_turn("overlap")]
    assert len(told) > 12 and {"FutureMap.resolve_future", "FutureMap.store_to_map"} <= {*called}
    rest = iter(called)
    assert [name for name in told if name not in rest] == [], "each comes after the one before"


@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_a_settled_decode_step_is_read_in_sixteen_files(loop: str) -> None:
    found = entered(loop)
    listing = sorted((str(path.relative_to(ROOT)), lines_of(path)) for path in found)
    total = sum(count for _, count in listing)
    assert len(found) <= MOST_FILES and total <= MOST_LINES, (len(found), total, listing)


@pytest.mark.parametrize("readme", READMES)
def test_a_readme_names_the_path_in_its_order(readme: str) -> None:
    text = (ROOT / readme).read_text(encoding="utf-8")
    listed = re.findall(r"^\d+\. `(minisched/[\w/]+\.py)`", text, re.MULTILINE)
    assert [ROOT / path for path in listed] == reading_path()


def test_the_path_is_short_and_a_settled_step_enters_all_of_it_but_the_door() -> None:
    *ten, door = reading_path()
    assert set(ten) == set(ten) & entered("overlap") and door not in entered("overlap")
    listing = {path.stem: lines_of(path) for path in reading_path()}
    assert sum(listing.values()) <= MOST_ON_THE_PATH, (sum(listing.values()), listing)


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
        for path in reading_path()
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
