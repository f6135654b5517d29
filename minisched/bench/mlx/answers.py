"""Measures what was asked about SGLang #22416: caches, lengths, large batches, chained prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from statistics import median
from time import perf_counter, sleep

import mlx.core as mx

from ...core import Request, SamplingParams
from ...devices.cost import MILLISECOND, NO_COST
from ...devices.mlx import evaluate
from ...devices.wall_clock import done_by
from ...loops.run import fresh, run_to_end, warm_up
from ...models.base import Model
from ...scheduler import SchedulerConfig
from ..case import batch_of
from ..overlap.in_turn import Entry, in_turn, tokens_for
from ..rows import Figure, figure
from .caches import WAYS, Kept, Shape, decode, join, leave

SHAPES = (Shape(1, 512), Shape(8, 128), Shape(8, 512), Shape(32, 128))
STEPS = 5  # of a way of caching, before it is the next one's turn; the first one counts for nothing
BATCHES = (1, 2, 4, 8, 16, 32)
WORKS_MS = (0.0, 5.0)  # added to every step of the host, as a sleep
PROMPT_LEN, ROUNDS = 8, 4
LOOPS = ("serial", "mlx_async", "mlx_async:chain_extend=true")

Report = Callable[[str], None]


def answers(model: Model, repetitions: int, report: Report = lambda doing: None) -> list[Figure]:
    """All of it; every repetition has all that is compared, one after the other."""
    return [
        *caches(SHAPES, repetitions, report),
        *lengths(32, 30, repetitions),
        *large_batches(model, BATCHES, WORKS_MS, repetitions, report),
        *arriving_prompts(model, repetitions, report),
    ]


def asleep(cost: int) -> None:
    """Host work of so many nanoseconds that takes no core from the device, as beside a GPU."""
    sleep(cost / 1e9)


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of it."""
    start = perf_counter()
    work()
    return 1000 * (perf_counter() - start)


def caches(shapes: Sequence[Shape], repetitions: int, report: Report) -> list[Figure]:
    """A decode step's way through the KV of all layers; a request that comes, and one that goes."""
    figures = []
    for shape in shapes:
        name = f"{shape.rows} x {shape.length} positions"
        taken: dict[str, list[float]] = {}
        for repetition in range(repetitions):
            report(f"caches, {name}, repetition {repetition + 1} of {repetitions}")
            for way, (kind, _) in WAYS.items():
                for what, time in of_way(kind(shape), shape).items():
                    taken.setdefault(f"{name}, {way}: {what}", []).append(time)
        figures += [figure(row, times, "ms") for row, times in taken.items()]
        for way, (_, copied) in WAYS.items():
            for what in ("step", "join", "leave"):
                mib = getattr(copied, what)(shape) / 2**20
                figures.append(figure(f"{name}, {way}: copied by a {what}", [mib], "MiB"))
    return figures


def of_way(kept: Kept, shape: Shape) -> dict[str, float]:
    """Milliseconds of a step, of a join and of a leave."""
    steps = [timed(lambda: decode(kept, shape)) for _ in range(STEPS)]
    come = timed(lambda: join(kept, shape))
    return {"step": median(steps[1:]), "join": come, "leave": timed(lambda: leave(kept, shape))}


def lengths(rows: int, layers: int, repetitions: int) -> list[Figure]:
    """An array of the rows' lengths for each layer, and one for all of them (SGLang #23470)."""
    known = list(range(100, 100 + rows))

    def make(count: int) -> None:
        evaluate(*(mx.array(known, dtype=mx.int32) for _ in range(count)))

    counts = {f"{layers} arrays of {rows} lengths": layers, f"1 array of {rows} lengths": 1}
    taken: dict[str, list[float]] = {name: [] for name in counts}
    for _ in range(20 * repetitions):
        for name, count in counts.items():
            taken[name].append(timed(partial(make, count)))
    return [figure(name, times, "ms") for name, times in taken.items()]


def large_batches(
    model: Model,
    batches: Sequence[int],
    works_ms: Sequence[float],
    repetitions: int,
    report: Report,
) -> list[Figure]:
    """How many times as long a settled decode step takes serially as with ``mlx_async``."""
    figures = []
    for batch in batches:
        case = batch_of("mlx", model, batch, PROMPT_LEN, tokens_for(ROUNDS))
        warm_up(case.device, case.model, case.config)
        for work in works_ms:
            ratios, serial = [], []
            for repetition in range(repetitions):
                report(f"batch {batch}, {work:g} ms, repetition {repetition + 1} of {repetitions}")
                entries = {loop: Entry(loop, work, asleep) for loop in LOOPS[:2]}
                steps = in_turn(case, entries, ROUNDS)
                serial.append(steps["serial"].whole_ms)
                ratios.append(serial[-1] / steps["mlx_async"].whole_ms)
            name = f"batch {batch}, {work:g} ms slept"
            figures.append(figure(f"{name}: serial step", serial, "ms"))
            figures.append(figure(f"{name}: serial / mlx_async", ratios, "ratio"))
    return figures


def arriving_prompts(model: Model, repetitions: int, report: Report) -> list[Figure]:
    """Whole runs in which somebody waits for a place almost all the time, one after the other."""
    requests, config = crowd(model.vocab_size)
    taken: dict[str, dict[float, list[float]]] = {loop: {} for loop in LOOPS}
    for work in WORKS_MS:
        cost = NO_COST.with_host_work(round(work * MILLISECOND))
        for repetition in range(repetitions):
            report(f"arriving prompts, {work:g} ms, repetition {repetition + 1} of {repetitions}")
            for loop in LOOPS if repetition % 2 else LOOPS[::-1]:
                again = [fresh(request) for request in requests]
                with done_by(asleep):
                    run = run_to_end(loop, "mlx", model, again, config, cost)
                taken[loop].setdefault(work, []).append(run.trace.end / MILLISECOND)
    figures = []
    for work in WORKS_MS:
        name = f"16 prompts for 4 places, {work:g} ms slept"
        serial = taken["serial"][work]
        figures.append(figure(f"{name}: serial", serial, "ms"))
        for loop in LOOPS[1:]:
            ratios = [one / other for one, other in zip(serial, taken[loop][work], strict=True)]
            figures.append(figure(f"{name}: serial / {loop}", ratios, "ratio"))
    return figures


def crowd(vocab_size: int) -> tuple[list[Request], SchedulerConfig]:
    """Sixteen requests of different lengths, of which four may run at a time."""
    rng = Random(1)
    requests = [
        Request(
            f"r{at}",
            [rng.randrange(vocab_size) for _ in range(PROMPT_LEN)],
            SamplingParams(max_new_tokens=rng.randint(6, 24), ignore_eos=True),
        )
        for at in range(16)
    ]
    return requests, SchedulerConfig(kv_tokens=400, max_running_requests=4, context_len=64)
