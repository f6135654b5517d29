"""Who gives its memory back when decoding runs out of pages."""

from __future__ import annotations

from collections.abc import Iterable

from ..core import Request


def choose_victim(candidates: Iterable[Request]) -> Request:
    """The request with the fewest outputs; among equals the longest prompt, then the newest.

    SGLang ``schedule_batch.py:retract_decode`` sorts the same way: the least work is lost.
    """
    return min(candidates, key=lambda req: (len(req.output_ids), -len(req.prompt), -req.order))
