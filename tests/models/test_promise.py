"""The promise of a model is measured: exact, margin, or refused; and it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from minisched.models.llama_torch import LlamaTorch
from minisched.models.promise import (
    KEPT,
    TIMES,
    Promise,
    Refused,
    is_allowed,
    promise_of,
    read_kept,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Moved(LlamaTorch):
    """A Llama with logits that depend on the number of rows of a step."""

    by = 0.0
    counts: Any = None

    def forward(self, batch: Any, ids: Any, page_table: Any) -> Any:
        if self.counts is not None:
            self.counts.append(batch.num_tokens)
        return super().forward(batch, ids, page_table) + self.by * (len(batch.rows) > 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_own_llama_is_exact(dtype: str, tiny_llama: Path) -> None:
    found = promise_of(LlamaTorch(tiny_llama, dtype), "thread")
    assert found.kind == "exact" and found.apart == found.moved == 0 < found.rows


def test_a_model_that_moves_with_the_batch_has_a_margin(tiny_llama: Path) -> None:
    model = Moved(tiny_llama)
    model.by = 1e-3
    found = promise_of(model, "thread")
    assert found.kind == "margin" and found.apart == pytest.approx(1e-3, rel=0.01)
    assert found.moved == 16 + 5 < found.rows  # the two steps of more than four rows
    assert is_allowed(TIMES * found.apart, found.apart)
    assert not is_allowed(TIMES * found.apart * 1.01, found.apart)
    assert not is_allowed(0.0, 0.0) and not is_allowed(None, found.apart)


@pytest.mark.parametrize("by", [100.0, float("nan"), float("inf")])
def test_what_no_rounding_explains_is_refused(by: float, tiny_llama: Path) -> None:
    model = Moved(tiny_llama)
    model.by = by
    with pytest.raises(Refused, match=r"^tiny_llama\S* can't run here: .* no rounding is so"):
        promise_of(model, "thread")


def test_a_measurement_is_kept_until_the_checkpoint_changes(home: Path, tiny_llama: Path) -> None:
    model = Moved(tiny_llama, "float32")
    model.counts = []
    found = promise_of(model, "thread", tiny_llama)
    steps = len(model.counts)
    assert promise_of(model, "thread", tiny_llama) == found and len(model.counts) == steps > 0
    assert read_kept(home / KEPT).values() != {}
    (tiny_llama / "config.json").touch()
    promise_of(model, "thread", tiny_llama)
    assert len(model.counts) == 2 * steps and len(read_kept(home / KEPT)) == 2
    (home / KEPT).write_text("{")  # damaged
    assert promise_of(model, "thread", tiny_llama) == found


def test_a_short_context_has_a_promise(tmp_path: Path) -> None:
    from minisched.models.llama import write_tiny_llama

    model = LlamaTorch(write_tiny_llama(tmp_path, context=8))
    assert promise_of(model, "thread") == Promise(0.0, promise_of(model, "thread").rows, 0)
    assert torch.get_num_threads() == 1
