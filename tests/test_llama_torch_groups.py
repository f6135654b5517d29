"""Who attends together on torch: every token once, no window too short, always the same bits."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from minisched.models import llama_torch_groups as groups  # noqa: E402
from minisched.models.llama_torch import LlamaTorch  # noqa: E402
from minisched.models.llama_torch_attention import BLOCK, ROWS, Group, PagedKV  # noqa: E402
from minisched.models.llama_torch_groups import bytes_each, make_groups  # noqa: E402

Rows = list[tuple[int, int]]  # positions computed before, and now
LONGEST = 400  # positions
SIZES = (1, 2_000, 20_000, 1 << 22)  # bytes of a position: from all rows together to one by one

decodes = st.lists(st.tuples(st.integers(0, 300), st.just(1)), max_size=5)
verifies = st.lists(st.tuples(st.integers(0, 300), st.just(4)), max_size=4)
prompts = st.lists(st.tuples(st.integers(0, 250), st.integers(1, 150)), max_size=3)
batches = st.tuples(prompts, verifies, decodes, prompts).map(
    lambda parts: [*chain.from_iterable(parts)]
)


def grouped(rows: Rows, each: int | None) -> list[Group]:
    """The groups of a batch."""
    return make_groups([before for before, _ in rows], [new for _, new in rows], each)


@given(batches.filter(bool), st.sampled_from([*SIZES, None]))
def test_every_token_attends_once_and_sees_all_that_is_before_it(
    rows: Rows, each: int | None
) -> None:
    positions = [before + at for before, new in rows for at in range(new)]
    token = 0
    for group in grouped(rows, each):
        assert group.first == token
        mine = positions[token : token + group.num_rows * group.extend_len]
        assert max(mine) < group.window < max(mine) + 1 + BLOCK and group.window % BLOCK == 0
        for at in range(0, len(mine), group.extend_len):  # a row's positions follow each other
            row = mine[at : at + group.extend_len]
            assert row == list(range(row[0], row[0] + group.extend_len))
        if each is not None and group.num_rows > 1:
            assert group.num_rows * group.window <= max(groups.CACHE // each, group.window)
        if each is not None:
            assert group.num_rows * group.extend_len <= max(groups.QUERIES, group.num_rows * 32)
        token += len(mine)
    assert token == len(positions)


@pytest.fixture(scope="module")
def models(kinds: dict[str, Path]) -> list[LlamaTorch]:
    return [LlamaTorch(kinds[kind]) for kind in ("llama", "biases", "qwen3 biases")]


@given(batches.filter(bool), st.integers(0, 2**31), st.integers(0, 2))
@settings(max_examples=25)
def test_how_a_batch_is_grouped_changes_no_bit(
    models: list[LlamaTorch], rows: Rows, seed: int, which: int
) -> None:
    """Against one group for everybody who can attend together, with caches of several sizes."""
    model = models[which]
    whole = logits(model, rows, seed, None)
    for each in SIZES:
        assert torch.equal(logits(model, rows, seed, each), whole)


def logits(model: LlamaTorch, rows: Rows, seed: int, each: int | None) -> Any:
    """Of every row's last token; what came before is random, and lies anywhere in memory."""
    random = torch.Generator().manual_seed(seed)
    slots = 1 + len(rows) * LONGEST
    shape = (model.num_layers, slots, *model.kv_shape)
    table = 1 + torch.randperm(slots - 1, generator=random)
    table = torch.cat([torch.zeros(LONGEST, dtype=table.dtype), table])  # row 0 is nobody's
    keys, values = (torch.randn(shape, generator=random) for _ in range(2))
    positions = [before + at for before, new in rows for at in range(new)]
    token_rows = [1 + row for row, (_, new) in enumerate(rows) for _ in range(new)]
    padding = [0] * (-len(positions) % ROWS)
    ids = torch.randint(model.vocab_size, [len(positions) + len(padding)], generator=random)
    last = torch.tensor([new for _, new in rows]).cumsum(0) - 1
    kv = PagedKV(keys, values, table, LONGEST)
    at, of = torch.tensor(positions + padding), torch.tensor(token_rows + padding)
    with torch.inference_mode():
        return model.step(model.weights, kv, grouped(rows, each), ids, at, of, last)


def test_a_gpu_gets_groups_as_large_as_can_be() -> None:
    assert bytes_each(torch.empty(2, 8, 3, 4, dtype=torch.bfloat16)) == 2 * 3 * 4 * 2
    assert bytes_each(torch.empty(2, 8, 3, 4, device="meta")) is None
    assert len(grouped([(300, 1)] * 50, None)) == 1 == len(grouped([(0, 350)], None))
    assert len(grouped([(300, 1)] * 50, 1536)) == 17 and len(grouped([(0, 350)], 1536)) == 6
