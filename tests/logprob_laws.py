"""Workloads that want log-probabilities, and what each request must be given: all of it, once."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from minisched.checks.tokens.oracle import hash_logits
from minisched.core import Output, Request, TokenLogprob
from minisched.models.hash import LOGIT_SCALE
from minisched.models.mix import P
from minisched.worker.logprobs import read_place

from .laws import Broken
from .workloads import VOCAB, Workload, workloads


@st.composite
def with_logprobs(
    draw: st.DrawFn, plain: st.SearchStrategy[Workload] | None = None, vocab: int = VOCAB
) -> Workload:
    """The same workload, but most of its requests want some."""
    workload = draw(workloads() if plain is None else plain)
    for req in workload.requests:
        if draw(st.sampled_from([True, True, True, False])):
            req.params = replace(
                req.params,
                return_logprob=True,
                top_logprobs_num=draw(st.sampled_from([0, 1, 2, vocab])),
                logprob_start_len=draw(st.sampled_from([-1, 0, *range(len(req.prompt))])),
            )
    return workload


def place_alone(backend: str, logits: list[float], token: int, top: int) -> TokenLogprob:
    """One token by one row of logits, with nobody beside it."""
    found: Any
    if backend == "sim":
        from minisched.models.logprobs import logprobs

        found = logprobs([logits], [0], [token], top)
    elif backend == "thread":
        import torch

        from minisched.models import logprobs_torch

        at, chosen = torch.tensor([0]), torch.tensor([token])
        rows = torch.tensor([logits], dtype=torch.float64)
        found = logprobs_torch.logprobs(rows, at, chosen, top)
    else:
        import mlx.core as mx

        from minisched.models import logprobs_mlx

        with mx.stream(mx.cpu):
            rows = mx.array([logits], dtype=mx.float64)
            found = logprobs_mlx.logprobs(rows, mx.array([0]), mx.array([token]), top)
    return read_place(token, found.tolist()[0], top)


@lru_cache(maxsize=20_000)
def alone(backend: str, before: tuple[int, ...], token: int, top: int, vocab: int) -> TokenLogprob:
    """A token behind others, by the hash model's definition."""
    exact = [round(logit * P / 10) for logit in hash_logits(list(before), vocab)]
    return place_alone(backend, [value * LOGIT_SCALE for value in exact], token, top)


def truth(backend: str, req: Request, vocab: int) -> tuple[list[TokenLogprob], list[TokenLogprob]]:
    """Those of the prompt, and those of the output, of a request alone."""
    tokens, start, top = [*req.prompt, *req.output_ids], req.params.logprob_start_len, 0
    if not req.params.return_logprob:
        return [], []
    top, num_prompt = req.params.top_logprobs_num, len(req.prompt)

    def at(position: int) -> TokenLogprob:
        return alone(backend, tuple(tokens[:position]), tokens[position], top, vocab)

    of_prompt = []
    if start >= 0:
        of_prompt = [TokenLogprob(None, tokens[start]), *map(at, range(start + 1, num_prompt))]
    return of_prompt, list(map(at, range(num_prompt, len(tokens))))


def check_logprobs(
    workload: Workload, outputs: list[Output], backend: str = "sim", vocab: int = VOCAB
) -> None:
    """Every request knows, and its client heard, what it would get alone, to the last bit."""
    for req in workload.requests:
        if req.error:
            raise Broken(f"logprobs: {req.rid} ended because {req.error}")
        of_prompt, of_output = truth(backend, req, vocab)
        if req.output_token_logprobs != of_output:
            raise Broken(f"logprobs: {req.rid} has {req.output_token_logprobs}, not {of_output}")
        known = req.input_token_logprobs
        if known != (of_prompt if req.output_ids else of_prompt[: len(known)]):
            raise Broken(f"logprobs: {req.rid}'s prompt has {known}, not {of_prompt}")
        heard = [output for output in outputs if output.rid == req.rid and output.token is not None]
        if not req.params.return_logprob:
            assert not any(output.logprobs for output in heard)
            continue
        for number, output in enumerate(heard):
            assert output.logprobs is not None
            told = output.logprobs.input_token_logprobs, output.logprobs.output_token_logprobs
            if told != ([] if number else of_prompt, [of_output[number]]):
                raise Broken(f"logprobs: {req.rid} was told {told} with output {number}")
