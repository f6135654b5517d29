"""Waits that never end: for an op that nobody launches, a signal that nobody says, or in a circle.

What comes behind such a wait never happens, so nothing of it can race; that it never happens is
what there is to tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Act
from .act_order import Ordered, needed_by
from .words import Words, lane_words


@dataclass(frozen=True)
class WaitsForEver:
    """Lanes that never go on, from the one that waits for nobody or those in a circle.

    ``ops`` are what they wait for, ``unreached`` how many acts of all of them never happen.
    """

    lanes: tuple[str, ...]
    ops: tuple[int, ...]
    unreached: int
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def told(order: Ordered, words: Words) -> tuple[WaitsForEver, ...]:
    """What is stuck, each circle once, with whoever waits behind it."""
    heads = {lane: acts[0] for lane, acts in order.stuck.items()}
    waits_for = {lane: _giver(act, order) for lane, act in heads.items()}
    ends: dict[tuple[str, ...], list[str]] = {}
    for lane in heads:
        ends.setdefault(_root(lane, waits_for), []).append(lane)
    return tuple(_told(root, lanes, order, words) for root, lanes in ends.items())


def _giver(head: Act, order: Ordered) -> str:
    """The stuck lane that would launch, end or say what a lane waits for; empty: nobody does."""
    launch, _ = needed_by(head) or ("", 0)
    kinds = ("launch",) if launch == "launch" else ("end", "say")
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


def _told(root: tuple[str, ...], lanes: list[str], order: Ordered, words: Words) -> WaitsForEver:
    heads = [order.stuck[lane][0] for lane in root]
    is_circle = len(root) > 1 or bool(_giver(heads[0], order))
    sentence = "; ".join(
        f"the {lane_words(act.lane)} waits for {_needed(act, words)}" for act in heads
    )
    nobody = {"begin": "launches", "wait": "ends or says"}[heads[0].kind]
    sentence += ": a circle" if is_circle else f", which nobody {nobody}: it waits for ever"
    unreached = sum(len(order.stuck[lane]) for lane in lanes)
    behind = [lane_words(lane) for lane in lanes if lane not in root]
    sentence += f"; {unreached} acts are never reached"
    sentence += f", the {', the '.join(behind)} behind them" if behind else ""
    return WaitsForEver((*root, *(lane for lane in lanes if lane not in root)),
                        tuple(act.op for act in heads), unreached, sentence)  # fmt: skip


def _needed(head: Act, words: Words) -> str:
    what = words.op(head.op, "")
    return f"the launch of {what}" if head.kind == "begin" else what
