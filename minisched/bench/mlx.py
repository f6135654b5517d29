"""Measures what was asked about SGLang #22416: caches, lengths, large batches, chained prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from time import perf_counter, sleep

import mlx.core as mx

from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND, NO_COST
from ..devices.mlx import evaluate
from ..devices.wall_clock import done_by
from ..loops.run import fresh, run_to_end, warm_up
from ..models.base import Model
from ..scheduler import SchedulerConfig
from .arms import batch_of
from .figures import Figure, figure
from .overlap import LoopEntry, in_turn, tokens_for

# -- Three ways to keep KV on MLX, and what each copies: a cache per request, a batch, pages -------
#
# The question of the discussion of SGLang #22416. Each way is written here as small as it goes, in
# MLX's own calls: what is compared is what lies where, not three libraries.

BYTES = 4  # of a float32


@dataclass(frozen=True)
class KvLayout:
    """What is kept: ``rows`` requests that have come to position ``length``, in ``layers``.

    The numbers of layers and heads are SmolLM2-135M's, unless given.
    """

    rows: int
    length: int
    layers: int = 30
    kv_heads: int = 3
    head_dim: int = 64
    room: int = 32  # positions behind ``length`` for which there is memory

    @property
    def token_bytes(self) -> int:
        """K and V of one position, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES

    @property
    def capacity(self) -> int:
        """Positions of a request for which there is memory."""
        return self.length + self.room

    @property
    def attended_bytes(self) -> int:
        """All that a step attends to."""
        return self.rows * (self.length + 1) * self.token_bytes

    @property
    def prompt_bytes(self) -> int:
        """What a prompt has left, brought to its place."""
        return self.length * self.token_bytes


# Of each way: ``advance`` begins a step, which all layers share. ``update`` keeps K and V of one
# position, [rows, kv_heads, 1, head_dim] each, and gives all, [rows, kv_heads, width, head_dim].
# ``join`` takes in a prompt, [1, kv_heads, length, head_dim], the same in all layers; ``leave``
# ends the first request. ``copied`` says how many bytes are moved once more than the attention has
# to read them: by a step, by a join, and by a leave, of that many rows that stay.


class PerRequest:
    """K and V of each request and layer in an array of their own, from which a step makes a batch.

    SGLang ``hardware_backend/mlx`` since #20561: nothing is copied when requests come and go.
    """

    def __init__(self, shape: KvLayout) -> None:
        self.shape, self.end = shape, shape.length
        self.kept = [self._empty() for _ in range(shape.rows)]
        evaluate(*self.arrays())

    def _empty(self) -> list[list[mx.array]]:
        at = (1, self.shape.kv_heads, self.shape.capacity, self.shape.head_dim)
        return [[mx.zeros(at), mx.zeros(at)] for _ in range(self.shape.layers)]

    def advance(self) -> None:
        """One position on."""
        self.end += 1

    def update(self, layer: int, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
        """Write into each request's arrays, then put them side by side."""
        for row, kept in enumerate(self.kept):
            for new, old in zip((k, v), kept[layer], strict=True):
                old[:, :, self.end - 1 : self.end] = new[row : row + 1]
        keys, values = (
            mx.concatenate([kept[layer][part][:, :, : self.end] for kept in self.kept])
            for part in (0, 1)
        )
        return keys, values

    def join(self, k: mx.array, v: mx.array) -> None:
        """New arrays."""
        kept = self._empty()
        for layer in kept:
            for new, old in zip((k, v), layer, strict=True):
                old[:, :, : self.shape.length] = new
        self.kept.append(kept)

    def leave(self) -> None:
        """Its arrays go."""
        del self.kept[0]

    @staticmethod
    def copied(shape: KvLayout) -> tuple[int, int, int]:
        """The batch of a step, unless it is one cache as it lies; and a prompt."""
        return shape.attended_bytes * (shape.rows > 1), shape.prompt_bytes, 0

    def arrays(self) -> list[mx.array]:
        """Each request's."""
        return [part for kept in self.kept for layer in kept for part in layer]


class Batched:
    """K and V of all requests in one array a layer, a row for each.

    mlx-lm's ``BatchKVCache``, with prompts padded on the left, so that all are at one position. A
    step reads it as it lies; the array is made anew when somebody comes or goes.
    """

    def __init__(self, shape: KvLayout) -> None:
        self.shape, self.end = shape, shape.length
        at = (shape.rows, shape.kv_heads, shape.capacity, shape.head_dim)
        self.kept = [[mx.zeros(at), mx.zeros(at)] for _ in range(shape.layers)]
        evaluate(*self.arrays())

    def advance(self) -> None:
        """One position on."""
        self.end += 1

    def update(self, layer: int, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
        """Write a column, and read what lies there."""
        for new, old in zip((k, v), self.kept[layer], strict=True):
            old[:, :, self.end - 1 : self.end] = new
        keys, values = (part[:, :, : self.end] for part in self.kept[layer])
        return keys, values

    def join(self, k: mx.array, v: mx.array) -> None:
        """An array with a row more."""
        at = (1, self.shape.kv_heads, self.shape.capacity - self.shape.length, self.shape.head_dim)
        rows = [mx.concatenate([new, mx.zeros(at)], axis=2) for new in (k, v)]
        self.kept = [
            [mx.concatenate([old, new]) for new, old in zip(rows, layer, strict=True)]
            for layer in self.kept
        ]

    def leave(self) -> None:
        """An array of the other rows."""
        rest = mx.arange(1, self.kept[0][0].shape[0])
        self.kept = [[part[rest] for part in layer] for layer in self.kept]

    @staticmethod
    def copied(shape: KvLayout) -> tuple[int, int, int]:
        """Everybody's, whenever somebody comes or goes."""
        each = shape.capacity * shape.token_bytes
        return 0, (shape.rows + 1) * each, shape.rows * each

    def arrays(self) -> list[mx.array]:
        """Two a layer."""
        return [part for layer in self.kept for part in layer]


class Pages:
    """K and V of all requests in one pool a layer; a table says where each position lies.

    This project's (``models/llama_mlx.py``, whose page here is one position): a step gathers
    what its rows attend to. Prefixes are shared, and nobody's KV moves.
    """

    def __init__(self, shape: KvLayout) -> None:
        self.shape, self.end = shape, shape.length
        slots = (shape.rows + 1) * shape.capacity
        at = (slots, 2 * shape.kv_heads, shape.head_dim)
        self.kept = [mx.zeros(at) for _ in range(shape.layers)]
        self.rows = list(range(shape.rows))
        evaluate(*self.arrays())

    def advance(self) -> None:
        """One position on: where it goes, and where all before it lie, once for all layers."""
        begin = mx.array(self.rows)[:, None] * self.shape.capacity
        heads = mx.arange(2 * self.shape.kv_heads)[:, None, None]
        self.write = begin[:, 0] + self.end
        self.end += 1
        self.read = (begin + mx.arange(self.end)) * (2 * self.shape.kv_heads) + heads

    def update(self, layer: int, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
        """Write one slot a row, and gather the rest."""
        pool, heads = self.kept[layer], self.shape.kv_heads
        pool[self.write] = mx.concatenate([k[:, :, 0], v[:, :, 0]], axis=1)
        both = pool.reshape(-1, self.shape.head_dim)[self.read]
        return both[:heads].swapaxes(0, 1), both[heads:].swapaxes(0, 1)

    def join(self, k: mx.array, v: mx.array) -> None:
        """Into free slots."""
        row = max(self.rows, default=-1) + 1
        slots = mx.arange(self.shape.length) + row * self.shape.capacity
        new = mx.concatenate([k[0], v[0]]).swapaxes(0, 1)
        for pool in self.kept:
            pool[slots] = new
        self.rows.append(row)

    def leave(self) -> None:
        """Its slots are free."""
        del self.rows[0]

    @staticmethod
    def copied(shape: KvLayout) -> tuple[int, int, int]:
        """What a step attends to, and a prompt."""
        return shape.attended_bytes, shape.prompt_bytes, 0

    def arrays(self) -> list[mx.array]:
        """The pools."""
        return self.kept


KeptKv = PerRequest | Batched | Pages
WAYS: dict[str, type[KeptKv]] = {
    "a cache per request": PerRequest, "one batch": Batched, "pages": Pages,
}  # fmt: skip


def decode(kept: KeptKv, shape: KvLayout) -> None:
    """One step: in every layer a position more, and attention over all of them.

    There are no weights: what is looked for is the way of the KV.
    """
    kept.advance()
    x = mx.ones((shape.rows, shape.kv_heads, 1, shape.head_dim))
    for layer in range(shape.layers):
        keys, values = kept.update(layer, x, x)
        seen = mx.softmax(x @ keys.swapaxes(-1, -2) * shape.head_dim**-0.5, axis=-1)
        x = seen @ values
    evaluate(x, *kept.arrays())


SHAPES = (KvLayout(1, 512), KvLayout(8, 128), KvLayout(8, 512), KvLayout(32, 128))
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


def caches(shapes: Sequence[KvLayout], repetitions: int, report: Report) -> list[Figure]:
    """A decode step's way through the KV of all layers; a request that comes, and one that goes."""
    figures = []
    for shape in shapes:
        name = f"{shape.rows} x {shape.length} positions"
        taken: dict[str, list[float]] = {}
        for repetition in range(repetitions):
            report(f"caches, {name}, repetition {repetition + 1} of {repetitions}")
            for way, kind in WAYS.items():
                for what, time in of_way(kind(shape), shape).items():
                    taken.setdefault(f"{name}, {way}: {what}", []).append(time)
        figures += [figure(row, times, "ms") for row, times in taken.items()]
        for way, kind in WAYS.items():
            for what, moved in zip(("step", "join", "leave"), kind.copied(shape), strict=True):
                row = f"{name}, {way}: copied by a {what}"
                figures.append(figure(row, [moved / 2**20], "MiB"))
    return figures


def of_way(kept: KeptKv, shape: KvLayout) -> dict[str, float]:
    """Milliseconds of a step, of a join and of a leave."""
    new = mx.ones((1, shape.kv_heads, shape.length, shape.head_dim))

    def join() -> None:
        kept.join(new, new)
        evaluate(*kept.arrays())

    def leave() -> None:
        kept.leave()
        evaluate(*kept.arrays())

    steps = [timed(lambda: decode(kept, shape)) for _ in range(STEPS)]
    return {"step": median(steps[1:]), "join": timed(join), "leave": timed(leave)}


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
                entries = {loop: LoopEntry(loop, work, asleep) for loop in LOOPS[:2]}
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
