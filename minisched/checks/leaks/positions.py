"""Positions that a step computes, although their request holds no page for them.

A step finds the KV slot of a position in its row of the page table. Where no page was ever listed
for it, the step writes wherever the cell happens to point, which may be anybody's.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Act, Trace
from ..races.spans import cached_spans

TABLE = "page table"


def find_unlisted(trace: Trace) -> Iterator[str]:
    """A sentence for each step and request that goes through cells of the table with no page.

    A row is listed from its beginning, so its length tells which of its cells are.
    """
    max_len = next((int(m.attrs[TABLE]) for m in trace.marks if m.name == "row length"), 0)
    steps = {item.id: item.step for item in trace.slices}
    lengths: dict[tuple[str, int], int] = {}  # by table and row, the cells that list a page
    for act in trace.program if max_len else ():
        if act.resource.endswith(TABLE):
            for first, last in cached_spans(act.at):
                yield from _look(act, first, last, max_len, lengths, steps.get(act.op, 0))
