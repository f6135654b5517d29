"""In which order waiting requests were admitted, against the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...trace import Trace
from ..scene import (
    Bar,
    Bars,
    CellGrid,
    Data,
    GridCell,
    LaneItem,
    LaneLink,
    LaneRow,
    Lanes,
    Part,
    Scene,
    TextTable,
    about_run,
)
from ..state.requests import request_stays
from ..units import ms
from .marks import NothingToShow, named, number, ordinal, short, short_end, word

# -- The waiting queue's story, read from a trace: who came when, how it was sorted, who left it


@dataclass(frozen=True)
class Order:
    """The queue as a cache-aware policy sorted it, and who of it was admitted then."""

    policy: str
    time: int
    rids: list[str]  # the first 20
    admitted: list[str]


@dataclass(frozen=True)
class Visit:
    """One stay in the queue that ended in an admission."""

    rid: str
    arrived: int  # or retracted
    admitted: int
    place: int  # in the order of admissions, from 1
    hit_len: int
    extend_len: int  # the rest of the prompt, in chunks or not


@dataclass(frozen=True)
class QueueStory:
    """All of it; ``arrived`` and ``visits`` in order of arrival."""

    arrived: list[str]
    orders: list[Order]
    visits: list[Visit]


def story_of(trace: Trace) -> QueueStory:
    """What marks and receive slices tell. Whoever was never received has waited since time 0.

    Raises:
        NothingToShow: nobody was ever admitted.
    """
    came = {rid: item.end for item in trace.slices if item.name == "receive" for rid in item.rids}
    orders, visits = list[Order](), dict[str, Visit]()
    admits = 0
    for mark in named(trace, "queue order", "admit"):
        if mark.name == "queue order":
            rids = word(mark, "rids").split()
            orders.append(Order(word(mark, "policy"), mark.time, rids, []))
            continue
        rid = word(mark, "rid")
        if orders and rid in orders[-1].rids:  # who only gets one more chunk is in no queue
            orders[-1].admitted.append(rid)
        if rid in visits:  # one more chunk, or after a retraction
            grown = visits[rid].extend_len + number(mark, "extend_len")
            visits[rid] = replace(visits[rid], extend_len=grown)
        else:
            admits += 1
            hit_len, extend_len = number(mark, "hit_len"), number(mark, "extend_len")
            visits[rid] = Visit(rid, came.get(rid, 0), mark.time, admits, hit_len, extend_len)
    if not visits:
        raise NothingToShow("the trace has no admit mark, so nobody ever left the queue.")
    seen = dict.fromkeys([*came, *visits, *(rid for order in orders for rid in order.rids)])
    arrived = sorted(seen, key=lambda rid: came.get(rid, 0))
    in_order = [visits[rid] for rid in arrived if rid in visits]
    return QueueStory(arrived, [order for order in orders if order.rids], in_order)


# -- The queue as it was sorted, round after round, and how long everybody waited for what ---------

MOST_ROUNDS, MOST_LANES = 10, 24
LEGEND = {
    "queued": "waits",
    "admitted": "admitted now, or has memory",
    "evictable": "tokens it finds in the cache",
    "left": "tokens it has to compute",
}
HEADS = ("request", "came, ms", "admitted, ms", "waited, ms", "place", "cached", "to compute")


def scene(trace: Trace) -> Scene:
    """A column for each time the queue was sorted; a lane for how long each request waited.

    Raises:
        NothingToShow: nobody was ever admitted.
    """
    story, parts = story_of(trace), list[Part]()
    if story.orders:
        orders = story.orders
        if len(orders) > MOST_ROUNDS:  # the first in which there was something to sort
            orders = [one for one in orders if len(one.rids) > 1][:MOST_ROUNDS] or orders[:1]
        cut = f"; {len(orders)} of {len(story.orders)} rounds" * (orders != story.orders)
        note = f"first on top; in the left column as they came{cut}"
        parts.append(Part("The queue, sorted", note, [grid_of(story, orders)]))
    visits = story.visits[:MOST_LANES]
    cut = f"; the first {len(visits)} of {len(story.visits)}" * (visits != story.visits)
    end, rows, bars = max(visit.admitted for visit in visits), list[LaneRow](), list[Bar]()
    stays = request_stays(trace)
    for visit in visits:
        items = [
            LaneItem(stay.kind, stay.start, min(stay.end, end),
                     "waits" if stay.kind == "queued" else ordinal(visit.place),
                     data={"rid": stay.rid})
            for stay in stays
            if stay.rid == visit.rid and stay.kind in ("queued", "admitted") and stay.start < end
        ]  # fmt: skip
        rows.append(LaneRow(short(visit.rid, 20), items, ordinal(visit.place)))
        tokens = (("evictable", visit.hit_len), ("left", visit.extend_len))
        bars.append(Bar(short(visit.rid, 20), [
            (kind, amount, f"{visit.rid}: {LEGEND[kind]}: {amount}",
             {"rid": visit.rid, "tokens": amount})
            for kind, amount in tokens
            if amount
        ]))  # fmt: skip
    lines = [
        (short(visit.rid, 20), ms(visit.arrived), ms(visit.admitted),
         ms(visit.admitted - visit.arrived), ordinal(visit.place), visit.hit_len,
         visit.extend_len)
        for visit in visits
    ]  # fmt: skip
    parts += [
        Part("How long they waited", f"in the order in which they came{cut}",
             [TextTable(HEADS, lines), Lanes(rows, end)]),
        Part("What of their prompts was cached", "", [Bars(bars, "tokens")]),
    ]  # fmt: skip
    passed = sum(visit.place < max((other.place for other in story.visits[:at]), default=0)
                 for at, visit in enumerate(story.visits))  # fmt: skip
    title = f"schedule_policy: {passed} of {len(story.visits)} overtake somebody who came before"
    policy = story.orders[0].policy if story.orders else "the order of the queue was not recorded"
    return Scene(title, about_run(trace, f"policy: {policy}"), parts, LEGEND)


def grid_of(story: QueueStory, orders: list[Order]) -> CellGrid:
    """The rounds; lines follow a request from one to the next."""
    there = {rid for order in orders for rid in order.rids}
    columns = [("arrival", [rid for rid in story.arrived if rid in there], list[str]())]
    columns += [(f"{ms(order.time)} ms", order.rids, order.admitted) for order in orders]
    cells: dict[tuple[int, int], GridCell] = {}
    links = list[LaneLink]()
    for at, (_, rids, admitted) in enumerate(columns):
        for place, rid in enumerate(rids):
            kind = "admitted" if rid in admitted else "queued"
            data: Data = {"rid": rid, "round": at, "place": place}
            cells[place, at] = GridCell(kind, short_end(rid, 9), about=f"{rid}: place {place + 1}",
                                    data=data)  # fmt: skip
            if at and rid in columns[at - 1][1]:
                before = columns[at - 1][1].index(rid), at - 1
                links.append(LaneLink("link", before, (place, at)))
    places = [ordinal(place + 1) for place in range(max(len(rids) for _, rids, _ in columns))]
    return CellGrid(places, [name for name, *_ in columns], cells, links)
