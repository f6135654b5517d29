"""In which order waiting requests were admitted, against the order in which they came."""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Trace
from ..scene import (
    CellGrid,
    Data,
    GridCell,
    LaneItem,
    LaneLink,
    LaneRow,
    Lanes,
    Part,
    Scene,
    about_run,
)
from ..state import panels_of
from ..units import ms
from .marks import first_of, named, needed, number, ordinal, short, short_end, word

MOST_ROUNDS, MOST_LANES = 10, 24
TOKEN = 1_000_000  # on an axis of tokens
LEGEND = {
    "queued": "waits",
    "admitted": "admitted now, or has memory",
    "evictable": "tokens it finds in the cache",
    "left": "tokens it has to compute",
}
Column = tuple[str, list[str], list[str]]  # its name, who waits in order, who was admitted then


def scene(trace: Trace) -> Scene:
    """A column for each time the queue was sorted; a lane for how long each request waited.

    Raises:
        NothingToShow: nobody was ever admitted.
    """
    needed(trace, "admit", "nobody ever left the queue")
    came = {rid: item.end for item in trace.slices if item.name == "receive" for rid in item.rids}
    orders = list[Column]()
    admitted, hits, to_compute = dict[str, int](), dict[str, int](), dict[str, int]()
    for mark in named(trace, "queue order", "admit"):
        if mark.name == "queue order":
            orders.append((f"{ms(mark.time)} ms", word(mark, "rids").split(), []))
            continue
        rid = word(mark, "rid")
        if orders and rid in orders[-1][1]:  # who only gets one more chunk is in no queue
            orders[-1][2].append(rid)
        admitted.setdefault(rid, mark.time)
        hits.setdefault(rid, number(mark, "hit_len"))
        to_compute[rid] = to_compute.get(rid, 0) + number(mark, "extend_len")
    orders = [order for order in orders if order[1]]
    seen = dict.fromkeys([*came, *admitted, *(rid for order in orders for rid in order[1])])
    arrived = sorted(seen, key=lambda rid: came.get(rid, 0))
    place = {rid: at for at, rid in enumerate(admitted, 1)}  # in the order of admissions
    visits = [rid for rid in arrived if rid in admitted]
    rids, end = visits[:MOST_LANES], max(admitted[rid] for rid in visits[:MOST_LANES])
    stays = [stay for name in ("queue", "set") for stay in panels_of(trace)[name].stays]
    rows = [
        LaneRow(short(rid, 20), [
            LaneItem(stay.kind, stay.start, min(stay.end, end),
                     "waits" if stay.kind == "queued" else ordinal(place[rid]), data={"rid": rid})
            for stay in stays
            if stay.rid == rid and stay.kind in ("queued", "admitted") and stay.start < end
        ], ordinal(place[rid]))
        for rid in rids
    ]  # fmt: skip
    bars = [LaneRow(short(rid, 20), [*prompt_of(rid, hits[rid], to_compute[rid])]) for rid in rids]
    longest = max(hits[rid] + to_compute[rid] for rid in rids) * TOKEN
    parts = [
        Part("How long they waited", f"in the order in which they came "
             f"{first_of(MOST_LANES, len(visits))}".strip(), [Lanes(rows, end)]),
        Part("What of their prompts was cached", "", [Lanes(bars, longest, across="tokens")]),
    ]  # fmt: skip
    if orders:
        some = orders
        if len(orders) > MOST_ROUNDS:  # the first in which there was something to sort
            some = [one for one in orders if len(one[1]) > 1][:MOST_ROUNDS] or orders[:1]
        cut = f"; {len(some)} of {len(orders)} rounds" * (some != orders)
        note = f"first on top; in the left column as they came{cut}"
        parts.insert(0, Part("The queue, sorted", note, [grid_of(arrived, some)]))
    passed = sum(place[rid] < max((place[other] for other in visits[:at]), default=0)
                 for at, rid in enumerate(visits))  # fmt: skip
    title = f"schedule_policy: {passed} of {len(visits)} overtake somebody who came before"
    policies = [word(mark, "policy") for mark in named(trace, "queue order")]
    policy = policies[0] if orders else "the order of the queue was not recorded"
    return Scene(title, about_run(trace, f"policy: {policy}"), parts, LEGEND)


def prompt_of(rid: str, hit: int, computed: int) -> Iterator[LaneItem]:
    """A prompt's tokens from left to right: those found in the cache, and those to compute."""
    for kind, start, count in (("evictable", 0, hit), ("left", hit, computed)):
        if count:
            about = f"{rid}: {LEGEND[kind]}: {count}"
            data: Data = {"rid": rid, "tokens": count}
            end = (start + count) * TOKEN
            yield LaneItem(kind, start * TOKEN, end, str(count), about=about, data=data)


def grid_of(arrived: list[str], orders: list[Column]) -> CellGrid:
    """The rounds; lines follow a request from one to the next."""
    there = {rid for _, rids, _ in orders for rid in rids}
    columns: list[Column] = [("arrival", [rid for rid in arrived if rid in there], []), *orders]
    cells, links = dict[tuple[int, int], GridCell](), list[LaneLink]()
    for at, (_, rids, admitted) in enumerate(columns):
        for place, rid in enumerate(rids):
            cells[place, at] = GridCell(
                "admitted" if rid in admitted else "queued",
                short_end(rid, 9),
                about=f"{rid}: place {place + 1}",
                data={"rid": rid, "round": at, "place": place},
            )
            if at and rid in columns[at - 1][1]:
                before = columns[at - 1][1].index(rid), at - 1
                links.append(LaneLink("link", before, (place, at)))
    places = [ordinal(place + 1) for place in range(max(len(rids) for _, rids, _ in columns))]
    return CellGrid(places, [name for name, *_ in columns], cells, links)
