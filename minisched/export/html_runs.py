"""What the page calls its runs, and what they ran on: said once, or of each where they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..trace import Trace
from .loops_shown import MOST_NAMES, loops_shown

CLOCKS = {"virtual": "simulated", "wall": "measured"}


def run_names(traces: Sequence[Trace]) -> list[str]:
    """The loops' names; those of equal name are numbered."""
    total, seen = Counter(trace.loop for trace in traces), Counter[str]()
    names = []
    for trace in traces:
        seen[trace.loop] += 1
        number = f" {seen[trace.loop]}" if total[trace.loop] > 1 else ""
        names.append(trace.loop + number)
    return names


def title_of(traces: Sequence[Trace]) -> str:
    """The runs by their names, or how many there are where names would fill the line."""
    return loops_shown(traces) if len(traces) > MOST_NAMES else " against ".join(run_names(traces))


def are_alike(traces: Sequence[Trace]) -> bool:
    """Whether all of them ran the same model on the same device and clock."""
    return len({setting(trace) for trace in traces}) == 1


def setting(trace: Trace) -> str:
    """What a run ran on: ``hash model on sim, simulated time``."""
    return f"{trace.what_ran}, {CLOCKS.get(trace.clock, trace.clock)} time"


def what_it_is(traces: Sequence[Trace]) -> str:
    """How many runs there are, and what they ran on if that is the same for all."""
    what = "One run" if len(traces) == 1 else f"{len(traces)} runs on one time axis"
    if are_alike(traces):
        return f"{what}: {setting(traces[0])}."
    clocks = {trace.clock for trace in traces}
    mixed = "; simulated and measured times are not to be compared" if len(clocks) > 1 else ""
    return f"{what}; what each ran on stands beside its name{mixed}."
