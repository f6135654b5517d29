"""Host time of a step, as the batch, the queue, the tree and the history grow.

Python's garbage collector stays on while steps are timed, as it does in a server; it runs once
before, so that nobody pays for what the setting up has left.
"""

from __future__ import annotations

import gc
import importlib
import random
import sys
import time
import tomllib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, Protocol

from ..core import Request, Result, SamplingParams, ScheduleBatch
from ..memory.radix_cache import RadixCache
from ..scheduler import Scheduler, SchedulerConfig
from .figures import Figure, Measure, SideBySide

# -- nano-vllm's scheduler and block manager, loaded from a checkout without the rest of it --------

PACKAGE = "nanovllm"
NEEDED = ("engine/scheduler.py", "engine/block_manager.py", "engine/sequence.py")


class NanoVllm(NamedTuple):
    """The classes that are measured (nano-vllm ``engine/`` and ``sampling_params.py``)."""

    Scheduler: Any
    BlockManager: Any
    Sequence: Any
    SamplingParams: Any
    version: str

    def sequence(self, prompt: list[int], max_tokens: int) -> Any:
        """A request that runs to its length."""
        return self.Sequence(prompt, self.SamplingParams(max_tokens=max_tokens, ignore_eos=True))

    def scheduler(self, num_blocks: int, max_num_seqs: int, max_num_batched_tokens: int) -> Any:
        """A scheduler over blocks of ``Sequence.block_size`` tokens.

        Its own ``Config`` would ask for a model's directory.
        """
        return self.Scheduler(
            SimpleNamespace(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                eos=-1,
                kvcache_block_size=self.Sequence.block_size,
                num_kvcache_blocks=num_blocks,
            )
        )


def find_nano_vllm(folder: Path | None) -> tuple[NanoVllm | None, str]:
    """The classes, or the reason why there are none.

    Raises:
        ValueError: ``folder`` is not a checkout.
    """
    if folder is None:
        return None, "no checkout of nano-vllm was given with --nano-vllm"
    try:
        return load_nano_vllm(folder), ""
    except ModuleNotFoundError as error:
        return None, f"nano-vllm needs the package {error.name!r}, which is not installed"


def load_nano_vllm(folder: Path) -> NanoVllm:
    """The classes of the checkout in ``folder``; nothing of it stays in ``sys.modules``.

    Raises:
        ModuleNotFoundError: a package that these files import is not installed.
        ValueError: ``folder`` is not a checkout, or one too old to know chunked prefill.
    """
    missing = [name for name in NEEDED if not (folder / PACKAGE / name).is_file()]
    if missing:
        raise ValueError(
            f"--nano-vllm is {str(folder)!r}, which is no checkout of nano-vllm: "
            f"it has no {PACKAGE}/{missing[0]}."
        )
    with stub_package(folder):
        scheduler = importlib.import_module(f"{PACKAGE}.engine.scheduler")
        params = importlib.import_module(f"{PACKAGE}.sampling_params")
    classes = (scheduler.Scheduler, scheduler.BlockManager, scheduler.Sequence)
    if not hasattr(scheduler.BlockManager, "hash_blocks"):
        raise ValueError(
            f"--nano-vllm is {str(folder)!r}, an older nano-vllm: "
            "its BlockManager has no hash_blocks."
        )
    return NanoVllm(*classes, params.SamplingParams, version_of(folder))


def version_of(folder: Path) -> str:
    """What the checkout says of itself."""
    file = folder / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return str(project.get("project", {}).get("version", "unknown"))


@contextmanager
def stub_package(folder: Path) -> Iterator[None]:
    """Stand in for the package and its configuration, which import torch and transformers."""
    package, config = ModuleType(PACKAGE), ModuleType(f"{PACKAGE}.config")
    package.__path__ = [str(folder / PACKAGE)]
    config.Config = SimpleNamespace  # type: ignore[attr-defined]
    before = take_out()
    sys.modules.update({package.__name__: package, config.__name__: config})
    try:
        yield
    finally:
        take_out()
        sys.modules.update(before)


def take_out() -> dict[str, ModuleType]:
    """Remove the package from ``sys.modules``; what was there."""
    names = [name for name in sys.modules if name.split(".")[0] == PACKAGE]
    return {name: sys.modules.pop(name) for name in names}


# -- One workload on two schedulers, ours and nano-vllm's, with a device that answers at once ------

PAGE = 256  # tokens; nano-vllm allows no other
NEW_TOKENS = 250  # of each request that runs: none ends while it is timed
PREFILL_TOKENS = 16384  # prompt tokens of one step: the default of nano-vllm and of SGLang
ANY_TOKEN = 7
VOCABULARY = 1 << 20  # a prompt's first token is its number, so that no two share a prefix


@dataclass(frozen=True)
class HostWorkload:
    """Requests of one prompt length that decode, behind a history and before a queue."""

    running: int = 256
    waiting: int = 0
    prompt_len: int = 384  # 384 + 128 fill a page: every request begins one while it is timed
    head_len: int = 384  # the prompt of the first that waits; those behind it wait for it
    spare_pages: int = 0  # beyond what the running requests will need
    spare_rows: int = 0  # requests that could run beside them, as far as rows go
    finished: int = 0  # requests that came and went before
    distinct: int = 1  # prompts of those, before they begin again
    page_size: int = PAGE

    @property
    def num_pages(self) -> int:
        """The pool: what running requests will hold, and the page more that admission asks for."""
        pages = -(-(self.prompt_len + NEW_TOKENS) // self.page_size)
        return self.running * (pages + 1) + self.spare_pages


class HostEngine(Protocol):
    """A scheduler with a workload set up, whose device answers at once."""

    def step(self) -> int:
        """Schedule and process once; how many requests took part."""


class Minisched:
    """``next_batch`` and ``process`` in turn, as the loop ``serial`` calls them."""

    def __init__(self, load: HostWorkload, run_ahead: bool = False) -> None:
        config = SchedulerConfig(
            kv_tokens=load.num_pages * load.page_size, page_size=load.page_size,
            max_running_requests=load.running + load.spare_rows,
            chunked_prefill_size=-1, max_prefill_tokens=PREFILL_TOKENS,
            context_len=load.num_pages * load.page_size, vocab_size=VOCABULARY, run_ahead=run_ahead,
        )  # fmt: skip
        self.scheduler = Scheduler(config)
        self.numbers = count()
        for number in range(load.finished):
            self.add(prompt(-1 - number % load.distinct, PAGE + 1), 1)
        while self.scheduler.live:
            self.step()
        settle(self.step, load, partial(self.add, max_new_tokens=NEW_TOKENS))

    def add(self, tokens: list[int], max_new_tokens: int) -> None:
        """Receive one request."""
        params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
        self.scheduler.receive([Request(f"r{next(self.numbers)}", tokens, params)])

    def step(self) -> int:
        """One turn of a loop."""
        batch = self.scheduler.next_batch()
        assert batch, "somebody can always run"
        self.scheduler.process(batch, result_of(len(batch.reqs)))
        return len(batch.reqs)


class RunAhead(Minisched):
    """The order of the loop ``overlap``: a step is scheduled before the one before is processed."""

    def __init__(self, load: HostWorkload) -> None:
        self.last: ScheduleBatch | None = None
        super().__init__(load, run_ahead=True)

    def step(self) -> int:
        """One turn of a loop."""
        batch, last = self.scheduler.next_batch(), self.last
        if last:
            self.scheduler.process(last, result_of(len(last.reqs)))
        self.last = batch or None
        return len(batch.reqs) if batch else 0


class NanoVllmEngine:
    """``schedule`` and ``postprocess`` in turn."""

    def __init__(self, nano: NanoVllm, load: HostWorkload) -> None:
        self.nano = nano
        most = load.running + load.spare_rows
        self.scheduler = nano.scheduler(load.num_pages, most, PREFILL_TOKENS)
        settle(self.step, load, self.add)

    def add(self, tokens: list[int]) -> None:
        """Receive one request."""
        self.scheduler.add(self.nano.sequence(tokens, NEW_TOKENS))

    def step(self) -> int:
        """One turn of its engine."""
        seqs, is_prefill = self.scheduler.schedule()
        self.scheduler.postprocess(seqs, result_of(len(seqs)).tokens, is_prefill)
        return len(seqs)


def settle(admit: Callable[[], int], load: HostWorkload, add: Callable[[list[int]], None]) -> None:
    """Admit the requests that run, as ``admit`` does step by step; then queue those that wait."""
    numbers: Iterator[int] = count()
    for _ in range(load.running):
        add(prompt(next(numbers), load.prompt_len))
    admitted = 0
    while admitted < load.running:
        admitted += admit()
    for place in range(load.waiting):
        add(prompt(next(numbers), load.prompt_len if place else load.head_len))


def prompt(number: int, length: int) -> list[int]:
    """A prompt that differs from all others in its first token."""
    return [number % VOCABULARY] + [ANY_TOKEN] * (length - 1)


@cache
def result_of(num_reqs: int) -> Result:
    """What a device that answers at once would sample."""
    return Result([ANY_TOKEN] * num_reqs)


# -- The prompts that a tree is filled with, and those that are then looked for in it --------------

SHARED, OWN = 256, 768  # tokens of a prompt: one of a few beginnings, and what is its own
BEGINNINGS = 8
MATCHES, INSERTIONS = 32, 8  # timed calls; the tree grows by that many prompts meanwhile
VOCAB_SIZE = 50_000


@cache
def prompts(num_tokens: int) -> list[list[int]]:
    """Prompts that together make a tree of about so many tokens.

    There are two at least, which share their beginning: so a match passes two nodes in any tree.
    """
    draw = random.Random(num_tokens)
    return [
        beginnings()[number // 2 % BEGINNINGS] + draw.choices(range(VOCAB_SIZE), k=OWN)
        for number in range(max(2, num_tokens // OWN))
    ]


@cache
def beginnings() -> list[list[int]]:
    """What prompts share, as system prompts are shared."""
    draw = random.Random(0)
    return [draw.choices(range(VOCAB_SIZE), k=SHARED) for _ in range(BEGINNINGS)]


def cached_prompts(num_tokens: int, spread: bool) -> list[list[int]]:
    """One prompt of the tree again and again, or ``spread`` prompts from all over it.

    They are new integers: those of a client are never the tree's.
    """
    known = prompts(num_tokens)
    picked = (known[spread * number * len(known) // MATCHES] for number in range(MATCHES))
    return [array("i", tokens).tolist() for tokens in picked]


def new_prompts() -> list[list[int]]:
    """Prompts of which the tree has the beginning only."""
    draw = random.Random(1)
    own = (draw.choices(range(VOCAB_SIZE), k=OWN) for _ in range(INSERTIONS))
    return [array("i", [*beginnings()[0], *tokens]).tolist() for tokens in own]


# -- Time of a match and of an insertion, as the tree grows: ours beside nano-vllm's hashed blocks

OTHER = "nano-vllm"
PAGE_SIZES = (1, 16, PAGE)
TREE_SIZES = (1_000, 10_000, 100_000, 1_000_000)  # tokens
SPARE_BLOCKS = 256


def radix_cases(nano: NanoVllm | None, reason: str) -> SideBySide:
    """Match and insertion for each size of page and tree; nano-vllm's at its only page size."""
    ours: dict[str, Measure] = {}
    theirs: dict[str, Measure | None] = {}
    for page in PAGE_SIZES:
        for size in TREE_SIZES:
            ours[named("match", page, size)] = partial(match_us, page, size)
            ours[named("insert", page, size)] = partial(insert_us, page, size)
        ours[scattered(page)] = partial(match_us, page, TREE_SIZES[-1], spread=True)
    for size in TREE_SIZES:
        theirs[named("match", PAGE, size)] = partial(hash_match_us, nano, size) if nano else None
        theirs[named("insert", PAGE, size)] = partial(hash_insert_us, nano, size) if nano else None
    largest = partial(hash_match_us, nano, TREE_SIZES[-1], spread=True) if nano else None
    theirs[scattered(PAGE)] = largest
    growth = [
        (named(what, page, TREE_SIZES[-1]), named(what, page, TREE_SIZES[0]))
        for page in PAGE_SIZES
        for what in ("match", "insert")
    ]
    return SideBySide(OTHER, ours, theirs, growth, reason=reason)


def named(what: str, page_size: int, num_tokens: int) -> str:
    """The name of a case."""
    return f"{what} {SHARED + OWN:,} tokens, page {page_size}, tree of {num_tokens:,}"


def scattered(page_size: int) -> str:
    """The name of a case where the processor's caches are no help."""
    return f"{named('match', page_size, TREE_SIZES[-1])}, all over it"


# -- ours --------------------------------------------------------------------------------------


def match_us(page_size: int, num_tokens: int, spread: bool = False) -> float:
    """Find the pages of a cached prompt, lock them and let them go."""
    tree = our_tree(page_size, num_tokens)

    def find(tokens: list[int]) -> None:
        node = tree.match_prefix(tokens).node
        tree.inc_lock_ref(node)
        tree.dec_lock_ref(node)

    return microseconds(find, cached_prompts(num_tokens, spread))


def insert_us(page_size: int, num_tokens: int) -> float:
    """Give the tree the pages of a prompt whose beginning it has."""
    tree = our_tree(page_size, num_tokens)
    first, each = tree.total_size, (SHARED + OWN) // page_size
    offers = [
        (tokens, range(first + number * each, first + (number + 1) * each))
        for number, tokens in enumerate(new_prompts())
    ]
    return microseconds(lambda offer: tree.insert(*offer), offers)


def our_tree(page_size: int, num_tokens: int) -> RadixCache:
    """A tree of about so many tokens."""
    tree = RadixCache(page_size)
    for tokens in prompts(num_tokens):
        first = tree.total_size
        tree.insert(tokens, range(first, first + len(tokens) // page_size))
    return tree


# -- nano-vllm's -------------------------------------------------------------------------------


def hash_match_us(nano: NanoVllm, num_tokens: int, spread: bool = False) -> float:
    """Find the blocks of a cached prompt, take them and let them go.

    Its last block is never looked for, so each prompt gets one more token, and so a fifth block.
    """
    blocks = their_blocks(nano, num_tokens)

    def find(seq: Any) -> None:
        blocks.allocate(seq, blocks.can_allocate(seq))
        blocks.deallocate(seq)

    seqs = [nano.sequence([*tokens, 0], 1) for tokens in cached_prompts(num_tokens, spread)]
    return microseconds(find, seqs)


def hash_insert_us(nano: NanoVllm, num_tokens: int) -> float:
    """Register the blocks of a prompt whose beginning is known."""
    blocks = their_blocks(nano, num_tokens)
    seqs = [nano.sequence(tokens, 1) for tokens in new_prompts()]
    for seq in seqs:
        hold(blocks, seq)
    return microseconds(blocks.hash_blocks, seqs)


def their_blocks(nano: NanoVllm, num_tokens: int) -> Any:
    """A block manager that knows about so many tokens, none of them in use."""
    known = prompts(num_tokens)
    num_blocks = len(known) * (SHARED + OWN) // PAGE + SPARE_BLOCKS
    blocks = nano.BlockManager(num_blocks, PAGE)
    for tokens in known:
        seq = nano.sequence(tokens, 1)
        hold(blocks, seq)
        blocks.hash_blocks(seq)
        blocks.deallocate(seq)
    return blocks


def hold(blocks: Any, seq: Any) -> None:
    """Admit a whole prompt."""
    blocks.allocate(seq, blocks.can_allocate(seq))
    seq.num_scheduled_tokens = seq.num_tokens - seq.num_cached_tokens


def microseconds(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    """The mean time of a call; the garbage collector stays on, as it does in a server."""
    gc.collect()
    start = time.perf_counter_ns()
    for argument in arguments:
        call(argument)
    return (time.perf_counter_ns() - start) / len(arguments) / 1000


PEER = "nano-vllm"
RUNNING = (1, 4, 16, 64, 256, 1024)
WAITING = (0, 1_000, 100_000)
TREES = (1_000, 1_000_000)  # tokens
FINISHED = 10_000  # requests
WARM_UP, STEPS, ADMITTING_STEPS = 8, 240, 8

DECODING = HostWorkload()
# Rows are left, but the first that waits needs more pages than are free, and holds up the others.
POOL_FULL = HostWorkload(head_len=150_000, spare_pages=64, spare_rows=64)
# Memory is left, but no row.
BATCH_FULL = HostWorkload(spare_pages=64)
ADMITTING = HostWorkload(
    running=0, waiting=1_000, prompt_len=512, head_len=512, spare_pages=4096, spare_rows=1024
)
AFTER_OTHERS = HostWorkload(spare_pages=8192)

A_STEP = (  # what nano-vllm's does not do
    "each step makes a plan, a batch that stays as it was committed, and an output for each row, "
    "since loops run ahead of results and clients are told"
)
AN_ADMISSION = (
    "each admission looks for its prefix in a radix tree, locks what it found, counts down four "
    "budgets and shares the prompt once it is computed"
)


def scheduler_figures(
    nano: NanoVllm | None, reason: str, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """Steps and radix tree, each beside nano-vllm's; without it, ``reason`` says why not."""
    parts = step_cases(nano, reason), radix_cases(nano, reason)
    return [row for part in parts for row in part.figures(repetitions, report)]


def step_cases(nano: NanoVllm | None, reason: str) -> SideBySide:
    """What a step costs, and what it should not depend on."""
    loads = {running(size): replace(DECODING, running=size) for size in RUNNING}
    loads |= {waiting("pool", size): replace(POOL_FULL, waiting=size) for size in WAITING}
    admits = {admitting(size): replace(ADMITTING, waiting=size) for size in WAITING[1:]}
    both = {case: (step_us, load) for case, load in loads.items()}
    both |= {case: (admission_us, load) for case, load in admits.items()}
    ours: dict[str, Measure] = {
        case: partial(measure, Minisched, load) for case, (measure, load) in both.items()
    }
    theirs = {
        case: partial(measure, partial(NanoVllmEngine, nano), load) if nano else None
        for case, (measure, load) in both.items()
    }
    slower = {case: A_STEP for case in loads} | {case: AN_ADMISSION for case in admits}
    return SideBySide(PEER, {**ours, **own_cases()}, theirs, GROWTH, reason=reason, slower=slower)


def own_cases() -> dict[str, Measure]:
    """Steps that nano-vllm has no counterpart of, or whose setting up it is no part of."""
    loads = {waiting("batch", size): replace(BATCH_FULL, waiting=size) for size in WAITING}
    for size in TREES:
        pages = size // PAGE
        loads[tree(size)] = replace(AFTER_OTHERS, finished=pages, distinct=pages)
    for size in (0, FINISHED):
        loads[history(size)] = replace(AFTER_OTHERS, finished=size, distinct=16)
    cases: dict[str, Measure] = {
        case: partial(step_us, Minisched, load) for case, load in loads.items()
    }
    return {**cases, f"{running(256)}, one step ahead": partial(step_us, RunAhead, DECODING)}


def running(size: int) -> str:
    """The name of a case."""
    return f"step, {size:,} running"


def waiting(full: str, size: int) -> str:
    """The name of a case."""
    return f"{running(256)}, {size:,} waiting for a full {full}"


def admitting(size: int) -> str:
    """The name of a case."""
    return f"a request admitted, {size:,} waiting"


def tree(size: int) -> str:
    """The name of a case."""
    return f"{running(256)}, {size:,} tokens in the tree"


def history(size: int) -> str:
    """The name of a case."""
    return f"{running(256)}, {size:,} finished before"


GROWTH = (
    *(
        (waiting(full, size), waiting(full, 0))
        for full in ("pool", "batch")
        for size in WAITING[1:]
    ),
    (admitting(WAITING[2]), admitting(WAITING[1])),
    (tree(TREES[1]), tree(TREES[0])),
    (history(FINISHED), history(0)),
)  # what the first costs, in units of the second


def step_us(engine_of: Callable[[HostWorkload], HostEngine], load: HostWorkload) -> float:
    """Microseconds of a step in which those who run decode, and nobody else.

    Raises:
        RuntimeError: somebody else did, or not all of them.
    """
    return per_step(*timed(engine_of(load), WARM_UP, STEPS), load)


def per_step(taken: float, rows: int, load: HostWorkload) -> float:
    """Microseconds of one of the steps timed.

    Raises:
        RuntimeError: others took part than those who run, or not all of them.
    """
    if rows != load.running * STEPS:
        raise RuntimeError(f"{rows / STEPS} requests ran in a step, not {load.running}")
    return taken / STEPS


def admission_us(engine_of: Callable[[HostWorkload], HostEngine], load: HostWorkload) -> float:
    """Microseconds of admitting one request and of taking its first token."""
    taken, admitted = timed(engine_of(load), 1, ADMITTING_STEPS)
    return taken / admitted


def timed(engine: HostEngine, warm_up: int, steps: int) -> tuple[float, int]:
    """Microseconds of so many steps, and the rows that they had together."""
    for _ in range(warm_up):
        engine.step()
    gc.collect()
    rows = 0
    start = time.perf_counter_ns()
    for _ in range(steps):
        rows += engine.step()
    return (time.perf_counter_ns() - start) / 1000, rows
