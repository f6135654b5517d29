"""Mutation: how many changes of the code the tests see, and which they don't (``bench mutation``).

mutmut makes the changes, one a mutant, in the layers that decide what runs next and where tokens
and memory are: scheduler, memory, policy, relay, loops. Every mutant is tried with many small runs,
each with every law held against it, with the golden runs, and with the quick tests; what lives
then, with the simulator's other tests (``second_look.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from .diff import Mutant
from .sample import LAYERS, Layer, draw, layers_of
from .second_look import look_again
from .survivors import why_it_lives
from .tree import LIVED, TOO_LONG, MutantTree, Report


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test saw, why, and whether it was seen by no test because none gets there.

    ``why`` is empty for one that nobody has explained.
    """

    mutant: Mutant
    why: str
    unreached: bool


@dataclass(frozen=True)
class Tried:
    """What one sample told. ``left_out`` counts mutants by the rule that they fall under."""

    seed: int
    layers: list[Layer]
    timeouts: int
    second_look: int  # of the killed, how many only the other tests saw
    survivors: list[Survivor]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def unexplained(self) -> list[Survivor]:
        """Survivors of which nobody has said why they live."""
        return [item for item in self.survivors if not item.why]


def check_options(size: int | None, module: str | None) -> None:
    """Refuse a sample that tells nothing.

    Raises:
        ValueError: it is too small, or there is no such module.
    """
    if module is not None and module not in LAYERS:
        raise ValueError(f"unknown module {module!r}; the modules are {', '.join(LAYERS)}.")
    least = 1 if module else len(LAYERS)
    if size is not None and size < least:
        raise ValueError(f"--sample is {size}, but it must be at least {least}, or all.")


def try_mutants(
    folder: Path,
    size: int | None,
    seed: int,
    module: str | None,
    children: int,
    report: Report,
) -> Tried:
    """Draw a sample and run it.

    Raises:
        MutationError: mutmut did not get through.
    """
    report("making the mutants, and noting which tests reach them (some minutes)", 0, None)
    tree = MutantTree(folder, children)
    mutants = [item for item in tree.generate() if module in (None, item.layer)]
    sample = draw(mutants, size, seed)
    tree.try_all(sample, report)
    codes = tree.exit_codes()
    lived = [item.name for item in sample if codes[item.name] in LIVED and not why_it_lives(item)]
    return judged(mutants, sample, codes, look_again(folder, lived, children, report), seed)


def judged(
    mutants: Sequence[Mutant],
    sample: Sequence[Mutant],
    codes: Mapping[str, int | None],
    seen_again: Set[str],
    seed: int,
) -> Tried:
    """What both looks say of a sample. Whatever a test's process ends in but 0 is a kill."""
    killed = {
        item.name: codes[item.name] not in LIVED or item.name in seen_again for item in sample
    }
    survivors = [
        Survivor(item, why_it_lives(item), codes[item.name] != 0)
        for item in sample
        if not killed[item.name]
    ]
    return Tried(
        seed,
        layers_of(mutants, sample, killed),
        sum(codes[item.name] in TOO_LONG for item in sample),
        len(seen_again),
        survivors,
        Counter(item.left_out for item in mutants if item.left_out),
    )
