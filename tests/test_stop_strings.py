"""Stop strings: found at the token that completes them, from a tail of the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from minisched.checks.tokens.oracle import says
from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.registry import LOOPS
from minisched.loops.run import Run, run_loop
from minisched.models.hash import HashModel
from minisched.models.llama_torch import LlamaTorch
from minisched.models.stop_strings import StopStrings
from minisched.models.tokenizer import ByteTokenizer, TextCodec, Tokenizer
from minisched.scheduler import Scheduler, SchedulerConfig
from tests.support import (
    ONE_ENGINE,
    VOCAB,
    Broken,
    Workload,
    check_all,
    fresh,
    hash_model,
    open_device,
    params,
    play,
    workloads,
)
from tests.test_laws import costs
from tests.test_tokenizer import LLAMA2_IDS, llama2_like

# -- the tail suffices -----------------------------------------------------------------------------


class Spy:
    """A tokenizer that notes how much it is asked to decode."""

    def __init__(self, codec: TextCodec) -> None:
        self.codec = codec
        self.longest = 0

    def encode(self, text: str) -> list[int]:
        return self.codec.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        self.longest = max(self.longest, len(ids))
        return self.codec.decode(ids)

    def is_settled(self, token: int) -> bool:
        return self.codec.is_settled(token)


def first_end(codec: TextCodec, ids: Sequence[int], strings: Sequence[str]) -> int | None:
    """After how many tokens the whole text has one of the strings in it."""
    texts = (codec.decode(ids[: count + 1]) for count in range(len(ids)))
    return next((n for n, text in enumerate(texts, 1) if any(s in text for s in strings)), None)


def heard(codec: TextCodec, ids: Sequence[int], strings: Sequence[str], late: bool) -> int | None:
    """After how many tokens the strings are heard in them."""
    stop = StopStrings(codec, strings, late)
    return next((count for count, token in enumerate(ids, 1) if stop.accept_token(token)), None)


pieces = st.sampled_from(["a", "b", " ", "é", "€", "🙂", "ab", "a€", "\ufffd", "🙂b"])
texts = st.lists(pieces, max_size=8).map("".join)
strings_to_find = st.lists(st.lists(pieces, min_size=1, max_size=3).map("".join), min_size=1,
                           max_size=3)  # fmt: skip
broken_bytes = st.lists(
    st.sampled_from([*"ab€🙂".encode(), 0x80, 0xE2, 0xF0, 256, 300]), max_size=24
)


@settings(deadline=None)
@given(ids=texts.map(ByteTokenizer().encode) | broken_bytes, strings=strings_to_find)
def test_bytes(ids: list[int], strings: list[str]) -> None:
    """Characters of several bytes, halves of such, tokens without text: the tail is enough."""
    codec = ByteTokenizer()
    end = first_end(codec, ids, strings)
    assert heard(codec, ids, strings, late=False) == end
    is_last = end is None or end == len(ids)
    assert heard(codec, ids, strings, late=True) == (None if is_last else end + 1)


@settings(deadline=None)
@given(text=texts, ids=LLAMA2_IDS, strings=strings_to_find)
def test_a_tokenizer_with_words_and_bytes(text: str, ids: list[int], strings: list[str]) -> None:
    """The first word's space is dropped there, so half of the text reads otherwise than all.

    And half a character spoils those before it there, as long as it is half.
    """
    codec, known = llama2_like(), str.maketrans("ab", "he")
    strings = [string.translate(known) for string in strings]
    for said in (ids, codec.encode(text.translate(known))):
        assert heard(codec, said, strings, late=False) == first_end(codec, said, strings)


def test_only_a_tail_is_decoded() -> None:
    spy = Spy(ByteTokenizer())
    stop = StopStrings(spy, ["no such words"])
    assert not any(stop.accept_token(token) for token in "€ and so on, 🙂 ".encode() * 50)
    assert spy.longest <= 8, "two characters of four bytes"


@pytest.mark.weights
@given(
    text=st.text("ab é€🙂\n{}", max_size=12),
    strings=st.lists(st.text("ab é€🙂\n{}", min_size=1, max_size=4), min_size=1, max_size=2),
)
@settings(max_examples=30, deadline=None)
def test_smollm2(smollm2: Path, text: str, strings: list[str]) -> None:
    codec = Tokenizer.from_directory(smollm2)
    assert codec is not None
    ids = codec.encode(text)
    assert heard(codec, ids, strings, late=False) == first_end(codec, ids, strings)


# -- the laws --------------------------------------------------------------------------------------

QUICK = settings(
    max_examples=20_000, deadline=None, phases=[Phase.generate]
)  # finds, never shrinks
short = st.text([chr(token) for token in range(VOCAB)], min_size=1, max_size=2)
stopping = st.builds(replace, params, stop=st.lists(short, max_size=3).map(tuple))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("loop", ONE_ENGINE)
@given(workload=workloads(params=stopping), cost=costs)
@settings(max_examples=15, deadline=None)
def test_laws_with_stop_strings(loop: str, late: bool, workload: Workload, cost: CostModel) -> None:
    """No schedule changes the tokens; late, there is one more, as in the oracle."""
    workload.config = replace(workload.config, late_stop_strings=late)
    model, relay = hash_model("sim", workload.eos_ids), LOOPS[loop].relays[0]
    device = SimDevice()
    engine, outputs = play(workload, loop, relay, {}, device, model, cost)
    check_all(workload, engine, outputs)
    for req in workload.requests:
        if says(req.output_ids[: len(req.output_ids) - late], req.params.stop):
            assert req.finish_reason in (FinishReason.STOP, FinishReason.ABORT)


def test_searching_the_newest_token_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopStrings, "_look", lambda self, token: chr(token) in self.strings)

    def breaks(workload: Workload) -> bool:
        one = fresh(workload)
        try:
            model = hash_model("sim", one.eos_ids)
            check_all(one, *play(one, "serial", "host", {}, SimDevice(), model))
        except Broken:
            return True
        return False

    find(workloads(params=stopping), breaks, settings=QUICK)


# -- what it costs ---------------------------------------------------------------------------------

LONG = SamplingParams(max_new_tokens=20, ignore_eos=True)


def run(loop: str, wishes: Sequence[SamplingParams], late: bool = False) -> Run:
    """A request for each of ``wishes``."""
    requests = [Request("abcd"[at], [1, 2, 3 + at], one) for at, one in enumerate(wishes)]
    config = SchedulerConfig(late_stop_strings=late)
    return run_loop(loop, open_device("sim"), HashModel(), requests, config, SIM_COST)


def text_of(tokens: Sequence[int]) -> str:
    """What is said, as far as it is text."""
    return ByteTokenizer().decode(tokens)


def some_words() -> tuple[str, int]:
    """Two characters that a request says, and how many tokens it has said then."""
    said = run("serial", [LONG]).outputs["a"]
    for end in range(3, len(said)):
        text = text_of(said[:end])
        if (
            text.isprintable()
            and "\ufffd" not in text[-2:]
            and text.find(text[-2:]) == len(text) - 2
        ):
            return text[-2:], end
    raise AssertionError("another prompt is needed")


def wasted(run: Run) -> int:
    """Rows that were computed for a request that had ended."""
    return sum(mark.name == "wasted row" for mark in run.trace.marks)


@pytest.mark.parametrize("loop", ["serial", "overlap", "vllm_async", "mlx_async"])
def test_a_request_ends_with_the_token_that_completes_the_string(loop: str) -> None:
    string, end = some_words()
    stopped = run(loop, [replace(LONG, stop=("nowhere", string))])
    req = stopped.requests[0]
    assert (len(req.output_ids), req.finish_reason) == (end, FinishReason.STOP)
    assert wasted(stopped) == (loop != "serial"), "one row, as with a stop token"
    late = run(loop, [replace(LONG, stop=("nowhere", string))], late=True).requests[0]
    assert (len(late.output_ids), late.finish_reason) == (end + 1, FinishReason.STOP)
    assert late.output_ids[:end] == req.output_ids


def test_pd_hears_the_first_token_too() -> None:
    """It comes from the prefill side, with the KV."""
    first = run("pd", [LONG]).outputs["a"][0]
    wish = replace(LONG, stop=(text_of([first]),))
    stopped = run("pd", [wish]).requests[0]
    assert (stopped.output_ids, stopped.finish_reason) == ([first], FinishReason.STOP)


# -- bad input -------------------------------------------------------------------------------------


def test_an_empty_string_ends_its_request_alone() -> None:
    together = run("overlap", [LONG, LONG, replace(LONG, stop=("fine", ""))])
    sentence = "stop is '', but a stop string must have at least one character."
    assert together.errors == {"c": sentence}
    assert together.outputs == {**run("overlap", [LONG, LONG]).outputs, "c": []}


def test_without_a_tokenizer_there_is_no_text(tiny_llama: Path) -> None:
    model = LlamaTorch(tiny_llama)
    assert model.tokenizer is None
    requests = [Request("plain", [1, 2], LONG), Request("r", [1, 2], replace(LONG, stop=("a",)))]
    found = run_loop("overlap", open_device("thread"), model, requests, SchedulerConfig())
    sentence = "stop is 'a', but a model without a tokenizer has no text to search."
    assert found.errors == {"r": sentence}
    assert len(found.outputs["plain"]) == 20


def test_a_scheduler_that_nobody_told_how_to_listen_refuses() -> None:
    outputs = Scheduler(SchedulerConfig()).receive([Request("r", [1], replace(LONG, stop=("a",)))])
    assert [output.finish_reason for output in outputs] == [FinishReason.ERROR]


def test_one_string_is_not_several() -> None:
    params = replace(LONG, stop="abc")  # type: ignore[arg-type]
    assert params.problem() == "stop is 'abc', but it must be a tuple of strings."
