"""One function for many items: in this process, in several, or on the machines of a cluster.

``spread`` is the whole of it. What it promises is the same everywhere: every item's result comes
exactly once, a process that dies loses nothing but the item that kills it, and at the end, or after
Ctrl-C, nothing is left running. On one machine it needs the standard library only. A cluster is
Dask's or Ray's (extras ``sweep`` and ``ray``), and its workers need this package installed.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

from .devices.registry import load_module

T = TypeVar("T")
R = TypeVar("R")
BACKENDS = ("processes", "dask", "ray")
AHEAD = 4  # items that each process has been handed, or waits for
FAR_AHEAD = 16  # the same on a cluster, whose workers are asked over a network


@dataclass(frozen=True)
class Workers:
    """Where items are worked on: so many processes here, or a cluster.

    ``address`` is a cluster's; without one it is started here, with ``jobs`` workers.

    Raises:
        ValueError: there is no such backend, a number is too small, or an address goes nowhere.
    """

    jobs: int = 1
    backend: str = "processes"
    address: str = ""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise ValueError(f"backend is {self.backend!r}, but it must be one of {known}.")
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}, but it must be at least 1.")
        if self.address and self.backend == "processes":
            raise ValueError(
                f"address is {self.address!r}, but the backend processes runs on this machine "
                "alone; give the backend dask or ray."
            )


HERE = Workers()


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ItemLost(RuntimeError):
    """The process that worked on an item died, also when it had nothing else to do."""


def spread(
    one: Callable[[T], R],
    items: Sequence[T],
    workers: Workers = HERE,
    lost: Callable[[T, str], R] | None = None,
) -> Iterator[tuple[int, R]]:
    """What comes of each item, with its place in ``items``, as it comes.

    ``one`` and the items are pickled, so ``one`` is a function of a module. ``lost`` says what
    stands for an item whose process died each time; it gets a reason. What has not begun when the
    iterator is closed is given up, and what has is waited for.

    Raises:
        ItemLost: an item was lost, and there is no ``lost``.
        ValueError: the backend is not installed, or no cluster answers at the address.
    """
    if workers.backend == "dask":
        yield from _on_dask(one, items, workers, lost or give_up)
    elif workers.backend == "ray":
        yield from _on_ray(one, items, workers, lost or give_up)
    elif workers.jobs == 1:
        yield from enumerate(map(one, items))
    else:
        yield from _in_processes(one, items, workers.jobs, lost or give_up)


def in_order(found: Iterable[tuple[int, R]]) -> Iterator[R]:
    """The results of ``spread`` in the order of the items."""
    early: dict[int, R] = {}
    due = 0
    for at, result in found:
        early[at] = result
        while due in early:
            yield early.pop(due)
            due += 1


def give_up(item: object, reason: str) -> Any:
    """What ``spread`` does with a lost item, where nobody says something better."""
    raise ItemLost(f"{item}: {reason}")


# -- On this machine -------------------------------------------------------------------------------


def _in_processes(
    one: Callable[[T], R], items: Sequence[T], jobs: int, lost: Callable[[T, str], R]
) -> Iterator[tuple[int, R]]:
    """Fresh processes, which hear no Ctrl-C.

    A pool in which one dies is broken for good. Those that were handed to it are tried again, one
    at a time, so that it shows which of them it was; the others go on in a new pool.
    """
    todo = iter(range(len(items)))
    while True:
        pool = _new_pool(min(jobs, len(items)))
        futures: dict[Future[R], int] = {}
        handed = set[int]()  # also where the pool was found broken by handing it over
        try:
            while True:
                with unheard_interrupt():  # what is started now leaves Ctrl-C to this process
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
    """Those that a pool was at when it broke, in a process that has one at a time."""
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
        max(1, jobs), multiprocessing.get_context("spawn")
    )


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
    from multiprocessing import resource_tracker  # a browser's Python has none

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


# -- On a cluster ----------------------------------------------------------------------------------
# Through each library's own interface. joblib's backends for them were tried: that for Dask waits
# for ever once a task was given up (joblib 1.6.0), Ray's gives no results as they come (2.60.0).


def _on_dask(
    one: Callable[[T], R], items: Sequence[T], workers: Workers, lost: Callable[[T, str], R]
) -> Iterator[tuple[int, R]]:
    """Dask gives what a lost worker was at to others, ``allowed-failures`` times (three)."""
    dask: Any = load_module("dask.distributed", "sweep", "backend dask")
    with _dask_client(dask, workers) as client:
        count = sum(info["nthreads"] for info in client.scheduler_info(-1)["workers"].values())
        if not count:
            raise ValueError(f"the Dask scheduler at {workers.address} has no workers.")
        todo, running = iter(range(len(items))), dict[Any, int]()
        done = dask.as_completed(raise_errors=False)
        while True:
            for at in islice(todo, count * FAR_AHEAD - len(running)):
                future = client.submit(one, items[at], pure=False)
                running[future] = at
                done.add(future)
            if not running:
                return
            future = next(done)
            at = running.pop(future)
            try:
                result = future.result()
            except dask.KilledWorker:
                result = lost(items[at], "every worker that ran it died")
            yield at, result


@contextmanager
def _dask_client(dask: Any, workers: Workers) -> Iterator[Any]:
    """A client of the cluster at an address, or of one that lives as long as this does.

    Raises:
        ValueError: nothing answers.
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


def _on_ray(
    one: Callable[[T], R], items: Sequence[T], workers: Workers, lost: Callable[[T, str], R]
) -> Iterator[tuple[int, R]]:
    """Ray runs a task of a lost worker again, three times unless told otherwise."""
    ray: Any = load_module("ray", "ray", "backend ray")
    here = {} if workers.address else {"num_cpus": workers.jobs, "include_dashboard": False}
    try:
        cluster = ray.init(
            workers.address or "local", log_to_driver=False, logging_level="ERROR", **here
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"no Ray cluster answers at {workers.address!r}: {error}.") from error
    with cluster:
        task = ray.remote(_call)  # no partial can be a task
        count = int(ray.cluster_resources().get("CPU", 1))
        todo, running = iter(range(len(items))), dict[Any, int]()
        while True:
            for at in islice(todo, count * FAR_AHEAD - len(running)):
                running[task.remote(one, items[at])] = at
            if not running:
                return
            (ready,), _ = ray.wait(list(running))
            at = running.pop(ready)
            try:
                result = ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
            except ray.exceptions.RayError:
                result = lost(items[at], "every worker that ran it died")
            yield at, result


def _call(one: Callable[[T], R], item: T) -> R:
    return one(item)
