"""The KV slots that one row of the page table lists, and the text that says which they are."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from ..trace.cells import Span, span_text


class RowSlots:
    """Slots by position. A row reads them all in every step, and gets a few more in each.

    So the spans of the first ones are kept, each with its text.
    """

    def __init__(self) -> None:
        self.slots: list[int] = []
        self._length = 0  # positions whose slots are in the spans
        self._spans: list[Span] = []
        self._texts: list[str] = []

    def replace(self, at: int, slots: Sequence[int]) -> None:
        """List other slots from position ``at`` on, and nothing behind them."""
        self.slots[at:] = slots
        if at < self._length:
            self._forget()

    def up_to(self, end: int) -> str:
        """The slots of the first ``end`` positions, as text."""
        if end < self._length:
            self._forget()
        for slot in self.slots[self._length : end]:
            self._add(slot)
        self._length = end
        return " ".join(self._texts)

    def _forget(self) -> None:
        self._length, self._spans, self._texts = 0, [], []

    def _add(self, slot: int) -> None:
        """Put a slot among the spans, which it may lengthen or join."""
        first = last = slot
        begin = end = bisect(self._spans, (slot, slot))
        if any(one <= slot <= other for one, other in self._spans[max(0, begin - 1) : end + 1]):
            return  # a row that lists a slot twice is a bug for others to tell
        if begin and self._spans[begin - 1][1] == slot - 1:
            begin, first = begin - 1, self._spans[begin - 1][0]
        if end < len(self._spans) and self._spans[end][0] == slot + 1:
            end, last = end + 1, self._spans[end][1]
        self._spans[begin:end] = [(first, last)]
        self._texts[begin:end] = [span_text(first, last)]
