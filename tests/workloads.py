"""Random workloads, drawn small and mean: pools near the smallest that can work."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from minisched.core import Request, SamplingParams
from minisched.scheduler import SchedulerConfig

VOCAB = 19


@dataclass
class Workload:
    """Requests with the turn each arrives in, aborts by turn, and the scheduler's sizes."""

    requests: list[Request]
    arrivals: list[int]  # [num_reqs] turn
    aborts: dict[int, str]  # turn -> request id
    config: SchedulerConfig
    eos_ids: frozenset[int] = field(default_factory=frozenset)


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
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


@st.composite
def workloads(draw: st.DrawFn, max_requests: int = 6, with_aborts: bool = True) -> Workload:
    """A workload; the pool holds at least the longest request, and often nothing more."""
    count = draw(st.integers(1, max_requests))
    requests = [Request(f"r{i}", draw(prompts), draw(params)) for i in range(count)]
    page_size = draw(st.sampled_from([1, 1, 2, 4]))
    longest = max(req.max_device_len for req in requests)
    config = SchedulerConfig(
        num_pages=-(-longest // page_size) + draw(st.integers(0, 12)),
        page_size=page_size,
        max_running_requests=draw(st.integers(1, 5)),
        chunk_size=draw(st.integers(1, 10)),
        context_len=32,
        new_token_ratio=draw(st.sampled_from([0.0, 0.0, 0.4, 1.0])),
    )
    arrivals = [0, *(draw(st.integers(0, 8)) for _ in requests[1:])]
    turns = st.integers(0, 14)
    rids = st.sampled_from([req.rid for req in requests])
    aborts = draw(st.dictionaries(turns, rids, max_size=2)) if with_aborts else {}
    return Workload(requests, arrivals, aborts, config, draw(st.sampled_from(EOS)))


EOS = [frozenset(), frozenset({2}), frozenset({2, 7})]


def fresh(workload: Workload) -> Workload:
    """The same workload with requests that have not run."""
    requests = [Request(req.rid, req.prompt, req.params) for req in workload.requests]
    return replace(workload, requests=requests)
