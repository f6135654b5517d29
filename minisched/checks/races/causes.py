"""Several races, one cause: an edge that is missing in every step is told once, not once a step.

And one missing edge shows in several places: where a copy does not wait for the sampling, the host,
which waits for the copy alone, knows nothing of the forward pass either when it frees its inputs.
So each missing edge is put in on trial, and what is gone then belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...trace import Act
from .access_log import Access
from .act_order import in_order
from .detector import Detector, Pair
from .words import Words

MOST_TRIALS = 8  # causes to try; whoever has more has other worries
Key = tuple[str, ...]
Place = tuple[str, int]


@dataclass
class Cause:
    """Pairs that the same missing edge explains, step by step; ``in_turn``: who should come first.

    ``also`` are other pairs that would be gone with it.
    """

    key: Key
    in_turn: tuple[Access, Access]
    pairs: list[Pair] = field(default_factory=list)
    also: list[Cause] = field(default_factory=list)


def told_once(acts: Sequence[Act], pairs: Sequence[Pair], words: Words) -> list[Cause]:
    """The causes, those that explain most first; ``acts`` are in an order that can happen."""
    causes = grouped(pairs, words)
    races = [cause for cause in causes.values() if cause.in_turn and cause.key[0] == "race"]
    if len(races) < 2:
        return list(causes.values())
    cured = {cause.key: _cured_by(cause, acts, races, words) for cause in races[:MOST_TRIALS]}
    told, left = [], [cause for cause in causes.values() if cause.key[0] != "race"]
    while races:
        best = max(races, key=lambda cause: len(cured.get(cause.key, set()) & _keys(races)))
        gone = cured.get(best.key, set()) | {best.key}
        best.also = [cause for cause in races if cause.key in gone and cause is not best]
        told.append(best)
        races = [cause for cause in races if cause.key not in gone]
    return told + left


def grouped(pairs: Iterable[Pair], words: Words) -> dict[Key, Cause]:
    """Pairs by what they have in common: the resource, and who does what on which lane."""
    causes: dict[Key, Cause] = {}
    for pair in pairs:
        first, second = in_turn = _in_turn(pair, words)
        family = re.sub(r"\d+", "", first.act.resource)
        key = (pair.kind, family, *_about(first, words), *_about(second, words))
        causes.setdefault(key, Cause(key, in_turn)).pairs.append(pair)
    return causes


def _in_turn(pair: Pair, words: Words) -> tuple[Access, Access]:
    """Who should come first: the lower step; of one step who was launched first, or as taken.

    A free comes behind every use, whatever the steps: who frees in step 3 what step 4 was told to
    use is too early. Only who writes, and was launched behind the free, is the next owner.
    """
    first, second = pair.first, pair.second
    if pair.kind == "race" and (first.act.kind == "free") != (second.act.kind == "free"):
        free, use = (first, second) if first.act.kind == "free" else (second, first)
        is_next_owner = use.act.kind == "write" and free.is_decided_before(use)
        return (free, use) if is_next_owner else (use, free)
    if pair.kind == "race":
        steps = [getattr(words.slices.get(some.act.op), "step", 0) for some in (first, second)]
        is_known = all(steps) and steps[0] != steps[1]
        if (steps[0] > steps[1]) if is_known else first.is_decided_before(second) is False:
            return second, first
    return first, second


def _about(access: Access, words: Words) -> tuple[str, str, str]:
    item, act = words.slices.get(access.act.op), access.act
    return act.lane, act.kind, item.name if item else ""


def _keys(causes: Iterable[Cause]) -> set[Key]:
    return {cause.key for cause in causes}


def _cured_by(cause: Cause, acts: Sequence[Act], races: list[Cause], words: Words) -> set[Key]:
    """Which races are gone once every pair of a cause is ordered; none if that is a circle."""
    order = in_order(with_edges(acts, [_in_turn(pair, words) for pair in cause.pairs]))
    if order.stuck:
        return set()
    detector = Detector(order.acts)
    for act in order.acts:
        detector.take(act)
    return _keys(races) - grouped(detector.pairs, words).keys()


def with_edges(acts: Sequence[Act], edges: Iterable[tuple[Access, Access]]) -> list[Act]:
    """The same acts and, for each edge, a signal behind the first op and a wait before the second.

    What the host does itself belongs to no op: there they stand right beside the act, or beside the
    first of the frees that it does in one go.
    """
    ops, heads = {act.op for act in acts if act.kind == "begin"}, _heads(acts)
    behind: dict[Place, list[Act]] = {}
    before: dict[Place, list[Act]] = {}
    for signal, (first, second) in enumerate(edges, 1):
        behind.setdefault(_place(first.act, ops, {}), []).append(
            Act(first.act.lane, "say", -signal)
        )
        place = _place(second.act, ops, heads)
        before.setdefault(place, []).append(Act(second.act.lane, "wait", -signal))
    changed: list[Act] = []
    for act in acts:
        is_alone, place = bool(act.at) and act.op not in ops, _place(act, ops, {})
        changed += before.get(place, ()) if is_alone or act.kind == "begin" else ()
        changed.append(act)
        changed += behind.get(place, ()) if is_alone or act.kind == "end" else ()
    return changed


def _place(act: Act, ops: set[int], heads: dict[int, int]) -> Place:
    return ("op", act.op) if act.op in ops else ("act", heads.get(id(act), id(act)))


def _heads(acts: Iterable[Act]) -> dict[int, int]:
    """Of each free the first one of those that its lane does in one go, in one slice; by ``id``."""
    heads: dict[int, int] = {}
    newest: dict[str, Act] = {}
    for act in acts:
        before = newest.get(act.lane)
        if act.kind == "free":
            is_more = before and before.kind == "free" and before.op == act.op
            heads[id(act)] = heads[id(before)] if is_more else id(act)
        newest[act.lane] = act
    return heads
