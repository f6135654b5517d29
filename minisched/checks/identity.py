"""Did every schedule give the same tokens? If not: where first, and how close was the call?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True)
class Difference:
    """The first place where a run departs from the baseline.

    A token is None where that run had already ended. ``margin`` is the distance between the two
    largest logits there, when it was measured: a tiny one speaks for rounding, a large one for a
    scheduling bug.
    """

    loop: str
    rid: str
    position: int  # index into the request's output
    expected: int | None
    got: int | None
    margin: float | None = None

    def __str__(self) -> str:
        text = (
            f"{self.loop}: request {self.rid} differs first at output {self.position}: "
            f"expected {self.expected}, got {self.got}"
        )
        return text if self.margin is None else f"{text} (top-2 logit margin {self.margin:.3g})"


def first_difference(
    loop: str, baseline: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]
) -> Difference | None:
    """The earliest position at which any request differs, by position and then by request."""
    found = [
        Difference(loop, rid, position, expected, got)
        for rid, tokens in baseline.items()
        for position, (expected, got) in enumerate(zip_longest(tokens, outputs.get(rid, ())))
        if expected != got
    ]
    return min(found, key=lambda item: item.position, default=None)
