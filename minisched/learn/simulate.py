"""A run whose host, device and copy take so many milliseconds a step."""

from __future__ import annotations

from math import inf

from ..checks.overlap.overlap import step_intervals
from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND, CostModel
from ..devices.registry import open_device
from ..loops.run import Run, run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig

TIE = 0.02  # two runs of which one takes so much longer at most: a tie
VOCAB = 97  # enough that a wrong token is hardly ever right by chance


def milliseconds(host: float, device: float, copy: float) -> CostModel:
    """Costs of one step; the host spends half of its time before a step and half behind it."""
    before = round(host * MILLISECOND / 2)
    return CostModel(
        {"schedule": before, "process": round(host * MILLISECOND) - before},
        forward_base=round(device * MILLISECOND),
        copy=round(copy * MILLISECOND),
    )


def simulate(
    loop: str = "serial",
    *,
    host_ms: float = 6,
    device_ms: float = 10,
    copy_ms: float = 1,
    requests: int = 2,
    new_tokens: int = 12,
    relay: str = "",
) -> Run:
    """Run a few equal requests through a loop, on a simulated device with a virtual clock.

    ``host_ms``, ``device_ms`` and ``copy_ms`` are what one step costs each of them. There is room
    for just these requests, so that a ring of future slots is as small as it gets.

    Raises:
        ValueError: a cost is negative or not finite, a count below 1, or the loop or relay unknown.
    """
    for name, value, least in (
        ("host_ms", host_ms, 0), ("device_ms", device_ms, 0), ("copy_ms", copy_ms, 0),
        ("requests", requests, 1), ("new_tokens", new_tokens, 1),
    ):  # fmt: skip
        if not isinstance(value, int | float) or not least <= value < inf:
            raise ValueError(
                f"{name} is {value!r}, but it must be a finite number of at least {least}."
            )
    params = SamplingParams(max_new_tokens=new_tokens)
    asked = [Request("abcdefgh"[at % 8] * (1 + at // 8), range(at, at + 4), params)
             for at in range(requests)]  # fmt: skip
    cost, model = milliseconds(host_ms, device_ms, copy_ms), HashModel(VOCAB, eos_ids=frozenset())
    config = SchedulerConfig(max_running_requests=requests)
    return run_loop(loop, open_device("sim"), model, asked, config, cost, relay)


def outcome(serial_ms: float, overlap_ms: float) -> str:
    """How overlap does beside serial: ``win``, ``tie`` or ``lose``."""
    factor = serial_ms / overlap_ms if overlap_ms else 1.0
    if abs(factor - 1) < TIE:
        return "tie"
    return "win" if factor > 1 else "lose"


def makespan_ms(run: Run) -> float:
    """From the first thing that anybody did to the last."""
    return run.trace.end / MILLISECOND


def settled_step_ms(run: Run) -> float | None:
    """From one step to the next, on average, in the middle of the run; None if it is too short."""
    between = step_intervals(run.trace)[4:-4]
    pairs = between[: len(between) // 2 * 2]  # two steps in flight may take turns
    return sum(pairs) / len(pairs) / MILLISECOND if pairs else None
