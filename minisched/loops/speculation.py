"""What speculation asks of a loop's wiring: a worker that verifies, a relay that carries drafts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..devices.base import Device
from ..models.base import Model
from ..scheduler import SchedulerConfig
from ..scheduler.state import Propose
from ..speculative.registry import make_drafter, propose_from_history
from ..worker import Worker
from ..worker.speculative import SpeculativeWorker
from .spec import LoopSpec

CARRIERS = ("host", "pool")  # relays that bring drafts and lengths from step to step
TAKES = (
    "with speculation a relay that carries drafts and lengths: the host itself, or the "
    "pool-indexed FutureMap, which has a cell for each"
)


class Speculation(NamedTuple):
    """How a loop's worker is made, and how the host drafts; both None without speculation."""

    worker: Callable[..., Worker] | None = None
    propose: Propose | None = None


def relays_for(loop: str, spec: LoopSpec, config: SchedulerConfig) -> tuple[tuple[str, ...], str]:
    """The relays that fit a loop as it is configured, and what it wants of one.

    Raises:
        ValueError: the original does not speculate in this way; the sentence gives its reason.
    """
    algorithm = config.speculative_algorithm
    if not algorithm:
        return spec.relays, spec.takes
    if algorithm in spec.refuses:
        raise ValueError(
            f"loop {loop!r} does not speculate with {algorithm}: {spec.refuses[algorithm]}."
        )
    carriers = tuple(name for name in spec.relays if name in CARRIERS)
    if not carriers:  # the loop's name asks for another one
        raise ValueError(
            f"relay {spec.relays[0]!r} does not fit loop {loop!r}: the loop wants {TAKES}."
        )
    return carriers, TAKES


def speculate(config: SchedulerConfig, device: Device, model: Model) -> Speculation:
    """The parts that do it.

    Raises:
        ValueError: there is no such draft model, or it has another vocabulary.
    """
    if not config.speculative_algorithm:
        return Speculation()
    if config.speculative_algorithm == "NGRAM":
        worker = partial(SpeculativeWorker, num_draft_tokens=config.num_draft_tokens)
        return Speculation(worker, propose_from_history)
    drafter = make_drafter(config, device.name, model)
    return Speculation(
        partial(SpeculativeWorker, num_draft_tokens=config.num_draft_tokens, drafter=drafter)
    )
