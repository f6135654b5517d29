"""What each lane did, in its own order: who started whom, who waited for whom, who touched what.

Slices say when something ran; a program says what had to come before what, whatever the clock.
It is what races are found from (``checks/races.py``). A stream runs in order, so its part is
known when it is launched: nothing has to be asked of the device.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import index
from typing import Any, NamedTuple

# -- Cells of a resource as text, so that a trace can be read: ``3-7 9``; and spans of them --------
#
# A span may be a gigabyte, so nobody counts its cells. The spans of one text are in order and
# apart.

Span = tuple[int, int]  # first and last cell

LARGEST = (1 << 53) - 1  # JSON's readers agree on integers up to here
ONE = re.compile(r"[0-9]{1,16}(-[0-9]{1,16})?", re.ASCII)


def to_text(cells: Iterable[int] | str) -> str:
    """Cells in order, each once, as spans: ``3-7 9``. What is text already is not looked at.

    Raises:
        ValueError: one is no whole number, or below 0; one sentence.
    """
    if isinstance(cells, str):
        return cells
    if isinstance(cells, list) and len(cells) == 1:
        return span_text(cells[0], cells[0])
    if isinstance(cells, range) and cells.step == 1:
        return span_text(cells[0], cells[-1]) if cells else ""
    try:
        in_order = sorted(set(cells))
    except TypeError:
        raise ValueError(f"{cells!r:.40} are no cells: they are whole numbers from 0 on.") from None
    spans: list[list[int]] = []
    for cell in in_order:
        if spans and cell == spans[-1][1] + 1:
            spans[-1][1] = cell
        else:
            spans.append([cell, cell])
    return " ".join(span_text(first, last) for first, last in spans)


def span_text(first: int, last: int) -> str:
    """One span: ``3-7``, or ``9``.

    Raises:
        ValueError: one of them is no whole number, or below 0.
    """
    try:
        first, last = index(first), index(last)
    except TypeError:
        wrong = last if isinstance(first, int) else first
        raise ValueError(f"{wrong!r:.40} is no cell: cells are whole numbers from 0 on.") from None
    if first < 0:
        raise ValueError(f"{first} is no cell: cells are whole numbers from 0 on.")
    return str(first) if first == last else f"{first}-{last}"


@lru_cache(maxsize=1 << 16)
def spans_of(text: str) -> tuple[Span, ...]:
    """The spans in ``3-7 9``; kept, for a run asks for the same ones again and again.

    Raises:
        ValueError: it is not written like that; one sentence.
    """
    spans = tuple(map(_span, text.split()))
    for one, other in pairwise(spans):
        if other[0] <= one[1]:
            raise ValueError(f"{span_text(*other)} stands behind {span_text(*one)}: not in order.")
    return spans


def _span(part: str) -> Span:
    if not ONE.fullmatch(part):
        raise ValueError(f"{part[:40]!r} is no span of cells; one looks like 3-7, or 9.")
    first, _, last = part.partition("-")
    span = int(first), int(last or first)
    if span[1] < span[0]:
        raise ValueError(f"the span {part} ends before it begins.")
    if span[1] > LARGEST:
        raise ValueError(f"cell {span[1]} is too large: the largest is {LARGEST}.")
    return span


def is_in(cell: int, text: str) -> bool:
    """Whether a cell is one of ``3-7 9``."""
    return any(first <= cell <= last for first, last in spans_of(text))


def cells_of(text: str) -> list[int]:
    """All of ``3-7 9``."""
    return [cell for first, last in spans_of(text) for cell in range(first, last + 1)]


def common(some: Sequence[Span], others: Sequence[Span]) -> Iterator[Span]:
    """The cells that are in both."""
    if not some or not others or some[-1][1] < others[0][0] or others[-1][1] < some[0][0]:
        return
    at = 0
    for first, last in some:
        while at < len(others) and others[at][1] < first:
            at += 1
        here = at
        while here < len(others) and others[here][0] <= last:
            yield max(first, others[here][0]), min(last, others[here][1])
            here += 1


def without(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The cells of the first that are not in the second."""
    left: list[Span] = []
    for first, last in some:
        for start, end in common([(first, last)], others):
            if first < start:
                left.append((first, start - 1))
            first = end + 1
        if first <= last:
            left.append((first, last))
    return left


def joined(spans: Iterable[Span]) -> str:
    """Spans in any order as text, those that touch made one."""
    found: list[list[int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return " ".join(span_text(first, last) for first, last in found)


# Nobody changes an act. It is not frozen, because making it would then take 20 times as long.
@dataclass(unsafe_hash=True, slots=True)
class Act:
    """One thing that a lane did; a lane's acts are in its program order.

    ``kind`` is one of: ``launch`` (it queued op ``op``), ``begin`` and ``end`` (of an op, on the
    lane that runs it), ``wait`` (it goes on only after op or signal ``op`` has ended, or was
    said), ``say`` (of a signal), ``read``, ``write`` and ``free`` (cells ``at`` of ``resource``;
    nobody may touch what is freed any more). ``op`` is the id of a slice, or of a signal; of what
    the host touches, the slice in which it did. ``rid`` is the request that it was done for.
    ``during`` is the newest slice of a thread of the host when it launched, waited or said; on a
    virtual clock, where a slice's work becomes true at its end, what comes after that end.
    """

    lane: str
    kind: str
    op: int
    resource: str = ""
    at: str = ""  # cells, as "3-7 9"
    rid: str = ""
    during: int = 0


class Touch(NamedTuple):
    """What an op will do to some cells of a resource, declared when it is launched.

    ``cells`` may be given as text, as an ``Act`` has them; that is not looked at here.
    """

    kind: str  # read, write or free
    resource: str
    cells: Iterable[int] | str
    rid: str = ""


class Program:
    """Gathers acts. Which lane acts is known by its thread; a stream's acts are named for it.

    ``is_on`` says whether it is worth working out what is touched.
    """

    is_on = True

    def __init__(self, new_id: Callable[[], int]) -> None:
        self.acts: list[Act] = []
        self.new_id = new_id
        self._here = threading.local()

    @property
    def lane(self) -> str:
        """The lane of this thread; empty for one whose acts were recorded by who launched it."""
        return getattr(self._here, "lane", "host")

    @property
    def op(self) -> int:
        """The slice or call that this thread is in."""
        return getattr(self._here, "op", 0)

    def enter(self, lane: str, op: int = 0) -> None:
        """This thread acts for a lane from now on, and is in one of its slices."""
        self._here.lane, self._here.op = lane, op

    def launch(
        self, lane: str, op: int, args: Iterable[Any] = (), touches: Iterable[Touch] = ()
    ) -> None:
        """This lane launches an op on a stream; what the op takes from others is read there.

        Raises:
            ValueError: a touch has cells that are none; one sentence.
        """
        self._act(self.lane, "launch", op, during=self.op)
        self._act(lane, "begin", op)
        for given in args:
            if source := getattr(given, "slice_id", 0):
                self._act(lane, "read", op, "value", str(source))
        self._touch(lane, op, touches)
        self._act(lane, "end", op)

    def call(self, op: int) -> None:
        """This lane queues a call for a thread of the host, which will say what it does."""
        self._act(self.lane, "launch", op, during=self.op)

    @contextmanager
    def inside(self, lane: str, op: int) -> Iterator[None]:
        """This thread runs a call, on a thread's lane."""
        with self.acting(lane, op):
            self._act(lane, "begin", op)
            try:
                yield
            finally:
                self._act(lane, "end", op)

    @contextmanager
    def acting(self, lane: str, op: int) -> Iterator[None]:
        """This thread acts for another lane for a while, in one of its slices."""
        before = self.lane, self.op
        self.enter(lane, op)
        try:
            yield
        finally:
            self.enter(*before)

    def wait(self, op: int, lane: str = "") -> None:
        """A lane, by default this one, goes on only after an op has ended or a signal was said."""
        if op:
            self._act(lane or self.lane, "wait", op, during=0 if lane else self.op)

    def say(self, signal: int) -> None:
        """This lane says a signal."""
        self._act(self.lane, "say", signal, during=self.op)

    def touch(self, kind: str, resource: str, cells: Iterable[int] | str, rid: str = "") -> None:
        """This lane touches cells itself.

        Raises:
            ValueError: these are no cells; one sentence.
        """
        self._touch(self.lane, self.op, [Touch(kind, resource, cells, rid)])

    def named(self, name: str) -> str:
        """What a lane or a resource is called in this program."""
        return name

    def _touch(self, lane: str, op: int, touches: Iterable[Touch]) -> None:
        named, lane = self.named, self.named(lane)
        for kind, resource, cells, rid in touches:
            try:
                at = to_text(cells)
            except ValueError as error:
                who = f"an op on the lane {lane!r} says that it does a {kind} of {resource!r}"
                raise ValueError(f"{who}, but {error}") from None
            if at:
                self.acts.append(Act(lane, kind, op, named(resource), at, rid))

    def _act(
        self,
        lane: str,
        kind: str,
        op: int,
        resource: str = "",
        at: str = "",
        rid: str = "",
        during: int = 0,
    ) -> None:
        if lane and self.is_on:
            named = self.named
            self.acts.append(Act(named(lane), kind, op, named(resource), at, rid, during))


class NullProgram(Program):
    """Gathers nothing."""

    is_on = False

    def __init__(self) -> None:
        super().__init__(lambda: 0)

    def launch(
        self, lane: str, op: int, args: Iterable[Any] = (), touches: Iterable[Touch] = ()
    ) -> None:
        """Nothing."""

    def wait(self, op: int, lane: str = "") -> None:
        """Nothing."""

    def touch(self, kind: str, resource: str, cells: Iterable[int] | str, rid: str = "") -> None:
        """Nothing."""
