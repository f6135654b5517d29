"""What ``bench scheduler`` says of its figures, and that its workloads are what they are called.

No time is asserted: what is slow on one machine is fast on another.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minisched.bench import rows
from minisched.bench.rows import Figure, SideBySide, figure, not_measured, ratio
from minisched.bench.scheduling import radix, scheduler
from minisched.bench.scheduling.engines import PAGE, Minisched, RunAhead, Workload
from minisched.bench.scheduling.nano_vllm import PACKAGE, find_nano_vllm, load_nano_vllm
from minisched.bench.scheduling.prompts import OWN, SHARED, cached_prompts, new_prompts, prompts
from minisched.cli.app import main

ROW = {"name", "median", "min", "max", "unit", "aim", "met"}


# -- figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("median", "aim", "at_most", "met"),
    [
        (2.0, None, False, None),
        (2.0, 3.0, False, False),
        (3.0, 3.0, False, True),
        (2.0, 3.0, True, True),
        (3.0, 3.0, True, True),
        (4.0, 3.0, True, False),
        (None, 3.0, True, None),
    ],
)
def test_an_aim_is_a_floor_or_a_ceiling(
    median: float | None, aim: float | None, at_most: bool, met: bool | None
) -> None:
    assert Figure("it", median, median, median, "us", aim, at_most).met is met


def test_a_ratio_is_taken_repetition_by_repetition() -> None:
    row = ratio("ours / theirs", [1.0, 8.0, 3.0], [2.0, 4.0, 3.0], 1.0)
    assert (row.median, row.min, row.max, row.met) == (1.0, 0.5, 2.0, True)


def test_who_is_slower_than_a_peer_says_by_how_much_and_why() -> None:
    ours: dict[str, Callable[[], float]] = {"a": lambda: 3.0, "b": lambda: 2.0, "c": lambda: 3.0}
    both = SideBySide("peer", ours, dict.fromkeys(ours, lambda: 2.0), slower={"a": "so", "b": "so"})
    found = {row.name: row for row in both.figures(2, lambda doing: None)}
    assert found["minisched / peer: a"].reason == "1.0 us more: so"
    assert found["minisched / peer: b"].met and not found["minisched / peer: b"].reason
    assert not found["minisched / peer: c"].met and not found["minisched / peer: c"].reason


def test_only_what_was_not_measured_has_a_reason() -> None:
    taken = figure("ours", [1.0, 2.0, 4.0], "us").as_json()
    missing = not_measured("theirs", "us", "there is none", 1.0).as_json()
    assert set(taken) == ROW and taken["median"] == 2.0
    assert set(missing) == ROW | {"reason"} and missing["reason"] == "there is none"
    assert missing["median"] is missing["min"] is missing["max"] is missing["met"] is None


def numbers(*values: float) -> Callable[[], float]:
    return iter(values).__next__


def test_side_by_side() -> None:
    part = SideBySide(
        "peer",
        {"small": numbers(1.0, 2.0), "large": numbers(3.0, 3.0)},
        {"small": numbers(2.0, 2.0)},
        [("large", "small")],
    )
    found = {row.name: (row.min, row.max, row.aim) for row in part.figures(2, lambda doing: None)}
    assert found == {
        "minisched: small": (1.0, 2.0, None),
        "peer: small": (2.0, 2.0, None),
        "minisched / peer: small": (0.5, 1.0, rows.PEER_AIM),
        "minisched: large": (3.0, 3.0, None),
        "growth: large / small": (1.5, 3.0, rows.GROWTH_AIM),
    }


def test_ours_and_theirs_take_turns() -> None:
    turns: list[str] = []
    part = SideBySide("peer", {"a": lambda: 1.0, "b": lambda: 1.0}, {"a": lambda: 1.0})
    part.figures(2, turns.append)
    names = ["minisched: a", "peer: a", "minisched: b"]
    assert turns == [f"{name}, repetition {n} of 2" for n in (1, 2) for name in names]


def test_without_a_peer_its_rows_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of the whole bench, with made-up times."""
    monkeypatch.setattr(
        rows, "interleave", lambda measures, times, report: {name: [1.0] for name in measures}
    )
    figures = scheduler.scheduler_figures(None, "there is none", 5, lambda doing: None)
    names = [row.name for row in figures]
    assert len(set(names)) == len(names)
    of_peer = [row for row in figures if scheduler.PEER in row.name]
    assert of_peer and all(row.met is None and row.reason == "there is none" for row in of_peer)
    assert all(row.median == 1.0 and not row.reason for row in figures if row not in of_peer)
    assert {row.met for row in figures if row.name.startswith("growth")} == {True}
    for size in scheduler.RUNNING:
        assert f"minisched / {scheduler.PEER}: {scheduler.running(size)}" in names


# -- workloads -------------------------------------------------------------------------------------

LOADS = {
    "decoding": scheduler.DECODING,
    "pool full": replace(scheduler.POOL_FULL, waiting=5),
    "batch full": replace(scheduler.BATCH_FULL, waiting=5),
    "after others": replace(scheduler.AFTER_OTHERS, running=8, finished=20, distinct=20),
}


@pytest.mark.parametrize("engine_of", [Minisched, RunAhead])
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
def test_those_who_run_decode_and_nobody_else(
    engine_of: Callable[[Workload], Minisched], load: Workload
) -> None:
    """``step_us`` raises if anybody else takes part; nobody must have ended, and pages be begun."""
    engine = engine_of(load)
    before = engine.scheduler.num_used_tokens
    scheduler.timed(engine, 1, 1)
    _, taken_part = scheduler.timed(engine, scheduler.WARM_UP - 2, scheduler.STEPS)
    assert taken_part == load.running * scheduler.STEPS
    assert len(engine.scheduler.waiting_queue) == load.waiting
    assert len(engine.scheduler.running_batch) == load.running
    assert engine.scheduler.num_used_tokens == before + load.running * PAGE


def test_a_step_with_the_wrong_rows_is_no_figure() -> None:
    class Idle:
        def step(self) -> int:
            return 3

    with pytest.raises(RuntimeError, match=r"3\.0 requests ran in a step, not 4"):
        scheduler.step_us(lambda load: Idle(), Workload(running=4))


def test_admitting_admits_prompts_and_nothing_else() -> None:
    engine = Minisched(scheduler.ADMITTING)
    _, admitted = scheduler.timed(engine, 1, scheduler.ADMITTING_STEPS)
    left = len(engine.scheduler.waiting_queue)
    in_warm_up = scheduler.ADMITTING.waiting - left - admitted
    assert 0 < in_warm_up < admitted and left > 0
    assert len(engine.scheduler.running_batch) == admitted + in_warm_up


@pytest.mark.parametrize(("finished", "distinct"), [(12, 12), (40, 4)])
def test_the_history_leaves_its_prompts_in_the_tree(finished: int, distinct: int) -> None:
    load = replace(scheduler.AFTER_OTHERS, running=2, finished=finished, distinct=distinct)
    engine = Minisched(load)
    of_running = load.running * (load.prompt_len // PAGE)
    assert engine.scheduler.tree is not None
    assert engine.scheduler.tree.total_size == distinct + of_running


@pytest.mark.parametrize("page_size", radix.PAGE_SIZES)
@pytest.mark.parametrize("size", radix.TREES[:3])
def test_the_tree_knows_what_is_looked_for(page_size: int, size: int) -> None:
    tree = radix.our_tree(page_size, size)
    assert 0.9 * size < tree.total_size * page_size < 2 * size
    for spread in (False, True):
        for tokens in cached_prompts(size, spread):
            assert len(tree.match_prefix(tokens).pages) * page_size == SHARED + OWN
    for tokens in new_prompts():
        assert len(tree.match_prefix(tokens).pages) * page_size == SHARED


def test_a_clients_integers_are_not_the_trees() -> None:
    """Else a comparison would be done at the first look, by identity."""
    known = prompts(1_000)[0]
    asked = cached_prompts(1_000, False)[0]
    assert asked == known
    assert all(mine is not its for mine, its in zip(asked, known, strict=True) if mine > 256)


# -- nano-vllm -------------------------------------------------------------------------------------

FILES = {
    "__init__.py": "raise RuntimeError('this would import torch')",
    "sampling_params.py": "class SamplingParams:\n    pass",
    "engine/sequence.py": "class Sequence:\n    block_size = 256",
    "engine/block_manager.py": (
        "import array\nclass BlockManager:\n    def hash_blocks(self, seq):\n        pass"
    ),
    "engine/scheduler.py": (
        "from nanovllm.config import Config\n"
        "from nanovllm.engine.sequence import Sequence\n"
        "from nanovllm.engine.block_manager import BlockManager\n"
        "class Scheduler:\n"
        "    def __init__(self, config: Config):\n"
        "        self.config = config"
    ),
}


def checkout(folder: Path, **changed: str) -> Path:
    """Something in the shape of nano-vllm."""
    for name, text in {**FILES, **changed}.items():
        file = folder / PACKAGE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (folder / "pyproject.toml").write_text('[project]\nversion = "7.8"\n', encoding="utf-8")
    return folder


def test_a_checkout_is_loaded_without_its_package(tmp_path: Path) -> None:
    nano = load_nano_vllm(checkout(tmp_path))
    config = nano.scheduler(num_blocks=5, max_num_seqs=6, max_num_batched_tokens=7).config
    assert (config.num_kvcache_blocks, config.kvcache_block_size) == (5, 256)
    assert nano.version == "7.8"
    assert not [name for name in sys.modules if name.split(".")[0] == PACKAGE]


def test_two_checkouts_are_two(tmp_path: Path) -> None:
    first = load_nano_vllm(checkout(tmp_path / "a"))
    second = load_nano_vllm(checkout(tmp_path / "b"))
    assert first.Scheduler is not second.Scheduler


def test_a_package_that_is_not_installed_is_a_reason(tmp_path: Path) -> None:
    needs = {"engine/block_manager.py": "import no_such_hash\nclass BlockManager:\n    pass"}
    nano, reason = find_nano_vllm(checkout(tmp_path, **needs))
    assert nano is None and "'no_such_hash', which is not installed" in reason
    assert not [name for name in sys.modules if name.split(".")[0] == PACKAGE]
    assert find_nano_vllm(None)[0] is None and "--nano-vllm" in find_nano_vllm(None)[1]


def test_an_older_one_is_refused(tmp_path: Path) -> None:
    older = {"engine/block_manager.py": "class BlockManager:\n    pass"}
    with pytest.raises(ValueError, match="an older nano-vllm"):
        load_nano_vllm(checkout(tmp_path, **older))


# -- the command -----------------------------------------------------------------------------------


def call(line: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> tuple[Any, str, str]:
    monkeypatch.setattr(sys, "argv", ["minisched", *shlex.split(line)])
    with pytest.raises(SystemExit) as exit_info:
        main()
    out, err = capsys.readouterr()
    return exit_info.value.code or 0, out, err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("bench scheduler --nano-vllm .", "--nano-vllm is '.', which is no checkout of nano-vllm"),
        ("bench scheduler --repeat 0", "--repeat is 0, but it must be at least 1."),
        ("bench hidden --model hash --nano-vllm .", "--nano-vllm is of no use to bench hidden."),
    ],
)
def test_a_bad_option_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path, line: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(line, monkeypatch, capsys)
    assert code == 2 and out == ""
    assert sentence in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path, as_json: bool
) -> None:
    """As a user calls it, with one case in place of all."""

    def few(nano: object, reason: str) -> SideBySide:
        return SideBySide(scheduler.PEER, {"a case": lambda: 2.0}, {"a case": None}, reason=reason)

    monkeypatch.setattr(scheduler, "step_cases", few)
    monkeypatch.setattr(scheduler, "radix_cases", lambda nano, why: SideBySide("peer", {}, {}))
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(f"bench scheduler{' --json' * as_json}", monkeypatch, capsys)
    assert code == 0
    if as_json:
        result = json.loads(out)
        assert set(result) == {"rows", "asked", "machine", "versions"}
        assert "python" in result["versions"] and result["asked"]["repetitions"] == 5
        ours, theirs, both = result["rows"]
        assert set(ours) == ROW and (ours["median"], ours["unit"]) == (2.0, "us")
        for row in (theirs, both):
            assert row["met"] is None and "--nano-vllm" in row["reason"]
    else:
        assert "a case" in out and "Not measured: no checkout of nano-vllm" in " ".join(out.split())
