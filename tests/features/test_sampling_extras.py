"""What requests wish of their tokens: penalties, biases, masks, stop strings and log-probabilities.
What they do on every backend and in every batch; which are refused.

That no schedule changes what they lead to is judged by ``tests/laws/test_every_design.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.oracle import find_unlike, largest_difference
from minisched.core import (
    FinishReason,
    LogitAdjustment,
    Output,
    Request,
    SamplingParams,
    TokenLogprob,
)
from minisched.devices.cost import SIM_COST, CostModel
from minisched.features.history import make_adjustment
from minisched.features.logprobs import KnownLogprobs, logprobs_of, read_place
from minisched.features.stop_strings import StopStrings
from minisched.loops.run import Run, run_loop
from minisched.models import sampling, sampling_arrays
from minisched.models.hash import HashModel
from minisched.models.llama_torch import LlamaTorch
from minisched.models.tokenizer import ByteTokenizer, TextCodec
from minisched.replay.replay import LengthModel
from minisched.scheduler import SchedulerConfig
from tests.support import EVERY_BACKEND, VOCAB, open_device

Rows = list[list[float]]
Wishes = list[LogitAdjustment | None]

# -- what they do to logits ------------------------------------------------------------------------


def adjusted(backend: str, logits: Rows, wishes: Wishes, wide: bool = True) -> Rows:
    if backend == "sim":
        return sampling.adjust(logits, wishes)
    rows: Any
    if backend == "mlx":
        with mx.stream(mx.cpu):
            dtype = mx.float64 if wide else mx.float32
            rows = sampling_arrays.adjust(mx.array(logits, dtype=dtype), wishes)
    else:
        kind = torch.float64 if wide else torch.float32
        rows = sampling_arrays.adjust(torch.tensor(logits, dtype=kind), wishes)
    found: Rows = rows.tolist()
    return found


def wishes_for(vocab_size: int) -> st.SearchStrategy[LogitAdjustment]:
    tokens = st.integers(0, vocab_size - 1)
    return st.builds(
        LogitAdjustment,
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.7, 2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.1, -1.7, 2.0]),
        presence_penalty=st.sampled_from([0.0, 0.3, -2.0]),
        seen=st.frozensets(tokens, max_size=5),
        counts=st.dictionaries(tokens, st.integers(1, 4), max_size=5),
        logit_bias=st.dictionaries(tokens, st.floats(-100, 100), max_size=3),
        vocab_mask=st.none() | st.binary(max_size=8),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Rows, Wishes]:
    size = draw(st.sampled_from([1, 2, 7, 8, 9, 19, 33]))
    logit = st.floats(-20, 20, width=32)
    row = st.lists(logit, min_size=size, max_size=size)
    rows = draw(st.lists(row, min_size=1, max_size=4))
    return rows, [draw(st.none() | wishes_for(size)) for _ in rows]


def test_the_definition_by_hand() -> None:
    params = SamplingParams(
        frequency_penalty=0.5, presence_penalty=1.0, repetition_penalty=2.0, logit_bias={2: 4.0}
    )
    wish = make_adjustment(params, [0], [1, 1], None)
    assert adjusted("sim", [[6.0, 8.0, 1.0]], [wish]) == [[3.0, 8 / 2 - 2 * 0.5 - 1, 5.0]]
    assert adjusted("sim", [[-6.0, 8.0, 1.0]], [wish])[0][0] == -12.0


def test_a_repetition_is_penalised_as_by_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits, prompt, output = [[6.0, 8.0, 1.0, -3.0, -5.0]], [0, 3], [1, 1, 3]
    params = SamplingParams(repetition_penalty=1.3)
    theirs: Any = RepetitionPenaltyLogitsProcessor(1.3)
    found = theirs(torch.tensor([prompt + output]), torch.tensor(logits))
    ours = adjusted("thread", logits, [make_adjustment(params, prompt, output, None)], wide=False)
    assert ours == found.tolist()


@pytest.mark.parametrize("backend", ["thread", "mlx"])
@given(case=cases())
def test_every_backend_does_the_same_and_a_row_becomes_the_same_in_every_batch(
    backend: str, case: tuple[Rows, Wishes]
) -> None:
    logits, wishes = case
    assert adjusted(backend, logits, wishes) == adjusted("sim", logits, wishes)
    together = adjusted(backend, logits, wishes, wide=False)
    for row, wish, found in zip(logits, wishes, together, strict=True):
        assert adjusted(backend, [row], [wish], wide=False) == [found]
        assert wish is not None or found == row


@EVERY_BACKEND
def test_masks_at_their_edges(backend: str) -> None:
    logits = [[float(at) for at in range(19)]]
    for mask in (b"", bytes(2), bytes(9), b"\x00\x00\xf8", b"\x00\x00\x00\x01"):
        assert adjusted(backend, logits, [LogitAdjustment(vocab_mask=mask)]) == logits
    wish = LogitAdjustment(logit_bias={0: 100.0}, vocab_mask=b"\x06")
    assert adjusted(backend, [[1.0, 2.0, 3.0]], [wish]) == [[float("-inf"), 2.0, 3.0]]


def test_sixteen_bits_are_enough_for_a_penalty() -> None:
    wish = LogitAdjustment(presence_penalty=0.1, counts={0: 1})
    halves = torch.tensor([[100.0, 100.0]], dtype=torch.bfloat16)
    assert sampling_arrays.adjust(halves, [wish]).argmax() == 1
    assert mx.argmax(sampling_arrays.adjust(mx.array([[100.0, 100.0]], mx.bfloat16), [wish])) == 1


# -- stop strings are heard in a tail of the text --------------------------------------------------


def run(loop: str, wishes: Sequence[SamplingParams], config: SchedulerConfig | None = None) -> Run:
    requests = [Request("abcd"[at], [1, 2, 3 + at], one) for at, one in enumerate(wishes)]
    return run_loop(loop, open_device("sim"), HashModel(), requests, config, SIM_COST)


def first_end(codec: TextCodec, ids: Sequence[int], strings: Sequence[str]) -> int | None:
    """Where a stop string is complete; U+FFFD at the end may be the first half of a character."""
    texts = (codec.decode(ids[: count + 1]).rstrip("\ufffd") for count in range(len(ids)))
    return next((n for n, text in enumerate(texts, 1) if any(s in text for s in strings)), None)


def heard(codec: TextCodec, ids: Sequence[int], strings: Sequence[str], late: bool) -> int | None:
    stop = StopStrings(codec, strings, late)
    return next((count for count, token in enumerate(ids, 1) if stop.accept_token(token)), None)


pieces = st.sampled_from(["a", "b", " ", "é", "€", "🙂", "ab", "a€", "\ufffd", "🙂b"])
texts = st.lists(pieces, max_size=8).map("".join)
strings_to_find = st.lists(
    st.lists(pieces, min_size=1, max_size=3).map("".join), min_size=1, max_size=3
)
broken_bytes = st.lists(
    st.sampled_from([*"ab€🙂".encode(), 0x80, 0xE2, 0xF0, 256, 300]), max_size=24
)


@given(ids=texts.map(ByteTokenizer().encode) | broken_bytes, strings=strings_to_find)
def test_characters_of_several_bytes_and_halves_of_such(ids: list[int], strings: list[str]) -> None:
    codec = ByteTokenizer()
    end = first_end(codec, ids, strings)
    assert heard(codec, ids, strings, late=False) == end
    late = None if end is None or end == len(ids) else end + 1
    assert heard(codec, ids, strings, late=True) == late


def test_only_a_tail_is_decoded() -> None:
    asked = list[int]()

    class Spy(ByteTokenizer):
        def decode(self, ids: Sequence[int]) -> str:
            asked.append(len(ids))
            return super().decode(ids)

    stop = StopStrings(Spy(), ["no such words"])
    assert not any(stop.accept_token(token) for token in "€ and so on, 🙂 ".encode() * 50)
    assert max(asked) <= 8, "two characters of four bytes"


@pytest.mark.parametrize(("loop", "wasted"), [
    ("serial", 0), ("overlap", 1), ("vllm_async", 1), ("mlx_async", 1), ("pd", 1),
])  # fmt: skip
@pytest.mark.parametrize("count", [1, 5])
def test_a_request_ends_with_the_token_that_completes_the_string(
    loop: str, wasted: int, count: int
) -> None:
    long = SamplingParams(max_new_tokens=20, logit_bias=dict.fromkeys(range(128, 257), -100.0))
    said = run("serial", [long]).outputs["a"]
    string = ByteTokenizer().decode(said[:count])
    for late in (False, True):
        config = SchedulerConfig(late_stop_strings=late)
        stopped = run(loop, [replace(long, stop=("nowhere", string))], config)
        req = stopped.requests[0]
        assert (req.output_ids, req.finish_reason) == (said[: count + late], FinishReason.STOP)
        rows = sum(mark.name == "wasted row" for mark in stopped.trace.marks)
        at_once = count + late == 1 and loop in ("pd", "mlx_async")  # no step is in flight yet
        assert rows == (0 if at_once else wasted)


# -- log-probabilities -----------------------------------------------------------------------------

row_of_logits = st.lists(st.floats(-20, 20, width=32), min_size=7, max_size=7)


def places(
    backend: str, rows: list[list[float]], tokens: list[int], top: int
) -> list[TokenLogprob]:
    at, found = list(range(len(rows))), list[Any]()
    if backend == "sim":
        found = list(sampling.logprobs(rows, at, tokens, top))
    elif backend == "thread":
        wide = torch.tensor(rows, dtype=torch.float64)
        chosen = torch.tensor(at), torch.tensor(tokens)
        found += sampling_arrays.logprobs(wide, *chosen, top).tolist()
    else:
        with mx.stream(mx.cpu):
            array = mx.array(rows, dtype=mx.float64)
            values: Any = sampling_arrays.logprobs(array, mx.array(at), mx.array(tokens), top)
            found += values.tolist()
    return [read_place(token, place, top) for token, place in zip(tokens, found, strict=True)]


@pytest.mark.parametrize("backend", ["sim", "thread", "mlx"])
@given(
    rows=st.lists(st.tuples(row_of_logits, st.integers(0, 6)), min_size=1, max_size=4),
    top=st.integers(0, 7),
)
def test_a_row_has_the_same_bits_whoever_is_beside_it(
    backend: str, rows: list[tuple[list[float], int]], top: int
) -> None:
    both = [row for row, _ in rows], [token for _, token in rows]
    together = places(backend, *both, top)
    exact = places("sim", *both, top)
    for (row, token), place, truth in zip(rows, together, exact, strict=True):
        assert [place] == places(backend, [row], [token], top)
        assert place.logprob == pytest.approx(truth.logprob, abs=1e-6)
        assert len(place.top_logprobs) == top
        best = sorted(range(7), key=lambda at: (-row[at], at))[:top]
        assert [other for _, other in place.top_logprobs] == best


def wanting(rid: str, prompt: list[int], start: int = -1, top: int = 0, count: int = 6) -> Request:
    params = SamplingParams(
        max_new_tokens=count, ignore_eos=True,
        return_logprob=True, logprob_start_len=start, top_logprobs_num=top,
    )  # fmt: skip
    return Request(rid, prompt, params)


@pytest.mark.parametrize(("start", "hit"), [(-1, 11), (0, 0), (5, 5), (11, 11)])
@pytest.mark.parametrize("page_size", [1, 2])
def test_a_cached_prefix_ends_where_logits_are_wanted(start: int, hit: int, page_size: int) -> None:
    prompt = [7, 7, 11, 2, 7, 7, 11, 5, 3, 3, 1, 4]
    first, second = Request("first", prompt), wanting("second", prompt, start)
    second.arrival_time = 10**9
    config = SchedulerConfig(page_size=page_size, chunked_prefill_size=page_size * 100)
    heard, cost = list[Output](), CostModel({"schedule": 1}, forward_base=1)
    model = HashModel(VOCAB)
    run = run_loop("overlap", open_device("sim"), model, [first, second], config, cost,
                   on_output=heard.append)  # fmt: skip
    admitted = [mark.attrs for mark in run.trace.marks if mark.name == "admit"]
    assert [it["hit_len"] for it in admitted] == [0, hit // page_size * page_size]
    told = [(second, [output for output in heard if output.rid == "second"])]
    assert not list(find_unlike(told, VOCAB, 0.0))
    assert len(logprobs_of(second).input_token_logprobs) == (
        0 if start < 0 else len(prompt) - start
    )


@pytest.mark.parametrize("wants", [False, True])
def test_only_steps_with_somebody_who_wants_some_compute_them(wants: bool) -> None:
    device, plain = open_device("sim"), SamplingParams(max_new_tokens=9, ignore_eos=True)
    requests = [Request("plain", [1, 2], plain)]
    requests += [wanting("wants", [3, 4], count=3)] if wants else []
    trace = run_loop("overlap", device, HashModel(VOCAB), requests).trace
    asked = {item.step for item in trace.on("forward") if "wants" in item.rids}
    computed = Counter(item.name for item in trace.slices if "logprobs" in item.name)
    assert {item.step for item in trace.slices if "logprobs" in item.name} == asked
    assert computed == (Counter({"logprobs": 3, "copy logprobs": 3}) if wants else Counter())


def test_run_shows_them_as_json_under_sglangs_names(cli: Any) -> None:
    line = "run --prompt abc --max-new-tokens 3 --json --return-logprob --top-logprobs-num 2"
    code, out, _ = cli(f"{line} --logprob-start-len 1")
    found, tokens = json.loads(out)["logprobs"]["r0"], json.loads(out)["outputs"]["r0"]
    assert code == 0 and [token for _, token in found["input_token_logprobs"]] == [98, 99]
    assert found["input_token_logprobs"][0][0] is None and found["input_top_logprobs"][0] == []
    assert [token for _, token in found["output_token_logprobs"]] == tokens
    best = [top[0] for top in found["output_top_logprobs"]]
    assert best == found["output_token_logprobs"], "greedy: it is the likeliest"


def test_their_difference_counts_up_to_where_tokens_differ() -> None:
    one, other = wanting("r", [1, 2]), wanting("r", [1, 2])
    mine = [TokenLogprob(-1.0, 5), TokenLogprob(-2.0, 6), TokenLogprob(-3, 7)]
    theirs = [TokenLogprob(-1.5, 5), TokenLogprob(-9.0, 4)]
    for req, found in ((one, mine), (other, theirs)):
        req.parts = (KnownLogprobs(req, output_token_logprobs=found),)
    assert largest_difference([one], [other]) == 0.5
    assert largest_difference([Request("r", [1])], [Request("r", [1])]) is None


# -- what can't be wished --------------------------------------------------------------------------

ON = {"return_logprob": True}
BAD: list[tuple[str, dict[str, Any]]] = [
    ("frequency_penalty is 2.5, but it must be between -2 and 2.", {"frequency_penalty": 2.5}),
    ("presence_penalty is nan, but", {"presence_penalty": float("nan")}),
    ("repetition_penalty is 0.0, but it must be between 0.001 and 2.", {"repetition_penalty": 0.0}),
    ("repetition_penalty is 2.1, but", {"repetition_penalty": 2.1}),
    ("logit_bias is 101.0 for token 3, but it must be between", {"logit_bias": {3: 101.0}}),
    ("logit_bias is nan for token 3, but", {"logit_bias": {3: float("nan")}}),
    ("logit_bias is for token 257, which is outside the", {"logit_bias": {1: 2.0, 257: 1.0}}),
    ("logit_bias is for token -1, which is outside the", {"logit_bias": {-1: 1.0}}),
    ("stop is '', but a stop string must have at least one", {"stop": ("fine", "")}),
    ("stop is 'abc', but it must be a tuple of strings.", {"stop": "abc"}),
    ("top_logprobs_num is 2, but it needs return_logprob, which is off.", {"top_logprobs_num": 2}),
    ("logprob_start_len is 0, but it needs return_logprob, which", {"logprob_start_len": 0}),
    ("top_logprobs_num is -1, but it must be at least 0.", {"top_logprobs_num": -1, **ON}),
    ("top_logprobs_num is 258, but the vocabulary has only 257", {"top_logprobs_num": 258, **ON}),
    ("logprob_start_len is -2, but it must be at least 0, or -1", {"logprob_start_len": -2, **ON}),
    ("logprob_start_len is 3, but the prompt has 3 tokens, so", {"logprob_start_len": 3, **ON}),
]


@pytest.mark.parametrize(("sentence", "wish"), BAD, ids=lambda item: str(item)[:30])
def test_a_bad_wish_ends_its_request_alone(sentence: str, wish: dict[str, Any]) -> None:
    strong = SamplingParams(presence_penalty=2.0, repetition_penalty=1.5, max_new_tokens=9)
    good, bad = [strong, strong], replace(SamplingParams(max_new_tokens=6), **wish)
    together, alone = run("overlap", [*good, bad]), run("serial", good)
    assert together.errors.keys() == {"c"} and together.errors["c"].startswith(sentence)
    assert together.requests[2].finish_reason is FinishReason.ERROR
    assert together.outputs == {**alone.outputs, "c": []}


def test_without_a_tokenizer_there_is_no_text_to_search(tiny_llama: Path) -> None:
    model, short = LlamaTorch(tiny_llama), SamplingParams(max_new_tokens=3, ignore_eos=True)
    assert model.tokenizer is None
    requests = [Request("plain", [1, 2], short), Request("r", [1, 2], replace(short, stop=("a",)))]
    found = run_loop("overlap", open_device("thread"), model, requests, SchedulerConfig())
    assert found.errors.keys() == {"r"} and "without a tokenizer" in found.errors["r"]
    assert len(found.outputs["plain"]) == 3


def test_a_model_without_logits_refuses() -> None:
    requests = [wanting("bad", [1, 2]), Request("good", [3], SamplingParams(max_new_tokens=2))]
    run = run_loop("overlap", open_device("sim"), LengthModel(5, 2, 64), requests)
    assert run.errors.keys() == {"bad"} and "computes no logits" in run.errors["bad"]
    assert len(requests[1].output_ids) == 2
