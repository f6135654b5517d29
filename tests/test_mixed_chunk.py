"""Mixed chunks: who decodes beside a prompt, what it costs the chunk, where their token goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, NoBatch, Request, Result, SamplingParams, ScheduleBatch
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.policy.mixed_chunk import prefix_len
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import Recorder
from tests.support import SOME_LOOP_OPTIONS, Workload, check_all, hash_model, play


def with_running(decodes: int, config: SchedulerConfig, new: int = 20, **params: Any) -> Scheduler:
    """A scheduler in which that many requests decode, up to ``new`` tokens."""
    scheduler = Scheduler(config, Recorder())
    sampling = SamplingParams(max_new_tokens=new, ignore_eos=True, **params)
    scheduler.receive([Request(f"r{i}", [i], sampling) for i in range(decodes)])
    while len(scheduler.running_batch) < decodes:
        batch = scheduler.next_batch()
        assert batch
        scheduler.process(batch, Result([5] * len(batch.rows)))
    return scheduler


@given(decodes=st.integers(0, 8), chunk=st.integers(9, 40), prompt=st.integers(1, 200))
def test_those_who_decode_are_paid_from_the_chunk(decodes: int, chunk: int, prompt: int) -> None:
    """Every step but the last computes exactly a chunk: its decodes, and the rest of prompt."""
    config = SchedulerConfig(
        chunked_prefill_size=chunk, enable_mixed_chunk=True, context_len=400, kv_tokens=8000
    )
    scheduler = with_running(decodes, config, new=300)
    scheduler.receive([Request("long", [9] * prompt, SamplingParams(max_new_tokens=1))])
    lengths = []
    while "long" in scheduler.live:
        batch = scheduler.next_batch()
        assert batch and batch.num_extend_reqs == 1
        assert len(batch.rows) == 1 + decodes and batch.rows[0].req.rid == "long"
        assert batch.mode is (ForwardMode.MIXED if decodes else ForwardMode.EXTEND)
        lengths.append(batch.rows[0].extend_len)
        scheduler.process(batch, Result([5] * len(batch.rows)))
    assert sum(lengths) == prompt
    assert lengths[:-1] == [chunk - decodes] * (len(lengths) - 1)


def test_without_chunks_nothing_can_be_mixed() -> None:
    says = r"^enable_mixed_chunk needs chunks, but chunked_prefill_size is -1 \(no limit\)\.$"
    with pytest.raises(ValueError, match=says):
        SchedulerConfig(enable_mixed_chunk=True, chunked_prefill_size=-1)


def test_late_penalties_do_not_go_with_speculation() -> None:
    says = r"^late_penalties does not go with speculation: a step late is several tokens late\.$"
    with pytest.raises(ValueError, match=says):
        SchedulerConfig(late_penalties=True, speculative_algorithm="NGRAM")


def test_the_rest_of_a_chunk_may_be_less_than_a_page() -> None:
    """One token of the chunk goes to who decodes, eight to the first prompt."""
    config = SchedulerConfig(chunked_prefill_size=16, page_size=8, enable_mixed_chunk=True)
    scheduler = with_running(1, config)
    scheduler.receive([Request(f"new{i}", [7 + i] * 8, SamplingParams()) for i in range(2)])
    batch = scheduler.next_batch()
    assert batch and batch.rids == ("new0", "r0")
    marks = scheduler.recorder.trace("", "", "", "").marks
    refusals = [mark.attrs["reason"] for mark in marks if mark.name == "refuse"]
    assert refusals == ["a page of a chunk: needs 8 tokens, 7 left"]


@pytest.mark.parametrize("who", ["prompt", "running"])
def test_a_batch_that_returns_logprobs_is_never_mixed(who: str) -> None:
    config = SchedulerConfig(chunked_prefill_size=8, enable_mixed_chunk=True)
    scheduler = with_running(2, config, return_logprob=who == "running")
    params = SamplingParams(max_new_tokens=1, return_logprob=who == "prompt")
    scheduler.receive([Request("new", [1] * 4, params)])
    batch = scheduler.next_batch()
    assert batch and batch.mode is ForwardMode.EXTEND and batch.rids == ("new",)


def test_without_memory_for_those_who_decode_the_prompt_runs_alone() -> None:
    """Three who need a page each, and three pages of four tokens: the rules see twelve tokens."""
    config = SchedulerConfig(
        kv_tokens=24, page_size=4, chunked_prefill_size=16, enable_mixed_chunk=True,
        schedule_conservativeness=0.0, disable_radix_cache=True,
    )  # fmt: skip
    scheduler = Scheduler(config)
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    for i in range(4):  # one after the other, each a token longer than the one before
        scheduler.receive([Request(f"r{i}", [i] * (i + 1), params)] if i < 3 else [])
        batch = scheduler.next_batch()
        assert batch
        scheduler.process(batch, Result([5] * len(batch.rows)))
    assert [req.computed_len for req in scheduler.running_batch] == [4, 4, 4]
    assert scheduler.allocator.available_pages == 3
    scheduler.receive([Request("new", [1] * 3, SamplingParams(max_new_tokens=1))])
    batch = scheduler.next_batch()
    assert batch and batch.mode is ForwardMode.EXTEND and batch.rids == ("new",)


def test_where_a_running_request_goes_on_is_one_further_with_overlap() -> None:
    req = Request("r", [1, 2, 3], SamplingParams(max_new_tokens=2))
    assert (prefix_len(req, enable_overlap=True), prefix_len(req, enable_overlap=False)) == (3, 2)


@pytest.mark.parametrize("spec", SOME_LOOP_OPTIONS, ids=str)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_published_prefix_delta(spec: tuple[str, str, dict[str, Any]], data: Any) -> None:
    """A decode row of a mixed batch begins at known - 1, or, run ahead, at known + 0."""
    config = SchedulerConfig(chunked_prefill_size=8, enable_mixed_chunk=True, context_len=64)
    lengths = [*data.draw(st.lists(st.integers(1, 30), min_size=2, max_size=4)), 20]
    params = SamplingParams(max_new_tokens=16, ignore_eos=True)
    reqs = [Request(f"r{i}", [i] * length, params) for i, length in enumerate(lengths)]
    workload = Workload(reqs, [*range(len(reqs) - 1), 5], {}, config)
    seen: list[bool] = []

    def watch(engine: Engine) -> None:
        next_batch = engine.scheduler.next_batch

        def watching() -> ScheduleBatch | NoBatch:
            batch = next_batch()
            for row in batch.rows[batch.num_extend_reqs :] if batch else ():
                runs_ahead = row.ids == (None,)
                assert row.start == prefix_len(row.req, enable_overlap=runs_ahead)
                seen.append(batch.mode is ForwardMode.MIXED)
            return batch

        engine.scheduler.next_batch = watching  # type: ignore[method-assign]

    device = SimDevice()
    model = hash_model("sim", frozenset())
    engine, outputs = play(workload, *spec, device, model, patch=watch)
    check_all(workload, engine, outputs)
    assert any(seen), "some batch was mixed"
