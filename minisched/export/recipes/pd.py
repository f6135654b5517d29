"""PD separation and what stands against it: streams that decode while long prompts come."""

from __future__ import annotations

from ...core import Request
from ...devices.cost import MILLISECOND
from .recipe import Recipe, tokens

STREAMS = [Request(rid, range(at, at + 12), tokens(20)) for at, rid in enumerate("abc")]
LONG = [
    Request("long", range(20, 220), tokens(6), arrival_time=45 * MILLISECOND),
    Request("long too", range(40, 240), tokens(6), arrival_time=105 * MILLISECOND),
]
RECIPES = {"pd": Recipe("pd", STREAMS + LONG)}
