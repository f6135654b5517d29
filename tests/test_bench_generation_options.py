"""Which options ``bench generation`` takes, and what it says of those that it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minisched.bench.generation.load import NEW_TOKENS, Choice
from minisched.bench.rows import Figure
from minisched.cli import bench_generation
from minisched.cli.bench_call import BenchCall


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the part was called with, which is not run."""
    seen: list[Any] = []

    def generation(*what: Any) -> list[Figure]:
        seen.extend(what)
        return []

    monkeypatch.setattr(bench_generation, "find_folder", lambda workload: Path("weights"))
    monkeypatch.setattr(bench_generation, "generation", generation)
    return seen


def test_batch_size_and_length_can_be_chosen(given: list[Any]) -> None:
    call = BenchCall("generation", device="mlx", requests=32, max_new_tokens=128, repetitions=7)
    assert bench_generation.measure(call) == []
    assert given == [Path("weights"), 7, call.report, "mlx", Choice(32, 128)]


def test_by_default_both_libraries_are_measured(given: list[Any]) -> None:
    bench_generation.measure(BenchCall("generation"))
    assert given[1] == 5 and given[3:] == [None, Choice(None, NEW_TOKENS)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "sim"}, "--device is 'sim'; bench generation knows thread, mlx."),
        ({"model": "hash"}, "generation compares real models, so --model can't be hash."),
        ({"requests": 0}, "--requests is 0, but it must be at least 1."),
        ({"max_new_tokens": 1}, "--max-new-tokens is 1, but it must be 2 to 1024."),
        ({"max_new_tokens": 1025}, "--max-new-tokens is 1025, but it must be 2 to 1024."),
        ({"vidur": Path("vidur")}, "--vidur is of no use to bench generation."),
    ],
)
def test_a_bad_option_is_one_sentence(
    given: list[Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError) as error:
        bench_generation.measure(BenchCall("generation", **options))
    assert str(error.value) == sentence and not given
