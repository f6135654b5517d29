"""Three ways to do the host's added work, which tell what the lock takes and what the cores take.

Pure Python needs the interpreter lock and a core. The same rounds in a worker process need a core
alone: the thread that waits for them has let the lock go. A sleep needs neither; it is as long as
the rounds are at that time when nobody disturbs them, which on a shared machine changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

from ...devices.host_work import Way, compute, rounds_of, work

PYTHON, PROCESS, SLEEP = "Python", "a worker process", "a sleep"


@contextmanager
def ways() -> Iterator[dict[str, Way]]:
    """Each way by its name; the worker process lives as long as the context."""
    context = get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=serve, args=(there,), daemon=True)
    worker.start()
    there.close()
    here.recv()  # it has started

    def in_process(cost: int) -> None:
        here.send(rounds_of(cost))
        here.recv()

    try:
        yield {PYTHON: compute, PROCESS: in_process, SLEEP: sleep}
    finally:
        here.close()
        worker.join()


def sleep(cost: int) -> None:
    """Let the time pass."""
    time.sleep(cost / 1e9)


def stretched(way: Way, factor: float) -> Way:
    """The same way for so many times the work."""
    return lambda cost: way(round(factor * cost))


def slowness(cost: int) -> float:
    """How many times as long as meant the work takes now, in this thread alone."""
    start = time.perf_counter_ns()
    compute(cost)
    return (time.perf_counter_ns() - start) / cost


def serve(pipe: Connection) -> None:
    """The worker's side: says that it is there, then does what it is sent until the pipe closes."""
    pipe.send(0)
    try:
        while True:
            pipe.send(work(pipe.recv()))
    except (EOFError, OSError):
        return
