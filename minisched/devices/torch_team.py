"""Whose threads torch's operations run on: each thread that computes keeps a team of its own.

OpenMP counts the threads of all teams, also of those that wait for work. With more than there are
cores, libgomp lets every team sleep between two operations instead of spinning: a decode step, some
hundred small operations, then takes twice as long. So only the threads that compute may have one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SOFT = 1  # OpenMP 5.0, omp_pause_soft: threads end, settings stay
_usual: list[int] = []  # threads that torch takes while no device is open; once for each that is


def end_team() -> None:
    """End the team of the thread that calls; its next large operation would start another."""
    end = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if end is not None:  # an older OpenMP keeps its threads: slower, and as right
        end(SOFT)


def give_host_one() -> int:
    """Let the thread that calls, the host, compute alone; how many threads torch would take.

    Several devices may be open: the last ``take_back`` lets it have them again.
    """
    _usual.append(_usual[0] if _usual else torch.get_num_threads())
    torch.set_num_threads(1)
    end_team()
    return _usual[0]


def take_back() -> None:
    """A device is closed."""
    usual = _usual.pop()
    if not _usual:
        torch.set_num_threads(usual)


@contextmanager
def team(size: int) -> Iterator[None]:
    """Inside, this thread computes with ``size`` threads, itself among them."""
    torch.set_num_threads(size)
    with torch.inference_mode():
        yield
