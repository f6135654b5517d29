"""The ring as SGLang had it, with a learner's lines in the place of the package's.

A placeholder stays what it is until its request runs again, even if the host knows the token by
then (SGLang ``managers/overlap_utils.py`` and ``schedule_batch.py`` before #25862). So a slot is
read as late as its request is scheduled, and that is why a ring can be lapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core import Row, ScheduleBatch
from ..devices.base import Array, Device
from ..relay import FutureMapRing
from ..relay.future_map import FutureMap
from .blame import Mistake, blame
from .guard import bounded
from .ring_notes import RingNotes

Alloc = Callable[[int, int, int], Any]
Resolve = Callable[[list[int], Sequence[int]], Any]


class BeyondLimit(Mistake):
    """A batch was given slots that begin at ``slot``, behind the limit."""

    def __init__(self, problem: str, slot: int) -> None:
        super().__init__(problem)
        self.slot = slot


class StickyRing(FutureMapRing):
    """A FutureMap whose rows read their slot even where the host knows the token.

    ``limit`` is where the counter wraps; the buffer has ``max_running_requests`` slots more, so
    that the slots of one batch may stand in a row. ``alloc`` and ``resolve`` are a learner's.
    """

    def __init__(
        self,
        device: Device,
        max_running_requests: int,
        limit: int = 0,
        alloc: Alloc | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        FutureMap.__init__(self, device)
        self.future_ct, self.future_limit = 0, limit or 3 * max_running_requests
        self.num_slots = self.future_limit + max_running_requests
        self.kept_in = self.token_ids_map = device.memory("future map", self.num_slots + 1)
        self.recorder.mark("future map", limit=self.future_limit, size=self.num_slots)
        self.alloc, self.resolve_ids, self.notes = alloc, resolve, RingNotes()

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """A row that decodes reads its slot; every row gets a new one."""
        ids: list[int] = []
        for row in batch.rows:
            if placeholder := is_decode(row):
                self.notes.note_read(batch.step, row.req.rid, row.lease.future_slot, len(ids))
            ids += [-row.lease.future_slot] if placeholder else known(row)
        try:
            indices = list(self.alloc_future_indices(len(batch.rows)))
        except BeyondLimit as error:
            self.notes.beyond = error.slot, batch.step, batch.rids[0]
            raise
        self.notes.note_slots(batch.step, batch.rids, indices)
        for lease, index in zip(batch.leases, indices, strict=True):
            lease.future_slot = index
        self.recorder.counter("future slots", self.future_ct)
        self.record(batch, ids, indices)
        return ids, indices

    def alloc_future_indices(self, num_reqs: int) -> Any:
        """The learner's, checked; or the package's.

        Raises:
            Mistake: what the learner's lines give are no slots.
        """
        if self.alloc is None:
            return super().alloc_future_indices(num_reqs)
        asked = self.future_ct, num_reqs, self.future_limit
        indices, self.future_ct = checked(self.call(self.alloc, *asked), asked, self.num_slots)
        return indices

    def resolve_future(self, ids: Array) -> Array:
        """The learner's, or the package's.

        Raises:
            Mistake: what the learner's lines give are no tokens.
        """
        if self.resolve_ids is None:
            return super().resolve_future(ids)
        given = self.call(self.resolve_ids, list(ids), list(self.token_ids_map[:]))
        self.notes.looked_up.append((list(ids), given))
        if not _are_integers(given) or len(given) != len(ids):
            self.notes.problem = (
                f"Your resolve({list(ids)}, ...) gave {_short(given)}, but it must give a list of "
                f"{len(ids)} integer{'s' if len(ids) > 1 else ''}, one for each id."
            )
            raise Mistake(self.notes.problem)
        return self.xp.asarray(given)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a learner's lines; what they raise on the device is noted before it is lost."""
        try:
            with bounded():
                return function(*args)
        except Exception as error:
            self.notes.problem = blame(error)
            raise


def checked(given: Any, asked: tuple[int, int, int], num_slots: int) -> tuple[list[int], int]:
    """The slots of a batch and the counter behind them; ``asked`` is what alloc was called with.

    Raises:
        Mistake: they are something else, too many or too few, outside of the buffer, or begin
            beyond the limit.
    """
    _, num_reqs, limit = asked
    call = f"your alloc({', '.join(map(str, asked))}) gave {_short(given)}"
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], int)):
        raise Mistake(f"{call}, but it must give two things: slots, and the new counter")
    slots = list(given[0]) if isinstance(given[0], list | tuple | range) else given[0]
    if not _are_integers(slots) or len(slots) != num_reqs:
        plural = "s" if num_reqs > 1 else ""
        raise Mistake(
            f"{call}, but its first part must be a list or range of {num_reqs} slot{plural}"
        )
    if any(not 1 <= slot <= num_slots for slot in slots):
        raise Mistake(f"{call}, but the buffer has the slots 1 to {num_slots} (0 would be a token)")
    if slots[0] > limit:
        problem = f"{call}, but slots begin at 1 again once {limit} of them are handed out"
        raise BeyondLimit(problem, slots[0])
    return slots, given[1]


def is_decode(row: Row) -> bool:
    """Whether a row continues behind its prompt."""
    return row.start >= len(row.req.prompt)


def known(row: Row) -> list[int]:
    """The tokens of a row of a prompt: the host has all of them."""
    return [token for token in row.ids if token is not None]


def _are_integers(given: Any) -> bool:
    return isinstance(given, list) and all(type(item) is int for item in given)


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
