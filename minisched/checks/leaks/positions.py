"""Positions that a step computes, although their request holds no page for them.

A step finds the KV slot of a position in its row of the page table. Where no page was ever listed
for it, the step writes wherever the cell happens to point, which may be anybody's.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Trace
from ...trace.program import spans_of

TABLE = "page table"


def find_unlisted(trace: Trace) -> Iterator[str]:
    """A sentence for each step and request that goes through cells of the table with no page.

    A row is listed from its beginning on, so its length tells which of its cells are. A stage of a
    pipeline has a table of its own, and so has either side of ``pd``.
    """
    max_len = next((int(m.attrs[TABLE]) for m in trace.marks if m.name == "row length"), 0)
    steps = {item.id: item.step for item in trace.slices}
    listed: dict[tuple[str, int], int] = {}  # by table and row, how many cells list a page
    for act in trace.program if max_len else ():
        for first, last in spans_of(act.at) if act.resource.endswith(TABLE) else ():
            row, (start, end) = first // max_len, (first % max_len, last % max_len + 1)
            length = listed.get((act.resource, row), 0)
            if act.kind == "free":
                listed[act.resource, row] = 0
            elif act.kind == "write" and start <= length:
                listed[act.resource, row] = max(length, end)
            elif act.kind == "read" and end > length:
                yield (
                    f"step {steps.get(act.op, 0)} computes {act.rid}'s position {end - 1}, but "
                    f"{act.rid} holds pages for {length} positions only"
                )
