"""Multi-step scheduling over time: a burst from its first step to the next one's."""

from __future__ import annotations

from ..puml_sequence import to_sequence
from ..recipes import trace_of
from ..runs import stretch
from ..scene_puml import to_puml

TITLE = "multi_step: scheduled once, decoded four times, and only then looked at"
CHANGE = "multi_step: the end of a burst, and the beginning of the next"
BURST = (20, 23)  # one of the bursts of the golden run


def timing() -> str:
    """Who works when, for a whole burst."""
    return to_puml(stretch(trace_of("multi_step"), *BURST, TITLE))


def sequence() -> str:
    """Who tells whom: the end of a burst, and the beginning of the next."""
    return to_sequence(trace_of("multi_step"), BURST[1], BURST[1] + 1, CHANGE, has_links=True)


PICTURES = {"multi_step": timing, "multi_step_sequence": sequence}
