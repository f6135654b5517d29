"""One function for many items: in this process, in several, or on the machines of a cluster.

``spread`` guarantees the same everywhere. Each item's result comes exactly once. A process that
dies loses only the item that kills it. At the end, or after Ctrl-C, no process is left. On one
machine it needs only the standard library. A cluster is Dask's (extra ``sweep``), and its workers
need this package installed.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from ..devices.registry import load_module

T = TypeVar("T")
R = TypeVar("R")
BACKENDS = ("processes", "dask")
MOST_JOBS = 61 if sys.platform == "win32" else 512  # processes of one machine; Windows' limit
AHEAD = 4  # items for each process, running or in its queue
FAR_AHEAD = 16  # the same for each thread of a cluster, because of the network's delay


@dataclass(frozen=True)
class Workers:
    """The place of the work: ``jobs`` processes on this machine, or a cluster.

    ``address`` is the cluster's. Without one, a cluster of ``jobs`` workers starts here.

    Raises:
        ValueError: the backend is unknown, a number is too small, or an address needs a cluster.
    """

    jobs: int = 1
    backend: str = "processes"
    address: str = ""
    prepare: Callable[[], None] | None = None  # called in the worker before each item

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise ValueError(f"backend is {self.backend!r}, but it must be one of {known}.")
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}, but it must be at least 1.")
        if self.jobs > MOST_JOBS:
            raise ValueError(f"jobs is {self.jobs}, but it must be at most {MOST_JOBS}.")
        if self.address and self.backend == "processes":
            raise ValueError(
                f"address is {self.address!r}, but the backend processes runs on this machine "
                "alone; give the backend dask."
            )


HERE = Workers()


def num_cores() -> int:
    """Return the number of cores that this process can use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ItemLost(RuntimeError):
    """The process that worked on an item died, and died again when it ran that item alone."""


def spread(
    one: Callable[[T], R],
    items: Sequence[T],
    workers: Workers = HERE,
    lost: Callable[[T, str], R] | None = None,
) -> Iterator[tuple[int, R]]:
    """Yield the result of each item, with its place in ``items``, in the order of completion.

    ``one`` and the items are pickled, so ``one`` is a function of a module. ``lost`` returns the
    result of an item whose process died each time; it gets the item and a reason. When the iterator
    is closed, items that run are waited for, and the others are dropped.

    Raises:
        ItemLost: an item was lost, and there is no ``lost``.
        ValueError: the backend is not installed, or no cluster answers at the address.
    """
    if workers.prepare is not None:
        one = partial(prepared, workers.prepare, one)
    if workers.backend == "dask":
        yield from _on_dask(one, items, workers, lost or give_up)
    elif workers.jobs == 1:
        yield from enumerate(map(one, items))
    else:
        yield from _in_processes(one, items, workers.jobs, lost or give_up)


def prepared(prepare: Callable[[], None], one: Callable[[T], R], item: T) -> R:
    """Work on an item after the worker's preparation."""
    prepare()
    return one(item)


def in_order(found: Iterable[tuple[int, R]]) -> Iterator[R]:
    """Yield the results of ``spread`` in the order of the items."""
    early: dict[int, R] = {}
    due = 0
    for at, result in found:
        early[at] = result
        while due in early:
            yield early.pop(due)
            due += 1


def give_up(item: object, reason: str) -> Any:
    """Raise ``ItemLost``: the default for a lost item."""
    raise ItemLost(f"{item}: {reason}")


# -- On this machine -------------------------------------------------------------------------------


def _in_processes(
    one: Callable[[T], R], items: Sequence[T], jobs: int, lost: Callable[[T, str], R]
) -> Iterator[tuple[int, R]]:
    """Work in new processes, which get no Ctrl-C.

    A pool is broken once a process of it dies. The items that it had are tried again, one at a
    time, to find the one that kills its process. The other items go on in a new pool.
    """
    todo = iter(range(len(items)))
    while True:
        pool = _new_pool(min(jobs, len(items)))
        futures: dict[Future[R], int] = {}
        handed = set[int]()  # including the item that found the pool broken at ``submit``
        try:
            while True:
                with unheard_interrupt():  # new processes leave Ctrl-C to this one
                    for at in islice(todo, jobs * AHEAD - len(futures)):
                        handed.add(at)
                        futures[pool.submit(one, items[at])] = at
                if not futures:
                    return
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    result, at = future.result(), futures.pop(future)
                    handed.remove(at)
                    yield at, result
        except BrokenExecutor:
            pass
        finally:
            pool.shutdown(cancel_futures=True)
        yield from _one_by_one(one, items, sorted(handed), lost)


def _one_by_one(
    one: Callable[[T], R], items: Sequence[T], places: Sequence[int], lost: Callable[[T, str], R]
) -> Iterator[tuple[int, R]]:
    """Work on the items of a broken pool, in a process that gets one at a time."""
    left = iter(places)
    for first in left:
        pool = _new_pool(1)
        try:
            for at in chain([first], left):
                first = at
                with unheard_interrupt():
                    future = pool.submit(one, items[at])
                yield at, future.result()
        except BrokenExecutor:
            yield first, lost(items[first], "the process that ran it died, twice")
        finally:
            pool.shutdown(cancel_futures=True)


def _new_pool(jobs: int) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(
        max(1, jobs),
        multiprocessing.get_context("spawn"),
        initializer=None if hasattr(signal, "pthread_sigmask") else ignore_interrupt,
    )


def ignore_interrupt() -> None:
    """Ignore Ctrl-C in a new process on Windows, where a process inherits no mask of signals."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def unheard_interrupt() -> Iterator[None]:
    """Block Ctrl-C for processes that start inside; this process gets it at the end.

    A new process inherits the mask of blocked signals. Python handles signals only in the main
    thread.

    Raises:
        KeyboardInterrupt: Ctrl-C came inside.
    """
    is_main = threading.current_thread() is threading.main_thread()
    has_mask = hasattr(signal, "pthread_sigmask")  # otherwise ``ignore_interrupt``
    if sys.platform == "win32" or not (is_main and has_mask):
        yield
        return
    from multiprocessing import resource_tracker  # a browser's Python has none

    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    resource_tracker.ensure_running()  # it would start with the first process and unblock signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


# -- On a cluster ----------------------------------------------------------------------------------
# Through Dask's own interface: joblib's backend for it waits forever after a task was dropped
# (joblib 1.6.0).


def _on_dask(
    one: Callable[[T], R], items: Sequence[T], workers: Workers, lost: Callable[[T, str], R]
) -> Iterator[tuple[int, R]]:
    """Work on a Dask cluster, which tries a lost worker's item on others (``allowed-failures``)."""
    dask: Any = load_module("dask.distributed", "sweep", "backend dask")
    with _dask_client(dask, workers) as client:
        count = sum(info["nthreads"] for info in client.scheduler_info(-1)["workers"].values())
        if not count:
            raise ValueError(f"the Dask scheduler at {workers.address} has no workers.")
        todo, running = iter(range(len(items))), dict[Any, int]()
        done, killed = dask.as_completed(raise_errors=False), list[int]()
        while True:
            for at in islice(todo, count * FAR_AHEAD - len(running)):
                future = client.submit(one, items[at], pure=False)
                running[future] = at
                done.add(future)
            if not running:
                break
            future = next(done)
            at = running.pop(future)
            try:
                result = future.result()
            except dask.KilledWorker:
                killed.append(at)
            else:
                yield at, result
        for at in killed:  # its workers may have died of another item, so each is tried alone
            try:
                result = client.submit(one, items[at], pure=False).result()
            except dask.KilledWorker:
                result = lost(items[at], "every worker that ran it died")
            yield at, result


@contextmanager
def _dask_client(dask: Any, workers: Workers) -> Iterator[Any]:
    """Open a client of the cluster at an address, or of a local one that ends with it.

    Raises:
        ValueError: no scheduler answers.
    """
    if not workers.address:
        cluster = dask.LocalCluster(
            n_workers=workers.jobs, threads_per_worker=1, dashboard_address=None, silence_logs=50
        )
        with cluster, dask.Client(cluster) as client:
            yield client
        return
    try:
        client = dask.Client(workers.address, timeout=10)
    except (OSError, ValueError) as error:
        raise ValueError(f"no Dask scheduler answers at {workers.address!r}: {error}.") from error
    with client:
        yield client
