"""A request's grammar: given when it comes, told to the trace, and shown as it really went."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.waits import lost_ns
from minisched.core import Request, SamplingParams
from minisched.core.grammar import Grammar
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.export.recipes import trace_of
from minisched.export.views.grammar_choices import constrained_of
from minisched.export.views.grammar_manager import MOST_REQUESTS, MOST_STEPS, puml, view
from minisched.export.views.grammar_manager import text as in_terminal
from minisched.export.views.steps import forwards_of
from minisched.loops.registry import LOOPS
from minisched.loops.run import drive, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig, grammar_manager, results
from minisched.scheduler.grammar_manager import process_req_with_grammar
from minisched.trace import Mark, NullRecorder, Trace
from tests.shown_forms import picture_and_text
from tests.support import VOCAB, Picture, check_picture, play
from tests.test_grammar_laws import CONSTRAINED, constrained
from tests.test_relay_views import check_text

US = 1000  # nanoseconds


class Watched:
    """A grammar that keeps what it was asked; a token that is taken back is forgotten."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
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
        mask = self.grammar.fill_vocab_mask()
        self.masks.append(sum(f"{byte:b}".count("1") for byte in mask))
        return mask

    def rollback(self, num_tokens: int) -> None:
        self.grammar.rollback(num_tokens)
        del self.accepted[len(self.accepted) - num_tokens :]


def watch(engine: Engine) -> None:
    """Let every grammar of an engine be watched."""
    compile_grammar = engine.scheduler.compile_grammar
    assert compile_grammar is not None
    engine.scheduler.compile_grammar = lambda params: Watched(compile_grammar(params))


@st.composite
def runs(draw: st.DrawFn) -> tuple[Trace, list[Request]]:
    """A random run of requests with and without a rule, on a device that is fast or slow."""
    loop, relay, options = draw(st.sampled_from(CONSTRAINED))
    workload = draw(constrained())
    phases = ("receive", "schedule", "prepare", "launch", "launch sample", "process", "mask")
    cost = CostModel(
        dict.fromkeys(phases, 7 * US), draw(st.sampled_from([5, 90])) * US, US, 5 * US, 3 * US
    )
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, relay, options, device, model, cost, watch)
    return device.recorder.trace(loop, "sim", "hash", "virtual"), workload.requests


def grammar_marks(trace: Trace, name: str) -> dict[str, list[Mark]]:
    """Marks of a name, by request."""
    found: dict[str, list[Mark]] = defaultdict(list)
    for mark in trace.marks:
        if mark.name == name:
            found[str(mark.attrs["rid"])].append(mark)
    return found


def numbers(marks: list[Mark], name: str) -> list[int]:
    """The numbers in their texts, one after the other."""
    return [int(part) for mark in marks for part in str(mark.attrs[name]).split()]


# -- who gets one ------------------------------------------------------------------------------


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


# -- what the trace is told --------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(runs())
def test_the_trace_has_every_mask_and_every_token_that_was_accepted(run: Any) -> None:
    trace, requests = run
    rules = grammar_marks(trace, "grammar")
    masks, accepts = grammar_marks(trace, "grammar mask"), grammar_marks(trace, "grammar accept")
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
    run = run_loop(
        "serial", SimDevice(), HashModel(4), [Request("r", [1, 2, 1, 2, 1], params)], config
    )
    assert not run.errors and len(run.outputs["r"]) == 9
    masks, accepts = (
        grammar_marks(run.trace, name)["r"] for name in ("grammar mask", "grammar accept")
    )
    assert max(len(str(mark.attrs["allowed"]).split()) for mark in masks) == 3
    assert numbers(accepts, "tokens") == run.outputs["r"] and len(accepts) < 9
    picture = Picture(view(run.trace))
    check_picture(picture)
    assert r"[\x01-\x02]{9}" in picture.words, "what no picture can show is written out"


def test_a_token_that_is_not_allowed_is_not_told_as_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Watched, "fill_vocab_mask", lambda self: bytes([255] * 36))
    request = Request("bad", [1], SamplingParams(regex="a+"))
    device, frontend = SimDevice(), Frontend([request])
    engine = make_engine("serial", device, HashModel(), SchedulerConfig(), frontend)
    watch(engine)
    drive(LOOPS["serial"].start(engine), engine)
    assert request.error.startswith("its grammar does not allow token")
    trace = device.recorder.trace("serial", "sim", "hash", "virtual")
    assert not grammar_marks(trace, "grammar accept")
    assert numbers(grammar_marks(trace, "grammar mask")["bad"], "allowed") == [288]


def test_a_run_without_grammars_is_not_asked_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that nobody records."""

    def never(*args: Any) -> None:
        raise AssertionError("a run without a grammar came here")

    monkeypatch.setattr(results, "record_accepted", never)
    run = run_loop("overlap", SimDevice(), HashModel(), [Request("r", [1, 2])])
    assert not run.errors and run.outputs["r"]
    assert not any(mark.name.startswith("grammar") for mark in run.trace.marks)
    monkeypatch.setattr(grammar_manager.Recorder, "mark", never)
    req = Request("g", [1], SamplingParams(regex="a"))
    process_req_with_grammar(req, lambda params: Watched(req))  # type: ignore[arg-type]
    grammar_manager.record_grammar(NullRecorder(), req)


# -- what is shown -----------------------------------------------------------------------------


def shown_steps(trace: Trace) -> tuple[set[int], int]:
    """The steps in the picture, and when it ends."""
    steps = forwards_of(trace)
    end = steps[MOST_STEPS].start if len(steps) > MOST_STEPS else trace.end + 1
    return {item.step for item in steps[:MOST_STEPS]}, end


@settings(max_examples=60, deadline=None)
@given(runs())
def test_every_form_shows_every_mask(run: Any) -> None:
    trace, _ = run
    picture, words = picture_and_text(view, in_terminal, trace)
    check_text(words)
    _, end = shown_steps(trace)
    part = [mark for mark in trace.marks if mark.time < end]
    masks = [mark for mark in part if mark.name == "grammar mask"]
    allowed = Counter(
        tuple(str(mark.attrs[n]) for n in ("rid", "step", "allowed")) for mark in masks
    )
    assert len({rid for rid, *_ in allowed}) <= MOST_REQUESTS
    assert picture.count("rid", "step", "allowed", tag="text") == allowed
    accepts = [mark for mark in part if mark.name == "grammar accept"]
    ends = Counter(
        (str(mark.attrs["rid"]), str(mark.attrs["step"])) for mark in accepts
        if mark.attrs["terminated"]
    )  # fmt: skip
    assert picture.count("rid", "step", kind="end", tag="line") == ends
    waits = [mark for mark in part if mark.name == "wait" and mark.attrs["reason"] == "grammar"]
    assert len(picture.shapes("path", kind="flag-head", wait="*")) == len(waits)
    rows = words.partition("Mask by mask")[2].partition("\n\n")[0].splitlines()[2:]
    assert Counter((row.split()[1], row.split()[0], row.split()[3]) for row in rows) == allowed
    assert words.count("  terminated") == ends.total()
    told = f"{len(masks)} mask{'s' * (len(masks) != 1)}, "
    assert told in picture.words and f"\n{told}" in words
    diagram = puml(trace)
    named = ",".join(re.findall(r": (r\d(?:, r\d)*) terminated", diagram))
    assert len(re.findall(r"r\d", named)) == ends.total()
    if len(forwards_of(trace)) <= MOST_STEPS:
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
    assert len(picture.shapes("line", kind="end")) == 2


def test_what_is_no_byte_is_shown_by_its_id() -> None:
    trace = trace_of("grammar_manager")
    other = Trace(trace.loop, "cuda", "llama", "wall", *(
        getattr(trace, name) for name in ("slices", "edges", "counters", "marks")
    ))  # fmt: skip
    assert "1 → #32" in Picture(view(other)).words
