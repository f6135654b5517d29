"""Random workloads, each on several loops: every law held against every one of them.

The workload of a number is that of its seed, so a failure is repeated by its seed and its loop.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker

from ..core import FinishReason
from .case import Case
from .draw.axes import happened
from .draw.designs import read_design
from .draw.draw import designs_for, draw
from .judge import Finding, judge

LAWS = (
    "identity", "ends", "client", "logprobs", "abort", "progress", "order", "budget", "leak",
    "race", "touches", "ownership", "time", "livelock", "deadlock", "crash",
)  # fmt: skip
SEEN_AT_THE_END = ("identity", "ends", "client", "logprobs", "abort")  # not of a run that stopped
ON_SIM_ALONE = ("touches",)  # nowhere else can it be watched what an op does
FEW = 8  # workloads that are not worth another process


@dataclass(frozen=True)
class Tried:
    """One case that was run: what of it does not hold, and how its requests ended."""

    seed: int
    loop: str  # as ``--loop`` takes it
    findings: tuple[Finding, ...]
    finished: bool
    requests: int
    aborted: int
    refused: int
    unjudged: tuple[str, ...] = ()  # laws that had nothing to look at
    failed: int = 0  # requests that ended because a step failed, as the workload wanted it
    happened: tuple[tuple[str, str], ...] = ()  # axis and value; see ``draw/axes.py:OF_A_RUN``

    def holds(self, law: str) -> bool:
        """Whether a law was looked at and not broken."""
        looked_at = self.finished or law not in SEEN_AT_THE_END
        return looked_at and all(item.law != law for item in self.findings)


def laws_on(device: str) -> list[str]:
    """The laws that a run on a device can be judged by."""
    return [law for law in LAWS if device == "sim" or law not in ON_SIM_ALONE]


def case_of(seed: int, loop: str, device: str = "sim") -> Case:
    """The case that a failure names.

    Raises:
        ValueError: there is no such loop.
    """
    return draw(seed).on(read_design(loop), device)


def try_seed(seed: int, loops: Sequence[str] = (), device: str = "sim") -> list[Tried]:
    """One workload on each of the loops; without any, on those that come round with its seed."""
    drawn = draw(seed)
    designs = [read_design(name) for name in loops] or designs_for(drawn, device)
    tried = []
    for design in designs:
        verdict = judge(drawn.on(design, device))
        requests = verdict.workload.requests
        ends = Counter(req.finish_reason for req in requests)
        failed = sum(map(verdict.workload.has_failed, requests))
        tried.append(
            Tried(
                seed, design.name, verdict.findings, verdict.finished, sum(ends.values()),
                ends[FinishReason.ABORT], ends[FinishReason.ERROR] - failed,
                tuple(law for law in LAWS if verdict.lacking(law)), failed,
                tuple(happened(verdict)),
            )
        )  # fmt: skip
    return tried


def try_workloads(
    seeds: Sequence[int], loops: Sequence[str] = (), device: str = "sim", jobs: int = 1
) -> Iterator[list[Tried]]:
    """``try_seed`` for each seed, in their order, in so many processes.

    However many there are, the results are the same. The processes have ended when this has.
    """
    one = partial(try_seed, loops=tuple(loops), device=device)
    if jobs == 1 or len(seeds) < FEW:
        yield from map(one, seeds)
        return
    with processes(min(jobs, len(seeds))) as pool:
        with unheard_interrupt():  # what is started now hears no Ctrl-C: this process sees to it
            results = pool.map(one, seeds)
        yield from results


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes; what has not begun is given up at the end, and what has is waited for."""
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def unheard_interrupt() -> Iterator[None]:
    """A process that is started meanwhile never hears Ctrl-C; this one hears it afterwards.

    A new process inherits which signals are blocked. Only a program's main thread hears it at all.

    Raises:
        KeyboardInterrupt: it came meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    resource_tracker.ensure_running()  # else it comes with the first process, and unblocks signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
