"""Tensor parallelism on several processes: one loop on every rank, each with its own scheduler.

What they must have in common, and how it is noticed if they don't, is in ``engine/ranks.py``; what
each computes is in ``models/llama_tp.py``. The trace is rank 0's: the others run the same steps, as
the digests say, and their parts of a sum are inside of the op ``forward``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from ..core import Request
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..devices.dist import Ranks, WrongRanks, begin, current
from ..devices.registry import open_device
from ..devices.thread import TorchDevice
from ..engine.frontend import Frontend
from ..engine.metrics import Metrics
from ..engine.ranks import RanksDisagree, TPEngine
from ..models.base import Model, SplitModel
from ..models.registry import opened_again, origin_of
from ..scheduler import SchedulerConfig
from ..trace.recorder import NullRecorder
from .design import Design, find_loop
from .run import drive, warm_up, wire


def whole_run(
    spec: Design,
    device: Device,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    frontend: Frontend,
    cost: CostModel = NO_COST,
    relay: str = "",
    **options: object,
) -> Metrics:
    """Rank 0: run a loop on all ranks. If one is lost, all requests end with that reason.

    Raises:
        WrongRanks: there are more of them than were asked for, or fewer.
        ValueError: the model can't be split, or not over so many.
        RanksDisagree: two have decided differently.
        RankLost: a rank is; the loop has come to its end all the same.
    """
    ranks = current()
    if spec.num_ranks != ranks.size:
        raise WrongRanks(
            f"loop {spec.split_as!r} takes {spec.num_ranks} ranks, but there are {ranks.size}."
        )
    if not isinstance(model, SplitModel):
        raise ValueError(
            f"model {model.name!r} can't be split over ranks: a Llama can that was opened for it, "
            "with --tp."
        )
    model.share(0, ranks.size, ranks.all_gather)  # or say now that it can't
    how = spec.split_as, config, cost, relay, options
    ranks.call(other_rank, origin_of(model), *how)
    engine = turn(ranks, device, model, frontend, *how)
    if engine.lost is not None:
        raise engine.lost
    return engine.metrics


def other_rank(ranks: Ranks, origin: Any, loop: str, config: SchedulerConfig, *how: Any) -> None:
    """Every other rank: the same. If they disagree, rank 0 says so.

    Raises:
        RankLost: a rank was lost before all had begun.
    """
    model = opened_again(origin)
    warm_up("dist", model, config)
    device = open_device("dist")
    try:
        with suppress(RanksDisagree):
            turn(ranks, device, cast(SplitModel, model), Frontend(), loop, config, *how)
    finally:
        device.close()


def turn(
    ranks: Ranks,
    device: Device,
    model: SplitModel,
    frontend: Frontend,
    loop: str,
    config: SchedulerConfig,
    cost: CostModel,
    relay: str,
    options: Mapping[str, object],
) -> TPEngine:
    """Every rank: turn the loop until the last request has ended.

    Raises:
        RankLost: a rank was lost before all had begun.
    """
    spec = find_loop(loop)
    spec = replace(spec, options={**spec.options, **options})
    share = model.share(ranks.rank, ranks.size, ranks.all_gather)
    of_rank = partial(TPEngine, ranks=ranks)
    made = wire(loop, spec, device, share, config, frontend, cost, relay, engine_class=of_rank)
    begin(ranks, cast(TorchDevice, device))
    ranks.recorder = NullRecorder()  # each rank's own acts are all that its trace is about
    drive(spec.start(made, **options), made)
    return cast(TPEngine, made)
