"""The laws with a bound that fits a case of two requests: a livelock need not be long."""

from __future__ import annotations

from itertools import count

from ..checks.case import Case
from ..checks.judge import Verdict, judge
from ..checks.play import Livelock
from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine

MOST = 40  # schedules; a case of two short requests needs ten


def judge_soon(case: Case) -> Verdict:
    """Every law; who has not ended after ``MOST`` schedules never will."""

    def watch(engine: Engine) -> None:
        scheduler, schedules = engine.scheduler, count(1)
        next_batch = scheduler.next_batch

        def counted() -> ScheduleBatch | NoBatch:
            if next(schedules) > MOST:
                left = " and ".join(scheduler.live)
                raise Livelock(f"after {MOST} schedules, {left} have not ended")
            return next_batch()

        scheduler.next_batch = counted  # type: ignore[method-assign]

    return judge(case, watch)
