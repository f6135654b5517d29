"""One deliberate fault of the engine, and how ``minisched check --workloads`` looks for it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minisched.checks.draw.designs import Design, all_designs, read_design
from minisched.checks.draw.draw import designs_for, draw
from minisched.checks.judge import judge
from minisched.checks.many import LAWS
from minisched.museum.patch import Edit, put_in

SEEN_AT = Path(__file__).with_name("seen.json")
LONGEST = 30  # seconds for one case; healthy ones take some hundredths


@dataclass(frozen=True)
class Mutation:
    """A fault of a line or two, and the laws of which one must see it.

    ``equivalent`` says why it is no fault that anybody could hear of: that nothing is computed
    otherwise, or that only the speed is another one, which no law limits. ``missed`` says why a
    fault is not seen. Neither: it must be.
    """

    name: str
    laws: tuple[str, ...]
    edits: tuple[Edit, ...]
    device: str = "sim"
    equivalent: str = ""
    missed: str = ""


class Place(NamedTuple):
    """A case that ``minisched check --workloads`` looks at: a workload on one loop."""

    seed: int
    loop: str  # as ``--loop`` takes it


class Sight(NamedTuple):
    """The first case in which one of a mutation's laws was broken, or the last one looked at."""

    law: str  # "" where none was
    place: Place
    cases: int  # looked at, this one too
    others: tuple[str, ...]  # other laws that were broken on the way


class Hung(BaseException):
    """A case did not end. No ``Exception``: a law that takes one for a crash must not hear it."""


def mutation(
    name: str,
    laws: str,
    *edits: tuple[str, str, str],
    device: str = "sim",
    equivalent: str = "",
    missed: str = "",
) -> Mutation:
    """A mutation: the laws are words, and an edit is where, healthy lines, and the fault's."""
    made = tuple(Edit(*edit) for edit in edits)
    return Mutation(name, tuple(laws.split()), made, device, equivalent, missed)


def places(workloads: Iterable[int], device: str) -> Iterator[Place]:
    """The cases of so many workloads, in the order in which they are looked at."""
    for seed in workloads:
        for design in designs_for(draw(seed), device):
            yield Place(seed, design.name)


def broken_laws(place: Place, device: str = "sim") -> list[str]:
    """The laws that one case breaks.

    Raises:
        Hung: it takes too long.
    """
    design: Design = read_design(place.loop)
    with no_longer_than(LONGEST), there(device):
        return [item.law for item in judge(draw(place.seed).on(design, device)).findings]


@contextmanager
def there(device: str) -> Iterator[None]:
    """Where a GPU is asked for, there is one inside: that of ``tests/fake_cuda.py``."""
    if device != "cuda":
        yield
        return
    from ..fake_cuda import fake_cuda  # which loads torch

    with fake_cuda():
        yield


def look_for(mutation: Mutation, at: Iterable[Place]) -> Sight:
    """Judge case after case with the fault put in, up to the first that breaks one of its laws.

    Of what healthy code breaks as well, nothing counts.
    """
    all_designs()  # kept from now on, and not made by what is broken
    rest, cases, others = iter(at), 0, set[str]()
    while True:
        sight = first_sight(mutation, rest)
        cases, others = cases + sight.cases, others | {*sight.others}
        if not sight.law or sight.law not in broken_laws(sight.place, mutation.device):
            return Sight(sight.law, sight.place, cases, tuple(sorted(others)))


def first_sight(mutation: Mutation, at: Iterator[Place]) -> Sight:
    """The same, without a look at healthy code."""
    count, others, place = 0, set[str](), Place(-1, "")
    with put_in(mutation.edits):
        for count, place in enumerate(at, start=1):
            try:
                found = broken_laws(place, mutation.device)
            except Hung:
                found = ["hang"]
            if law := next((law for law in mutation.laws or LAWS if law in found), ""):
                return Sight(law, place, count, tuple(others))
            others.update(found)
    return Sight("", place, count, tuple(others))


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Whatever runs here is interrupted after so many seconds. For the main thread alone.

    Raises:
        Hung: it was.
    """

    def stop(signum: int, frame: object) -> None:
        raise Hung(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def seen_before() -> dict[str, Place]:
    """Where a sweep (``python -m tests.mutations``) has seen each mutation first."""
    kept: dict[str, Any] = json.loads(SEEN_AT.read_text()) if SEEN_AT.exists() else {}
    return {name: Place(item["seed"], item["loop"]) for name, item in kept.items()}
