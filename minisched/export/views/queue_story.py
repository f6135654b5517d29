"""The waiting queue's story, read from a trace: who came when, how it was sorted, who left it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...trace import Mark, Trace
from .marks import named, number, word


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
    """What marks and receive slices tell. Whoever was never received has waited since time 0."""
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
            visits[rid] = _visit(mark, came.get(rid, 0), admits)
    seen = dict.fromkeys([*came, *visits, *(rid for order in orders for rid in order.rids)])
    arrived = sorted(seen, key=lambda rid: came.get(rid, 0))
    in_order = [visits[rid] for rid in arrived if rid in visits]
    return QueueStory(arrived, [order for order in orders if order.rids], in_order)


def _visit(mark: Mark, arrived: int, place: int) -> Visit:
    hit_len, extend_len = number(mark, "hit_len"), number(mark, "extend_len")
    return Visit(word(mark, "rid"), arrived, mark.time, place, hit_len, extend_len)
