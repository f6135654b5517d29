"""The laws can fail: each bug put back turns a law red on a workload that is green without it.

``hypothesis.find`` looks for such a workload and shrinks it. That the same workload passes before
the patch and fails after it also shows that the patch changes behaviour. Bugs that were published
are in the museum (``minisched/museum/bugs``, ``test_museum.py``), and so are memory that is freed
in flight and a late token of a request that was preempted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import find, settings

from minisched.core import Lease, Request
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.memory import Match
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerStuck

from .laws import Broken, check_all, play
from .workloads import VOCAB, Workload, fresh, workloads

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)


def copy_without_wait(engine: Engine) -> None:
    """The copy stream does not wait for the sample it copies."""
    engine.worker.copy_stream.wait = lambda op: None  # type: ignore[method-assign]


def prefix_not_locked(engine: Engine) -> None:
    """A cached prefix that a running request reads is not locked, so it may be evicted."""
    tree = engine.scheduler.tree
    if tree is not None:
        tree.inc_lock_ref = lambda node: None  # type: ignore[method-assign]
        tree.dec_lock_ref = lambda node: None  # type: ignore[method-assign]


def row_not_rewritten(engine: Engine) -> None:
    """Duplicates are freed, but the device is not told which pages take their place."""
    leases, retire = engine.scheduler.leases, engine.scheduler.leases.retire

    def forgetful(lease: Lease, pages: list[int]) -> None:
        lease.sent_pages = len(lease.pages)
        retire(lease, pages)

    leases.retire = forgetful  # type: ignore[method-assign]


def last_token_matched(engine: Engine) -> None:
    """The whole prompt may be cached, so that nothing is left to sample from (or half a page)."""
    cache = engine.scheduler.prefix_cache

    def greedy(req: Request) -> Match | None:
        tree = engine.scheduler.tree
        return tree.match_prefix(req.known_tokens(0, req.known_len)) if tree else None

    cache.match_prefix = greedy  # type: ignore[method-assign]


@dataclass(frozen=True)
class Bug:
    """A patch, the loop it is put into, and the law that must catch it."""

    patch: Callable[[Engine], None]
    loop: str
    relay: str
    law: type[Exception]
    says: str


BUGS = [
    Bug(prefix_not_locked, "overlap", "pool", Broken, "identity"),
    Bug(row_not_rewritten, "overlap", "pool", Broken, "identity"),
    Bug(last_token_matched, "serial", "host", SchedulerStuck, "nothing can run"),
    Bug(copy_without_wait, "serial", "host", Broken, "identity"),
    Bug(copy_without_wait, "overlap", "ring", Broken, "identity"),
]


def verdict(workload: Workload, bug: Bug, patch: Callable[[Engine], None]) -> Exception | None:
    """What a run of a fresh copy of the workload ends in: None if every law holds."""
    workload = fresh(workload)
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    options: dict[str, Any] = {}
    try:
        device = SimDevice()
        engine, outputs = play(workload, bug.loop, bug.relay, options, device, model, COST, patch)
        check_all(workload, engine, outputs)
    except Exception as error:  # a broken scheduler may crash in any way
        return error
    return None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.patch.__name__}-{bug.loop}")
def test_a_law_catches_the_bug(bug: Bug) -> None:
    def caught(workload: Workload) -> bool:
        error = verdict(workload, bug, bug.patch)
        return isinstance(error, bug.law) and bug.says in str(error)

    smallest = find(
        workloads(),
        caught,
        settings=settings(max_examples=2000, deadline=None, derandomize=True, database=None),
    )
    assert verdict(smallest, bug, lambda engine: None) is None, "the healthy loop must pass"
