"""Two-batch overlap: how a batch is split, what a step takes, and when that is a loss."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Request, ScheduleBatch
from minisched.devices.cost import MILLISECOND, CostModel
from minisched.devices.sim import SimDevice
from minisched.export.views import NothingToShow, draw
from minisched.loops.run import run_loop
from minisched.loops.two_batch import LEAST_PERCENT, TwoBatchWorker, split_token_index, tokens_of
from minisched.models.hash import HashModel
from minisched.recipes import trace_of
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from minisched.trace.events import ALL_TO_ALL
from tests.support import many, tokens

COUNTS = st.lists(st.integers(1, 30), min_size=1, max_size=6)


def batch_of(lens: list[int], has_prompts: bool = True) -> ScheduleBatch:
    """A batch of rows of so many tokens."""
    reqs: Any = [Request(f"r{at}", [0]) for at in range(len(lens))]
    mode = ForwardMode.EXTEND if has_prompts else ForwardMode.DECODE
    columns: Any = (reqs, [None] * len(lens), [0] * len(lens), [(7,) * count for count in lens])
    return ScheduleBatch(1, mode, len(lens) * has_prompts, *columns)


# -- the split -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lens", "has_prompts", "half"),
    [
        ([1], False, 0),  # a single decode
        ([1] * 9, False, 4),
        ([1], True, 0),
        ([42], True, 21),  # one prompt is cut
        ([999, 42], True, 520),
        ([42, 999], True, 520),
        ([8, 9], True, 8),  # 47 %: cut. 8 of 17 tokens are half of them, rounded down
        ([12, 13], True, 12),  # 48 %: at the prompts' border
        ([5, 5, 5, 5], True, 10),
    ],
)
def test_a_batch_is_split_as_in_sglang(lens: list[int], has_prompts: bool, half: int) -> None:
    assert split_token_index(batch_of(lens, has_prompts)) == half


@given(COUNTS)
def test_the_halves_of_a_prompt_batch_are_nearly_equal_and_lose_no_token(lens: list[int]) -> None:
    batch = batch_of(lens)
    at = split_token_index(batch)
    a, b = tokens_of(batch, 0, at), tokens_of(batch, at, batch.num_tokens)
    assert (a.num_tokens, a.num_tokens + b.num_tokens) == (at, batch.num_tokens)
    assert 100 * at >= LEAST_PERCENT * batch.num_tokens - 100
    ends: dict[str, int] = {}
    for row in (*a.rows, *b.rows):
        assert row.start == ends.get(row.req.rid, 0)
        ends[row.req.rid] = row.end
    assert [*ends.values()] == lens


@pytest.mark.parametrize("shared", [True, False])
def test_a_prompt_that_reads_pages_of_a_later_row_is_not_split_from_it(shared: bool) -> None:
    batch = batch_of([4, 4])
    batch.starts[0] = 2
    leases: Any = [SimpleNamespace(pages=pages) for pages in ([1, 2, 3], [1 if shared else 7])]
    batch.leases[:] = leases
    worker: Any = SimpleNamespace(page_size=2, min_tokens=0)
    assert len(TwoBatchWorker.split(worker, batch)) == (0 if shared else 2)


# -- the time --------------------------------------------------------------------------------------


def together(loop: str, count: int, cost: CostModel) -> Trace:
    """The run of ``count`` equal requests that arrive together."""
    requests = [Request(f"r{at}", [at], tokens(6)) for at in range(count)]
    model, config = HashModel(eos_ids=frozenset()), SchedulerConfig()
    return run_loop(loop, SimDevice(), model, requests, config, cost).trace


@given(pairs=st.integers(1, 4), base=st.integers(0, 90), token=st.integers(0, 30))
@settings(max_examples=many(20, 200))
def test_a_step_takes_a_sixth_of_a_pass_and_a_pass_over_half(
    pairs: int, base: int, token: int
) -> None:
    count, unit = 2 * pairs, 600
    cost = CostModel(forward_base=unit * base, forward_per_token=unit * token)
    whole, half = cost.forward(count), cost.forward(pairs)
    trace = together("two_batch", count, cost)
    assert trace.end == 6 * (whole // 6 + half)
    assert (trace.end < together("overlap", count, cost).end) == (2 * token * count > base)


def test_every_all_to_all_runs_while_the_other_half_computes() -> None:
    trace = trace_of("two_batch")
    computing = [item for item in trace.on("forward") if item.name.startswith("half")]
    for sent in (item for item in trace.on(ALL_TO_ALL) if item.mode == "decode"):
        during = [it.name for it in computing if it.start <= sent.start and sent.end <= it.end]
        assert len(during) == 1 and during[0] != sent.name
    assert draw("two_batch", trace, "text").startswith("All 8 ms of all-to-all run while")


PAGE = Path(__file__).resolve().parents[2] / "lessons/site/docs/designs.md"


@pytest.mark.thorough
def test_the_page_has_the_figures_of_its_commands(cli: Any) -> None:
    text = PAGE.read_text("utf-8").partition("## Two halves of a batch")[2].partition("\n## ")[0]
    few, many_requests = re.findall(r"^minisched (compare (?:.*\\\n)*.*)", text, re.M)[:2]
    threshold = few.replace("two_batch", "two_batch,two_batch:min_tokens=80")
    for line in (threshold, many_requests):
        _, out, _ = cli(line.replace("\\\n", " ") + " --json")
        for loop in json.loads(out)["runs"][1:]:
            assert f"{loop['makespan_ns'] / MILLISECOND:.1f} ms" in " ".join(text.split()), loop


def times(trace: Trace) -> list[tuple[str, str, int, int]]:
    return [(item.lane, item.name, item.start, item.end) for item in trace.slices]


def test_a_step_below_the_threshold_has_the_pass_of_overlap() -> None:
    cost = CostModel(forward_base=60, forward_per_token=6)
    small, whole = (together(loop, 4, cost) for loop in ("two_batch:min_tokens=5", "overlap"))
    assert times(small) == times(whole)
    assert together("two_batch:min_tokens=4", 4, cost).on(ALL_TO_ALL)
    with pytest.raises(NothingToShow):
        draw("two_batch", small)
    assert not together("two_batch", 1, cost).on(ALL_TO_ALL), "a single token has no half"
