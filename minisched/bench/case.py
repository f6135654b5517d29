"""What a bench runs on a real device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import Request, SamplingParams
from ..models.base import Model
from ..scheduler import SchedulerConfig


@dataclass(frozen=True)
class Case:
    """A workload for one device."""

    device: str
    model: Model
    requests: Sequence[Request]
    config: SchedulerConfig


def batch_of(device: str, model: Model, batch: int, prompt_len: int, new_tokens: int) -> Case:
    """``batch`` requests alike that come at once and run to their length together."""
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    requests = [
        Request(f"r{row}", [(row + at) % model.vocab_size for at in range(prompt_len)], params)
        for row in range(batch)
    ]
    longest = prompt_len + new_tokens
    config = SchedulerConfig(
        kv_tokens=batch * (longest + 1) + 1,
        max_running_requests=batch,
        context_len=longest,
        chunked_prefill_size=-1,
    )
    return Case(device, model, requests, config)
