"""Tensor parallelism on several processes: one loop on every rank, each with its own scheduler.

What they must have in common, and how it is noticed if they don't, is in ``engine/ranks.py``; what
each computes is in ``models/llama_tp.py``. The trace is rank 0's: the others run the same steps, as
the digests say, and their parts of a sum are inside of the op ``forward``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from ..devices.dist import Ranks, WrongRanks, begin, current
from ..devices.thread import TorchDevice
from ..engine.metrics import Metrics
from ..engine.ranks import RanksDisagree, TPEngine
from ..models.base import SplitModel
from ..trace.recorder import NullRecorder
from .run import RunSetup, drive, setup_of, wire


def whole_run(setup: RunSetup, **options: Any) -> Metrics:
    """Rank 0: run a loop on all ranks. If one is lost, all requests end with that reason.

    Raises:
        WrongRanks: there are more of them than were asked for, or fewer.
        ValueError: the model can't be split, or not over so many.
        RanksDisagree: two have decided differently.
        RankLost: a rank is; the loop has come to its end all the same.
    """
    ranks, model = current(), setup.model
    if setup.spec.num_ranks != ranks.size:
        raise WrongRanks(
            f"loop {setup.loop!r} takes {setup.spec.num_ranks} ranks, but there are {ranks.size}."
        )
    if not isinstance(model, SplitModel):
        raise ValueError(
            f"model {model.name!r} can't be split over ranks: a Llama can that was opened for it, "
            "with --tp."
        )
    model.share(0, ranks.size, ranks.all_gather)  # or say now that it can't
    with ranks.calling(other_rank, setup.for_others()):
        engine = turn(ranks, setup)
        if engine.lost is not None:
            raise engine.lost
    return engine.metrics


def other_rank(ranks: Ranks, given: tuple[Any, ...]) -> None:
    """Every other rank: the same. If they disagree, rank 0 says so.

    Raises:
        RankLost: a rank was lost before all had begun.
    """
    with setup_of(*given) as setup, suppress(RanksDisagree):
        turn(ranks, setup)


def turn(ranks: Ranks, setup: RunSetup) -> TPEngine:
    """Every rank: turn the loop until the last request has ended.

    Raises:
        RankLost: a rank was lost before all had begun.
    """
    model = cast(SplitModel, setup.model).share(ranks.rank, ranks.size, ranks.all_gather)
    made = wire(replace(setup, model=model), engine_class=partial(TPEngine, ranks=ranks))
    begin(ranks, cast(TorchDevice, setup.device))
    ranks.recorder = NullRecorder()  # each rank's own acts are all that its trace is about
    drive(setup.spec.start(made), made)
    return cast(TPEngine, made)
