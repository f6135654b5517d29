"""Biases on single tokens: they read no history, so they never make anybody wait."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.waits import num_waits
from minisched.cli.options import WorkloadOptions
from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.devices.sim import SimDevice
from minisched.loops.registry import LOOPS
from minisched.loops.run import Run, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import (
    AND_CUDA,
    ONE_ENGINE,
    VOCAB,
    Workload,
    check_all,
    hash_model,
    open_device,
    params,
    play,
    workloads,
)

biases = st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=4)
biased = st.builds(lambda plain, bias: with_bias(plain, bias), params, biases)


def with_bias(plain: SamplingParams, bias: dict[int, float]) -> SamplingParams:
    """The same wishes, and a bias."""
    return SamplingParams(**{**vars(plain), "logit_bias": bias})


@pytest.mark.parametrize("loop", ONE_ENGINE)
@given(workload=workloads(params=biased))
@settings(max_examples=15, deadline=None)
def test_laws_with_biases(loop: str, workload: Workload) -> None:
    device, relay = SimDevice(), LOOPS[loop].relays[0]
    engine, outputs = play(workload, loop, relay, {}, device, hash_model("sim", workload.eos_ids))
    check_all(workload, engine, outputs)
    assert not {"penalty", "grammar"} & set(num_waits(device.recorder.trace("", "", "", "")))


def run(loop: str, wishes: list[SamplingParams], device: str = "sim") -> Run:
    """A request for each of ``wishes``."""
    requests = [Request("abcd"[at], [1, 2, 3 + at], one) for at, one in enumerate(wishes)]
    model = hash_model(device, frozenset())
    return run_loop(loop, open_device(device), model, requests, SchedulerConfig(), SIM_COST)


@AND_CUDA
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_hundred_decides_alone(backend: str, temperature: float) -> None:
    """The hash model's logits lie between 0 and 10."""
    always = SamplingParams(temperature, max_new_tokens=6, logit_bias={7: 100.0})
    never = SamplingParams(temperature, max_new_tokens=6, logit_bias=dict.fromkeys(range(9), -100))
    said = run("overlap", [always, never], backend).outputs
    assert said["a"] == [7] * 6
    assert min(said["b"]) >= 9


BAD: dict[str, dict[int, float]] = {
    "logit_bias is 101.0 for token 3, but it must be between -100 and 100.": {3: 101.0},
    "logit_bias is nan for token 3, but it must be between -100 and 100.": {3: float("nan")},
    "logit_bias is -inf for token 3, but it must be between -100 and 100.": {3: float("-inf")},
    "logit_bias is for token 19, which is outside the vocabulary: it must be between 0 and 18.": {
        1: 2.0, 19: 1.0,
    },
    "logit_bias is for token -1, which is outside the vocabulary: it must be between 0 and 18.": {
        -1: 1.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("sentence", BAD)
@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_a_bad_bias_ends_its_request_alone(loop: str, sentence: str) -> None:
    good = SamplingParams(max_new_tokens=6, logit_bias={2: 1.0})
    together = run(loop, [good, good, SamplingParams(logit_bias=BAD[sentence])])
    assert together.errors == {"c": sentence}
    assert together.outputs == {**run(loop, [good, good]).outputs, "c": []}


def test_the_default_is_no_bias() -> None:
    plain: Any = SamplingParams()
    assert plain.logit_bias == {} and hash(plain) == hash(SamplingParams(logit_bias={1: 1.0}))
    assert HashModel().vocab_size == 257


# -- the command line ------------------------------------------------------------------------------


def test_the_command_line_takes_wishes(cli: Any) -> None:
    line = "run --requests 1 --max-new-tokens 9 --json --logit-bias 65=100 --stop B --stop AA"
    for late, end in (("", 2), (" --late-stop-strings", 3)):
        code, out, _ = cli(line + late)
        assert (code, json.loads(out)["outputs"]["r0"]) == (0, [65] * end)
    options = WorkloadOptions(
        frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.2,
        logit_bias=["3=1", "4=-2.5", "3=2"], stop=["a", "b"],
    )  # fmt: skip
    assert options.sampling == SamplingParams(
        max_new_tokens=64, frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.2,
        logit_bias={3: 2.0, 4: -2.5}, stop=("a", "b"),
    )  # fmt: skip


def test_compare_says_what_penalties_cost(cli: Any) -> None:
    line = "compare --requests 2 --max-new-tokens 9 --json --loops overlap --repetition-penalty 1.4"
    for late, waits in (("", True), (" --late-penalties", False)):
        code, out, _ = cli(line + late)
        assert code == 0 and json.loads(out)["identical"], "serially they are late as well"
        assert ("penalty" in out) == waits


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--logit-bias 7", "--logit-bias is '7', but it must be TOKEN=VALUE, such as 42=-5.5."),
        ("--logit-bias a=1", "--logit-bias is 'a=1', but it must be TOKEN=VALUE, such as 42=-5.5."),
        ("--logit-bias 7=1e9",
         "--logit-bias is 1000000000.0 for token 7, but it must be between -100 and 100."),
        ("--frequency-penalty 3", "--frequency-penalty is 3.0, but it must be between -2 and 2."),
        ("--repetition-penalty 0",
         "--repetition-penalty is 0.0, but it must be between 0.001 and 2."),
        ("--stop ''", "--stop is '', but a stop string must have at least one character."),
    ],
)  # fmt: skip
def test_bad_options_are_one_sentence(cli: Any, options: str, sentence: str) -> None:
    assert cli(f"run --requests 1 {options}") == (2, "", f"minisched: {sentence}\n")
