"""An option of the wrong kind ends its request with one sentence, and nobody else notices."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from minisched.core import Request, SamplingParams
from minisched.core.sampling_types import KINDS
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel

WRONG: list[dict[str, Any]] = [
    {"json_schema": {"type": "object"}},
    {"regex": 5},
    {"logit_bias": {"a": 1}},
    {"logit_bias": {1: "x"}},
    {"logit_bias": {1.5: 1}},
    {"logit_bias": [(1, 2.0)]},
    {"logit_bias": None},
    {"stop": None},
    {"stop": "abc"},
    {"stop": (3,)},
    {"frequency_penalty": "1"},
    {"presence_penalty": None},
    {"repetition_penalty": "2"},
    {"top_logprobs_num": 1.5, "return_logprob": True},
    {"logprob_start_len": "0", "return_logprob": True},
    {"max_new_tokens": 2.5},
    {"temperature": "hot"},
    {"top_k": 1.5},
    {"top_p": None},
    {"seed": "s"},
    {"stop_token_ids": 7},
    {"ignore_eos": "no"},
    {"return_logprob": 1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_value_of_the_wrong_kind_is_named(wrong: dict[str, Any]) -> None:
    good = SamplingParams(max_new_tokens=5, ignore_eos=True)
    name, value = next(iter(wrong.items()))
    bad = SamplingParams(**{"max_new_tokens": 5, **wrong})
    alone = run_loop("overlap", SimDevice(), HashModel(), [Request("good", [1, 2], good)])
    requests = [Request("good", [1, 2], good), Request("bad", [3], bad)]
    both = run_loop("overlap", SimDevice(), HashModel(), requests)
    assert both.errors == {"bad": f"{name} is {value!r}, but it must be {KINDS[name]}."}
    assert both.outputs["good"] == alone.outputs["good"]


def test_every_option_that_could_be_wrong_has_a_kind() -> None:
    assert set(KINDS) == {item.name for item in fields(SamplingParams)}
    assert {next(iter(wrong)) for wrong in WRONG} == set(KINDS)
