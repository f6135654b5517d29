"""Log-probabilities: the same bits on a backend whoever runs beside a request; what a cached prefix
leaves out; which steps compute them; what is refused.

What each schedule gives is compared with the oracle by ``tests/laws/test_every_design.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import mlx.core as mx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.laws import check_logprobs
from minisched.checks.tokens.logprobs import largest_difference
from minisched.core import Output, Request, SamplingParams, TokenLogprob
from minisched.devices.cost import CostModel
from minisched.loops.run import run_loop
from minisched.models import logprobs, logprobs_mlx, logprobs_torch
from minisched.models.hash import HashModel
from minisched.models.length import LengthModel
from minisched.scheduler import SchedulerConfig
from minisched.worker.logprobs import read_place
from tests.support import VOCAB, Workload, open_device

# -- by one row of logits --------------------------------------------------------------------------

logits = st.lists(st.floats(-20, 20, width=32), min_size=7, max_size=7)


def places(
    backend: str, rows: list[list[float]], tokens: list[int], top: int
) -> list[TokenLogprob]:
    """The places of a step, one for each row of logits."""
    at, found = list(range(len(rows))), list[Any]()
    if backend == "sim":
        found = list(logprobs.logprobs(rows, at, tokens, top))
    elif backend == "thread":
        wide = torch.tensor(rows, dtype=torch.float64)
        chosen = torch.tensor(at), torch.tensor(tokens)
        found += logprobs_torch.logprobs(wide, *chosen, top).tolist()
    else:
        with mx.stream(mx.cpu):
            array = mx.array(rows, dtype=mx.float64)
            values: Any = logprobs_mlx.logprobs(array, mx.array(at), mx.array(tokens), top)
            found += values.tolist()
    return [read_place(token, place, top) for token, place in zip(tokens, found, strict=True)]


@pytest.mark.parametrize("backend", ["sim", "thread", "mlx"])
@given(
    rows=st.lists(st.tuples(logits, st.integers(0, 6)), min_size=1, max_size=4),
    top=st.integers(0, 7),
)
def test_a_row_has_the_same_bits_whoever_is_beside_it(
    backend: str, rows: list[tuple[list[float], int]], top: int
) -> None:
    """And they are those of the definition: nearly, for an exponential is another one elsewhere."""
    both = [row for row, _ in rows], [token for _, token in rows]
    together = places(backend, *both, top)
    exact = places("sim", *both, top)
    for (row, token), place, truth in zip(rows, together, exact, strict=True):
        assert [place] == places(backend, [row], [token], top)
        assert place.logprob == pytest.approx(truth.logprob, abs=1e-6)
        assert len(place.top_logprobs) == top
        best = sorted(range(7), key=lambda at: (-row[at], at))[:top]
        assert [other for _, other in place.top_logprobs] == best


# -- which steps compute them ----------------------------------------------------------------------


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
    check_logprobs(Workload([second], [0], {}, config), heard)
    assert len(second.input_token_logprobs) == (0 if start < 0 else len(prompt) - start)


@pytest.mark.parametrize("wants", [False, True])
def test_only_steps_with_somebody_who_wants_some_compute_them(wants: bool) -> None:
    device, plain = open_device("sim"), SamplingParams(max_new_tokens=9, ignore_eos=True)
    requests = [Request("plain", [1, 2], plain)]
    requests += [wanting("wants", [3, 4], count=3)] if wants else []
    trace = run_loop("overlap", device, HashModel(VOCAB), requests).trace
    asked = {item.step for item in trace.on("forward") if "wants" in item.rids}
    computed = Counter(item.name for item in trace.slices if "logprobs" in item.name)
    assert {item.step for item in trace.slices if "logprobs" in item.name} == asked
    assert computed == (Counter({"logprobs": 4, "copy logprobs": 4}) if wants else Counter())


# -- what can't be asked for -----------------------------------------------------------------------


def test_a_model_without_logits_refuses() -> None:
    requests = [wanting("bad", [1, 2]), Request("good", [3], SamplingParams(max_new_tokens=2))]
    run = run_loop("overlap", open_device("sim"), LengthModel(5, 2, 64), requests)
    assert run.errors.keys() == {"bad"} and "computes no logits" in run.errors["bad"]
    assert len(requests[1].output_ids) == 2


# -- how they are told -----------------------------------------------------------------------------


def test_run_shows_them_as_json_under_sglangs_names(cli: Any) -> None:
    line = "run --prompt abc --max-new-tokens 3 --json --return-logprob --top-logprobs-num 2"
    code, out, err = cli(f"{line} --logprob-start-len 1")
    found, tokens = json.loads(out)["logprobs"]["r0"], json.loads(out)["outputs"]["r0"]
    assert code == 0 and [token for _, token in found["input_token_logprobs"]] == [98, 99]
    assert found["input_token_logprobs"][0][0] is None and found["input_top_logprobs"][0] == []
    assert [token for _, token in found["output_token_logprobs"]] == tokens
    assert [len(best) for best in found["output_top_logprobs"]] == [2] * 3
    logprob, top = found["output_token_logprobs"][0], found["output_top_logprobs"][0]
    assert top[0] == logprob, "greedy: it is the likeliest"
    assert f"r0 output: {tokens[0]} {logprob[0]:.2f} " in err and "r0 prompt: 98 - 99 -" in err


def test_their_difference_counts_up_to_where_tokens_differ() -> None:
    one, other = wanting("r", [1, 2]), wanting("r", [1, 2])
    one.output_token_logprobs = [TokenLogprob(-1.0, 5), TokenLogprob(-2.0, 6), TokenLogprob(-3, 7)]
    other.output_token_logprobs = [TokenLogprob(-1.5, 5), TokenLogprob(-9.0, 4)]
    assert largest_difference([one], [other]) == 0.5
    assert largest_difference([Request("r", [1])], [Request("r", [1])]) is None
