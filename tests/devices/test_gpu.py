"""What has to hold on a real GPU, from the plainest on: beliefs about streams, graphs and memory.

``pytest -m cuda --thorough`` is the first thing to do on a GPU that was never used with this. Where
there is none, a GPU that is not there stands in, and each belief is shown to fail with its fault.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from minisched.bench.tiny_llama import write_tiny_llama
from minisched.checks.draw import all_designs, draw
from minisched.checks.foreign import seen_by_torch
from minisched.checks.judge import judge
from minisched.checks.profiled import ANNOTATION, CALL, RANGE, VERSION, SeenEvent
from minisched.core import Request, SamplingParams
from minisched.devices import thread
from minisched.devices.base import NO_LABEL, WRONG_TOKEN
from minisched.devices.cuda import CudaOp, CudaStream
from minisched.devices.registry import open_device
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.design import LOOPS
from minisched.loops.run import make_engine, run_loop, run_to_end
from minisched.models.base import Model
from minisched.models.llama_graphs import CudaGraphRunner, LlamaGraphs
from minisched.models.llama_torch import LlamaTorch
from minisched.models.registry import open_model
from minisched.record import Slice
from minisched.scheduler import SchedulerConfig
from minisched.worker import Worker
from tests.devices.fake_cuda import fake_cuda

IS_THERE = torch.cuda.is_available()
pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The real one, or one that is not there."""
    with nullcontext() if IS_THERE else fake_cuda():
        if not IS_THERE:
            monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
        yield


def some_requests(number: int, new_tokens: int, spread: int = 0) -> list[Request]:
    """With ``spread`` each ends so many tokens after the one before: rows go up, and down again."""
    return [
        Request(
            f"r{at}", [(7 * at + place) % 50 + 1 for place in range(5 + 9 * (at % 8))],
            SamplingParams(max_new_tokens=new_tokens + spread * at, ignore_eos=True),
        )
        for at in range(number)
    ]  # fmt: skip


def small_config(rows: int) -> SchedulerConfig:
    """Pages are as many whatever the rows."""
    return SchedulerConfig(
        kv_tokens=4096, page_size=16, max_running_requests=rows, chunked_prefill_size=32,
        disable_radix_cache=True,
    )  # fmt: skip


def small_llama(folder: Path, graphs: bool = True) -> Any:
    """In float64, so that no rounding decides which token is the likeliest."""
    written = write_tiny_llama(folder, vocab=128, hidden=32, intermediate=64)
    return (LlamaGraphs if graphs else LlamaTorch)(written, "float64")


@contextmanager
def replaced(owner: Any, **others: Callable[..., Any]) -> Iterator[None]:
    """Functions of a class are others meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name, other in others.items():
            patch.setattr(owner, name, other)
        yield


# -- a stream computes what it should --------------------------------------------------------------


def computes(folder: Path) -> None:
    device = open_device("cuda")
    numbers = device.memory("numbers", 1000)
    op = device.stream("forward").launch(lambda: numbers.cumsum(0), name="sum")
    last = device.stream("forward").launch(device.bring_to_host, op, name="copy").synchronize()[-1]
    device.close()
    assert int(last) == 1000 * WRONG_TOKEN


# -- laws hold, also where every op begins late and memory that is free by then is overwritten -----
#
# The allocator gives freed memory to whoever asks next for as much on the same stream. So before
# each launch somebody asks for some of every size, on every stream, and fills it. What an op has
# yet to read must not be among that; if it is, tokens are wrong.

DELAY = 2_000_000  # cycles that an op begins late: a millisecond, so that overwriting comes before
FREED = ((512, 32), (4096, 8), (65_536, 4)) if IS_THERE else ((512, 2), (4096, 1))  # bytes, of each


def overwrite_freed(device: Any) -> None:
    own = [torch.cuda.current_stream(), *(item.stream for item in [*device._streams.values()])]
    for stream in own:
        with torch.cuda.stream(stream):
            sizes = [size // 8 for size, number in FREED for _ in range(number)]
            taken = [device.memory("freed", size) for size in sizes]
            del taken


@contextmanager
def hostile_memory() -> Iterator[None]:
    healthy = CudaStream.launch

    def launch(stream: Any, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def late(*values: Any) -> Any:
            torch.cuda._sleep(DELAY)
            return fn(*values)

        overwrite_freed(stream.device)
        return healthy(stream, late, *args, **options)

    with replaced(CudaStream, launch=launch):
        yield


LAWS_S = 120.0  # seconds for more seeds, so that all that is marked cuda fits into ten minutes


def laws_hold(folder: Path) -> None:
    """Of every design with one seed, and with more of them as long as there is time."""
    until = time.monotonic() + LAWS_S
    on_cuda = [design for design in all_designs() if "cuda" in LOOPS[design.loop].devices]
    few = ("overlap:pool", "serial", "vllm_async", "mini_overlap")  # of a GPU that is not there
    designs = on_cuda if IS_THERE else [it for it in on_cuda if it.name in few]
    for seed, design in product(range(20 if IS_THERE else 2), designs):
        if seed and IS_THERE and time.monotonic() > until:
            return
        found = judge(draw(seed).on(design, "cuda")).findings
        assert {item.law: item.sentence for item in found} == {}, (design.name, seed)


def laws_hold_in_hostile_memory(folder: Path) -> None:
    with hostile_memory():
        laws_hold(folder)


# -- no decode step is launched by waiting for the GPU ---------------------------------------------


class DecodeLaunches:
    """Forbids whatever waits while a decode step is laid out or launched.

    torch's own debug mode sees what torch does unasked (a copy from memory that is not pinned, a
    number that Python asks for); calls that wait by name are refused here.
    """

    def __init__(self) -> None:
        self.count = 0
        self.inside = threading.local()

    @contextmanager
    def may_not_wait(self) -> Iterator[None]:
        prepare, launch = Worker.prepare, CudaStream.launch

        def prepared(worker: Any, step: Any, *rest: Any) -> Any:
            with self.forbidden(step.batch.mode.value):
                return prepare(worker, step, *rest)

        def launched(stream: Any, *args: Any, label: Any = NO_LABEL, **options: Any) -> Any:
            self.count += label.mode == "decode"
            with self.forbidden(label.mode):
                return launch(stream, *args, label=label, **options)

        with ExitStack() as stack:
            stack.enter_context(replaced(Worker, prepare=prepared))
            stack.enter_context(replaced(CudaStream, launch=launched))
            for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
                refused = self.refused(owner.__name__, owner.synchronize)
                stack.enter_context(replaced(owner, synchronize=refused))
            yield

    @contextmanager
    def forbidden(self, mode: str) -> Iterator[None]:
        if mode != "decode":
            yield
            return
        self.inside.now = True
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
            self.inside.now = False

    def refused(self, owner: str, healthy: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if getattr(self.inside, "now", False):
                raise RuntimeError(f"called {owner}.synchronize, which waits for the GPU")
            return healthy(*args, **options)

        return call


def launches_without_waiting(folder: Path) -> None:
    watch = DecodeLaunches()
    loops = [name for name, loop in LOOPS.items() if "cuda" in loop.devices]
    models: list[tuple[str, Model]] = [(loop, open_model("hash", "cuda")) for loop in loops]
    with watch.may_not_wait():
        for loop, model in [*models, ("overlap", small_llama(folder))]:
            before = watch.count
            run = run_to_end(loop, "cuda", model, some_requests(3, 6), small_config(4))
            assert run.errors == {} and watch.count > before, loop


# -- graphs say what kernels say, as rows come and go and sizes change, or beside a thread ---------


def graphs_say_what_kernels_say(folder: Path) -> None:
    replays, healthy = list[int](), CudaGraphRunner.run

    def replayed(runner: Any, replay: Any, batch: Any, ids: Any) -> Any:
        replays.append(len(batch.rows))
        return healthy(runner, replay, batch, ids)

    with replaced(CudaGraphRunner, run=replayed):
        graphed, plain = small_llama(folder), small_llama(folder, graphs=False)
        for rows in (3, 5, 3):  # another page table, and back
            config = small_config(rows)
            truth = run_to_end("serial", "cuda", plain, some_requests(5, 4, 2), config)
            for loop in ("serial", "overlap", "vllm_batch_queue", "overlap_thread"):
                run = run_to_end(loop, "cuda", graphed, some_requests(5, 4, 2), config)
                assert run.errors == {} and graphed.runner.failure == "", loop
                assert run.outputs == truth.outputs, f"without graphs, {loop} with {rows} rows"
    assert replays


# -- all slices lie on one clock: none before its launch, after it was read, or before another -----


class Span(NamedTuple):
    """What the GPU says of an op, on the device's clock."""

    lane: str
    name: str
    start: int
    end: int


BURSTS = 5  # of requests, from the beginning of the run to its end
LASTS_S = 60.0 if IS_THERE else 0.5
BOUND_NS = 50_000  # by how much a slice may lie wrong


def lies_on_one_clock(folder: Path) -> None:
    device: Any = open_device("cuda")
    launched, was_read, ran = dict[int, int](), dict[int, int](), dict[int, Span]()
    launch, synchronize, keep = CudaStream.launch, CudaOp.synchronize, device.recorder.slice

    def launching(stream: Any, *args: Any, **options: Any) -> Any:
        now = device.now()
        op = launch(stream, *args, **options)
        launched[op.slice_id] = now
        return op

    def reading(op: Any) -> Any:
        try:
            return synchronize(op)
        finally:
            was_read.setdefault(op.slice_id, device.now())

    def keeping(item: Slice) -> None:
        ran[item.id] = Span(item.lane, f"{item.name} of step {item.step}", item.start, item.end)
        keep(item)

    requests = some_requests(3 * BURSTS, 8)
    for at, request in enumerate(requests):
        request.arrival_time = round(at // 3 / (BURSTS - 1) * LASTS_S * 1e9)
    model = open_model("hash", "cuda")
    with (
        replaced(CudaStream, launch=launching),
        replaced(CudaOp, synchronize=reading),
        replaced(device.recorder, slice=keeping),
    ):
        run = run_loop("overlap", device, model, requests, small_config(4))
    wrong = [(start - ran[op].start, f"{ran[op].name} begins before its launch")
             for op, start in launched.items()]  # fmt: skip
    wrong += [(ran[op].end - end, f"{ran[op].name} ends after the host had read it")
              for op, end in was_read.items() if op in launched]  # fmt: skip
    lanes: dict[str, list[Span]] = {}
    for op in sorted(launched):
        lanes.setdefault(ran[op].lane, []).append(ran[op])
    for ops in lanes.values():
        wrong += [(one.end - other.start, f"{other.name} begins before {one.name} ends")
                  for one, other in pairwise(ops)]  # fmt: skip
    assert max(wrong)[0] <= BOUND_NS, max(wrong)
    assert was_read and run.trace.end / 1e9 >= 0.9 * LASTS_S


# -- in steady decode nobody allocates, and nobody waits but for events ----------------------------

STEADY = "steady decode"  # the range that a profiler is told
SETTLE, WINDOW = 24, 40  # turns before it, with the first page boundary among them, and in it
FORBIDDEN = re.compile(
    r"cuda(Malloc|Free|GraphInstantiate|StreamBeginCapture)\w*|cudaHost(Alloc|Register)"
    r"|cuda(Stream|Device)Synchronize|cudaMemcpy\w*(?<!Async)"
    r"|cuMem(Alloc|Free|HostAlloc|Create|Map)\w*|cu(Stream|Ctx)Synchronize"
)


def calls_in_steady_decode(seen: list[SeenEvent]) -> list[str]:
    """Calls of CUDA, by any thread, while the range lasted."""
    named = (item for item in seen if item.kind in (RANGE, ANNOTATION))
    spans = [(item.start, item.end) for item in named if item.name == STEADY]
    return [
        VERSION.sub("", call.name)
        for call in seen
        if call.kind == CALL
        and any(start <= call.start and call.end <= end for start, end in spans)
    ]


def in_steady_decode(folder: Path) -> tuple[Engine, Iterator[object]]:
    """Eight rows that cross pages of 16 tokens again and again."""
    params = SamplingParams(max_new_tokens=SETTLE + WINDOW + 20, ignore_eos=True)
    requests = [Request(f"r{at}", [at + 1, *range(1, 66)], params) for at in range(8)]
    config = replace(small_config(8), chunked_prefill_size=-1)
    model, device = small_llama(folder), open_device("cuda")
    engine = make_engine("overlap", device, model, config, Frontend(requests))
    return engine, LOOPS["overlap"].start(engine)


def test_what_steady_decode_ships_was_shipped_in_sizes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch keeps pinned buffers in powers of two; a size that is new would be allocated."""
    sizes, healthy = set[int](), thread.ship

    def shipping(values: Any, *where: Any) -> Any:
        shipped = healthy(values, *where)
        sizes.add((shipped.numel() * shipped.element_size() - 1).bit_length())
        return shipped

    monkeypatch.setattr(thread, "ship", shipping)
    engine, turns = in_steady_decode(tmp_path)
    for _ in range(SETTLE):
        next(turns)
    before = set(sizes)
    sizes.clear()
    for _ in range(WINDOW):
        next(turns)
    assert sizes and sizes <= before
    engine.frontend.interrupt()
    while not engine.is_done:
        next(turns)
    engine.device.close()


@pytest.mark.thorough
@pytest.mark.skipif(not IS_THERE, reason="torch sees no GPU here")
def test_steady_decode_neither_allocates_nor_waits(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile, record_function

    engine, turns = in_steady_decode(tmp_path)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(SETTLE):
            next(turns)
        with record_function(STEADY):
            for _ in range(WINDOW):
                next(turns)
        while not engine.is_done:
            next(turns)
    engine.device.close()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    inside = calls_in_steady_decode(seen_by_torch(tmp_path / "trace.json"))
    assert inside and [name for name in inside if FORBIDDEN.fullmatch(name)] == []


# -- each holds ------------------------------------------------------------------------------------

BELIEFS = (
    computes, laws_hold, laws_hold_in_hostile_memory, launches_without_waiting,
    graphs_say_what_kernels_say, lies_on_one_clock,
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("belief", BELIEFS, ids=lambda it: it.__name__)
def test_what_the_code_believes_of_a_gpu_holds(belief: Any, tmp_path: Path) -> None:
    belief(tmp_path)
