"""The worked examples of the published guides, each run through the scheduler.

From the SGLang chunked-prefill guide (rounds, mixes, ratios), the KV cache walk-through (ABC and
AFG) and the notes on the scheduler's evolution (1,984 + 2,000, slots 34 to 36, pages of 1 and 4).
Nothing is computed here that the scheduler did not do; where a guide is off, its figure stands
beside the right one.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from minisched.core import ForwardMode, Request, Result, SamplingParams, ScheduleBatch
from minisched.memory.radix_node import TreeNode
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.scheduler.presets import PRESETS, Preset

FIRST_DECODER = 100  # tokens below stand in long prompts, so that nobody shares a prefix by chance


def make_scheduler(**settings: object) -> Scheduler:
    defaults = {
        "kv_tokens": 400_000,
        "max_running_requests": 1024,
        "context_len": 200_000,
        "vocab_size": 2000,
    }
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


@dataclass(frozen=True)
class Chunking:
    """A prompt in chunks beside running requests, and what the guide says if that is not right."""

    prompt: int
    chunk: int
    decodes: int
    rounds: int
    first: int  # prompt tokens of the first round ...
    last: int  # ... and of the last
    guide: str = ""

    def __str__(self) -> str:
        said = f" (guide: {self.guide})" if self.guide else ""
        return f"{self.prompt} at {self.chunk} beside {self.decodes}{said}"


CHUNKINGS = [
    Chunking(10_000, 2048, 0, rounds=5, first=2048, last=1808),
    Chunking(150_000, 2048, 0, rounds=74, first=2048, last=496, guide="about 73"),
    Chunking(50_000, 4096, 0, rounds=13, first=4096, last=848, guide="about 12"),
    Chunking(100_000, 2048, 0, rounds=49, first=2048, last=1696),
    Chunking(100_000, 2048, 20, rounds=50, first=2028, last=628, guide="49 of 2048"),
    Chunking(150_000, 2048, 10, rounds=74, first=2038, last=1226, guide="73, the last of 1500"),
    Chunking(10_000, 2048, 10, rounds=5, first=2038, last=1848),
    Chunking(10_000, 2048, 8, rounds=5, first=2040, last=1840),
    Chunking(10_000, 2048, 2, rounds=5, first=2046, last=1816, guide="2048 + 1 + 1 = 2050"),
    Chunking(100, 2048, 10, rounds=1, first=100, last=100),
    Chunking(2000, 2048, 20, rounds=1, first=2000, last=2000),
]


@pytest.mark.parametrize("example", CHUNKINGS, ids=str)
def test_chunks_of_a_prompt(example: Chunking) -> None:
    scheduler = make_scheduler(chunked_prefill_size=example.chunk, enable_mixed_chunk=True)
    let_decode(scheduler, example.decodes)
    batches = prefill(scheduler, example.prompt)
    mode = ForwardMode.MIXED if example.decodes else ForwardMode.EXTEND
    assert {batch.mode for batch in batches} == {mode}
    assert all(extend_lens(batch)[1:] == [1] * example.decodes for batch in batches)
    chunks = [extend_lens(batch)[0] for batch in batches]
    assert len(chunks) == example.rounds
    assert (chunks[0], chunks[-1]) == (example.first, example.last)
    assert set(chunks[:-1]) <= {example.first} and sum(chunks) == example.prompt
    assert all(batch.num_tokens <= example.chunk for batch in batches)


def test_the_first_chunk_ends_with_a_page() -> None:
    """The published ``trunc_len``; a prompt that has started goes on with all that is left."""
    scheduler = make_scheduler(chunked_prefill_size=2048, enable_mixed_chunk=True, page_size=4)
    let_decode(scheduler, 10)
    chunks = [extend_lens(batch)[0] for batch in prefill(scheduler, 10_000)]
    assert chunks == [2036, 2038, 2038, 2038, 1850]


@pytest.mark.parametrize(
    ("prompt", "decodes", "ratio"), [(10_000, 8, 255), (2000, 20, 100), (10_000, 10, 203.8)]
)
def test_prompt_tokens_for_each_decoded_token(prompt: int, decodes: int, ratio: float) -> None:
    scheduler = make_scheduler(chunked_prefill_size=2048, enable_mixed_chunk=True)
    let_decode(scheduler, decodes)
    first, *rest = extend_lens(prefill(scheduler, prompt)[0])
    assert first / sum(rest) == ratio


def test_a_document_ends_in_the_round_that_the_guide_says() -> None:
    """Round 2,073 in the guide too: its prefill is one round short, its decode one too many."""
    scheduler = make_scheduler(chunked_prefill_size=2048, enable_mixed_chunk=True)
    let_decode(scheduler, 10, max_new_tokens=3000)
    batches = prefill(scheduler, 150_000, max_new_tokens=2000)
    document = scheduler.live["document"]
    while not document.finished:
        batches.append(step(scheduler))
    assert len(batches) == 2073
    assert [batch.mode for batch in batches].count(ForwardMode.MIXED) == 74


def test_a_short_prompt_with_a_long_answer_is_never_chunked() -> None:
    """Only the prompt's length decides: 10 tokens in, 7,500 out."""
    scheduler = make_scheduler(chunked_prefill_size=2048)
    req = add(scheduler, "essay", list(range(10)), 7500)
    batches = [step(scheduler)]
    while not req.finished:
        batches.append(step(scheduler))
    assert extend_lens(batches[0]) == [10] and batches[0].mode is ForwardMode.EXTEND
    assert {batch.mode for batch in batches[1:]} == {ForwardMode.DECODE}
    assert len(batches) == len(req.output_ids) == 7500
    assert all(row.deliver for batch in batches for row in batch.rows)


PUBLISHED_RATIOS = {
    "t4": 256.0,
    "rtx4090": 2048 / 24,  # the guide: 128, of the 16 that was the default then
    "rtx4090-tp4": 25.6,  # the guide: 25
    "a100-40gb": 128.0,
    "a100-40gb-tp4": 25.6,  # the guide: 25
    "h100": 32.0,
    "h100-tp4": 16.0,
    "b200": 32.0,
}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_the_published_devices_at_full_load(preset: Preset) -> None:
    """The published ratio is chunk : decode batch; mixed, the decodes come out of the chunk."""
    chunk, decodes = preset.chunked_prefill_size, preset.cuda_graph_max_bs
    assert preset.prefill_decode_ratio == PUBLISHED_RATIOS[preset.name]
    apart = make_scheduler(**preset.settings)
    let_decode(apart, decodes)
    [full, *_] = prefill(apart, 2 * chunk)
    assert extend_lens(full) == [chunk]
    assert extend_lens(step(apart)) == [1] * decodes
    mixed = make_scheduler(**preset.settings, enable_mixed_chunk=True)
    let_decode(mixed, decodes)
    [full, *_] = prefill(mixed, 2 * chunk)
    assert extend_lens(full) == [chunk - decodes] + [1] * decodes


def test_a_cached_prefix_of_1984_and_2000_new_tokens() -> None:
    scheduler = make_scheduler(chunked_prefill_size=2048)
    prefix = [i % 97 for i in range(1984)]
    add(scheduler, "before", prefix, 1)
    step(scheduler)
    req = add(scheduler, "after", prefix + [98] * 2000, 5)
    [row] = step(scheduler).rows
    assert (req.hit_len, row.start, row.extend_len, row.end) == (1984, 1984, 2000, 3984)
    assert row.lease.pages == list(range(1, 3985)), "slots 1 to 1984, then 1985 to 3984"


def test_three_requests_take_slots_34_to_36_for_their_next_tokens() -> None:
    """Slots count from 1: slot 0 stands for nobody's."""
    scheduler = make_scheduler(chunked_prefill_size=2048)
    for rid, length in (("a", 10), ("b", 15), ("c", 8)):
        add(scheduler, rid, [ord(rid)] * length, 5)
    prompts = step(scheduler)
    assert [row.lease.pages[-1] for row in prompts.rows] == [10, 25, 33]
    decode = step(scheduler)
    assert [(row.start, list(row.new_pages)) for row in decode.rows] == [
        (10, [34]),
        (15, [35]),
        (8, [36]),
    ]


def children(node: TreeNode) -> dict[str, TreeNode]:
    """By the letters on their edges."""
    return {letters(child): child for child in node.children.values()}


def letters(node: TreeNode) -> str:
    return "".join(map(chr, node.edge.tokens[node.edge.start :]))


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
    assert set(children(upper)) == {"FG", "BC"}
    assert upper.lock_ref == 2, "both requests hold A"
    assert [children(upper)[edge].lock_ref for edge in ("FG", "BC")] == [1, 1]


@pytest.mark.parametrize(("page_size", "hit_len"), [(1, 6), (4, 4)])
def test_pages_of_1_and_of_4(page_size: int, hit_len: int) -> None:
    """The guide draws a node for each key; the tree keeps one node until two prefixes part."""
    scheduler = make_scheduler(page_size=page_size)
    add(scheduler, "before", [1, 2, 3, 4, 5, 6, 7, 8], 1)
    step(scheduler)
    assert scheduler.tree is not None
    [key] = scheduler.tree.root_node.children
    assert key == ((1,) if page_size == 1 else (1, 2, 3, 4))
    assert scheduler.tree.total_size == 8 // page_size
    req = add(scheduler, "after", [1, 2, 3, 4, 5, 6, 17, 18], 1)
    step(scheduler)
    assert req.hit_len == hit_len
