"""Cases of every part, played by an original in its own environment and by us; and the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ..bench.peers.peer import start_peer
from ..sweep.workers import HERE, Workers, in_order, spread
from . import mini_sglang, nano_vllm, sglang, vllm
from .case import FidelityCase, Schedule, read_schedule, step_at
from .future_map import RelayReport
from .lockstep import (
    UNEXPLAINED,
    ScheduleDifference,
    agreeing,
    compare,
    our_schedule,
    smallest,
    switched,
)
from .original import Original
from .parts import PARTS, Shape

Say = Callable[[str], None]


ORIGINALS: Mapping[str, Original] = {
    each.name: each
    for each in (sglang.ORIGINAL, mini_sglang.ORIGINAL, vllm.ORIGINAL, nano_vllm.ORIGINAL)
}
"""By the name of their rules; mini-sglang uses the installed packages of SGLang."""


class Player:
    """An original that runs; a context manager."""

    def __init__(self, original: Original, source: Path | None, say: Say) -> None:
        settings = {"source": str(source.resolve()) if source else ""}
        script, packages_of = (
            f"{__package__}.{name.replace('-', '_')}"
            for name in (original.name, original.packages_of or original.name)
        )
        self.peer = start_peer(script, settings, say, packages_of=packages_of)
        self.about = self.peer.ask({})

    def play(self, case: FidelityCase) -> Schedule:
        """Return its launches, turn by turn.

        Raises:
            PeerError: it has ended.
        """
        return read_schedule(self.peer.ask({"case": case.as_json()})["schedule"])

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self.peer.close()


EQUAL = "equal"


@dataclass
class Report:
    """The findings of a lockstep."""

    original: str
    version: str
    seed: int
    # by part: the number of EQUAL cases, and of those that differ by each rule
    parts: dict[str, Counter[str]] = field(default_factory=dict)
    differences: list[tuple[Named, ScheduleDifference]] = field(default_factory=list)
    smallest: ScheduleDifference | None = None  # of the first that no rule explains
    agreeing: list[str] = field(default_factory=list)  # answers with which it would be equal
    future_maps: list[RelayReport] = field(default_factory=list)  # of an original that has them

    @property
    def all_parts(self) -> Counter[str]:
        """Return the sum over all parts."""
        return sum(self.parts.values(), Counter[str]())

    @property
    def unexplained(self) -> int:
        """Count the cases that differ without a rule that differs on purpose."""
        return self.all_parts[UNEXPLAINED]

    def as_json(self) -> dict[str, Any]:
        """Return one object; a case in it is the input of ``FidelityCase.from_json``."""
        whole, small = self.all_parts, self.smallest
        return {
            "original": self.original,
            "version": self.version,
            "seed": self.seed,
            "cases": whole.total(),
            "equal": whole[EQUAL],
            "unexplained": whole[UNEXPLAINED],
            "parts": {
                name: {
                    "cases": count.total(), "equal": count[EQUAL],
                    "rules": {rule: n for rule, n in count.items() if rule != EQUAL},
                }
                for name, count in self.parts.items()
            },
            "differences": [{**item._asdict(), **told(found)} for item, found in self.differences],
            "smallest": small
            and {"case": small.case.as_json(), **told(small), "agreeing": self.agreeing},
            "future_maps": [each.as_json() for each in self.future_maps],
        }  # fmt: skip


def told(found: ScheduleDifference) -> dict[str, Any]:
    """Return where two schedules differ, and both steps there."""
    theirs, ours = (step_at(each, found.turn)._asdict() for each in (found.theirs, found.ours))
    return {"rule": found.rule, "turn": found.turn, "theirs": theirs, "ours": ours}


def dealt(parts: Mapping[str, Shape], cases: int) -> dict[str, int]:
    """Return the number of cases of each part; the first parts get the remainder."""
    each, over = divmod(cases, len(parts))
    counts = {name: each + (at < over) for at, name in enumerate(parts)}
    return {name: count for name, count in counts.items() if count}


def in_lockstep(
    original: str, parts: Mapping[str, Shape], play: Play, version: str, cases: int, seed: int,
    hear: Say = lambda part: None, workers: Workers = HERE,
    one: Callable[[Named], Found] | None = None,
) -> Report:  # fmt: skip
    """Play ``cases`` cases, dealt over the parts; ``hear`` is called with the part after each.

    With ``one``, ``workers`` may play them in other processes; ``play`` is for this process.
    """
    todo = [
        Named(part, f"{part} {seed} {number}")
        for part, count in dealt(parts, cases).items()
        for number in range(count)
    ]
    report = Report(original, version, seed)
    played = in_order(spread(one or partial(differs, original, parts, play), todo, workers))
    for item, found in zip(todo, played, strict=True):
        hear(item.part)
        report.parts.setdefault(item.part, Counter())[found.rule if found else EQUAL] += 1
        if found:
            report.differences.append((item, found))
    first = next((found for _, found in report.differences if not found.is_explained), None)
    if first:
        hear("smallest case")
        ours = partial(our_schedule, rules=switched(original))
        report.smallest = smallest(first, play, ours)
        report.agreeing = agreeing(report.smallest, original)
    return report


class Named(NamedTuple):
    """A case by the seed and part that it is drawn from."""

    part: str
    seed: str


Play = Callable[[FidelityCase], Schedule]
Found = ScheduleDifference | None


def differs(original: str, parts: Mapping[str, Shape], play: Play, item: Named) -> Found:
    """Draw a case and play it on both sides; return the difference, or None."""
    case = parts[item.part].draw(item.seed)
    return compare(case, original, play(case))


def differs_from_own(original: str, source: Path | None, item: Named) -> Found:
    """Do the same in a worker process, which starts an original of its own, once."""
    return differs(original, PARTS[original], own_player(original, source).play, item)


@cache
def own_player(original: str, source: Path | None) -> Player:
    """Return this process's player; it ends with the process."""
    return Player(ORIGINALS[original], source, lambda what: None)
