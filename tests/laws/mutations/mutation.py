"""The set of deliberate faults of the engine (in the files beside this one, each like a real one),
and how ``minisched check --workloads`` looks for one.
"""

from __future__ import annotations

import json
import signal
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from minisched.checks.case import shallow
from minisched.checks.draw import Variant, all_designs, draw, read_design
from minisched.checks.judge import judge
from minisched.checks.laws import LAWS
from minisched.checks.many import cases_of
from minisched.museum.patch import Edit, put_in

HERE = Path(__file__).parent
SEEN_AT = HERE / "seen.json"
LONGEST = 30  # seconds for one case; healthy ones take some hundredths


@dataclass(frozen=True)
class Mutation:
    """A fault of a line or two, and the laws of which one must see it.

    ``equivalent`` says why it is no fault that anybody could hear of: that nothing is computed
    otherwise, or that only the speed is another one, which no law limits. ``missed`` says why a
    fault is not seen in what is drawn. Neither: it must be.
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
    in_depth: bool = True


class Sight(NamedTuple):
    """The first case in which one of a mutation's laws was broken, or the last one looked at."""

    law: str  # "" where none was
    place: Place
    cases: int  # looked at, this one too


class Hung(BaseException):
    """A case did not end. No ``Exception``: a law that takes one for a crash must not hear it."""


def read(file: str) -> tuple[Mutation, ...]:
    """The mutations of a file: the laws are words, an edit is where, healthy lines, the fault's."""
    return tuple(
        Mutation(
            name,
            tuple(item.pop("laws", "").split()),
            tuple(Edit(*edit) for edit in item.pop("edits")),
            **item,
        )
        for name, item in tomllib.loads((HERE / file).read_text("utf-8")).items()
        if "edits" in item
    )


def places(workloads: Iterable[int], device: str) -> Iterator[Place]:
    for seed in workloads:
        for name, case in cases_of(seed, device).items():
            yield Place(seed, name, case.in_depth)


def design_called(name: str) -> Variant:
    """The design of a name, as ``check`` has it: not read by code that may have a fault."""
    kept = (design for design in all_designs() if design.name == name)
    return next(kept, None) or read_design(name)


def broken_laws(place: Place, device: str) -> list[str]:
    try:
        with no_longer_than(LONGEST), there(device):
            case = draw(place.seed).on(design_called(place.loop), device)
            case = case if place.in_depth else shallow(case)
            return [item.law for item in judge(case).findings]
    except Hung:
        return ["hang"]


def there(device: str) -> Any:
    """Where a GPU is asked for, there is one inside: that of ``tests/devices/fake_cuda.py``."""
    if device != "cuda":
        return nullcontext()
    from tests.devices.fake_cuda import fake_cuda  # which loads torch

    return fake_cuda()


def look_for(mutation: Mutation, at: Iterable[Place]) -> Sight:
    """Judge case after case with the fault put in, up to the first that breaks one of its laws.

    Of what healthy code breaks as well, nothing counts.
    """
    all_designs()  # kept from now on, and not made by what is broken
    laws, count, place = {*(mutation.laws or LAWS)}, 0, Place(-1, "")
    for count, place in enumerate(at, start=1):
        with put_in(mutation.edits):
            found = laws.intersection(broken_laws(place, mutation.device))
        if found and not found.intersection(broken_laws(place, mutation.device)):
            return Sight(min(found), place, count)
    return Sight("", place, count)


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
    kept: dict[str, Any] = json.loads(SEEN_AT.read_text("utf-8"))
    return {name: Place(item["seed"], item["loop"]) for name, item in kept.items()}


CHOSEN = read("scheduling.toml") + read("steps.toml")
REVIEWED = read("reviewed.toml")  # written because ``check`` did not see faults of their kind
CAUGHT = tuple(  # survivors of random draws that a later law or a later draw of cases sees
    replace(item, missed="") for item in read("fresh_survivors.toml") if item.laws
)
MUTATIONS = CHOSEN + REVIEWED + CAUGHT
