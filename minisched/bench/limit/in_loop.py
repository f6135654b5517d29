"""A decode step where it belongs: between two others, in a loop on the thread device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch

from ...models.base import Model
from ...models.llama_torch import LlamaTorch
from ..arm import SETTLING, running
from ..case import Case, batch_of
from .parts import Shape

LOOP = "overlap"
STEPS = 4  # timed together
SPARE = 4  # tokens of a request that come after them


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Lets torch take so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step_ms(model: LlamaTorch, shape: Shape, cores: int) -> float:
    """Milliseconds from one step to the next, where the host's work is hidden.

    The device takes one thread less than ``cores``.
    """
    with threads(cores), running(case_of(model, shape), LOOP) as arm:
        return arm.go_on(STEPS).wall / STEPS / 1e6


def case_of(model: LlamaTorch, shape: Shape) -> Case:
    """Requests whose prompts are all but a few tokens of what the shape has before its step."""
    prompt_len = max(1, shape.before - SETTLING)
    return batch_of("thread", cast(Model, model), shape.batch, prompt_len, SETTLING + STEPS + SPARE)
