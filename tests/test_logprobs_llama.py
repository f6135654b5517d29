"""Log-probabilities of real forwards: bit by bit the same, and those of another library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.tokens.logprobs import OF_FLOATS
from minisched.core import Request, SamplingParams, TokenLogprob
from minisched.devices.registry import open_device
from minisched.loops.run import run_loop
from minisched.models import logprobs, logprobs_mlx, logprobs_torch
from minisched.models.base import Model
from minisched.models.llama_mlx import LlamaMlx
from minisched.models.llama_torch import LlamaTorch
from minisched.scheduler import SchedulerConfig
from tests.logprob_laws import with_logprobs
from tests.support import PROMPTS, Workload, fresh, hash_model, play
from tests.test_torch import CONTEXT, llama_workloads

DEVICES = ("thread", "mlx")
LOOPS = [("serial", "host"), ("overlap", "ring"), ("mlx_async", "chain"), ("vllm_async", "pool")]
NEW_TOKENS = 16

EVERY_DEVICE = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# -- one row at a time, on every backend ---------------------------------------------------------

few = st.integers(0, 6)  # so that many are equal
matrices = st.lists(st.lists(few, min_size=7, max_size=7), min_size=1, max_size=4)


def on_every_backend(rows: list[list[float]], tokens: list[int], top: int) -> list[Any]:
    """What each gives for a token of each row."""
    at = list(range(len(rows)))
    of_torch = logprobs_torch.logprobs(
        torch.tensor(rows, dtype=torch.float64), torch.tensor(at), torch.tensor(tokens), top
    )
    with mx.stream(mx.cpu):
        matrix = mx.array(rows, dtype=mx.float64)
        of_mlx = logprobs_mlx.logprobs(matrix, mx.array(at), mx.array(tokens), top)
    return [logprobs.logprobs(rows, at, tokens, top), of_torch.tolist(), of_mlx.tolist()]


@given(values=matrices, top=st.integers(0, 7), data=st.data())
@settings(max_examples=200, deadline=None)
def test_of_equals_the_lower_ids_come_first_on_every_backend(
    values: list[list[int]], top: int, data: Any
) -> None:
    rows = [[value / 3 for value in row] for row in values]
    tokens = [data.draw(few) for _ in rows]
    for found in on_every_backend(rows, tokens, top):
        for row, token, place in zip(rows, tokens, found, strict=True):
            total = torch.tensor(row, dtype=torch.float64).exp().sum().log().item()
            best = sorted(range(7), key=lambda other: (-row[other], other))[:top]
            assert place[1 + top :] == best
            expected = [row[other] - total for other in (token, *best)]
            assert place[: 1 + top] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.bfloat16])
def test_a_long_row_is_added_up_without_losing_much(dtype: mx.Dtype) -> None:
    """Eight alike rows of MLX's, and torch's float64 on the same logits."""
    values = torch.randn(8, 49157, generator=torch.Generator().manual_seed(1)) * 3
    with mx.stream(mx.cpu):
        rows = mx.array(values.tolist()).astype(dtype)
        tokens = mx.arange(8) * 6000
        together = logprobs_mlx.logprobs(rows, mx.arange(8), tokens, 2).tolist()
        exact = torch.tensor(rows.astype(mx.float64).tolist(), dtype=torch.float64)
        for at in range(8):
            one = rows[at : at + 1], mx.array([0]), tokens[at : at + 1]
            assert logprobs_mlx.logprobs(*one, 2).tolist()[0] == together[at], "the same bits"
    truth = torch.log_softmax(exact, -1)
    for at, place in enumerate(together):
        assert place[0] == pytest.approx(truth[at, at * 6000].item(), abs=1e-5)
        assert place[1:3] == pytest.approx(truth[at].topk(2).values.tolist(), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_row_gets_the_same_bits_beside_others(dtype: torch.dtype, threads: int) -> None:
    count = 100  # of which logsumexp would spoil a few
    rows = (torch.randn(count, 49152, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    tokens = torch.arange(count) * 400
    torch.set_num_threads(threads)
    together = logprobs_torch.logprobs(rows, torch.arange(count), tokens, 5)
    alone = [
        logprobs_torch.logprobs(rows[at : at + 1], torch.tensor([0]), tokens[at, None], 2)
        for at in range(count)
    ]
    torch.set_num_threads(1)
    assert torch.equal(torch.cat(alone), together[:, [0, 1, 2, 6, 7]])
    assert together.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


# -- a tiny Llama --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> dict[str, Model]:
    return {"thread": LlamaTorch(tiny_llama, context_len=CONTEXT), "mlx": LlamaMlx(tiny_llama)}


def told(req: Request) -> tuple[list[TokenLogprob], list[TokenLogprob]]:
    """All that a request was given."""
    return req.input_token_logprobs, req.output_token_logprobs


def alone(req: Request, model: Model, device: str) -> Request:
    """The same request with the machine to itself: no cache, no chunks."""
    again = Request(req.rid, req.prompt, req.params)
    config = SchedulerConfig(
        disable_radix_cache=True, chunked_prefill_size=-1, max_running_requests=1,
        context_len=CONTEXT,
    )  # fmt: skip
    run_loop("serial", open_device(device), model, [again], config)
    return again


@pytest.mark.parametrize(("loop", "relay"), LOOPS)
@EVERY_DEVICE
@given(workload=with_logprobs(llama_workloads(), 512))
@settings(max_examples=12, deadline=None)
def test_a_llama_gives_the_same_bits_in_every_schedule(
    device: str, loop: str, relay: str, workload: Workload, tiny: dict[str, Model]
) -> None:
    play(workload, loop, relay, {}, open_device(device), tiny[device])
    for req in workload.requests:
        truth = alone(req, tiny[device], device)
        assert req.output_ids == truth.output_ids
        assert told(req) == told(truth)


@EVERY_DEVICE
def test_float32_logits_stay_float32(device: str, tiny: dict[str, Model]) -> None:
    params = SamplingParams(max_new_tokens=3, return_logprob=True)
    request = alone(Request("r", [1, 2, 3], params), tiny[device], device)
    for logprob, *_ in request.output_token_logprobs:
        assert logprob == torch.tensor(logprob, dtype=torch.float32).item()


# -- a real model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)


def check_against(theirs: Any, req: Request) -> None:
    """Every log-probability, and every one of the most likely tokens, by one pass of theirs."""
    tokens, num_prompt = [*req.prompt, *req.output_ids], len(req.prompt)
    with torch.no_grad():
        logits = theirs(torch.tensor([tokens])).logits[0]
    truth = torch.log_softmax(logits, -1)
    start = req.params.logprob_start_len
    of_prompt, of_output = told(req)
    assert of_prompt[0] == TokenLogprob(None, req.prompt[start])
    places = [*enumerate(of_prompt[1:], start + 1), *enumerate(of_output, num_prompt)]
    assert len(places) == len(tokens) - start - 1
    for position, found in places:
        row = truth[position - 1]
        assert found.token_id == tokens[position]
        assert found.logprob == pytest.approx(row[found.token_id].item(), abs=OF_FLOATS)
        best = row.topk(req.params.top_logprobs_num).values.tolist()
        assert [value for value, _ in found.top_logprobs] == pytest.approx(best, abs=OF_FLOATS)
        for value, token in found.top_logprobs:
            assert value == pytest.approx(row[token].item(), abs=OF_FLOATS)


@pytest.mark.weights
@EVERY_DEVICE
def test_smollm2_gives_those_of_transformers(device: str, smollm2: Path, theirs: Any) -> None:
    model: Any = (LlamaTorch if device == "thread" else LlamaMlx)(smollm2)
    requests = [
        Request(
            f"r{i}",
            model.tokenizer.encode(text),
            SamplingParams(
                max_new_tokens=NEW_TOKENS, ignore_eos=True, temperature=0.7 * (i % 2),
                return_logprob=True, top_logprobs_num=5, logprob_start_len=i % 3,
            ),
        )
        for i, text in enumerate(PROMPTS[:6])
    ]  # fmt: skip
    config = SchedulerConfig(chunked_prefill_size=12, page_size=4, max_running_requests=5)
    run_loop("overlap", open_device(device), model, requests, config)
    for req in requests:
        assert len(req.output_token_logprobs) == NEW_TOKENS
        check_against(theirs, req)


# -- a GPU ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.cuda
@given(workload=with_logprobs())
@settings(max_examples=20, deadline=None)
def test_cuda_gives_the_same_bits_in_every_schedule(workload: Workload) -> None:
    found = []
    for loop, relay in LOOPS:
        again = fresh(workload)
        model = hash_model("cuda", workload.eos_ids)
        play(replace(again, aborts={}), loop, relay, {}, open_device("cuda"), model)
        found.append([told(req) for req in again.requests])
    assert all(item == found[0] for item in found)
