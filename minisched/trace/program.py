"""What each lane did, in its own order: who started whom, who waited for whom, who touched what.

Slices say when something ran; a program says what had to come before what, whatever the clock.
It is what races are found from (``checks/races.py``). A stream runs in order, so its part is
known when it is launched: nothing has to be asked of the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from .cells import to_text


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
