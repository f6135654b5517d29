"""Ways to do the host's added work, which tell what the lock takes and what the cores take.

Pure Python needs the interpreter lock and a core. The same rounds in a worker process need a core
alone: the thread that waits for them has let the lock go. A sleep needs neither; it is as long as
the rounds were a moment ago in the serial loop, where nobody disturbs them: on a shared machine
that changes.

The fourth way is Python again, only that a thread gets the lock from a busy one after 0.005 ms. A
device's ops then wait less for the host, but the device's own Python is interrupted as soon, and
of the two the second counts more: less is hidden. So it is not what devices do by themselves. Where
anybody else wants the cores, it is worse: threads do little but take the lock from each other, and
a serial step of 4 to 6 ms was seen to take 8 to 37.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

from ...devices.wall_clock import Way, compute, rounds_of, work

PYTHON, PROCESS, SLEEP = "Python", "a worker process", "a sleep"
SERIAL = "serial"  # Python too, and the loop is the serial one
QUICK, QUICK_S = "taking the lock after 0.005 ms", 0.000_005
WAYS = (SERIAL, PYTHON, QUICK, PROCESS, SLEEP)


def ways_for(work_ms: float) -> tuple[str, ...]:
    """All of them, but where no work is added, nobody can tell who does it."""
    return WAYS if work_ms else (SERIAL, PYTHON, QUICK)


class Alone:
    """The work where nobody disturbs it, and a sleep that is as long as it took the last time."""

    def __init__(self) -> None:
        self.slowness = 1.0  # how many times as long as meant

    def __call__(self, cost: int) -> None:
        """Do it."""
        start = time.perf_counter_ns()
        compute(cost)
        self.slowness = (time.perf_counter_ns() - start) / cost

    def sleep(self, cost: int) -> None:
        """Let as much time pass."""
        time.sleep(self.slowness * cost / 1e9)


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

    alone = Alone()
    try:
        yield dict(zip(WAYS, (alone, compute, compute, in_process, alone.sleep), strict=True))
    finally:
        here.close()
        worker.join()


def serve(pipe: Connection) -> None:
    """The worker's side: says that it is there, then does what it is sent until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which closes the pipe
    pipe.send(0)
    try:
        while True:
            pipe.send(work(pipe.recv()))
    except (EOFError, OSError):
        return
