"""What an end costs each design: rows that were computed for a request which had ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.tokens.oracle import hash_oracle
from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import VOCAB

NUM_STEPS = 4  # that multi_step runs at a time


def rest_of_burst(num_outputs: int) -> int:
    """Of a burst, what comes after the token that ends a request; its first one is the prompt's."""
    return 0 if num_outputs == 1 else NUM_STEPS - 1 - (num_outputs - 2) % NUM_STEPS


def none(num_outputs: int) -> int:
    return 0


def one(num_outputs: int) -> int:
    return 1


def one_after_the_first(num_outputs: int) -> int:
    """Nothing is launched behind a prompt's step before its token is known."""
    return int(num_outputs > 1)


# loop -> what a stop token costs that nobody could foresee, what max_new_tokens costs
COSTS: dict[str, tuple[Callable[[int], int], Callable[[int], int]]] = {
    "serial": (none, none),
    "overlap": (one, one),  # only finished() is looked at
    "overlap_pool_indexed": (one, one),
    "overlap_thread": (one, one),
    "mini_normal": (none, none),
    "mini_overlap": (one, none),  # complete_one() counts at launch
    "mlx_async": (one_after_the_first, one_after_the_first),
    "vllm_step": (none, none),
    "vllm_batch_queue": (none, none),  # no step without its token
    "vllm_async": (one, none),  # placeholders count
    "vllm_pp2": (none, none),
    "vllm_pp4": (none, none),
    "mindie_plugin": (one, one),  # the finishing round only flags
    "mindie_placeholder": (none, none),  # the gate lets one call out
    "mindie_dual": (one, one),
    "mindie_single": (one, none),
    "multi_step": (rest_of_burst, rest_of_burst),
    "pd": (one_after_the_first, one_after_the_first),
    "mixed": (one, one),
}


def test_every_loop_says_what_an_end_costs() -> None:
    assert set(COSTS) == set(LOOPS)


@pytest.mark.parametrize("loop", COSTS)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
    length=st.integers(2, 14),
    chunk=st.integers(1, 9),
    stops=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_an_end_costs_what_the_design_says(
    loop: str, prompt: list[int], length: int, chunk: int, stops: bool
) -> None:
    """One request alone, so that nothing but its own end can waste a row."""
    model = HashModel(VOCAB, eos_ids=frozenset())
    request = Request("r", prompt, SamplingParams(max_new_tokens=length, ignore_eos=True))
    truth = hash_oracle(prompt, request.params, request.sampling_key, VOCAB, frozenset()).tokens
    if stops:
        stop = frozenset(truth[length // 2 :][:1])
        request = Request("r", prompt, SamplingParams(max_new_tokens=40, stop_token_ids=stop))
    config = SchedulerConfig(chunked_prefill_size=chunk)
    run = run_loop(loop, SimDevice(), model, [request], config, SIM_COST)
    wasted = sum(mark.name == "wasted row" for mark in run.trace.marks)
    by_stop, by_length = COSTS[loop]
    assert request.finish_reason is (FinishReason.STOP if stops else FinishReason.LENGTH)
    assert wasted == (by_stop if stops else by_length)(len(request.output_ids))
