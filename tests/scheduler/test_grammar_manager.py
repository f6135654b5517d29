"""A request's grammar: given when it comes, asked for each token, told to the trace and shown."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.waits import lost_ns
from minisched.core import FinishReason, Request, SamplingParams
from minisched.core.grammar import Grammar
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.export.recipes import trace_of
from minisched.export.views import NothingToShow
from minisched.export.views.grammar_choices import constrained_of
from minisched.export.views.grammar_manager import MOST_STEPS, puml, text, view
from minisched.export.views.steps import forwards_of
from minisched.loops.registry import LOOPS
from minisched.loops.run import drive, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.scheduler.grammar_manager import process_req_with_grammar
from minisched.trace import Mark, Trace
from tests.support import LOOP_OPTIONS, VOCAB, Picture, check_picture, demanding, many, play

US = 1000  # nanoseconds
CONSTRAINED = [item for item in LOOP_OPTIONS if "grammar" not in LOOPS[item[0]].refusals(item[1])]
LOOP = pytest.mark.parametrize("loop", ["serial", "overlap"])


class Watched:
    """A grammar that keeps what it was asked; a token that is taken back is forgotten."""

    def __init__(self, grammar: Grammar, is_masked: bool = True) -> None:
        self.grammar, self.is_masked = grammar, is_masked
        self.masks: list[int] = []  # how many tokens each allowed
        self.accepted: list[int] = []

    @property
    def is_terminated(self) -> bool:
        return self.grammar.is_terminated

    def accept_token(self, token: int) -> bool:
        taken = self.grammar.accept_token(token)
        self.accepted += [token] * taken
        return taken

    def fill_vocab_mask(self) -> bytes:
        mask = self.grammar.fill_vocab_mask() if self.is_masked else bytes([255] * 36)
        self.masks.append(sum(f"{byte:b}".count("1") for byte in mask))
        return mask

    def rollback(self, num_tokens: int) -> None:
        self.grammar.rollback(num_tokens)
        del self.accepted[len(self.accepted) - num_tokens :]


def watch(engine: Engine, is_masked: bool = True) -> None:
    """Let every grammar of an engine be watched."""
    compile_grammar = engine.scheduler.compile_grammar
    assert compile_grammar is not None
    engine.scheduler.compile_grammar = lambda params: Watched(compile_grammar(params), is_masked)


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
    play(workload, loop, relay, options, device, model, cost, watch)
    return device.recorder.trace(loop, "sim", "hash", "virtual"), workload.requests


def marks_of(trace: Trace, name: str) -> dict[str, list[Mark]]:
    """Marks of a name, by request."""
    found: dict[str, list[Mark]] = defaultdict(list)
    for mark in trace.marks:
        if mark.name == name:
            found[str(mark.attrs["rid"])].append(mark)
    return found


def numbers(marks: list[Mark], name: str) -> list[int]:
    """The numbers in their texts, one after the other."""
    return [int(part) for mark in marks for part in str(mark.attrs[name]).split()]


# -- grammar_manager: who gets a grammar, and what it makes of the request -------------------------


def test_a_request_gets_a_grammar_or_one_sentence() -> None:
    def refuse(params: SamplingParams) -> Grammar:
        raise ValueError("it is no rule.")

    free, bound = Request("free", [1]), Request("bound", [1], SamplingParams(regex="a"))
    assert process_req_with_grammar(free, None) == "" and free.grammar is None
    assert process_req_with_grammar(bound, None).startswith("a grammar was asked for, but nothing")
    assert process_req_with_grammar(bound, refuse) == "it is no rule." and bound.grammar is None
    given_one: Any = object()
    assert process_req_with_grammar(bound, lambda params: given_one) == ""
    assert bound.grammar is given_one


BAD = {
    "no token": (SamplingParams(regex="[^\\x00-\\xff]"), "no token can satisfy regex"),
    "no regex": (SamplingParams(regex="a("), "can't be compiled: there is a ( that is never"),
    "no schema": (SamplingParams(json_schema='{"type":"strin"}'), "Invalid type: strin."),
    "both": (SamplingParams(regex="a", json_schema="{}"), "regex and json_schema are both given"),
}


@LOOP
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


@LOOP
def test_json_on_bytes_ends_where_it_is_whole(loop: str) -> None:
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
    params = SamplingParams(regex="(ab|ba){5}c", max_new_tokens=14, temperature=1.5)
    requests = [Request(f"r{i}", [i + 1], params) for i in range(4)]
    config = SchedulerConfig(kv_tokens=24, schedule_conservativeness=0, disable_radix_cache=True)
    run = run_loop("overlap", SimDevice(), HashModel(), requests, config)
    assert sum(req.retractions for req in run.requests), "nobody was retracted"
    for tokens in run.outputs.values():
        assert re.fullmatch("(ab|ba){5}c", bytes(tokens).decode())


@LOOP
def test_a_token_that_its_grammar_does_not_allow_is_an_error(loop: str) -> None:
    """Where a mask was forgotten, or a library has lost its way; nobody is told it was accepted."""
    good_alone = run_loop(loop, SimDevice(), HashModel(), [Request("good", [1])]).outputs["good"]
    bad, good = Request("bad", [1], SamplingParams(regex="a+")), Request("good", [1])
    device = SimDevice()
    engine = make_engine(loop, device, HashModel(), SchedulerConfig(), Frontend([bad, good]))
    watch(engine, is_masked=False)
    drive(LOOPS[loop].start(engine), engine)
    assert bad.finish_reason is FinishReason.ERROR and len(bad.output_ids) == 1
    assert bad.error == f"its grammar does not allow token {bad.output_ids[0]} at 1."
    assert good.output_ids == good_alone
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    assert not marks_of(trace, "grammar accept")
    assert set(numbers(marks_of(trace, "grammar mask")["bad"], "allowed")) == {288}


# -- what the trace is told, and what is shown -----------------------------------------------------


@settings(max_examples=many(25, 150))
@given(runs())
def test_the_trace_has_every_mask_and_every_token_that_was_accepted(run: Any) -> None:
    trace, requests = run
    rules = marks_of(trace, "grammar")
    masks, accepts = marks_of(trace, "grammar mask"), marks_of(trace, "grammar accept")
    watched = {req.rid: req.grammar for req in requests if isinstance(req.grammar, Watched)}
    assert rules.keys() == watched.keys() >= masks.keys() | accepts.keys()
    for req in requests:
        if (grammar := watched.get(req.rid)) is None:
            continue
        assert [mark.attrs["rule"] for mark in rules[req.rid]] == [req.params.regex]
        assert numbers(masks[req.rid], "allowed") == grammar.masks
        assert numbers(accepts[req.rid], "tokens") == grammar.accepted == req.output_ids
        ends = [bool(mark.attrs["terminated"]) for mark in accepts[req.rid]]
        assert not any(ends[:-1]) and ends[-1:] in ([], [grammar.is_terminated])
        for mark in accepts[req.rid]:
            assert mark.attrs["step"] in {mask.attrs["step"] for mask in masks[req.rid]}


def test_drafts_have_a_mask_each() -> None:
    """Three places may be sampled in one step, and several tokens be accepted."""
    config = SchedulerConfig(speculative_algorithm="NGRAM", speculative_num_draft_tokens=2)
    params = SamplingParams(regex="[\x01-\x02]{9}", max_new_tokens=9)
    requests = [Request("r", [1, 2, 1, 2, 1], params)]
    run = run_loop("serial", SimDevice(), HashModel(4), requests, config)
    assert not run.errors and len(run.outputs["r"]) == 9
    masks, accepts = (marks_of(run.trace, name)["r"] for name in ("grammar mask", "grammar accept"))
    assert max(len(str(mark.attrs["allowed"]).split()) for mark in masks) == 3
    assert numbers(accepts, "tokens") == run.outputs["r"] and len(accepts) < 9
    assert r"[\x01-\x02]{9}" in Picture(view(run.trace)).words, "no picture can show these bytes"


@settings(max_examples=many(15, 150))
@given(runs())
def test_every_form_shows_every_mask(run: Any) -> None:
    trace, _ = run
    try:
        picture, words = Picture(view(trace)), text(trace)
    except NothingToShow:
        assume(False)
        return
    check_picture(picture)
    steps = forwards_of(trace)
    end = steps[MOST_STEPS].start if len(steps) > MOST_STEPS else trace.end + 1
    part = [mark for mark in trace.marks if mark.time < end]
    masks = [mark.attrs for mark in part if mark.name == "grammar mask"]
    allowed = Counter(tuple(str(mark[n]) for n in ("rid", "step", "allowed")) for mark in masks)
    assert picture.count("rid", "step", "allowed", tag="text") == allowed
    accepts = [mark.attrs for mark in part if mark.name == "grammar accept"]
    ends = Counter((str(mark["rid"]), str(mark["step"])) for mark in accepts if mark["terminated"])
    assert picture.count("rid", "step", kind="end", tag="line") == ends
    waits = [mark for mark in part if mark.name == "wait" and mark.attrs["reason"] == "grammar"]
    assert len(picture.shapes("path", kind="flag-head", wait="*")) == len(waits)
    rows = words.partition("Mask by mask")[2].partition("\n\n")[0].splitlines()[2:]
    assert Counter((row.split()[1], row.split()[0], row.split()[3]) for row in rows) == allowed
    named = ",".join(re.findall(r": (r\d(?:, r\d)*) terminated", puml(trace)))
    assert len(re.findall(r"r\d", named)) == words.count("  terminated") == ends.total()
    if len(steps) <= MOST_STEPS:
        lost = sum(int(shape["data-lost"]) for shape in picture.shapes("rect", lost="*"))
        assert lost == lost_ns(trace).get("grammar", 0)


def test_the_golden_run_waits_and_ends_in_both_ways() -> None:
    """``a`` with the one token that may come, ``b`` with an end-of-text token."""
    trace = trace_of("grammar_manager")
    a, b = constrained_of(trace)
    assert bytes(token for choice in a.choices for token in choice.tokens) == b"no, jk."
    assert a.choices[-1].terminated and a.choices[-1].allowed == (1,)
    assert b.choices[-1].terminated and b.choices[-1].tokens == (256,)
    assert [choice.allowed for choice in b.choices] == [(10,), *[(11,)] * 6]
    assert lost_ns(trace)["grammar"] > 0
    picture = Picture(view(trace))
    assert "26 → j" in picture.words and "1 → space" in picture.words
    parts = (getattr(trace, name) for name in ("slices", "edges", "counters", "marks"))
    of_llama = Trace(trace.loop, "cuda", "llama", "wall", *parts)  # whose tokens are no bytes
    assert "1 → #32" in Picture(view(of_llama)).words
