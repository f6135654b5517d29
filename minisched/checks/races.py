"""Races: two lanes touch the same memory, one of them writes, and nothing orders them.

Found from a trace's ``program``, so it does not matter which of the two came first this time. What
comes before what, and when a stream waits in vain: ``happens_before.py``. What is in each other's
way, what a free means, and what is no race: ``conflicts.py``. Here it is told: which missing edge
explains it all, in a sentence each, with what never happens (``WaitsForEver``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..trace import Act, Slice, Trace
from ..trace.events import is_host, lane_words
from ..trace.program import Span, joined, span_text, spans_of
from .conflicts import VALUE, VERBS, HandedOut, Pair, find_pairs, in_their_steps, side_of
from .happens_before import Done, Order
from .offence import Offence

MOST_TRIALS = 8  # causes to try; whoever has more has other worries


# -- which missing edge explains it ----------------------------------------------------------------

Key = tuple[str, ...]
Place = tuple[str, int]


@dataclass
class Cause:
    """Pairs that the same missing edge explains, step by step; ``in_turn``: who should come first.

    An edge that is missing in every step is told once, not once a step. And one missing edge shows
    in several places: where a copy does not wait for the sampling, the host, which waits for the
    copy alone, knows nothing of the forward pass either when it frees its inputs. So each missing
    edge is put in on trial, and what is gone then belongs to it: ``also``.
    """

    key: Key
    in_turn: tuple[Done, Done]
    pairs: list[Pair] = field(default_factory=list)
    also: list[Cause] = field(default_factory=list)


def told_once(pairs: Sequence[Pair], order: Order, words: Words) -> list[Cause]:
    """The causes, those that explain most first."""
    causes = grouped(pairs, words)
    races = [cause for cause in causes.values() if cause.key[0] == "race"]
    left = [cause for cause in causes.values() if cause.key[0] != "race"]
    if len(races) < 2:
        return races + left
    done = (item for item in order.done if item.at not in order.vain)
    acts = [item.act for item in in_their_steps(done, words.slices)]
    cured = {cause.key: _cured_by(cause, acts, races, words) for cause in races[:MOST_TRIALS]}
    told = []
    while races:
        keys = {cause.key for cause in races}
        best = max(races, key=lambda cause: len(cured.get(cause.key, set()) & keys))
        gone = cured.get(best.key, set()) | {best.key}
        best.also = [cause for cause in races if cause.key in gone and cause is not best]
        told.append(best)
        races = [cause for cause in races if cause.key not in gone]
    return told + left


def grouped(pairs: Iterable[Pair], words: Words) -> dict[Key, Cause]:
    """Pairs by what they have in common: the resource, and who does what on which lane."""
    causes: dict[Key, Cause] = {}
    for pair in pairs:
        in_turn = _in_turn(pair, words)
        abouts = [(a.lane, a.kind, words.name(a.op)) for a in (done.act for done in in_turn)]
        family = re.sub(r"\d+", "", pair.first.act.resource)
        key = (pair.kind, family, *abouts[0], *abouts[1])
        causes.setdefault(key, Cause(key, in_turn)).pairs.append(pair)
    return causes


def _in_turn(pair: Pair, words: Words) -> tuple[Done, Done]:
    """Who should come first: the lower step; of one step who was launched first, or as taken.

    A free comes behind every use, whatever the steps: who frees in step 3 what step 4 was told to
    use is too early. Only who writes, and was launched behind the free, is the next owner.
    """
    first, second = pair.first, pair.second
    if pair.kind != "race":
        return first, second
    if (first.act.kind == "free") != (second.act.kind == "free"):
        free, use = (first, second) if first.act.kind == "free" else (second, first)
        is_next_owner = use.act.kind == "write" and free.is_decided_before(use)
        return (free, use) if is_next_owner else (use, free)
    one, other = words.step(first.act.op), words.step(second.act.op)
    is_known = one and other and one != other
    if (one > other) if is_known else first.is_decided_before(second) is False:
        return second, first
    return first, second


def _cured_by(cause: Cause, acts: Sequence[Act], races: list[Cause], words: Words) -> set[Key]:
    """Which races are gone once every pair of a cause is ordered; none if that is a circle."""
    order = Order(with_edges(acts, [_in_turn(pair, words) for pair in cause.pairs]))
    if order.stuck:
        return set()
    return {cause.key for cause in races} - grouped(find_pairs(order), words).keys()


def with_edges(acts: Sequence[Act], edges: Iterable[tuple[Done, Done]]) -> list[Act]:
    """The same acts and, for each edge, a signal behind the first op and a wait before the second.

    What the host does itself belongs to no op: there they stand right beside the act, or beside the
    first of the frees that it does in one go.
    """
    ops, heads = {act.op for act in acts if act.kind == "begin"}, _heads(acts)
    behind: defaultdict[Place, list[Act]] = defaultdict(list)
    before: defaultdict[Place, list[Act]] = defaultdict(list)
    for signal, (first, second) in enumerate(edges, 1):
        say, wait = Act(first.act.lane, "say", -signal), Act(second.act.lane, "wait", -signal)
        behind[_place(first.act, ops, {})].append(say)
        before[_place(second.act, ops, heads)].append(wait)
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


# -- in words --------------------------------------------------------------------------------------

MOST_SPANS, MOST_PLACES = 4, 2  # that a sentence names; of those that take more words fewer
ROWS = ("page table", "token pool")
ONES = {  # one cell of a resource
    "kv": "KV slot",
    "future map": "future slot",
    "last tokens": "last-token cell",
    "prev sampled": "sampled-token cell",
    "input ids": "input-id cell",
}


class Words:
    """The words for one trace: ``op`` for who did it, ``cells`` for what it was done to.

    A mark ``row length`` says how many cells each row of a resource has that is a table; without
    it, cells are numbered through.
    """

    def __init__(self, trace: Trace) -> None:
        self.slices: Mapping[int, Slice] = {item.id: item for item in trace.slices}
        self.row_lens: dict[str, int] = {}
        for mark in trace.marks:
            if mark.name == "row length":
                side = str(mark.attrs.get("side", ""))
                named = ((f"{side} {name}".strip(), size) for name, size in mark.attrs.items())
                self.row_lens.update({name: int(size) for name, size in named
                                      if isinstance(size, int) and size > 0})  # fmt: skip

    def name(self, op: int) -> str:
        """What an op is: ``copy``; empty without a slice."""
        return self.slices[op].name if op in self.slices else ""

    def step(self, op: int) -> int:
        """The step of an op; 0 if it has none."""
        return self.slices[op].step if op in self.slices else 0

    def op(self, op: int, lane: str) -> str:
        """``copy of step 3``; ``prepare of step 5 on the host``; ``op 17`` without a slice."""
        item = self.slices.get(op)
        if item is None:
            return f"{'call' if is_host(lane) else 'op'} {op}" if op else f"the {lane_words(lane)}"
        name = f"{item.name} of step {item.step}" if item.step else f"{item.name} ({op})"
        return f"{name} on the {lane}" if is_host(lane) else name

    def who(self, act: Act) -> str:
        """The op with its lane and its requests: ``copy of step 3 (copy stream; r0, r1)``."""
        item = self.slices.get(act.op)
        rids = act.rid or ", ".join(item.rids if item else ())
        about = [] if is_host(act.lane) else [lane_words(act.lane)]
        about += [rids] if rids else []
        words = self.op(act.op, act.lane)
        return f"{words} ({'; '.join(about)})" if about else words

    def cells(self, resource: str, at: str) -> str:
        """Some cells in the words of their resource: ``KV slots 3-7 9``, ``the inputs of step 4``.

        ``at`` is as in an act.
        """
        side, name = side_of(resource)
        return self._named(name, resource, spans_of(at)) + (f" of the {side} side" if side else "")

    def _named(self, name: str, resource: str, spans: Sequence[Span]) -> str:
        if name == VALUE:
            return " and ".join(f"the value of {self.op(cell, '')}" for cell, _ in spans)
        if name == "inputs":
            return f"the inputs of {_counted('step', spans)}"
        if buffer := re.fullmatch(r"(host )?output (\d+)", name):
            kind = "host" if buffer[1] else "device"
            return f"{kind} output buffer {buffer[2]} ({_counted('cell', spans)})"
        size = self.row_lens.get(resource, 0)
        if name == ROWS[0] and size:
            rows = [(first // size, last // size) for first, last in spans]
            return f"{_counted('row', rows)} of the page table"
        if name == ROWS[1]:
            return _counted("token-pool cell", spans, size)
        return _counted(ONES.get(name) or f"{name} cell", spans)


def _counted(one: str, spans: Sequence[Span], row_len: int = 0) -> str:
    """``cell 3``, ``cells 3-7 9``; of many spans the first few, and how many cells more.

    With ``row_len``, by row and position.
    """
    spans, most = sorted(set(spans)), MOST_PLACES if row_len else MOST_SPANS
    is_one = len(spans) == 1 and spans[0][0] == spans[0][1]
    parts = [_places(*span, row_len) if row_len else span_text(*span) for span in spans[:most]]
    rest = sum(last - first + 1 for first, last in spans[most:])
    more = f" and {rest} more" if rest else ""
    return f"{one}{'' if is_one else 's'} {' '.join(parts)}{more}"


def _places(first: int, last: int, row_len: int) -> str:
    """``(row 2, position 3)``, ``(row 2, positions 3-5)``."""
    (row, start), (last_row, end) = divmod(first, row_len), divmod(last, row_len)
    if row != last_row:
        return f"(row {row}, position {start}) to (row {last_row}, position {end})"
    return f"(row {row}, position{'' if start == end else 's'} {span_text(start, end)})"


# -- what is told ----------------------------------------------------------------------------------

TELLS = {
    "race": "{both}, and nothing orders the two: {missing}",
    "use after free": "{both} before, and nobody has written it since: a use after free",
    "late read": "{both} before, and {rid} has not got it back: a use after free",
    "write after free": "{both} before, and {rid} has not got it back: a write after free",
    "double free": "{both} before, and nobody has had it since: a double free",
    "unwritten": "{second} reads what nobody has written before",
    "wait in vain": "it is told to wait for {first} before that is launched, which is no order on "
    "a stream: {missing}",
}
"""By kind, the sentence behind the cells."""


@dataclass(frozen=True)
class Race:
    """Two acts that nothing orders; or something else of ``TELLS``, by its ``kind``.

    ``first`` is of the lower step, or was launched first: it should have ended before ``second``.
    A free is the second, for it comes behind every use; of a use after free it is the first. Of
    what nobody has written both are the read.
    ``cells`` of ``resource`` are as in an act; ``where`` is what they are called. ``who`` are the
    two with lane and requests, ``names`` without. There are ``count`` such pairs, and ``also`` is
    what else the missing edge would have ordered.
    """

    kind: str
    resource: str
    cells: str
    where: str
    first: Act
    second: Act
    who: tuple[str, str]
    names: tuple[str, str]
    count: int = 1
    also: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[int, int] | None:
        """The edge that should have been there, by ids of slices: from the end of the first one."""
        is_edge = self.kind in ("race", "wait in vain") and self.first.op and self.second.op
        return (self.first.op, self.second.op) if is_edge else None

    @property
    def missing_edge(self) -> str:
        """The same in words."""
        first, second = self.names
        is_free = self.second.kind == "free"
        return (
            f"the free must wait for {first}" if is_free else f"{second} does not wait for {first}"
        )

    def __str__(self) -> str:
        (first, second), one, other = self.who, self.first.kind, self.second.kind
        both = f"{second} {VERBS.get(other, other)} what {first} {VERBS.get(one, one)}"
        told = TELLS[self.kind].format(
            both=both, first=first, second=second, missing=self.missing_edge, rid=self.second.rid
        )
        times = f"; {self.count} such pairs" if self.count > 1 and one != "begin" else ""
        also = f"; that edge would also order {_listed(self.also)}" if self.also else ""
        return f"{self.where}: {told}{times}{also}"


@dataclass(frozen=True)
class WaitsForEver:
    """Lanes that never go on, from the one that waits for nobody or those in a circle.

    It waits for an op that nobody launches, or a signal that nobody says, or in a circle. What
    comes behind never happens, so nothing of it can race; that it never happens is what there is
    to tell. ``ops`` are what they wait for, ``unreached`` how many acts of theirs never happen.
    """

    lanes: tuple[str, ...]
    ops: tuple[int, ...]
    unreached: int
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Examined:
    """What a program's order gives: ``waits`` hold what could not be looked at for races."""

    races: tuple[Race, ...]
    waits: tuple[WaitsForEver, ...]


def examine(trace: Trace) -> Examined:
    """Every race, those of one cause told once, and every wait that never ends.

    Both are empty where the trace has no program.

    Raises:
        ValueError: an act's cells are none; one sentence.
    """
    words, order = Words(trace), Order(trace.program, trace.slices)
    pairs = find_pairs(order, words.slices, HandedOut(trace, words.slices))
    races = [_race(cause, words) for cause in told_once(pairs, order, words)]
    return Examined((*_told_in_vain(trace, order, words), *races), _told_stuck(order, words))


def find_races(trace: Trace) -> list[Race]:
    """The races of a trace, one of each cause; none where the trace has no program."""
    return list(examine(trace).races)


def race_offence(found: Race | WaitsForEver, trace: Trace) -> Offence:
    """What a picture of it shows in red."""
    ids = {item.id for item in trace.slices}
    if isinstance(found, WaitsForEver):
        return Offence(tuple(op for op in found.ops if op in ids), str(found))
    ops = tuple(dict.fromkeys(op for op in (found.first.op, found.second.op) if op in ids))
    missing = found.missing if len(ops) == 2 else None
    return Offence(ops, str(found), missing, "free" if found.second.kind == "free" else "")


def _race(cause: Cause, words: Words) -> Race:
    pair, (first, second) = cause.pairs[0], (done.act for done in cause.in_turn)
    cells, also = joined(pair.cells), [some.pairs[0] for some in cause.also]
    where = words.cells(first.resource, cells)
    others = [words.cells(some.first.act.resource, joined(some.cells)) for some in also]
    return Race(
        pair.kind,
        first.resource,
        cells,
        where,
        first,
        second,
        (words.who(first), words.who(second)),
        (words.op(first.op, first.lane), words.op(second.op, second.lane)),
        len(cause.pairs),
        tuple(dict.fromkeys(other for other in others if other != where)),
    )


def _told_in_vain(trace: Trace, order: Order, words: Words) -> list[Race]:
    """The waits that order nothing, those of one kind once."""
    begins = {act.op: act for act in trace.program if act.kind == "begin"} if order.vain else {}
    causes: dict[Key, list[tuple[Act, Act]]] = {}
    for at, behind in order.vain.items():
        first, second = begins[trace.program[at].op], begins[behind]
        key = (second.lane, words.name(first.op), words.name(second.op))
        causes.setdefault(key, []).append((first, second))
    return [
        Race(
            "wait in vain", "", "", f"the {lane_words(second.lane)}", first, second,
            (words.op(first.op, ""), words.op(second.op, "")),
            (words.op(first.op, ""), words.op(second.op, "")), len(pairs),
        )
        for pairs in causes.values() for first, second in pairs[:1]
    ]  # fmt: skip


def _told_stuck(order: Order, words: Words) -> tuple[WaitsForEver, ...]:
    """What is stuck, each circle once, with whoever waits behind it."""
    heads = {lane: acts[0] for lane, acts in order.stuck.items()}
    waits_for = {lane: _giver(act, order) for lane, act in heads.items()}
    ends: dict[tuple[str, ...], list[str]] = {}
    for lane in heads:
        ends.setdefault(_root(lane, waits_for), []).append(lane)
    return tuple(_waits_for_ever(root, lanes, order, words) for root, lanes in ends.items())


def _giver(head: Act, order: Order) -> str:
    """The stuck lane that would launch, end or say what a lane waits for; empty: nobody does."""
    kinds = ("launch",) if head.kind == "begin" else ("end", "say")
    for lane, acts in order.stuck.items():
        if any(act.op == head.op and act.kind in kinds for act in acts):
            return lane
    return ""


def _root(lane: str, waits_for: dict[str, str]) -> tuple[str, ...]:
    """The circle that a lane's wait leads to, in one order; or the lane that waits for nobody."""
    seen: list[str] = []
    while lane not in seen:
        seen.append(lane)
        if not waits_for[lane]:
            return (lane,)
        lane = waits_for[lane]
    circle = seen[seen.index(lane) :]
    least = circle.index(min(circle))
    return tuple(circle[least:] + circle[:least])


def _waits_for_ever(
    root: tuple[str, ...], lanes: list[str], order: Order, words: Words
) -> WaitsForEver:
    heads = [order.stuck[lane][0] for lane in root]
    is_circle = len(root) > 1 or bool(_giver(heads[0], order))
    needs = [("the launch of " if a.kind == "begin" else "") + words.op(a.op, "") for a in heads]
    sentence = "; ".join(
        f"the {lane_words(lane)} waits for {need}" for lane, need in zip(root, needs, strict=True)
    )
    nobody = {"begin": "launches", "wait": "ends or says"}[heads[0].kind]
    sentence += ": a circle" if is_circle else f", which nobody {nobody}: it waits for ever"
    unreached = sum(len(order.stuck[lane]) for lane in lanes)
    rest = [lane for lane in lanes if lane not in root]
    sentence += f"; {unreached} acts are never reached"
    sentence += f", the {', the '.join(map(lane_words, rest))} behind them" if rest else ""
    return WaitsForEver((*root, *rest), tuple(act.op for act in heads), unreached, sentence)


def _listed(things: tuple[str, ...]) -> str:
    return " and ".join(filter(None, [", ".join(things[:-1]), things[-1]]))
