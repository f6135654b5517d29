"""What a trace's ops and cells are called in a sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...trace import Act, Slice, Trace
from ...trace.cells import Span, span_text, spans_of
from ...trace.lanes import is_host
from .detector import VALUE

MOST_SPANS, MOST_PLACES = 4, 2  # that a sentence names; of those that take more words fewer
VERBS = {"read": "reads", "write": "writes", "free": "frees"}
ROWS = ("page table", "token pool")
SIDES = ("prefill", "decode")  # of ``pd``: its resources begin with one of them
ONES = {  # one cell of a resource
    "kv": "KV slot",
    "future map": "future slot",
    "last tokens": "last-token cell",
    "prev sampled": "sampled-token cell",
    "input ids": "input-id cell",
}


class Words:
    """The words for one trace: ``op`` for who did it, ``cells`` for what it was done to.

    A mark ``row length`` says how many cells each row of a resource has that is a table; without
    it, cells are numbered through.
    """

    def __init__(self, trace: Trace) -> None:
        self.slices: Mapping[int, Slice] = {item.id: item for item in trace.slices}
        self.row_lens: dict[str, int] = {}
        for mark in trace.marks:
            if mark.name == "row length":
                side = str(mark.attrs.get("side", ""))
                named = ((f"{side} {name}".strip(), size) for name, size in mark.attrs.items())
                self.row_lens.update({name: int(size) for name, size in named
                                      if isinstance(size, int) and size > 0})  # fmt: skip

    def op(self, op: int, lane: str) -> str:
        """``copy of step 3``; ``prepare of step 5 on the host``; ``op 17`` without a slice."""
        item = self.slices.get(op)
        if item is None:
            return f"{'call' if is_host(lane) else 'op'} {op}" if op else f"the {lane_words(lane)}"
        name = f"{item.name} of step {item.step}" if item.step else f"{item.name} ({op})"
        return f"{name} on the {lane}" if is_host(lane) else name

    def who(self, act: Act) -> str:
        """The op with its lane and its requests: ``copy of step 3 (copy stream; r0, r1)``."""
        item = self.slices.get(act.op)
        rids = act.rid or ", ".join(item.rids if item else ())
        about = [] if is_host(act.lane) else [lane_words(act.lane)]
        about += [rids] if rids else []
        words = self.op(act.op, act.lane)
        return f"{words} ({'; '.join(about)})" if about else words

    def cells(self, resource: str, at: str) -> str:
        """Some cells in the words of their resource: ``KV slots 3-7 9``, ``the inputs of step 4``.

        ``at`` is as in an act.
        """
        spans = spans_of(at)
        side, _, rest = resource.partition(" ")
        name, where = (rest, f" of the {side} side") if side in SIDES else (resource, "")
        return self._named(name, resource, spans) + where

    def _named(self, name: str, resource: str, spans: list[Span]) -> str:
        if name == VALUE:
            return " and ".join(f"the value of {self.op(cell, '')}" for cell, _ in spans)
        if name == "inputs":
            return f"the inputs of {_counted('step', spans)}"
        if buffer := re.fullmatch(r"(host )?output (\d+)", name):
            kind = "host" if buffer[1] else "device"
            return f"{kind} output buffer {buffer[2]} ({_counted('cell', spans)})"
        size = self.row_lens.get(resource, 0)
        if name == ROWS[0] and size:
            rows = [(first // size, last // size) for first, last in spans]
            return f"{_counted('row', rows)} of the page table"
        if name == ROWS[1]:
            return _counted("token-pool cell", spans, size)
        return _counted(ONES.get(name) or f"{name} cell", spans)


def lane_words(lane: str) -> str:
    """``host``, ``worker thread``, ``copy stream``, ``stage 1``."""
    is_named = is_host(lane) or lane.startswith("stage") or "stream" in lane
    return lane if is_named else f"{lane} stream"


def _counted(one: str, spans: list[Span], row_len: int = 0) -> str:
    """``cell 3``, ``cells 3-7 9``; of many spans the first few, and how many cells more.

    With ``row_len``, by row and position.
    """
    spans, most = sorted(set(spans)), MOST_PLACES if row_len else MOST_SPANS
    is_one = len(spans) == 1 and spans[0][0] == spans[0][1]
    parts = [_places(*span, row_len) if row_len else span_text(*span) for span in spans[:most]]
    rest = sum(last - first + 1 for first, last in spans[most:])
    more = f" and {rest} more" if rest else ""
    return f"{one}{'' if is_one else 's'} {' '.join(parts)}{more}"


def _places(first: int, last: int, row_len: int) -> str:
    """``(row 2, position 3)``, ``(row 2, positions 3-5)``."""
    (row, start), (last_row, end) = divmod(first, row_len), divmod(last, row_len)
    if row != last_row:
        return f"(row {row}, position {start}) to (row {last_row}, position {end})"
    return f"(row {row}, position{'' if start == end else 's'} {span_text(start, end)})"
