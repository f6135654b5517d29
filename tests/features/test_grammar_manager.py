"""A request's grammar: given when it comes, asked for each token, told to the trace and shown."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.causes import lost_ns
from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.features.history import wishes_of
from minisched.grammar.regex import TokenGrammar
from minisched.loops.design import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.recipes import trace_of
from minisched.trace import Mark, Trace
from tests.support import LOOP_OPTIONS, VOCAB, demanding, many, play

US = 1000  # nanoseconds
CONSTRAINED = [item for item in LOOP_OPTIONS if "grammar" not in LOOPS[item[0]].refusals(item[1])]
LOOP = pytest.mark.parametrize("loop", ["serial", "overlap"])


@st.composite
def runs(draw: st.DrawFn) -> tuple[Trace, list[Request]]:
    """A random run of requests with and without a rule, on a device that is fast or slow."""
    loop, relay, options = draw(st.sampled_from(CONSTRAINED))
    workload = draw(demanding())
    phases = ("receive", "schedule", "prepare", "launch", "launch sample", "process", "mask")
    cost = CostModel(
        dict.fromkeys(phases, 7 * US), draw(st.sampled_from([5, 90])) * US, US, 5 * US, 3 * US
    )
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, relay, options, device, model, cost)
    return Trace.of(device.recorder, loop, "sim", "hash", "virtual"), workload.requests


def marks_of(trace: Trace, name: str) -> dict[str, list[Mark]]:
    """Marks of a name, by request."""
    found: dict[str, list[Mark]] = defaultdict(list)
    for mark in trace.marks:
        if mark.name == name:
            found[str(mark.attrs["rid"])].append(mark)
    return found


def numbers(marks: list[Mark], name: str) -> list[int]:
    """The numbers in their texts, one after the other."""
    return [number for mark in marks for number in mark.attrs[name]]


# -- grammar_manager: who gets a grammar, and what it makes of the request -------------------------


BAD = {
    "no token": (SamplingParams(regex="[^\\x00-\\xff]"), "no token can satisfy regex"),
    "no regex": (SamplingParams(regex="x[a"), "unterminated character set at position 1"),
}


@LOOP
def test_a_bad_grammar_ends_its_request_alone(loop: str) -> None:
    bad = [Request(rid, [7, 7], params) for rid, (params, _) in BAD.items()]
    good = [Request(f"r{i}", [i + 1, 2], SamplingParams(regex="[a-z]{5,9}!")) for i in range(3)]
    run = run_loop(loop, SimDevice(), HashModel(), [bad[0], *good, *bad[1:]])
    assert run.errors.keys() == BAD.keys()
    for rid, (_, sentence) in BAD.items():
        assert sentence in run.errors[rid] and "\n" not in run.errors[rid]
    for req in good:
        assert re.fullmatch("[a-z]{5,9}!", bytes(req.output_ids).decode())


@LOOP
def test_a_token_that_its_grammar_does_not_allow_is_an_error(loop: str) -> None:
    good_alone = run_loop(loop, SimDevice(), HashModel(), [Request("good", [1])]).outputs["good"]
    bad, good = Request("bad", [1], SamplingParams(regex="a+")), Request("good", [1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenGrammar, "fill_vocab_mask", lambda grammar: bytes([255] * 36))
        run = run_loop(loop, SimDevice(), HashModel(), [bad, good])
    assert bad.finish_reason is FinishReason.ERROR and len(bad.output_ids) == 1
    assert bad.error == f"its grammar does not allow token {bad.output_ids[0]} at 1."
    assert good.output_ids == good_alone
    assert not marks_of(run.trace, "grammar accept")


# -- what the trace is told, and what is shown -----------------------------------------------------


@settings(max_examples=many(20, 150))
@given(runs())
def test_the_trace_has_every_token_that_was_accepted(run: Any) -> None:
    trace, requests = run
    rules, masks, accepts = (
        marks_of(trace, name) for name in ("grammar", "grammar mask", "grammar accept")
    )
    for req in requests:
        wishes = wishes_of(req)
        if wishes is not None and wishes.grammar is not None:
            assert [mark.attrs["rule"] for mark in rules.pop(req.rid)] == [req.params.regex]
            assert numbers(accepts[req.rid], "tokens") == req.output_ids
            ends = [bool(mark.attrs["terminated"]) for mark in accepts[req.rid]]
            assert not any(ends[:-1]) and ends[-1:] in ([], [wishes.grammar.is_terminated])
            steps = {mask.attrs["step"] for mask in masks[req.rid]}
            assert {mark.attrs["step"] for mark in accepts[req.rid]} <= steps
    assert not rules


def test_the_golden_run_waits_and_ends_in_both_ways() -> None:
    trace = trace_of("grammar_manager")
    masks, accepts = (marks_of(trace, name) for name in ("grammar mask", "grammar accept"))
    (a, b), (a_masks, b_masks) = accepts.values(), masks.values()
    assert bytes(numbers(a, "tokens")) == b"no, jk."
    assert a[-1].attrs["terminated"] and b[-1].attrs["terminated"]
    assert numbers(a_masks[-1:], "allowed") == [1] and numbers(b[-1:], "tokens") == [256]
    assert numbers(b_masks, "allowed") == [10, *[11] * 6]
    assert lost_ns(trace)["grammar"] > 0
