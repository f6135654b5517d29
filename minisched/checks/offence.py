"""What a picture of a broken law shows in red."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Offence:
    """The slices that did it, by id, and the edge that should have been between two of them.

    ``missing`` is (from, to) or None; ``sentence`` is what the picture says beside it; ``waits`` is
    what of the second slice has to wait, as a noun, where it is not all of it: ``free``.
    """

    slices: tuple[int, ...]
    sentence: str
    missing: tuple[int, int] | None = None
    waits: str = ""
