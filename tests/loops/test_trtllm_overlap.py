"""TensorRT-LLM's overlap loop: sampled after the last tokens, settled last; two ways to admit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.loops.run import Run, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import many, tokens


def run(loop: str, requests: list[Request], **config: int) -> Run:
    """Run the requests on sim; no token ends one early."""
    model = HashModel(eos_ids=frozenset())
    return run_loop(loop, SimDevice(), model, requests, SchedulerConfig(**config), SIM_COST)


def test_a_step_is_sampled_when_the_last_tokens_are_there_and_settled_after_that() -> None:
    trace = run("trtllm_overlap", [Request("a", [1, 2, 3], tokens(9))]).trace
    launches: dict[int, list[int]] = {}
    for item in trace.slices:
        if item.name == "launch":
            launches.setdefault(item.step, []).append(item.start)
    copies = {item.step: item.end for item in trace.slices if item.name == "copy"}
    settled = {item.step: item.start for item in trace.slices if item.name == "process"}
    assert sorted(launches) == [*range(1, 10)]
    for step in range(2, 10):
        forward, sampling = launches[step]
        assert forward < copies[step - 1] <= sampling <= settled[step - 1]


def test_a_retiring_request_keeps_its_row_until_its_last_step_is_settled() -> None:
    """Both rows are in use; ``a`` retires in step 3, and ``c`` waits until that is settled."""
    requests = [Request(rid, [at], tokens(3 + 9 * at)) for at, rid in enumerate("abc")]
    trace = run("trtllm_overlap", requests, max_running_requests=2).trace
    rids = {item.step: item.rids for item in trace.slices if item.name == "forward"}
    assert "a" in rids[3] and not {"a", "c"} & {*rids[4]} and "c" in rids[5]
    times = {mark.name: mark.time for mark in trace.marks if mark.attrs.get("rid") in ("a", "c")
             and (mark.name, mark.attrs["rid"]) in (("finish", "a"), ("admit", "c"))}  # fmt: skip
    assert times["finish"] <= times["admit"]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=2, max_size=6),
    page_size=st.sampled_from([1, 4]),
    spare=st.integers(0, 20),
)
@settings(max_examples=many(40, 400))
def test_no_request_is_retracted_when_all_is_reserved(
    lengths: list[tuple[int, int]], page_size: int, spare: int
) -> None:
    requests = [
        Request(f"r{at}", [at] * prompt, tokens(new)) for at, (prompt, new) in enumerate(lengths)
    ]
    pages = max(-(-(prompt + new) // page_size) for prompt, new in lengths) + 1
    size = page_size * pages + spare // page_size * page_size
    found = run(
        "trtllm_overlap", requests, kv_tokens=size, page_size=page_size, chunked_prefill_size=8
    )
    assert found.metrics.num_retractions == 0 and not found.errors


def test_the_two_admission_policies_trade_retractions_for_rows() -> None:
    """Two requests of 4 and 12 tokens in a pool of 24: one after the other, or both and a pause."""

    def steps(loop: str) -> tuple[int, int]:
        requests = [Request(f"r{at}", [at] * 4, tokens(12)) for at in range(2)]
        found = run(loop, requests, kv_tokens=24)
        forwards = [item for item in found.trace.slices if item.name == "forward"]
        return len(forwards), found.metrics.num_retractions

    assert steps("trtllm_overlap") == (24, 0)
    assert steps("trtllm_max_utilization") == (16, 1)


def test_drafts_and_a_grammar_combine_without_a_barrier() -> None:
    def outputs(loop: str) -> dict[str, list[int]]:
        rule = SamplingParams(max_new_tokens=16, regex="[a-z]{4}(,[0-9]{2}){3}")
        config = SchedulerConfig(
            speculative_algorithm="STANDALONE", speculative_draft_model_path="hash:7"
        )
        return run_loop(
            loop, SimDevice(), HashModel(), [Request("a", [1, 2], rule)], config, SIM_COST
        ).outputs

    assert outputs("trtllm_overlap") == outputs("serial")
