"""The score of a loop: three fixed workloads on the simulated device, next to serial and overlap.

Time is virtual there, so the figures are the same on every machine. ``minisched learn score FILE``
prints them, and ``lessons/leaderboard.md`` has those of all entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import geometric_mean
from typing import Any, NamedTuple

from ..checks.answers import Recorded
from ..checks.overlap import measure
from ..checks.verdict import verdicts_on
from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND, of_milliseconds
from ..devices.registry import open_device
from ..loops.run import Run, run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from .runs import VOCAB

COST = of_milliseconds(host=4, device=8, copy=1, token=0.05)
ENDS = frozenset({7, 31})  # end-of-text tokens of the model: no answer's length is known before
OWN_RULES: dict[str, Any] = {"disable_radix_cache": True, "context_len": 4096}

# -- The workloads ---------------------------------------------------------------------------------


class ScoreWorkload(NamedTuple):
    """Requests, made anew for each run, and the sizes of memory and chunks."""

    requests: Callable[[], Sequence[Request]]
    settings: dict[str, Any]

    @property
    def config(self) -> SchedulerConfig:
        """Return the scheduler's settings."""
        return SchedulerConfig(**OWN_RULES, **self.settings)


def asked(rid: str, prompt: int, answer: int, at_ms: float = 0, ends: bool = True) -> Request:
    """Return a request that arrives at ``at_ms``; with ``ends``, end of text may end it."""
    tokens = [sum(map(ord, rid)) * 31 + at * at for at in range(prompt)]
    params = SamplingParams(max_new_tokens=answer, ignore_eos=not ends)
    return Request(rid, [token % VOCAB for token in tokens], params, round(at_ms * MILLISECOND))


def with_a_document() -> list[Request]:
    """Return four chats, a document of 1,600 tokens that interrupts them, and two later chats."""
    chats = [asked(f"chat{at}", 16 + at, 60, 5 * at, ends=False) for at in range(4)]
    document = asked("document", 1600, 12, 150, ends=False)
    return [*chats, document, asked("late0", 24, 20, 200), asked("late1", 24, 20, 260)]


def with_little_memory() -> list[Request]:
    """Return sixteen requests of up to 60 tokens, most of which end early."""
    return [asked(f"req{at}", 10 + at * 7 % 20, 60, 15 * at) for at in range(16)]


def with_short_answers() -> list[Request]:
    """Return sixteen requests of up to 8 tokens."""
    return [asked(f"req{at}", 10 + at * 7 % 20, 8, 15 * at) for at in range(16)]


def with_many_prompts() -> list[Request]:
    """Return thirty requests, one every 25 ms, with prompts of 20 to 260 tokens."""
    return [
        asked(f"user{at}", 20 + at * 97 % 241, 8 + at * 13 % 33, 25 * at, ends=False)
        for at in range(30)
    ]


def with_prompts_at_once() -> list[Request]:
    """Return the thirty requests of ``with_many_prompts``, all at the same time."""
    for req in (requests := with_many_prompts()):
        req.arrival_time = 0
    return requests


WORKLOADS = {
    "document": ScoreWorkload(
        with_a_document,
        {"kv_tokens": 4096, "max_running_requests": 8, "chunked_prefill_size": 128},
    ),
    "little memory": ScoreWorkload(
        with_little_memory,
        {"kv_tokens": 256, "max_running_requests": 16, "chunked_prefill_size": 64, "page_size": 4},
    ),
    "many prompts": ScoreWorkload(
        with_many_prompts,
        {"kv_tokens": 4096, "max_running_requests": 24, "chunked_prefill_size": 256},
    ),
}
SECOND_WORKLOADS = {  # of open problems; they are no part of the score
    "short answers": ScoreWorkload(
        with_short_answers, {**WORKLOADS["little memory"].settings, "kv_tokens": 88}
    ),
    "prompts at once": ScoreWorkload(with_prompts_at_once, WORKLOADS["many prompts"].settings),
}


# -- The figures of a loop on them -----------------------------------------------------------------


class ScoreFigures(NamedTuple):
    """The figures of one loop on one workload; times in nanoseconds of virtual time."""

    makespan: int
    wasted_rows: int
    retractions: int
    p99_pause: int  # between two tokens of a request


def run_on(workload: ScoreWorkload, loop: str) -> Run:
    """Run a workload through a registered loop, or a name such as ``LOOP:RELAY:OPTION=2``."""
    name, _, rest = loop.partition(":")
    relay = rest.partition(":")[0]
    model = HashModel(VOCAB, eos_ids=ENDS)
    requests, config = workload.requests(), workload.config
    return run_loop(name, open_device("sim"), model, requests, config, COST, relay)


def figures_of(run: Run) -> ScoreFigures:
    """Return the figures of a run."""
    itl = run.metrics.itl
    return ScoreFigures(
        run.trace.end,
        measure(run.trace).wasted_rows,
        run.metrics.num_retractions,
        itl.p99 if itl else 0,
    )


@cache
def package_run(loop: str, workload: str) -> Run:
    """Return the run of a loop of the package, by the name of the workload."""
    return run_on((WORKLOADS | SECOND_WORKLOADS)[workload], loop)


def points(workload: str, own: ScoreFigures) -> float:
    """Return 100 times the root of speed-up times shorter pause; serial has 100."""
    serial = figures_of(package_run("serial", workload))
    speed_up = serial.makespan / max(1, own.makespan)
    return 100 * sqrt(speed_up * serial.p99_pause / max(1, own.p99_pause))


@dataclass(frozen=True)
class Score:
    """The figures of a loop by workload, or ``broken``: the law that a run broke, in a sentence."""

    figures: dict[str, ScoreFigures]
    broken: str = ""

    @property
    def points(self) -> float:
        """Return the geometric mean of the workloads' points; 0 if a law is broken."""
        if self.broken:
            return 0.0
        return round(geometric_mean(map(points, self.figures, self.figures.values())), 1)

    def as_json(self) -> dict[str, Any]:
        """Return the score for ``--json``."""
        return {
            "points": self.points,
            "broken": self.broken,
            "workloads": {name: figures._asdict() for name, figures in self.figures.items()},
        }


def score(loop: str) -> Score:
    """Return the score of a registered loop.

    Raises:
        ValueError: the loop is unknown, or refuses a setting of a workload.
    """
    found = dict[str, ScoreFigures]()
    for name, workload in WORKLOADS.items():
        try:
            run = run_on(workload, loop)
        except Exception as error:  # a scheduler of one's own may raise any error
            if isinstance(error, ValueError):
                raise
            return Score(found, f"{name}: {type(error).__name__}: {error}")
        if problem := broken_law(package_run("serial", name), run):
            return Score(found, f"{name}: {problem}")
        found[name] = figures_of(run)
    return Score(found)


def baseline(loop: str) -> Score:
    """Return the score of a loop of the package; the tests check its laws."""
    return Score({name: figures_of(package_run(loop, name)) for name in WORKLOADS})


def broken_law(serial: Run, run: Run) -> str:
    """Return a sentence on the first law that a run breaks, or ''."""
    if run.errors:
        rid, error = next(iter(run.errors.items()))
        return f"request {rid} has ended with an error: {error}"
    if run.outputs != serial.outputs:
        rid = next(rid for rid, ids in run.outputs.items() if ids != serial.outputs[rid])
        return f"request {rid} has other tokens than in the serial loop."
    runs = [Recorded("serial", serial.trace), Recorded("own", run.trace)]
    _, own = verdicts_on(runs)
    return next((answer.sentence for answer in own.answers if not answer.holds), "")


# -- The table of entries --------------------------------------------------------------------------

HEADS = ("", "workload", ">makespan", ">wasted rows", ">retractions", ">p99 pause")
ROW = re.compile(r"^\| \[?`(\w+)(?:\.py)?`(?:\]\(\S+\))? \| (?P<cells>.*) \|$", re.MULTILINE)
BETWEEN = " / "  # figures of one workload, in a cell of the leaderboard


def cells_of(figures: ScoreFigures) -> tuple[str, str, str, str]:
    """Return figures as cells of a table; times in ms."""
    makespan, pause = (
        f"{time / MILLISECOND:.1f} ms" for time in (figures.makespan, figures.p99_pause)
    )
    return makespan, str(figures.wasted_rows), str(figures.retractions), pause


def leaderboard_cells(own: Score) -> str:
    """Return the last cells of an entry's row in ``lessons/leaderboard.md``."""
    each = (BETWEEN.join(cells_of(figures)) for figures in own.figures.values())
    return " | ".join([*each, f"{own.points:.1f}"])


def entries(text: str) -> dict[str, tuple[str, ...]]:
    """Return the cells of each entry of a leaderboard, by name: the idea, figures, points."""
    return {found[1]: tuple(found["cells"].split(" | ")) for found in ROW.finditer(text)}


def best_of(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the name and the cells of the entry with the most points.

    Raises:
        ValueError: there is no entry.
    """
    found = entries(text)
    name = max(found, key=lambda name: float(found[name][-1]))
    return name, found[name]
