"""Random workloads, drawn small and mean: pools near the smallest that can work."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from minisched.checks.workload import VOCAB as VOCAB
from minisched.checks.workload import Workload as Workload
from minisched.checks.workload import fresh as fresh
from minisched.core import Request, SamplingParams
from minisched.memory.eviction import POLICIES as EVICTION_POLICIES
from minisched.policy.schedule_policy import POLICIES as SCHEDULE_POLICIES
from minisched.scheduler import SchedulerConfig

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_k=st.sampled_from([-1, -1, 1, 4]),
    top_p=st.sampled_from([1.0, 1.0, 0.8]),
    seed=st.integers(0, 9),
    max_new_tokens=st.integers(1, 9),
    stop_token_ids=st.sampled_from([frozenset(), frozenset({3}), frozenset({5, 6})]),
    ignore_eos=st.booleans(),
)


def with_history(plain: st.SearchStrategy[SamplingParams]) -> st.SearchStrategy[SamplingParams]:
    """The same, often with penalties, biases and stop strings.

    A byte of a string is a token here, and tokens are few, so that strings are said by chance.
    """
    tokens = st.integers(0, VOCAB - 1)
    strings = st.text([chr(token) for token in range(VOCAB)], min_size=1, max_size=2)
    return st.builds(
        replace,
        plain,
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, 2.0, -1.5]),
        presence_penalty=st.sampled_from([0.0, 0.0, 0.3, 1.9, -1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 2.0, 0.6]),
        logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -2.5, 0.1, 3.0]), max_size=3),
        stop=st.lists(strings, max_size=2).map(tuple),
    )


params_with_history = with_history(params)
SHARED = [7, 7, 11, 2, 7, 7, 11, 5, 3, 3]  # prompts begin with some of it, so that prefixes recur
prompts = st.builds(
    lambda shared, own: SHARED[:shared] + own,
    st.sampled_from([0, 0, 3, 6, 10]),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
)


@st.composite
def configs(draw: st.DrawFn, page_size: int, num_pages: int) -> SchedulerConfig:
    """Every policy and budget, on a pool of that many pages."""
    chunk = draw(st.sampled_from([-1, *(page_size * pages for pages in (1, 1, 2, 3, 5))]))
    run_first = draw(st.sampled_from(["prefill", "prefill", "decode", "unified"]))
    return SchedulerConfig(
        kv_tokens=num_pages * page_size,
        page_size=page_size,
        max_running_requests=draw(st.integers(1, 5)),
        disable_radix_cache=draw(st.sampled_from([False, False, False, True])),
        radix_eviction_policy=draw(st.sampled_from(sorted(EVICTION_POLICIES))),
        chunked_prefill_size=chunk,
        max_prefill_tokens=draw(st.sampled_from([3, 8, 99])),
        schedule_policy=draw(st.sampled_from(SCHEDULE_POLICIES)),
        priority_scheduling_preemption_threshold=draw(st.integers(0, 2)),
        schedule_conservativeness=draw(st.sampled_from([0.0, 0.0, 0.4, 2.0])),
        run_first=run_first,
        enable_mixed_chunk=run_first == "prefill" and chunk != -1 and draw(st.booleans()),
        context_len=32,
    )


@st.composite
def workloads(
    draw: st.DrawFn,
    max_requests: int = 6,
    with_aborts: bool = True,
    params: st.SearchStrategy[SamplingParams] = params,
) -> Workload:
    """A workload; the pool holds at least the longest request, and often nothing more."""
    count = draw(st.integers(1, max_requests))
    priorities = st.integers(0, 3)
    requests = [
        Request(f"r{i}", draw(prompts), draw(params), priority=draw(priorities))
        for i in range(count)
    ]
    page_size = draw(st.sampled_from([1, 1, 2, 4]))
    longest = max(req.max_device_len for req in requests)
    config = draw(configs(page_size, -(-longest // page_size) + draw(st.integers(0, 12))))
    arrivals = [0, *(draw(st.integers(0, 8)) for _ in requests[1:])]
    turns = st.integers(0, 14)
    rids = st.sampled_from([req.rid for req in requests])
    aborts = draw(st.dictionaries(turns, rids, max_size=2)) if with_aborts else {}
    return Workload(requests, arrivals, aborts, config, draw(st.sampled_from(EOS)))


EOS = [frozenset(), frozenset({2}), frozenset({2, 7})]


def llama_workload(
    draw: st.DrawFn, prompts: list[list[int]], chunks: list[int], context_len: int
) -> Workload:
    """A workload of these prompts for a Llama, whose chunks of a prompt have so many pages."""
    requests = [Request(f"r{i}", prompt, draw(params)) for i, prompt in enumerate(prompts)]
    page_size = draw(st.sampled_from([1, 4, 16]))
    longest = max(req.max_device_len for req in requests)
    run_first = draw(st.sampled_from(["prefill", "unified"]))
    config = SchedulerConfig(
        kv_tokens=(-(-longest // page_size) + draw(st.integers(0, 40))) * page_size,
        page_size=page_size,
        max_running_requests=draw(st.integers(1, 5)),
        chunked_prefill_size=page_size * draw(st.sampled_from(chunks)),
        enable_mixed_chunk=run_first == "prefill" and draw(st.booleans()),
        context_len=context_len,
        run_first=run_first,
        schedule_conservativeness=draw(st.sampled_from([0.0, 1.0])),
    )
    return Workload(requests, [0, *(draw(st.integers(0, 6)) for _ in requests[1:])], {}, config)
