"""A leak, or what leads to one: memory freed twice, or used by somebody it does not belong to."""

from __future__ import annotations

from dataclasses import dataclass

from ..offence import Offence

KINDS = {
    "lost": "nobody has it, and it is not free",
    "held": "whoever held it has ended, and no step in flight names it",
    "freed": "it was freed twice, or by somebody who did not hold it",
    "given": "it was handed out while somebody held it",
    "used": "a step names it, although it is not its request's",
    "pending": "it was launched or begun, and nobody waited for its end",
}


@dataclass(frozen=True)
class Leak:
    """One thing that is not where it should be, and its owner's story.

    ``resource`` is page, row, lock, future slot, step, op or thread; ``what`` names it (``pages
    3-5``); ``kind`` is one of ``KINDS``. ``rid`` is the owner, or empty. ``time`` is when it could
    first be seen, in nanoseconds; ``slices`` are those in which it was taken and in which it should
    have been given back, as far as they are known.
    """

    resource: str
    what: str
    kind: str
    rid: str
    sentence: str
    time: int = 0
    slices: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.sentence

    @property
    def offence(self) -> Offence:
        """What a picture of it shows in red."""
        return Offence(self.slices, self.sentence)


def plural(word: str, numbers: str) -> str:
    """``page 3`` or ``pages 3-5``."""
    return f"{word} {numbers}" if numbers.isdecimal() else f"{word}s {numbers}"
