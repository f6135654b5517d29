"""Workloads that want log-probabilities, and what each request must be given: all of it, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from hypothesis import strategies as st

from minisched.checks.clients import told_each
from minisched.checks.tokens.logprobs import Both, find_unlike
from minisched.checks.tokens.oracle import hash_logits, logprobs_alone
from minisched.core import Output, Request, TokenLogprob
from minisched.worker.logprobs import read_place
from tests.support import VOCAB, Broken, Workload, workloads


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
    if backend == "thread":
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
def on_backend(
    backend: str, before: tuple[int, ...], token: int, top: int, vocab: int
) -> TokenLogprob:
    """A token behind others, by the hash model's definition."""
    return place_alone(backend, hash_logits(before, vocab), token, top)


def alone_on(backend: str, req: Request, vocab: int) -> Both:
    """What the oracle says, but to the last bit of a backend's own arithmetic."""
    tokens, top = [*req.prompt, *req.output_ids], req.params.top_logprobs_num
    of_prompt, of_output = logprobs_alone(req, vocab)
    first, num_prompt = len(req.prompt) - len(of_prompt), len(req.prompt)

    def again(start: int, places: list[TokenLogprob]) -> list[TokenLogprob]:
        return [
            place
            if place.logprob is None
            else on_backend(backend, tuple(tokens[:at]), tokens[at], top, vocab)
            for at, place in enumerate(places, start)
        ]

    return again(first, of_prompt), again(num_prompt, of_output)


def check_logprobs(
    workload: Workload, outputs: Sequence[Output], backend: str = "sim", vocab: int = VOCAB
) -> None:
    """Every request knows, and its client heard, what it would get alone, to the last bit."""
    for req in workload.requests:
        if req.error:
            raise Broken(f"logprobs: {req.rid} ended because {req.error}")
    told = told_each(workload, outputs)
    alone = logprobs_alone if backend == "sim" else partial(alone_on, backend)
    for sentence in find_unlike(told, vocab, alone=alone):
        raise Broken(f"logprobs: {sentence}")
