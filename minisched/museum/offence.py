"""What of a broken law's run did it, so that a picture can show it in red."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..checks.judge import Finding, Verdict
from ..checks.offence import Offence
from ..checks.races import find_races
from ..trace import Slice, Trace
from ..trace.program import spans_of
from .exhibit import Exhibit


def offence_of(exhibit: Exhibit, verdict: Verdict) -> Offence:
    """What the picture of a bug shows, of the verdict with the bug.

    Raises:
        ValueError: the law that should catch it does not.
    """
    finding = verdict.broke(exhibit.law)
    if finding is None:
        raise ValueError(f"{exhibit.name} does not break the law {exhibit.law!r}, which is its.")
    if exhibit.points_at is not None:
        return exhibit.points_at(verdict)
    return BY_LAW.get(exhibit.law, of_the_end)(verdict, finding)


def of_race(verdict: Verdict, finding: Finding) -> Offence:
    """Two accesses that nothing orders."""
    race = find_races(verdict.trace)[0]
    pair = race.first.op, race.second.op
    return Offence(pair, finding.sentence, pair)


def of_ownership(verdict: Verdict, finding: Finding) -> Offence:
    """The host hands out what the newest step in flight still names."""
    found = re.search(r"(page|row) (\d+) was", finding.sentence)
    giver = last_of_host(verdict.trace)
    if found is None or giver is None:
        return of_the_end(verdict, finding)
    resource = "kv" if found[1] == "page" else "page table"
    names = [
        item
        for item in verdict.trace.slices
        if item.end > giver.start and touches(verdict.trace, item, resource)
    ]
    user = [item.id for item in names if item.lane != "host"][:1]
    return Offence((giver.id, *user), finding.sentence)


def of_the_end(verdict: Verdict, finding: Finding) -> Offence:
    """The host's last slice: there the run has stopped, or was found wrong."""
    last = last_of_host(verdict.trace)
    return Offence((last.id,) if last else (), finding.sentence)
