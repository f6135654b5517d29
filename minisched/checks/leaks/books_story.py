"""What a live scheduler's own marks tell of a page, row or lock that is not where it should be.

``books.py`` sees what is wrong after a turn; who took it, and who should have given it back, the
ledger has heard.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...memory.radix_cache import TreeNode
from ...scheduler import Scheduler
from ...trace.program import is_in
from .audit import report
from .leak import Leak
from .leaks import moments
from .ledger import Ledger
from .moment import Moment


def story_of(scheduler: Scheduler, resource: str, cells: Iterable[int]) -> str:
    """The story of the first leak of one of these, behind a colon; empty where there is none."""
    wanted = set(cells)
    for leak in leaks_so_far(scheduler):
        at = " ".join(word for word in leak.what.split() if word[0].isdecimal())
        if leak.resource == resource and any(is_in(cell, at) for cell in wanted):
            return f": {leak}"
    return ""


def story_of_lock(scheduler: Scheduler, node: TreeNode) -> str:
    """Who locked a node, or one below it, and has lost its row since; or who unlocked it last."""
    below, stack = {node.id}, [node]
    while stack:
        stack += (children := list(stack.pop().children.values()))
        below |= {child.id for child in children}
    for what, cells in (("", {node.id}), (" below it", below)):
        if told := story_of(scheduler, "lock", cells):
            return what + told
    last = ""
    ledger = ledger_of(scheduler)
    for at, delta, lease, now in ledger.lock_log if ledger else ():
        if at in below:
            verb = "locked" if delta > 0 else "unlocked"
            last = f": {lease.rid} {verb} node {at} {now}, and nobody has touched that since"
    return last


def leaks_so_far(scheduler: Scheduler) -> list[Leak]:
    """What the marks say up to now, with all that a released lease still has."""
    if (ledger := ledger_of(scheduler)) is None:
        return []
    for lease in ledger.ending:
        if lease.released is not None:
            report(ledger, lease, f"and its row was freed {lease.released}, but this was not")
        elif not ledger.is_named(lease):
            report(ledger, lease, "and its lease was never released")
    ledger.pages.find_lost(Moment(0))
    return ledger.leaks


def ledger_of(scheduler: Scheduler) -> Ledger | None:
    """The ledger of all marks so far; None where none are kept."""
    recorder = scheduler.recorder
    if not recorder.is_on:
        return None
    trace, ledger = recorder.trace("", "", "", "virtual"), Ledger()
    for mark, now in moments(trace, getattr(recorder, "side", "")):
        ledger.hear(mark, now)
    return ledger
