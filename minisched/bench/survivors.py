"""The mutants that are known to live, each with the reason why no test sees it.

A mutant is named by its function and by the lines that change; ``bench mutation`` calls every
other survivor unexplained. Reasons begin with what kind it is: ``EQUIVALENT`` (the program does the
same), ``SPEED`` (the same, only slower or faster) or ``WORDING`` (a text that no test should pin).
"""

from __future__ import annotations

from typing import NamedTuple

from .mutation_diff import Mutant

EQUIVALENT, SPEED, WORDING = "equivalent", "only speed", "only wording"


class Known(NamedTuple):
    """A mutant that lives; ``taken`` and ``put`` as ``Mutant`` has them."""

    function: str
    taken: str
    put: str
    why: str


KNOWN: tuple[Known, ...] = ()


def why_it_lives(mutant: Mutant) -> str:
    """The reason that is on record; empty without one."""
    same = (mutant.function, mutant.taken, mutant.put)
    return next((item.why for item in KNOWN if item[:3] == same), "")
