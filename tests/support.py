"""What tests share: random workloads, designs and devices to run them on, pictures read back."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
from filelock import FileLock
from hypothesis import strategies as st

from minisched.checks import judge
from minisched.checks.case import VOCAB as VOCAB
from minisched.checks.case import Failure as Failure
from minisched.checks.case import Workload as Workload
from minisched.checks.case import fresh as fresh
from minisched.checks.draw import (
    PLAIN,
    USUAL,
    Scale,
    at_level,
    draw,
    draw_config,
    draw_request,
    read_design,
)
from minisched.checks.judge import livelock, most_turns
from minisched.checks.judge import play as play
from minisched.checks.overlap import step_intervals
from minisched.checks.step_fault import POSTPROCESS, StepFault
from minisched.core import (
    ForwardMode,
    Lease,
    Output,
    Request,
    Result,
    SamplingParams,
    ScheduleBatch,
)
from minisched.devices.cost import CostModel
from minisched.devices.registry import open_device as open_device
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.export.looks import LIGHT
from minisched.export.scene_puml import NEW, OLD, UNITS
from minisched.export.scene_text import COLUMNS
from minisched.export.svg_page import width_of
from minisched.export.views import FORMS, NothingToShow
from minisched.export.views import draw as draw_view
from minisched.loops.design import LOOPS
from minisched.loops.run import make_engine, run_loop
from minisched.memory import BlockPool
from minisched.memory.block_pool import Block
from minisched.memory.radix_cache import TreeNode
from minisched.models.base import Model
from minisched.models.hash import HashModel
from minisched.models.registry import hash_class
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import Slice, Trace


def many(plain: int, thorough: int) -> int:
    return thorough if os.environ.get("MINISCHED_THOROUGH") else plain


def every(nth: int, values: Iterable[Any]) -> list[Any]:
    """Return values as parameters of which plain pytest tries each nth, and thorough tests all."""
    return [
        value if at % nth == 0 else pytest.param(value, marks=pytest.mark.thorough)
        for at, value in enumerate(values)
    ]


# -- random workloads: those of ``minisched check``, from Hypothesis' randomness -------------------

randoms = st.randoms(use_true_random=False)
prompts = randoms.map(lambda rng: draw_request(rng, 0, PLAIN, "any", "none", False).prompt)


def configs(num_tokens: int) -> st.SearchStrategy[SchedulerConfig]:
    """Settings with a loop's own rules, and memory for so many tokens in whole pages."""

    def made(rng: Random) -> SchedulerConfig:
        config = draw_config(rng, "any", "")
        num_pages = -(-num_tokens // config.page_size)
        return replace(config, kv_tokens=num_pages * config.page_size, rules="")

    return randoms.map(made)


def survived(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """Those after which a run goes on; an error in a loop's own layer ends it (``judge.py``)."""
    return tuple(it for it in failures if it.kind != POSTPROCESS)


def workloads(
    max_requests: int = 6, with_aborts: bool = True, level: str = "tight", scale: Scale = USUAL
) -> st.SearchStrategy[Workload]:
    """A workload; the pool holds at least the longest request, and often nothing more.

    With another scale it is drawn from a seed, because Hypothesis makes too few choices for long
    prompts.
    """

    def made(rng: Random) -> Workload:
        workload = at_level(draw(0, odd=False, rng=rng, scale=scale).workload, level)
        requests, config = workload.requests[:max_requests], workload.config
        rids = {req.rid for req in requests}
        aborts = {turn: rid for turn, rid in workload.aborts.items() if rid in rids}
        longest = max(req.max_device_len for req in requests)
        least = -(-longest // config.page_size) * config.page_size
        return replace(
            workload,
            requests=requests,
            failures=survived(workload.failures),
            arrivals=workload.arrivals[:max_requests],
            aborts=aborts if with_aborts else {},
            flushes=frozenset(),
            config=replace(config, kv_tokens=max(config.kv_tokens, least)),
        )

    seeds = st.integers(0, 2**32 - 1)
    return (randoms if scale is USUAL else seeds.map(Random)).map(made)


def demanding(max_requests: int = 6) -> st.SearchStrategy[Workload]:
    """A workload whose requests may have a regex, penalties (in time or late) and other wishes."""
    return workloads(max_requests, level="wishes")


# -- what the workers of pytest share --------------------------------------------------------------


def made_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object], part: str = ""
) -> Path:
    """Return a folder that the first of pytest's workers has made; the others wait for it.

    A folder with a ``part`` is made part by part.
    """
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, made = base / name, base / f"{name}{part}.made"
    with FileLock(f"{folder}{part}.lock"):
        if not made.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            made.touch()
    return folder


# -- tiny checkpoints ------------------------------------------------------------------------------

LLAMAS: dict[str, dict[str, Any]] = {
    "llama": {},
    "norms": {"rms_norm_eps": 1e-2, "num_attention_heads": 8, "head_dim": 24},
    "tied": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
             "rope_theta": None, "tie_word_embeddings": True, "head_dim": 32},
    "all heads": {"num_key_value_heads": 4},
    "one kv head": {"num_key_value_heads": 1},
}  # fmt: skip
"""Every kind of Llama that this project computes itself."""

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "llama 3.1": {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}},
    "qwen2": {"model_type": "qwen2"},
    "qwen3 scaled": {
        "model_type": "qwen3", "rope_parameters": {**LLAMA3, "rope_theta": 1000.0},
    },
}  # fmt: skip
"""Kinds that a library computes; prompts are longer than the 64 positions of rope scaling."""


AS_OF_0_5_21 = {"enable_skip_finishing_decode": False}
"""Options with which ``overlap`` wastes a row for every end, as SGLang 0.5.21 did."""


def prompt(start: int, length: int) -> list[int]:
    return [(7 * start + 3 * at * at) % 512 for at in range(length)]


# -- loops, and runs of them -----------------------------------------------------------------------


def drawn_run(
    seed: int, design: str, cost: CostModel | None = None, odd: bool = True
) -> tuple[Trace, list[Engine]]:
    """What ``minisched check --seed SEED --loop DESIGN`` runs, if need be with other costs."""
    case = draw(seed, odd).on(read_design(design))
    workload, device = fresh(case.workload), SimDevice()
    device.built_by_host |= case.built_by_host
    faults = [StepFault(failure.kind, failure) for failure in workload.failures]

    def patch(engine: Engine) -> None:
        for fault in faults:
            fault.put_in(engine)

    model = judge.hash_model("sim", workload)
    case = replace(case, cost=cost or case.cost)
    engines = judge.run(case, workload, device, model, patch, lambda engine: None)
    return Trace.of(device.recorder, case.loop, "sim", "hash", "virtual"), engines


LoopOptions = tuple[str, str, dict[str, Any]]  # loop, relay, what the loop is called with

VARIANTS: list[LoopOptions] = [
    ("overlap", "ring", {"disable_consecutive_prefill_overlap": True}),
    ("overlap", "ring", {"delay_sample": True}),
    ("overlap_thread", "ring", {"delay_sample": True}),
    ("mlx_async", "chain", {"clear_cache_every": 3}),
    ("vllm_batch_queue", "host", {"depth": 4}),
    ("vllm_async", "pool", {"depth": 4}),
    ("vllm_batch_queue", "host", {"depth": 4, "harvest_when_done": True}),
    ("vllm_async", "pool", {"depth": 4, "harvest_when_done": True}),
    ("vllm_pp4", "host", {"harvest_when_done": True}),
    ("mindie_placeholder", "fill_device", {}),
    ("multi_step", "pool", {"num_steps": 3}),
]
ONE_ENGINE = [name for name in LOOPS if name not in ("pd", "mixed")]
"""Not ``pd``, whose two engines tests/loops/test_pd.py drives; ``mixed`` needs chunks."""

LOOP_OPTIONS: list[LoopOptions] = [
    *((loop, relay, {}) for loop in ONE_ENGINE for relay in LOOPS[loop].relays),
    *VARIANTS,
]
"""Every loop with every relay that fits it, and with options that change its course."""

SOME_LOOP_OPTIONS = [item for item in LOOP_OPTIONS if item[:2] in {
    ("serial", "host"), ("overlap", "ring"), ("mlx_async", "chain"), ("overlap_thread", "ring"),
    ("mindie_plugin", "fill_host"), ("multi_step", "pool"),
}]  # fmt: skip
"""Loops that differ most in how they call the engine, for laws about everything around a loop."""


def runs_on(loop: str, device: str) -> bool:
    return device in LOOPS[loop].devices


# -- devices ---------------------------------------------------------------------------------------

BACKENDS = ("sim", "thread", "mlx")

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time",
    "Water boils at",
    "The three primary colours are",
    "Dear Sir or Madam,",
    "2 + 2 =",
    "To make bread you need",
]

EVERY_LOOP = pytest.mark.parametrize(("loop", "relay", "options"), LOOP_OPTIONS, ids=str)
SOME_LOOPS = pytest.mark.parametrize(("loop", "relay", "options"), SOME_LOOP_OPTIONS, ids=str)


EVERY_BACKEND = pytest.mark.parametrize("backend", BACKENDS)


def hash_model(backend: str, eos_ids: frozenset[int]) -> Model:
    model: Model = hash_class(backend)(VOCAB, eos_ids=eos_ids)
    return model


def check_no_thread_left() -> None:
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if "stream" in name or "mlx" in name]


def some_requests(max_new_tokens: int = 20) -> list[Request]:
    return [
        Request(f"r{i}", [i + 1, 2, 3], SamplingParams(i % 2 * 0.8, max_new_tokens=max_new_tokens))
        for i in range(3)
    ]


def named(trace: Trace, name: str, lane: str = "") -> dict[int, Slice]:
    """The first slice of that name in each step (one that samples late is launched twice)."""
    found: dict[int, Slice] = {}
    for item in trace.on(lane) if lane else trace.slices:
        if item.name == name:
            found.setdefault(item.step, item)
    return found


def marked(trace: Trace, name: str = "wasted row") -> Counter[str]:
    return Counter(str(mark.attrs["rid"]) for mark in trace.marks if mark.name == name)


def no_rows(step: int, mode: ForwardMode, num_extend_reqs: int = 0) -> ScheduleBatch:
    return ScheduleBatch(step, mode, num_extend_reqs)


def tokens(count: int, **params: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, ignore_eos=True, **params)


ALONE = SchedulerConfig(chunked_prefill_size=3)
"""One prompt fills a step, so that requests which come together are in batches of their own."""


def run_alone(design: str, count: int, cost: CostModel, **params: Any) -> Trace:
    requests = [Request(f"r{i}", [i + 1] * 3, tokens(36, **params)) for i in range(count)]
    run = run_loop(design, SimDevice(), HashModel(), requests, ALONE, cost)
    assert all(len(req.output_ids) == 36 for req in run.requests), run.errors
    return run.trace


def settled(trace: Trace, period: int) -> set[int]:
    """What ``period`` steps in a row take, all along the settled part of a run."""
    intervals = step_intervals(trace)
    intervals = intervals[len(intervals) // 2 : 5 * len(intervals) // 6]
    assert len(intervals) > 2 * period
    return {sum(intervals[at : at + period]) for at in range(len(intervals) - period + 1)}


def check_trace(trace: Trace) -> None:
    forwards, samples, copies = (named(trace, name) for name in ("forward", "sample", "copy"))
    launches, processes = named(trace, "launch"), named(trace, "process")
    assert launches.keys() == forwards.keys() == samples.keys() == copies.keys() == processes.keys()
    for step in launches:
        assert launches[step].start <= forwards[step].start <= forwards[step].end
        assert forwards[step].end <= samples[step].start <= samples[step].end
        assert samples[step].end <= copies[step].start <= copies[step].end <= processes[step].start
    for lane in ("host", "forward", "copy"):
        assert all(a.end <= b.start for a, b in pairwise(trace.on(lane)))


# -- workloads on the clock ------------------------------------------------------------------------

PHASES = ("receive", "schedule", "prepare", "launch", "process", "output")
COST = CostModel(dict.fromkeys(PHASES, 3), forward_base=10, forward_per_token=1, sample=2, copy=1)
"""No phase is free, so that no two of them end at one time."""


@dataclass
class TimedRun:
    engine: Engine
    device: SimDevice
    heard: list[tuple[int, Output]] = field(default_factory=list)  # in order of time

    @property
    def trace(self) -> Trace:
        return Trace.of(self.device.recorder, "", "sim", "hash", "virtual")


def timed_workloads() -> st.SearchStrategy[Workload]:
    """Like ``workloads``, with arrival times in nanoseconds; ``aborts`` are by time, not turn."""

    def made(workload: Workload, rng: Random) -> Workload:
        for req in workload.requests:
            req.arrival_time = rng.randint(0, 400)
        rids = [*(req.rid for req in workload.requests), "nobody"]
        aborts = {rng.randint(0, 600): rng.choice(rids) for _ in range(rng.randrange(5))}
        return replace(workload, aborts=aborts)

    return st.builds(made, workloads(), randoms)


def play_timed(
    workload: Workload,
    loop: str,
    relay: str,
    options: dict[str, Any],
    patch: Callable[[Engine], None] = lambda engine: None,
    is_streamed: bool = False,
) -> TimedRun:
    """Drive a loop on sim until nothing is left; the clock brings requests and aborts."""
    device = SimDevice()
    heard: list[tuple[int, Output]] = []
    requests: Any = workload.requests
    if is_streamed:
        requests = iter(sorted(requests, key=lambda req: req.arrival_time))
    frontend = Frontend(requests, lambda output: heard.append((device.now(), output)))
    for time, rid in workload.aborts.items():
        frontend.abort(rid, at=time)
    model = hash_model("sim", workload.eos_ids)
    engine = make_engine(loop, device, model, workload.config, frontend, COST, relay, **options)
    patch(engine)
    turns = LOOPS[loop].start(engine, **options)
    most = most_turns(workload, engine.worker.depth, engine.scheduler.config.run_ahead)
    for _ in range(most):
        if engine.is_done:
            return TimedRun(engine, device, heard)
        next(turns)
    raise livelock(workload, most)


def a_request(rid: str, arrival_time: int = 0) -> Request:
    return Request(rid, [1, 2, 3], arrival_time=arrival_time)


# -- pictures, read back ---------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """The relative luminance of ``#RRGGBB``, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


SVG = "{http://www.w3.org/2000/svg}"


class Picture:
    def __init__(self, svg: str) -> None:
        self.svg = svg
        self.root = ElementTree.fromstring(svg)
        self.width, self.height = (float(self.root.attrib[name]) for name in ("width", "height"))

    def shapes(self, tag: str = "", kind: str = "", **data: str) -> list[dict[str, str]]:
        """Elements with a class and these ``data-`` attributes; "*" only has to be there."""
        found = []
        for element in self.root.iter(f"{SVG}{tag}" if tag else None):
            classes = element.get("class", "").split()
            if kind and not set(kind.split()) <= set(classes):
                continue
            values = {name: element.get(f"data-{name}") for name in data}
            if all(v is not None and data[n] in ("*", v) for n, v in values.items()):
                found.append(element.attrib)
        return found

    def count(self, *names: str, tag: str = "", kind: str = "") -> Counter[tuple[str, ...]]:
        shapes = self.shapes(tag, kind, **dict.fromkeys(names, "*"))
        return Counter(tuple(shape[f"data-{name}"] for name in names) for shape in shapes)

    @property
    def words(self) -> str:
        return " ".join(self.root.itertext())


def check_picture(picture: Picture) -> None:
    assert "var(--" not in picture.svg, "many programs know no variables"
    for element in picture.root.iter():  # a shape has its colours without the style sheet
        if element.tag in {f"{SVG}{tag}" for tag in ("rect", "path", "circle")}:
            assert {"fill", "stroke"} & {*element.attrib}, element.attrib
        if element.tag == f"{SVG}line":
            assert "stroke" in element.attrib, element.attrib
    assert picture.root.get("fill") == LIGHT["ink"]  # of words
    for pattern in re.findall(r"url\(#([\w-]+)\)", picture.svg):
        assert f'id="{pattern}"' in picture.svg, pattern
    for rect in picture.root.iter(f"{SVG}rect"):
        if "%" in rect.attrib["width"]:
            continue
        x, y = (float(rect.get(name, "0")) for name in ("x", "y"))
        width, height = (float(rect.attrib[name]) for name in ("width", "height"))
        assert width >= 0 and height >= 0, rect.attrib
        assert x >= 0 and x + width <= picture.width + 0.1, rect.attrib
        assert y >= 0 and y + height <= picture.height + 0.1, rect.attrib
    size = {"title": 16.0, "run": 13.5, "small": 11.0}
    for text in picture.root.iter(f"{SVG}text"):  # measured as widely as layouts do
        words, kinds = "".join(text.itertext()), text.get("class", "").split()
        widest = max((size[kind] for kind in kinds if kind in size), default=12.0)
        room = width_of(words, widest, bool({"title", "run"} & {*kinds}))
        shift = {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor", ""), 0.0)
        left = float(text.attrib["x"]) - room * shift
        assert left >= -0.1 and left + room <= picture.width, (words, left, room)


# -- a topic's view, read back ---------------------------------------------------------------------


@dataclass
class Forms:
    """A view in each of its forms."""

    picture: Picture
    text: str
    puml: str

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def forms_of(topic: str, trace: Trace, part: str = "", is_damaged: bool = False) -> Forms | None:
    """All forms, checked for what holds of every view; None if there is nothing to show in any."""
    drawn, verdicts = dict[str, str](), set[str]()
    for form in FORMS:
        try:
            drawn[form] = draw_view(topic, trace, form, part)
        except NothingToShow as error:
            verdicts.add(str(error))
    if verdicts:
        assert is_damaged or (len(verdicts) == 1 and not drawn), "the forms agree"
        sentence = re.sub(r"\d\.\d", "", verdicts.pop())
        assert sentence.count(".") == 1 and sentence.endswith(".")
        return None
    picture, text, puml = Picture(drawn["svg"]), drawn["text"], drawn["puml"]
    check_picture(picture)
    lines = text.splitlines()
    assert picture.width <= 900 and drawn["svg"].endswith("</svg>\n")
    assert max(map(len, lines)) <= COLUMNS and all(line == line.rstrip() for line in lines)
    assert "\x1b" not in text and text.endswith("\n") and not text.endswith("\n\n")
    assert puml.startswith((f"{OLD}\n@startuml\n", f"{NEW}\n@startuml\n"))
    assert puml.endswith("@enduml\n")
    return Forms(picture, text, puml)


def read_timing(puml: str) -> tuple[Counter[Any], Counter[Any], int]:
    """PlantUML timing: what each lane shows from when on, until it shows something else.

    Gives (lane, fill, start, end), (lane, leaves, lane, arrives) and the end, in nanoseconds.
    """
    boxes, arrows, shows, now = Counter[Any](), Counter[Any](), dict[str, tuple[str, int]](), 0
    meant = (0, 0)  # the times of the next arrow along its lane
    unit = UNITS[re.findall(r"^caption time in (\w+)$", puml, re.M)[0]]

    def time(written: str) -> int:
        found = Decimal(written) * unit
        assert found == int(found)
        return int(found)

    for line in puml.splitlines():
        if found := re.fullmatch(r"@([\d.]+)", line):
            now = time(found[1])
        elif found := re.fullmatch(r'(\w+) is (?:\{-\}|".*" (#\w+))', line):
            if found[1] in shows:
                boxes[(found[1], *shows.pop(found[1]), now)] += 1
            if found[2]:
                shows[found[1]] = (found[2], now)
        elif found := re.fullmatch(r"' the next arrow is from (\S+) to (\S+), drawn longer", line):
            meant = time(found[1]), time(found[2])
        elif found := re.fullmatch(r"(\w+)@([\d.]+) -\[#\w+\]> (\w+)@([\d.]+)", line):
            ends = time(found[2]), time(found[4])
            if found[1] == found[3]:  # along a lane
                assert ends[0] <= meant[0] <= meant[1] <= ends[1]
                ends = meant
            arrows[found[1], ends[0], found[3], ends[1]] += 1
    assert not shows, "every box ends"
    return boxes, arrows, now


# -- a scheduler's books ---------------------------------------------------------------------------


def turn(scheduler: Scheduler) -> ScheduleBatch:
    """The next step, which samples one token for everybody."""
    batch = scheduler.next_batch()
    assert isinstance(batch, ScheduleBatch)
    scheduler.process(batch, Result([5] * len(batch.rows)))
    return batch


def nodes_of(scheduler: Scheduler) -> list[TreeNode]:
    """Every node of the radix tree but the root."""
    found: list[TreeNode] = []
    stack = [*scheduler.tree.root_node.children.values()] if scheduler.tree else []
    while stack:
        found.append(stack.pop())
        stack += found[-1].children.values()
    return found


def blocks_of(scheduler: Scheduler) -> dict[int, Block]:
    pool = scheduler.page_cache
    return pool.blocks if isinstance(pool, BlockPool) else {}


def leases_of(scheduler: Scheduler) -> list[Lease]:
    """Every lease that is open or on its way back."""
    leases = [req.lease for req in scheduler.live.values() if req.lease]
    return [*leases, *scheduler.leases.returning]


def check_memory(scheduler: Scheduler) -> None:
    """Each page and row is in one place, and locks are those of who holds memory."""
    pool, leases, blocks = scheduler.leases, leases_of(scheduler), blocks_of(scheduler)
    cached = [page for node in nodes_of(scheduler) for page in node.pages] + [*blocks]
    owned = [page for it in leases for page in it.pages[it.shared_pages :]]
    owned += [page for it, _, pages in pool.retired.entries for page in pages]
    every = range(1, scheduler.config.num_pages + 1)
    assert sorted([*scheduler.allocator.free_pages, *cached, *owned]) == [*every]
    cache = scheduler.page_cache
    assert cache.evictable_size + cache.protected_size == len(cached)
    rows = [*scheduler.table.free_rows, *(it.row for it in leases)]
    assert sorted(rows) == [*range(1, scheduler.table.size + 1)]
    shared = [it.pages[: it.shared_pages] for it in leases]
    assert {page for pages in shared for page in pages} <= {*cached}
    holders = Counter[TreeNode | int](page for pages in shared for page in pages)
    for node in (it.node for it in leases):
        while isinstance(node, TreeNode) and node.parent is not None:
            holders[node] += 1
            node = node.parent
    assert all(node.lock_ref == holders[node] for node in nodes_of(scheduler))
    assert all(block.ref_cnt == holders[page] for page, block in blocks.items())
    if scheduler.tree:
        locked = sum(node.num_pages for node in nodes_of(scheduler) if node.lock_ref)
        assert locked == scheduler.tree.protected_size
    elif isinstance(scheduler.page_cache, BlockPool):
        unused = {page for page, block in blocks.items() if not block.ref_cnt}
        assert unused == {*scheduler.page_cache.free_block_queue}


def check_books(scheduler: Scheduler) -> None:
    check_memory(scheduler)
    chunked = scheduler.prefill.chunked_req
    places: list[Request] = [*scheduler.waiting_queue, *scheduler.running_batch]
    places += [chunked] if chunked else []
    assert Counter(places) == Counter(scheduler.live.values())
    assert all(req.lease is None for req in scheduler.waiting_queue)
    assert all(req.lease is not None for req in scheduler.running_batch)
    assert all(req.admission.order < scheduler.waiting_queue.num_added for req in places)


# -- pages in a real browser -----------------------------------------------------------------------

OWN = ("file:", "data:", "blob:", "about:")  # what a page that needs no network may ask for
FAR = 120_000  # milliseconds; only ends a hang: a machine may be busy, and nothing is measured
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by Playwright; a module of tests imports this.

    It is the Chromium of ``MINISCHED_CHROMIUM``, or the machine's own. While it is open, an event
    loop runs in this thread, so that ``asyncio.run`` (nbclient's, too) belongs in another process.
    """
    from playwright.sync_api import expect, sync_playwright

    names = (os.environ.get("MINISCHED_CHROMIUM", ""), *CHROMIUMS)
    found = next((path for path in map(shutil.which, filter(None, names)) if path), None)
    if found is None:
        pytest.fail(
            "this test needs Chromium: install it (apt-get install chromium), or set "
            "MINISCHED_CHROMIUM to its path.",
            pytrace=False,
        )
    expect.set_options(timeout=FAR)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=[*QUIET], timeout=FAR)
        yield chromium
        chromium.close()


@contextmanager
def watch(browser: Any, allowed: tuple[str, ...] = OWN, **options: Any) -> Iterator[Any]:
    """A fresh page: no error, and no request for addresses with other beginnings."""
    context = browser.new_context(**options)
    context.set_default_timeout(FAR)
    page, wrong = context.new_page(), list[str]()

    def decide(route: Any) -> None:
        if route.request.url.startswith(allowed):
            route.continue_()
        else:
            wrong.append(route.request.url)
            route.abort()

    context.route("**/*", decide)
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    try:
        yield page
        assert wrong == []
    finally:
        context.close()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


# -- figures in prose ------------------------------------------------------------------------------

CODE = re.compile(
    r"^```.*?^```|^ *\d+\. |`[^`]*`|\]\([^)]*\)|<[^>]+>|#\d+|-?\d\.\d+\.\d+", re.M | re.S
)
NUMBER = r"(?<![\w.,+-])\d[\d,]*(?:\.\d+)?(?![\w.]*[A-Za-z_])"
UNIT_WORDS = r"%|x\b|(?:ms|µs|s|seconds|minutes|times|MB|GB|MiB|GiB|loops|relays)\b"


def prose(text: str, has_tables: bool = True) -> str:
    """A page without code and links."""
    text = CODE.sub(" ", text)
    return text if has_tables else re.sub(r"^\|.*$", "", text, flags=re.M)


def numbers(text: str) -> set[str]:
    """The numbers of a text, as they stand there."""
    return set(re.findall(NUMBER, text))


def with_units(text: str) -> set[str]:
    """The numbers of a text that have a unit."""
    found = re.finditer(rf"(?P<one>{NUMBER})(?: to (?P<to>[\d,.]+))?\s?(?:{UNIT_WORDS})", text)
    return {it for one in found for it in one.group("one", "to") if it}
