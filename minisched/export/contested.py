"""The contested memory of a violated law as a lane: its owner, and each write, read and free.

A cell is named as in a trace, by resource and number: ``kv 3``, ``decode kv 3``, ``future map 1``,
``pinned 0``, ``inputs 2``. Three more are read off the marks: ``page 1``, ``row 1``, and
``answer a``, the newest token that the client of ``a`` has received.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from ..checks.history import Words, side_of
from ..checks.identity import tokens_heard
from ..trace import Mark, Trace
from ..trace.cells import is_in
from .layout import View
from .looks import OWNERS
from .scene import LaneItem, LaneRow

APART = 0.015  # of the time shown: of signs that are nearer, the culprit's is drawn
FREED, CACHED = "free", "cache"
SIGN_OF = {"write": "written", "read": "read", "free": "evict", "release": "evict"}
LEGEND = {"written": "a write", "read": "a read", "evict": "freed"}


@dataclass(frozen=True)
class Owned:
    """The owner of a cell for some time, in nanoseconds."""

    start: int
    end: int
    owner: str


@dataclass(frozen=True)
class CellAccess:
    """An access to a cell: at the end of its slice, but of a read at its start."""

    time: int
    kind: str  # write, read, free or release
    slice: int


class Contested:
    """A cell of a run."""

    def __init__(self, trace: Trace, name: str) -> None:
        self.trace = trace
        resource, _, self.number = name.rpartition(" ")
        self.resource, (self.side, self.kind) = resource, side_of(resource)
        self.words = Words(trace)

    @property
    def name(self) -> str:
        """Return its name in words: ``KV slot 3 of the decode side``, ``Page 1``."""
        if self.kind == "answer":
            return f"Client of {self.number}"
        if self.kind in ("page", "row"):
            words = f"{self.kind} {self.number}" + f" of the {self.side} side" * bool(self.side)
        else:
            words = self.words.cells(self.resource, self.number)
        return words[0].upper() + words[1:]

    def marks(self) -> Iterator[Mark]:
        """Yield the marks of its side."""
        return (mark for mark in self.trace.marks if mark.attrs.get("side", "") == self.side)

    def owned(self) -> list[Owned]:
        """Return its owners in order; there is no entry for the time before the first."""
        match self.kind:
            case "page" | "kv":
                changes = list(self._owners_of_page(self._page()))
            case "row" | "page table" | "token pool":
                changes = list(self._owners_of_row(self._row()))
            case "answer":
                heard = tokens_heard(self.trace).get(unquote(self.number), ())
                at = {one.time: [it.token for it in heard if it.time == one.time] for one in heard}
                changes = [(time, " ".join(map(str, tokens))) for time, tokens in at.items()]
            case _:
                changes = list(self._writers())
        pairs = zip([("", ""), *changes], changes, strict=False)
        changes = [new for (_, old), new in pairs if (old, new[1]) != (FREED, FREED)]
        after = [*changes[1:], (self.trace.end, FREED)]
        return [
            Owned(start, end, owner)
            for (start, owner), (end, _) in zip(changes, after, strict=False)
            if end > start or start == self.trace.end
        ]

    def accesses(self) -> Iterator[CellAccess]:
        """Yield each access to it; of pages and rows the frees are read off the marks."""
        resource, at = self.resource, self.number
        if self.kind == "page":
            resource = f"{self.side} kv".strip()
            at = str(int(at) * self._page_size())
        for act in self.trace.program:
            ran = self.words.slices.get(act.op)
            if act.resource != resource or ran is None or not is_in(int(at), act.at):
                continue
            if self.kind != "page" or act.kind in ("read", "write"):
                yield CellAccess(ran.start if act.kind == "read" else ran.end, act.kind, act.op)
        for mark in self.marks() if self.kind in ("page", "row") else ():
            if mark.name == f"{self.kind} free" and int(at) in self._named(mark):
                yield CellAccess(mark.time, "free", mark.during)

    def _page_size(self) -> int:
        sizes = (mark.attrs["page_size"] for mark in self.marks() if mark.name == "kv pool")
        return int(next(sizes, 1))

    def _page(self) -> int:
        return int(self.number) // (self._page_size() if self.kind == "kv" else 1)

    def _row(self) -> int:
        return int(self.number) // self.words.row_lens.get(self.resource, 1)

    def _named(self, mark: Mark) -> list[int]:
        """Return the pages or the row in a mark."""
        of = mark.attrs
        return [of["row"]] if mark.name.startswith("row") else list(of.get("pages", ()))

    def _owners_of_page(self, page: int) -> Iterator[tuple[int, str]]:
        owner = {"page alloc": "", "page free": FREED, "page disown": CACHED}
        for mark in self.marks():
            if mark.name in owner and page in self._named(mark):
                yield mark.time, owner[mark.name] or str(mark.attrs["rid"])

    def _owners_of_row(self, row: int) -> Iterator[tuple[int, str]]:
        for mark in self.marks():
            if mark.name in ("row alloc", "row free") and row in self._named(mark):
                yield mark.time, str(mark.attrs["rid"]) if mark.name == "row alloc" else FREED

    def _writers(self) -> Iterator[tuple[int, str]]:
        slots = {
            mark.attrs["step"]: mark.attrs["slots"]
            for mark in self.marks()
            if mark.name == "future slots"
        }
        for access in self.accesses():
            ran = self.words.slices[access.slice]
            places = slots.get(ran.step, []) if self.kind == "future map" else []
            if access.kind == "write" and int(self.number) in places:
                yield access.time, ran.rids[places.index(int(self.number))]
            elif access.kind == "write":
                yield access.time, " ".join(ran.rids)
            elif access.kind != "read":
                yield access.time, FREED


def cell_row(view: View, name: str, end: int, slices: Sequence[int] = ()) -> LaneRow:
    """Return a cell's lane in the time of a view; accesses in ``slices`` have a red frame.

    The last owner in a whole run has the cell until ``end``, the end of the axis.
    """
    cell, spans = Contested(view.trace, name), list[LaneItem]()
    frees = [access.time for access in cell.accesses() if access.kind == "free"]
    rids = dict.fromkeys(rid for item in view.trace.slices for rid in item.rids)
    colours = {rid: f"owner {at % len(OWNERS)}" for at, rid in enumerate(rids)}
    colours |= {FREED: "queued", CACHED: "evictable"}
    owned = cell.owned()
    for one in owned:
        kind = "stored" if cell.kind == "answer" else colours.get(one.owner, "other")
        if one.start <= view.end and one.end > view.start:
            words = one.owner if cell.kind != "future map" or one.owner == FREED else (
                f"token of {one.owner}")  # fmt: skip
            again = sum(one.start <= time < max(one.end, one.start + 1) for time in frees) > 1
            words += " twice" * (one.owner == FREED and again)
            start, until = view.clip(one.start, one.end)
            until = end if one is owned[-1] and view.end == view.trace.end else until
            if until > start:
                about = f"{cell.name}: {words}"
                spans.append(LaneItem(kind, start, until, words, one.owner, about))
    if cell.kind == "answer" and not spans:
        spans.append(LaneItem("queued", view.clip(view.start, view.end)[0], end, "no token"))
    near, drawn = APART * view.duration, list[int]()
    in_turn = sorted(
        cell.accesses(), key=lambda one: (one.slice not in slices, one.kind == "write")
    )
    for access in in_turn:
        is_near = any(abs(access.time - other) < near for other in drawn)
        if view.start <= access.time <= view.end and not is_near:
            drawn.append(access.time)
            time, _ = view.clip(access.time, access.time)
            ran = cell.words.slices.get(access.slice)
            about = f"{access.kind} by {ran.label}" if ran else access.kind
            spans.append(LaneItem(SIGN_OF[access.kind], time, time, about=about))
    for culprit in slices:
        times = [access.time for access in cell.accesses() if access.slice == culprit]
        if times:
            ends = view.clip(min(times), max(times))
            spans.append(LaneItem("outline", *ends, data={"cell": culprit}))
    return LaneRow(cell.name, spans)
