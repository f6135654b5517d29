"""The worked examples of the published guides, each run through the scheduler.

From the SGLang chunked-prefill guide (rounds, mixes, ratios), the KV cache walk-through (ABC and
AFG) and the notes on the scheduler's evolution (1,984 + 2,000, slots 34 to 36, pages of 1 and 4).
Where a guide is off, its figure stands beside the right one.
"""

from __future__ import annotations

import pytest

from minisched.core import ForwardMode, Request, Result, SamplingParams, ScheduleBatch
from minisched.memory.radix_node import TreeNode
from minisched.scheduler import Scheduler, SchedulerConfig

FIRST_DECODER = 100  # tokens below stand in long prompts, so that nobody shares a prefix by chance


def make_scheduler(**settings: object) -> Scheduler:
    defaults = {"kv_tokens": 400_000, "max_running_requests": 1024, "context_len": 200_000,
                "vocab_size": 2000, "chunked_prefill_size": 2048}  # fmt: skip
    return Scheduler(SchedulerConfig(**{**defaults, **settings}))  # type: ignore[arg-type]


def step(scheduler: Scheduler) -> ScheduleBatch:
    """One step, run and processed; the model always says 9."""
    batch = scheduler.next_batch()
    assert isinstance(batch, ScheduleBatch)
    scheduler.process(batch, Result([9] * len(batch.rows)))
    return batch


def add(scheduler: Scheduler, rid: str, prompt: list[int], max_new_tokens: int) -> Request:
    req = Request(rid, prompt, SamplingParams(max_new_tokens=max_new_tokens))
    assert scheduler.receive([req]) == []
    return req


def let_decode(scheduler: Scheduler, count: int, max_new_tokens: int = 100) -> None:
    """``count`` requests, past their prompts of one token each."""
    for i in range(count):
        add(scheduler, f"d{i}", [FIRST_DECODER + i], max_new_tokens)
    if count:
        assert len(step(scheduler).rows) == count


def prefill(scheduler: Scheduler, prompt_len: int, max_new_tokens: int = 1) -> list[ScheduleBatch]:
    """The steps from a long prompt's arrival to its first token."""
    document = add(scheduler, "document", [i % 97 for i in range(prompt_len)], max_new_tokens)
    batches = []
    while not document.output_ids:
        batches.append(step(scheduler))
    return batches


def extend_lens(batch: ScheduleBatch) -> list[int]:
    return [row.extend_len for row in batch.rows]


@pytest.mark.parametrize(
    ("prompt", "chunk", "decodes", "rounds", "first", "last"),
    [
        (10_000, 2048, 0, 5, 2048, 1808),
        (150_000, 2048, 0, 74, 2048, 496),  # the guide: about 73
        (50_000, 4096, 0, 13, 4096, 848),  # the guide: about 12
        (100_000, 2048, 20, 50, 2028, 628),  # the guide: 49 of 2048
        (150_000, 2048, 10, 74, 2038, 1226),  # the guide: 73, the last of 1500
        (10_000, 2048, 10, 5, 2038, 1848),
        (10_000, 2048, 8, 5, 2040, 1840),  # 255 prompt tokens for each decoded one
        (10_000, 2048, 2, 5, 2046, 1816),  # the guide: 2048 + 1 + 1 = 2050
        (2000, 2048, 20, 1, 2000, 2000),
    ],
)
def test_chunks_of_a_prompt(
    prompt: int, chunk: int, decodes: int, rounds: int, first: int, last: int
) -> None:
    scheduler = make_scheduler(chunked_prefill_size=chunk, enable_mixed_chunk=True)
    let_decode(scheduler, decodes)
    batches = prefill(scheduler, prompt)
    mode = ForwardMode.MIXED if decodes else ForwardMode.EXTEND
    assert {batch.mode for batch in batches} == {mode}
    assert all(extend_lens(batch)[1:] == [1] * decodes for batch in batches)
    chunks = [extend_lens(batch)[0] for batch in batches]
    assert chunks == [first] * (rounds - 1) + [last] and sum(chunks) == prompt


def test_the_first_chunk_ends_with_a_page() -> None:
    """The published ``trunc_len``; a prompt that has started goes on with all that is left."""
    scheduler = make_scheduler(enable_mixed_chunk=True, page_size=4)
    let_decode(scheduler, 10)
    chunks = [extend_lens(batch)[0] for batch in prefill(scheduler, 10_000)]
    assert chunks == [2036, 2038, 2038, 2038, 1850]


def test_a_cached_prefix_of_1984_and_2000_new_tokens() -> None:
    scheduler = make_scheduler()
    prefix = [i % 97 for i in range(1984)]
    add(scheduler, "before", prefix, 1)
    step(scheduler)
    req = add(scheduler, "after", prefix + [98] * 2000, 5)
    [row] = step(scheduler).rows
    assert (req.hit_len, row.start, row.extend_len, row.end) == (1984, 1984, 2000, 3984)
    assert row.lease.pages == list(range(1, 3985)), "slots 1 to 1984, then 1985 to 3984"


def children(node: TreeNode) -> dict[str, TreeNode]:
    """By the letters on their edges."""
    edges = {child: child.edge for child in node.children.values()}
    return {"".join(map(chr, edge.tokens[edge.start :])): child for child, edge in edges.items()}


def test_abc_splits_a_cached_afg_at_a() -> None:
    scheduler = make_scheduler()
    add(scheduler, "afg", [ord(letter) for letter in "AFG"], 5)
    step(scheduler)
    assert scheduler.tree is not None
    root = scheduler.tree.root_node
    assert list(children(root)) == ["AFG"]
    abc = add(scheduler, "abc", [ord(letter) for letter in "ABC"], 5)
    batch = scheduler.next_batch()
    assert isinstance(batch, ScheduleBatch)
    [row] = batch.rows
    assert (abc.hit_len, row.extend_len) == (1, 2), "A is found, B and C get a slot each"
    assert list(children(root)) == ["A"]
    upper = children(root)["A"]
    assert list(children(upper)) == ["FG"]
    assert row.lease.pages[0] == upper.edge.page_ids[0] and list(row.new_pages[-2:]) == [4, 5]
    scheduler.process(batch, Result([9]))
    assert {edge: node.lock_ref for edge, node in children(upper).items()} == {"FG": 1, "BC": 1}
    assert upper.lock_ref == 2, "both requests hold A"
