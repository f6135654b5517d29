"""The first run on a GPU: what has to hold there, in order, each a check that can fail.

Nothing on a CPU shows that the streams, events, graphs and the allocator of a GPU do what the code
believes of them. These are the beliefs, one a step, from the plainest on: it computes; every loop
says what the oracle says; it still does where freed memory is overwritten at once; no decode step
is launched by waiting for the GPU; graphs say what kernels say; the slices of a run lie on one
clock; in steady decode nobody allocates or waits. Then the figures.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ..checks.draw import DRAFTERS, Variant, all_designs, designs_by_loop, designs_for, draw
from ..checks.judge import judge
from ..checks.many import CAUSES, LAWS
from ..core import Request, SamplingParams
from ..devices.base import WRONG_TOKEN
from ..devices.registry import open_device
from ..engine.frontend import Frontend
from ..export.native import to_json
from ..loops.design import LOOPS
from ..loops.run import Run, make_engine, run_loop, run_to_end
from ..models.base import Model
from ..models.registry import open_model
from ..scheduler import SchedulerConfig
from ..trace import Trace
from ..trace.files import write_whole
from .cuda import (
    COMMON,
    CONTEXT_LEN,
    GIB,
    PEER,
    SHAPES,
    GpuLoad,
    TransformersPeer,
    cuda_figures,
    folder_for,
    write_random_llama,
)
from .figures import Figure, as_json, machine
from .instruments import (
    DecodeLaunches,
    NotRun,
    OpTimes,
    calls_in,
    hostile_memory,
    nvtx_range,
    replaced,
    seen_by_nsight,
    seen_by_torch,
)

DEVICE = "cuda"
OK, FAILED, NOT_RUN = "ok", "failed", "not run"  # the verdicts


class Failed(Exception):
    """What a step asks for does not hold; what was seen, in a sentence."""


@dataclass(frozen=True)
class StepOutcome:
    """What a step came to: its verdict, and what was seen, or the reason, in a sentence."""

    step: str
    verdict: str
    said: str
    seconds: float


class Errand(NamedTuple):
    """Where a step leaves what it finds, and for how long it looks."""

    folder: Path
    seconds: float  # for what could go on for ever
    until: float  # on ``time.monotonic``: then it has to come to an end

    def keep(self, name: str, trace: Trace) -> str:
        """Leave a trace; its path."""
        path = self.folder / f"{name.replace(':', '-')}.json"
        write_whole(path, to_json(trace), with_folders=True)
        return str(path)


# -- 1: the machine --------------------------------------------------------------------------------


def see_machine(errand: Errand) -> str:
    """Which GPU, driver and torch there are, and that a stream computes what it should."""
    import torch

    device = open_device(DEVICE)
    numbers = device.memory("numbers", 1000)
    op = device.stream("forward").launch(lambda: numbers.cumsum(0), name="sum")
    last = device.stream("forward").launch(device.bring_to_host, op, name="copy").synchronize()[-1]
    device.close()
    if (total := int(last)) != 1000 * WRONG_TOKEN:
        raise Failed(f"1000 times {WRONG_TOKEN} came to {total}")
    free, size = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    return (
        f"{name}, {size / GIB:.0f} GiB of which {free / GIB:.0f} are free, driver {driver()}, "
        f"torch {torch.__version__} for CUDA {torch.version.cuda}, {machine()['cpus']} cores"
    )


def driver() -> str:
    """The driver's version, where a program tells."""
    if (smi := shutil.which("nvidia-smi")) is None:
        return "unknown"
    command = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    return (said.splitlines() or ["unknown"])[0]


# -- 2, 3: every law, on every loop, also where freed memory is overwritten ------------------------


def hold_laws(errand: Errand) -> str:
    """Each loop with each relay and option, plain and with drafts of each kind."""
    return judge_cases(errand, "hash", tuple(dict.fromkeys(DRAFTERS)))


def hold_laws_in_hostile_memory(errand: Errand) -> str:
    """The same with the radix cache, plain and with lookups on the GPU; ops are late."""
    with hostile_memory():
        return judge_cases(errand, "memory", ("", "NGRAM_GPU"), with_radix_cache=True)


def designs() -> list[Variant]:
    """Every loop that runs on the device, with each relay and option."""
    return [design for design in all_designs() if DEVICE in LOOPS[design.loop].devices]


def judge_cases(
    errand: Errand, step: str, algorithms: Sequence[str], with_radix_cache: bool = False
) -> str:
    """Hold every law against random workloads until each design has had its turn, and longer.

    Raises:
        Failed: a law broke.
        NotRun: there was not enough time, or a law had nothing to look at.
    """
    wanted = {
        (it.name, name) for it in designs() for name in algorithms if name not in it.refuses()
    }
    left, judged, first = set(wanted), set[str](), dict[str, str]()
    cases, broken, began = 0, 0, time.monotonic()
    for seed, design, algorithm in turns(left, algorithms, with_radix_cache):
        now = time.monotonic()
        if now > errand.until or broken > MOST or (not left and now - began > errand.seconds):
            break
        try:
            verdict = judge(draw(seed).on(design, DEVICE))
        except Exception as error:  # the GPU is lost to this process
            where = f"seed {seed}, {design.name}"
            first.setdefault("crash", f"crash: {type(error).__name__}: {error} ({where})")
            break
        left.discard((design.name, algorithm))
        cases, broken = cases + 1, broken + (not verdict.holds)
        judged |= {law for law in LAWS if not verdict.lacking(law)}
        for finding in verdict.findings:
            if finding.law not in first:
                path = errand.keep(f"{step}-{finding.law}-{seed}-{design.name}", verdict.trace)
                first[finding.law] = (
                    f"{finding.law}: {finding.sentence[:300]} (seed {seed}, {design.name}; {path})"
                )
    if first:
        causes = [first[law] for law in CAUSES if law in first]
        raise Failed(f"{broken} of {cases} cases broke a law; {'; '.join(causes)}")
    if left:
        raise NotRun(f"in its time {len(wanted) - len(left)} of {len(wanted)} had their turn")
    if unseen := set(SURE) - judged:
        raise NotRun(f"in {cases} cases nothing was there to judge by: {', '.join(sorted(unseen))}")
    return f"{len(wanted)} loops with relays, options and drafts, {cases} cases: every law held"


MOST = 20  # cases with findings: then nobody learns more from another one
SURE = ("identity", "leak", "race")  # laws for which any few workloads give something to look at


def turns(
    left: set[tuple[str, str]], algorithms: Sequence[str], with_radix_cache: bool
) -> Iterator[tuple[int, Variant, str]]:
    """Seeds with a design and its drafts: what had no turn yet first, of each loop one a seed."""
    known = {design.name for design in designs()}
    for seed in count():
        drawn = draw(seed)
        config = drawn.workload.config
        algorithm = config.speculative_algorithm
        if algorithm not in algorithms or (with_radix_cache and config.disable_radix_cache):
            continue
        by_loop = designs_by_loop(drawn, DEVICE).values()
        new = [[it for it in loop if (it.name, algorithm) in left][:1] for loop in by_loop]
        chosen = designs_for(drawn, DEVICE) if not left else [it for items in new for it in items]
        yield from ((seed, it, algorithm) for it in chosen if it.name in known)


# -- 4: no step waits for the GPU when it is launched ----------------------------------------------


def launch_without_waiting(errand: Errand) -> str:
    """Every loop launches decode steps without a call that blocks until the GPU is done."""
    watch = DecodeLaunches()
    with watch.may_not_wait():
        for loop in dict.fromkeys(design.loop for design in designs()):
            look_at(loop, open_model("hash", DEVICE), watch)
        with TemporaryDirectory() as folder:
            look_at("overlap", small_llama(Path(folder)), watch)
    return f"{watch.count} ops of decode steps were launched, and the host waited in none"


def look_at(loop: str, model: Model, watch: DecodeLaunches) -> None:
    """One run; what its launches were refused for is its requests' error.

    Raises:
        Failed: a launch waits.
        NotRun: there was none.
    """
    before = watch.count
    run = run_to_end(loop, DEVICE, model, some_requests(3, 6), small_config(4))
    for rid, error in run.errors.items():
        raise Failed(f"{loop} with {model.name}: {rid} ended with {error}")
    if watch.count == before:
        raise NotRun(f"{loop} launched no decode step")


def some_requests(number: int, new_tokens: int, spread: int = 0) -> list[Request]:
    """Prompts of different lengths; with ``spread`` each ends so many tokens after the one before.

    So rows go up while prompts come in and down as requests end.
    """
    return [
        Request(
            f"r{at}",
            [(7 * at + place) % 50 + 1 for place in range(5 + 9 * (at % 8))],
            SamplingParams(max_new_tokens=new_tokens + spread * at, ignore_eos=True),
        )
        for at in range(number)
    ]


def small_config(rows: int) -> SchedulerConfig:
    """Room for so many rows at once; pages are as many whatever their number."""
    return SchedulerConfig(
        kv_tokens=4096, page_size=16, max_running_requests=rows, chunked_prefill_size=32,
        disable_radix_cache=True,
    )  # fmt: skip


# -- 5: graphs say what kernels say ----------------------------------------------------------------


def same_with_graphs(errand: Errand) -> str:
    """A Llama whose decode steps are graphs, as rows come and go and sizes change, or in a thread.

    In float64, so that no rounding decides which token is the likeliest.
    """
    from ..models.llama_graphs import CudaGraphRunner

    loops = ("serial", "overlap", "vllm_batch_queue", "overlap_thread", "mindie_plugin")
    runs, replays, healthy = 0, list[int](), CudaGraphRunner.run

    def replayed(runner: Any, replay: Any, batch: Any, ids: Any) -> Any:
        replays.append(len(batch.rows))
        return healthy(runner, replay, batch, ids)

    with TemporaryDirectory() as folder, replaced(CudaGraphRunner, "run", replayed):
        graphed, plain = small_llama(Path(folder)), small_llama(Path(folder), graphs=False)
        for rows in (3, 5, 3):  # another page table, and back
            config = small_config(rows)
            truth = run_to_end("serial", DEVICE, plain, some_requests(5, 4, 2), config)
            for loop in loops:
                run = run_to_end(loop, DEVICE, graphed, some_requests(5, 4, 2), config)
                if run.outputs != truth.outputs:
                    path = errand.keep(f"graphs-{loop}-{rows}-rows", run.trace)
                    raise Failed(f"{loop} with {rows} rows: {difference(truth, run)}; {path}")
                if graphed.runner.failure:
                    raise Failed(f"{loop} with {rows} rows: {graphed.runner.failure}")
                runs += 1
    if not replays:
        raise NotRun("no graph was replayed")
    return f"{len(replays)} steps of {runs} runs, of 1 to {max(replays)} rows, said the same"


def difference(truth: Run, run: Run) -> str:
    """Who says something else, and what."""
    for rid, error in run.errors.items():
        return f"{rid} ended with {error}"
    rid = next(rid for rid, tokens in truth.outputs.items() if run.outputs[rid] != tokens)
    return f"{rid} gave {run.outputs[rid]}, without graphs {truth.outputs[rid]}"


def small_llama(folder: Path, graphs: bool = True) -> Any:
    """A random Llama whose logits lie far apart."""
    from ..models.llama import write_tiny_llama
    from ..models.llama_graphs import LlamaGraphs
    from ..models.llama_torch import LlamaTorch

    cls = LlamaGraphs if graphs else LlamaTorch
    written = write_tiny_llama(folder, vocab=128, hidden=32, intermediate=64)
    return cls(written, "float64", scripted=False)


# -- 6: all slices lie on one clock ----------------------------------------------------------------


def on_one_clock(errand: Errand) -> str:
    """What the GPU says of its ops agrees with the host: none runs before its launch, or after it
    was read, and none before the one ahead of it, from the first moment to the last.
    """
    device = open_device(DEVICE)
    requests = some_requests(3 * BURSTS, 8)
    for at, request in enumerate(requests):
        request.arrival_time = round(at // 3 / (BURSTS - 1) * errand.seconds * 1e9)
    model = open_model("hash", DEVICE)
    with OpTimes(device).taken() as times:
        run = run_loop("overlap", device, model, requests, small_config(4))
    (worst, what), lasted = times.worst(), run.trace.end / 1e9
    said = f"{len(times.launched)} ops in {lasted:.1f} s: {what}, by {worst / 1000:.1f} us"
    if worst > BOUND_NS:
        path = errand.keep("clock", run.trace)
        raise Failed(f"{said}, and {BOUND_NS // 1000} are allowed; {path}")
    if not times.read or lasted < 0.9 * errand.seconds:
        raise NotRun(f"{said}, of which the host read {len(times.read)}: too little")
    return f"{said} at most, where {BOUND_NS // 1000} are allowed"


BURSTS = 5  # of requests, from the beginning of the run to its end
BOUND_NS = 50_000  # by how much a slice may lie wrong


# -- 7: in steady decode nobody allocates, and nobody waits ----------------------------------------


def trace_steady_decode(errand: Errand) -> str:
    """What calls of CUDA a profiler sees between settled decode steps: Nsight Systems, or torch's.

    Nobody has to ask for memory there, since all comes back, and nobody has to wait but for events.
    """
    errand.folder.mkdir(parents=True, exist_ok=True)
    try:
        left = errand.until - time.monotonic()
        seen = seen_by_nsight(errand.folder / "trace", [__name__, STEADY], left / 2)
    except NotRun as reason:
        seen = seen_by_torch(errand.folder / "trace.json", steady_decode, STEADY, str(reason))
    inside = calls_in(seen, STEADY)
    if not inside:
        raise NotRun(f"{seen.source} saw no call of CUDA in steady decode")
    if bad := [name for name in inside if FORBIDDEN.fullmatch(name)]:
        names = ", ".join(f"{name} {bad.count(name)} times" for name in sorted(set(bad)))
        raise Failed(f"{seen.source} saw {names} in {WINDOW} steps of steady decode")
    return f"{seen.source} saw {len(inside)} calls in {WINDOW} steps, none that allocates or waits"


STEADY = "steady decode"  # the range that a profiler is told
SETTLE, WINDOW = 12, 40  # turns before it, and in it
FORBIDDEN = re.compile(
    r"cuda(Malloc|Free|GraphInstantiate|StreamBeginCapture)\w*|cudaHost(Alloc|Register)"
    r"|cuda(Stream|Device)Synchronize|cudaMemcpy\w*(?<!Async)"
    r"|cuMem(Alloc|Free|HostAlloc|Create|Map)\w*|cu(Stream|Ctx)Synchronize"
)


def steady_decode(around: Callable[[], AbstractContextManager[Any]]) -> None:
    """Eight requests of a small Llama decode, and inside of ``around`` nobody comes or goes."""
    params = SamplingParams(max_new_tokens=SETTLE + WINDOW + 20, ignore_eos=True)
    requests = [Request(f"r{at}", [at + 1, *range(1, 66)], params) for at in range(8)]
    config = replace(small_config(8), chunked_prefill_size=-1)
    with TemporaryDirectory() as folder:
        model, device = small_llama(Path(folder)), open_device(DEVICE)
    try:
        engine = make_engine("overlap", device, model, config, Frontend(requests))
        turns = LOOPS["overlap"].start(engine)
        for _ in range(SETTLE):
            next(turns)
        with around():
            for _ in range(WINDOW):
                next(turns)
        while not engine.is_done:
            next(turns)
    finally:
        device.close()


# -- 8: the figures --------------------------------------------------------------------------------


def quick_figures(errand: Errand) -> str:
    """``minisched bench cuda`` with the smallest shape, once; all of its rows are in the folder."""
    import torch

    free = torch.cuda.mem_get_info()[0]
    if free < NEEDED:
        raise NotRun(f"{free / GIB:.0f} GiB are free, and {NEEDED // GIB} are needed")
    from ..models.llama_graphs import LlamaGraphs

    (shape, sizes), load = next(iter(SHAPES.items())), QUICK
    settings = {**COMMON, **sizes}
    with folder_for(settings) as name:
        folder = Path(name)
        write_random_llama(folder, settings, DEVICE)
        model = LlamaGraphs(folder, "bfloat16", context_len=CONTEXT_LEN, scripted=False)
        peer = partial(TransformersPeer, folder, load)
        figures = cuda_figures(shape, settings, model, peer, load, 1, lambda doing: None)
    write_whole(errand.folder / "figures.json", json.dumps(as_json(figures), indent=1))
    by_name = {row.name.removeprefix(f"{shape}: "): row for row in figures}
    if raced := [row for row in figures if row.name.endswith(", races") and row.max]:
        raise Failed(", ".join(map(in_words, raced)))
    told = [by_name[name] for name in TOLD if name in by_name]
    return f"{shape}: " + ", ".join(map(in_words, told))


NEEDED = 20 * GIB  # both engines' weights, KV, and what measures the bandwidth
QUICK = GpuLoad(new_tokens=64)
TOLD = (
    "overlap", PEER, "transformers / overlap", "overlap, GPU busy in steady decode",
    "overlap, a step / its limit",
)  # fmt: skip


def in_words(row: Figure) -> str:
    """A figure in a few words."""
    name = row.name.partition(": ")[2]
    return f"{name} {row.reason if row.median is None else f'{row.median:.4g} {row.unit}'}"


# -- the steps, in order ---------------------------------------------------------------------------


class FirstRunStep(NamedTuple):
    """One check: what it asks, and how many seconds it may take, beside those of ``--seconds``."""

    name: str
    asks: str
    check: Callable[[Errand], str]
    limit: float
    goes_on: bool = False  # for as long as ``--seconds`` says


STEPS = (
    FirstRunStep("machine", "it computes what it should", see_machine, 30),
    FirstRunStep("hash", "every loop and relay says what the oracle says", hold_laws, 50, True),
    FirstRunStep(
        "memory", "also where freed memory is overwritten", hold_laws_in_hostile_memory, 50, True
    ),
    FirstRunStep("waiting", "no decode step is launched by waiting", launch_without_waiting, 40),
    FirstRunStep("graphs", "graphs say what kernels say", same_with_graphs, 60),
    FirstRunStep("clock", "all slices lie on one clock", on_one_clock, 20, True),
    FirstRunStep("trace", "steady decode allocates nothing", trace_steady_decode, 60),
    FirstRunStep("figures", "how fast it is", quick_figures, 110),
)


def limit(step: FirstRunStep, seconds: float) -> float:
    """How many seconds a step may take."""
    return step.limit + seconds * step.goes_on


def take(step: FirstRunStep, folder: Path, seconds: float) -> StepOutcome:
    """What a step comes to; it is to be over in time, but nothing here ends what hangs."""
    began = time.monotonic()
    try:
        errand = Errand(folder, seconds, began + limit(step, seconds))
        verdict, said = OK, step.check(errand)
    except NotRun as error:
        verdict, said = NOT_RUN, str(error)
    except Failed as error:
        verdict, said = FAILED, str(error)
    except Exception as error:  # whatever a GPU may come up with
        words = (str(error).splitlines() or ["no word"])[0]
        verdict, said = FAILED, f"{type(error).__name__}: {words}"
    return StepOutcome(step.name, verdict, said, round(time.monotonic() - began, 1))


if __name__ == "__main__":
    steady_decode(nvtx_range(sys.argv[1]))
