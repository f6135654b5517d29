"""Loops by name: with a relay, with options, and what is wrong with a name in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.core import Request, SamplingParams
from minisched.devices.sim import SimDevice
from minisched.loops.naming import parse
from minisched.loops.registry import LOOPS, find_loop
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel

words = st.from_regex(r"[a-z_0-9]+", fullmatch=True)


@given(words, st.none() | words, st.dictionaries(words, words, max_size=3))
def test_a_name_comes_apart_as_it_was_put_together(
    loop: str, relay: str | None, options: dict[str, str]
) -> None:
    parts = [loop, *([relay] if relay else []), *(f"{k}={v}" for k, v in options.items())]
    assert parse(":".join(parts)) == (loop, relay, options)


def test_options_reach_the_loop() -> None:
    spec = find_loop("vllm_async:pool:depth=4")
    assert spec.options == {"depth": 4} and spec.relays == ("pool",)
    assert find_loop("multi_step:num_steps=2").options == {"num_steps": 2}
    assert find_loop("overlap:delay_sample=true").options == {"delay_sample": True}
    assert find_loop("vllm_pp2").options == LOOPS["vllm_pp2"].options


@pytest.mark.parametrize(("steps", "expected"), [(1, 9), (2, 5), (4, 3)])
def test_an_option_changes_the_run(steps: int, expected: int) -> None:
    """Nine tokens: the prompt's, and eight by bursts of so many."""
    request = Request("r", [1, 2], SamplingParams(max_new_tokens=9, ignore_eos=True))
    run = run_loop(f"multi_step:num_steps={steps}", SimDevice(), HashModel(), [request])
    heard = [item for item in run.trace.on("host") if item.name == "schedule"]
    assert len(request.output_ids) == 9 and len(heard) == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("overlap:depth=3", "loop 'overlap' has no option 'depth'; its options are"),
        ("serial:depth=3", "loop 'serial' has no option 'depth'; it has none."),
        ("vllm_async:depth=two", "option 'depth' of loop 'vllm_async' is 'two', but it must be a"),
        ("overlap:delay_sample=2", "is '2', but it must be true or false."),
        ("overlap:ring:pool", "names 2 relays, but a loop takes one."),
        ("nope:depth=3", "unknown loop 'nope'; the loops are"),
    ],
)
def test_a_bad_name_says_what_is_wrong(name: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        find_loop(name)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("vllm_async:depth=0", "depth is 0, but it must be at least 1."),
        ("vllm_async:depth=3", "depth is 3, but relay 'prev_sampled' allows at most 2"),
        ("multi_step:num_steps=9", "num_steps is 9, but it must be between 1 and 4."),
        ("mindie_placeholder:max_async_schedule_times=2", "the relay brings every token over the"),
    ],
)
def test_a_value_out_of_bounds_says_so(name: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        run_loop(name, SimDevice(), HashModel(), [Request("r", [1])])
    assert sentence in str(caught.value)
