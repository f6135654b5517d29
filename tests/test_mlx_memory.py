"""What MLX's cache of buffers holds, with ``clear_cache`` and without: facts, not timings."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from minisched.devices import mlx_steps
from minisched.devices.mlx import MlxDevice
from minisched.export.mlx_memory import MIB, memory_picture, memory_report
from minisched.export.mlx_runs import finish_run, memory_run
from minisched.export.views.marks import NothingToShow
from minisched.loops.run import Run, run_loop
from minisched.models.hash_mlx import HashMlx
from minisched.models.llama_mlx import LlamaMlx
from tests.mlx_at_rest import A_STEP, growth, memory_run_at_rest
from tests.support import Picture, check_picture, some_requests

DECODES, EVERY = 96, 16


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """The same requests, never cleared and cleared every 16 finalized decodes.

    In a process of their own: memory is counted for a process, whoever else uses it. And at rest:
    what a step in flight holds depends on how far it has got.
    """
    folder = tmp_path_factory.mktemp("llama")
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        without, cleared = (
            alone.submit(memory_run_at_rest, folder, every, DECODES).result()
            for every in (0, EVERY)
        )
    return without, cleared


def test_clearing_changes_no_token(runs: tuple[Run, Run]) -> None:
    without, cleared = runs
    assert without.outputs == cleared.outputs
    assert all(len(output) == DECODES for output in without.outputs.values())


def test_there_is_one_reading_a_finalized_decode_and_one_more_after_a_clearing(
    runs: tuple[Run, Run],
) -> None:
    """Both requests decode together: 95 steps, and the one that their ends waste."""
    without, cleared = map(memory_report, [run.trace for run in runs])
    assert [at for at, _ in without.cache] == list(range(1, DECODES + 1))
    assert without.clears == 0
    assert [at for at, _ in cleared.cache if at % EVERY] == [
        at for at in range(1, DECODES + 1) if at % EVERY
    ]
    again = [at for (at, _), (after, _) in pairwise(cleared.cache) if at == after]
    assert again == list(range(EVERY, DECODES + 1, EVERY)) and cleared.clears == len(again)
    assert len(cleared.active) == len(cleared.cache)


def test_the_cache_grows_without_clearing_and_starts_anew_with_it(runs: tuple[Run, Run]) -> None:
    """What a decode gives up never fits the next one, which reads a token more for each row."""
    without, cleared = map(memory_report, [run.trace for run in runs])
    sizes = dict(without.cache)
    later = [sizes[at] for at in range(EVERY, DECODES + 1, EVERY)]
    assert all(before < after for before, after in pairwise(later)), "every 16 decodes more"
    assert sizes[DECODES] > 20 * MIB
    drops = zip(cleared.before_clear, cleared.after_clear, strict=True)
    assert all(0 == after < before for before, after in drops)
    assert 2 * cleared.most_cached < without.most_cached


def test_what_is_in_use_does_not_depend_on_it(runs: tuple[Run, Run]) -> None:
    """The cache is memory that nobody uses: what is in use never grows, with it or without."""
    for run in runs:
        values = [value for _, value in memory_report(run.trace).active]
        assert len(values) >= DECODES and min(values) > MIB
        assert growth(values) < A_STEP


def test_the_picture_shows_both_runs(runs: tuple[Run, Run]) -> None:
    picture = Picture(memory_picture(runs[0].trace, runs[1].trace, EVERY))
    check_picture(picture)
    for words in ("cached, never cleared", f"cleared every {EVERY} decodes", "in use"):
        assert words in picture.words
    assert "The tokens are the same." in picture.words
    marks = [mark for mark in runs[1].trace.marks if mark.name != "tokens"]
    other = memory_picture(runs[0].trace, replace(runs[1].trace, marks=tuple(marks)), EVERY)
    assert "The tokens are not the same." in Picture(other).words


def test_the_limit_of_the_cache_is_put_back(tmp_path: Path) -> None:
    before = mx.set_cache_limit(5 * MIB)
    try:
        memory_run(tmp_path, 0, 4)
        assert mx.set_cache_limit(5 * MIB) == 5 * MIB
    finally:
        mx.set_cache_limit(before)


def test_on_sim_there_is_no_memory_to_show() -> None:
    trace = finish_run().trace
    assert memory_report(trace).cache == () and memory_report(trace).most_cached == 0
    with pytest.raises(NothingToShow, match=r"^the trace has no cache memory counter: [^.]*\.$"):
        memory_picture(trace, trace, 16)


@pytest.mark.parametrize("model", ["hash", "llama"])
def test_tokens_and_caches_are_handed_over_together(
    model: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ``async_eval`` a step: logits, tokens, their copy, and every array that is written."""
    device = MlxDevice()
    handed: list[tuple[mx.array, ...]] = []
    async_eval = mx.async_eval

    def look(*arrays: mx.array) -> None:
        handed.append(arrays)
        async_eval(*arrays)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(mlx_steps.mx, "async_eval", look)
    loaded: Any = HashMlx(eos_ids=frozenset()) if model == "hash" else LlamaMlx(tiny_llama)
    run = run_loop("mlx_async", device, loaded, some_requests(6))
    steps = {item.step for item in run.trace.slices if item.name == "forward"}
    assert len(handed) == len(steps)
    state = device._cache_state_arrays()
    ops, markers = 3, 3
    for arrays in handed:
        assert len(arrays) == ops + markers + len(state)
        shapes = [array.shape for array in arrays[ops + markers :]]
        assert shapes == [array.shape for array in state]
