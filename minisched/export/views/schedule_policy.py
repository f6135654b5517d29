"""The order in which waiting requests were admitted, compared with their arrival."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...checks.history import many
from ...trace import Trace
from ..scene import CellGrid, Data, GridCell, LaneLink, Part, Scene, about_run
from ..units import ms
from .marks import named, needed, number, ordinal, short_end, word, words

MOST_ROUNDS, MOST_REQUESTS, MOST_NAMES = 10, 20, 3
LEGEND = {
    "queued": "waits",
    "admitted": "admitted now; below: its prompt's tokens, cached + to compute",
    "arrow token": "overtakes an earlier request",
}


@dataclass
class QueueOrder:
    """The waiting requests at a time, in order, and the admitted ones among them.

    An admitted request has its cached prompt tokens, and those to compute.
    """

    name: str
    rids: list[str]
    admitted: dict[str, list[int]] = field(default_factory=dict)


def scene(trace: Trace) -> Scene:
    """Draw a column for each time the queue was sorted.

    Only policies that ask the cache record that; of others one column shows the admissions.
    """
    needed(trace, "admit", "no request left the queue")
    sorted_ = named(trace, "queue order")
    came = {rid: item.end for item in trace.slices if item.name == "receive" for rid in item.rids}
    orders, prompts = list[QueueOrder](), dict[str, list[int]]()
    for mark in named(trace, "queue order", "admit"):
        if mark.name == "queue order":
            orders.append(QueueOrder(f"{ms(mark.time)} ms", words(mark, "rids")))
            continue
        rid = word(mark, "rid")
        # a request that gets one more chunk is in no queue, or was admitted from it
        if orders and rid in orders[-1].rids and rid not in orders[-1].admitted:
            orders[-1].admitted[rid] = prompts[rid] = [number(mark, "hit_len"), 0]
        prompts.setdefault(rid, [number(mark, "hit_len"), 0])[1] += number(mark, "extend_len")
    orders = [order for order in orders if order.rids]
    orders = orders or [QueueOrder("admitted", [*prompts][:MOST_REQUESTS], prompts)]
    seen = dict.fromkeys([*came, *prompts, *(rid for order in orders for rid in order.rids)])
    arrived = sorted(seen, key=lambda rid: came.get(rid, 0))
    some, cut = orders, ""
    if len(orders) > MOST_ROUNDS:  # rounds with something to sort, if there are any
        some = [one for one in orders if len(one.rids) > 1][:MOST_ROUNDS] or orders[:1]
        cut = f"; {len(some)} of {len(orders)} rounds"
    admitted, visits = [*prompts], [rid for rid in arrived if rid in prompts]
    overtaking = {
        rid for at, rid in enumerate(visits)
        if admitted.index(rid) < max(map(admitted.index, visits[:at]), default=0)
    }  # fmt: skip
    note = f"first on top; in the left column by arrival{cut}"
    return Scene(
        finding([rid for rid in admitted if rid in overtaking], prompts),
        about_run(trace, f"policy: {word(sorted_[0], 'policy') if sorted_ else 'not recorded'}"),
        [Part("The queue, sorted", note, [grid_of(arrived, some, overtaking)])],
        LEGEND,
    )


def finding(overtaking: Sequence[str], prompts: Mapping[str, Sequence[int]]) -> str:
    """Write the requests that overtake an earlier one, and the cached share of their prompts."""
    if not overtaking:
        return "schedule_policy: no request overtakes an earlier one"
    names = " and ".join(short_end(rid, 9) for rid in overtaking)
    if len(overtaking) > MOST_NAMES:
        names = f"{len(overtaking)} requests"
    hit, new = (sum(prompts[rid][at] for rid in overtaking) for at in (0, 1))
    verb = "overtakes" if len(overtaking) == 1 else "overtake"
    return f"{names} {verb}: {hit} of {many(hit + new, 'prompt token')} are cached"


def grid_of(arrived: list[str], orders: list[QueueOrder], overtaking: Collection[str]) -> CellGrid:
    """Return the rounds; lines follow a request from its arrival to its admission."""
    there = {rid for order in orders for rid in order.rids}
    columns = [QueueOrder("arrival", [rid for rid in arrived if rid in there]), *orders]
    cells, links = dict[tuple[int, int], GridCell](), list[LaneLink]()
    for at, order in enumerate(columns):
        for place, rid in enumerate(order.rids):
            data: Data = {"rid": rid, "round": at, "place": place}
            kind, below = "queued", ""
            if rid in order.admitted:
                hit, new = order.admitted[rid]
                kind, below, data = "admitted", f"{hit} + {new}", {**data, "tokens": new}
            cells[place, at] = GridCell(kind, short_end(rid, 9), below, data=data)
            came = [column for column in range(at) if rid in columns[column].rids]
            if came:  # from its arrival on, each request has a line
                before = columns[came[-1]].rids.index(rid), came[-1]
                kind = "token" if rid in overtaking else "link"
                links.append(LaneLink(kind, before, (place, at)))
    places = [ordinal(1 + place) for place in range(max(len(order.rids) for order in columns))]
    return CellGrid(places, [order.name for order in columns], cells, links)
