"""Requests with a grammar among others: what they get alone, and what their grammar accepts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.tokens.oracle import grammar_of, hash_oracle
from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.grammar.build import build
from minisched.grammar.token_grammar import TokenGrammar
from minisched.loops.registry import LOOPS
from minisched.loops.run import drive, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.models.registry import open_model
from minisched.scheduler import SchedulerConfig
from tests.support import (
    LOOP_OPTIONS,
    SOME_LOOP_OPTIONS,
    VOCAB,
    Workload,
    check_all,
    hash_model,
    in_real_time,
    open_device,
    play,
    workloads,
)
from tests.test_laws import costs

CONSTRAINED = [item for item in LOOP_OPTIONS if "grammar" not in LOOPS[item[0]].refusals(item[1])]
"""The loops that take a grammar, with the relays with which they do."""

singles = st.builds(
    lambda low, more: rf"[\x{low:02x}-\x{min(low + more, VOCAB - 1):02x}]",
    st.integers(0, VOCAB - 1),
    st.integers(0, 9),
)
regexes = st.recursive(
    singles,
    lambda part: st.one_of(
        st.builds("{}{}".format, part, part),
        st.builds("(?:{}|{})".format, part, part),
        st.builds("(?:{}){}".format, part, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])),
    ),
    max_leaves=5,
)


@st.composite
def constrained(draw: st.DrawFn) -> Workload:
    """A workload in which about half of the requests follow a regex."""
    workload = draw(workloads())
    for req in workload.requests:
        if draw(st.booleans()):
            req.params = replace(req.params, regex=draw(regexes))
    return workload


def check_grammar(req: Request, eos_ids: frozenset[int]) -> None:
    """What a request said fits its regex, as Python reads it; wholly, if it came to its end."""
    try:
        grammar = grammar_of(req, VOCAB, eos_ids)
    except ValueError as error:
        assert req.finish_reason in (FinishReason.ERROR, FinishReason.ABORT)
        assert req.error in (str(error), "") and not req.output_ids
        return
    if grammar is None:
        return
    assert all(map(grammar.accept_token, req.output_ids))
    last = req.output_ids[-1:]
    is_cut = req.finish_reason is not FinishReason.STOP or req.params.stop_token_ids & set(last)
    text = "".join(chr(token) for token in req.output_ids if token not in eos_ids)
    if not is_cut:
        assert req.params.regex is not None
        assert re.fullmatch(req.params.regex, text, re.ASCII)
        assert set(last) <= eos_ids or grammar.is_terminated
    elif req.finish_reason is FinishReason.LENGTH:
        assert len(req.output_ids) == req.params.max_new_tokens and not grammar.is_terminated


@pytest.mark.parametrize(("loop", "relay", "options"), CONSTRAINED, ids=str)
@given(workload=constrained(), cost=costs)
@settings(max_examples=25, deadline=None)
def test_laws_with_grammars(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, cost: CostModel
) -> None:
    device = SimDevice()
    model = hash_model("sim", workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, device, model, cost)
    check_all(workload, engine, outputs)
    for req in workload.requests:
        check_grammar(req, workload.eos_ids)


@in_real_time([item for item in SOME_LOOP_OPTIONS if item in CONSTRAINED])
@given(workload=constrained())
@settings(max_examples=20, deadline=None)
def test_laws_with_grammars_in_real_time(
    backend: str, loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    model = hash_model(backend, workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, open_device(backend), model)
    check_all(workload, engine, outputs)
    for req in workload.requests:
        check_grammar(req, workload.eos_ids)


BAD = {
    "no token": (SamplingParams(regex="[^\\x00-\\xff]"), "no token can satisfy regex"),
    "no regex": (SamplingParams(regex="a("), "can't be compiled: there is a ( that is never"),
    "no schema": (SamplingParams(json_schema='{"type":"strin"}'), "Invalid type: strin."),
    "both": (SamplingParams(regex="a", json_schema="{}"), "regex and json_schema are both given"),
}


@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_a_bad_grammar_ends_its_request_alone(loop: str) -> None:
    def others() -> list[Request]:
        return [Request(f"r{i}", [i + 1, 2], SamplingParams(regex="[a-z]{5,9}!")) for i in range(3)]

    bad = [Request(rid, [7, 7], params) for rid, (params, _) in BAD.items()]
    run = run_loop(loop, SimDevice(), HashModel(), [bad[0], *others(), *bad[1:]])
    assert run.errors.keys() == BAD.keys()
    for rid, (_, sentence) in BAD.items():
        assert sentence in run.errors[rid] and "\n" not in run.errors[rid]
    alone = run_loop(loop, SimDevice(), HashModel(), others())
    assert {rid: run.outputs[rid] for rid in alone.outputs} == alone.outputs
    for tokens in alone.outputs.values():
        assert re.fullmatch("[a-z]{5,9}!", bytes(tokens).decode())


@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_json_on_bytes(loop: str) -> None:
    """On ``sim`` too, where llguidance is installed."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}, "b": {"enum": [1]}},
        "required": ["n", "b"],
        "additionalProperties": False,
    }
    params = SamplingParams(json_schema=json.dumps(schema), max_new_tokens=60, temperature=1.5)
    requests = [Request(f"r{i}", [i + 1, 2], params) for i in range(4)]
    run = run_loop(loop, SimDevice(), HashModel(), requests, SchedulerConfig(page_size=2))
    for req in run.requests:
        value = json.loads(bytes(req.output_ids))
        assert value["b"] == 1 and 10 <= value["n"] <= 99 and value.keys() == {"n", "b"}
        assert req.finish_reason is FinishReason.STOP and req.output_ids[-1] == ord("}")


def test_a_retracted_request_goes_on_where_its_grammar_was() -> None:
    """Its tokens are kept, and so is its grammar's state."""
    params = SamplingParams(regex="(ab|ba){5}c", max_new_tokens=14, temperature=1.5)
    requests = [Request(f"r{i}", [i + 1], params) for i in range(4)]
    config = SchedulerConfig(kv_tokens=24, schedule_conservativeness=0, disable_radix_cache=True)
    run = run_loop("overlap", SimDevice(), HashModel(), requests, config)
    assert sum(req.retractions for req in run.requests), "nobody was retracted"
    assert all(
        re.fullmatch("(ab|ba){5}c", bytes(tokens).decode()) for tokens in run.outputs.values()
    )


class Unmasked(TokenGrammar):
    """A grammar whose mask never gets to the logits."""

    def fill_vocab_mask(self) -> bytes:
        return bytes([255] * 36)


@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_a_token_that_its_grammar_does_not_allow_is_an_error(loop: str) -> None:
    """Where a mask was forgotten, or a library has lost its way, the request says so."""
    requests = [Request("bad", [1], SamplingParams(regex="a+")), Request("good", [1])]
    frontend = Frontend(requests)
    device = SimDevice()
    engine = make_engine(loop, device, HashModel(), SchedulerConfig(), frontend)
    automaton = build("a+", 257, frozenset({256}))
    engine.scheduler.compile_grammar = lambda params: Unmasked(automaton)
    drive(LOOPS[loop].start(engine), engine)
    device.close()
    bad, good = requests
    assert bad.finish_reason is FinishReason.ERROR and len(bad.output_ids) == 1
    assert bad.error == f"its grammar does not allow token {bad.output_ids[0]} at 1."
    truth = hash_oracle([1], good.params, good.sampling_key, 257, good.stop_ids)
    assert good.output_ids == truth.tokens


@pytest.mark.weights
@pytest.mark.parametrize(
    ("backend", "loops"), [("thread", ["serial", "overlap"]), ("mlx", ["serial", "mlx_async"])]
)
def test_smollm2_says_json(backend: str, loops: list[str], smollm2: Path) -> None:
    """Beside requests without a grammar, and one with a regex; the same under every schedule."""
    schema = {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "maxItems": 2},
        },
        "required": ["age", "likes"],
        "additionalProperties": False,
    }
    params = [
        SamplingParams(json_schema=json.dumps(schema), max_new_tokens=40),
        SamplingParams(regex="(yes|no), because [a-z ]{5,9}[.]", max_new_tokens=30),
        SamplingParams(max_new_tokens=8),
    ]
    model: Any = open_model(str(smollm2), backend)
    prompt = model.tokenizer.encode("Ada is 36 years old and likes tea. As JSON:")
    outputs = []
    for loop in loops:
        requests = [Request(f"r{i}", prompt, item) for i, item in enumerate(params)]
        run = run_loop(loop, open_device(backend), model, requests)
        assert not run.errors
        outputs.append(run.outputs)
        assert [req.finish_reason for req in run.requests[:2]] == [FinishReason.STOP] * 2
    texts = [model.tokenizer.decode(tokens) for tokens in outputs[0].values()]
    value = json.loads(texts[0])
    assert value.keys() == {"age", "likes"} and 0 <= value["age"] <= 150
    assert set(value["likes"]) <= {"tea", "coffee"}
    assert re.fullmatch("(yes|no), because [a-z ]{5,9}[.]", texts[1])
    assert outputs[0] == outputs[1]
