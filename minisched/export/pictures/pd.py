"""PD separation over time: a long prompt is computed on one side while the other one decodes."""

from __future__ import annotations

from ..puml_sequence import to_sequence
from ..recipes import trace_of
from ..runs import stretch
from ..scene_puml import to_puml

TITLE = "pd: prompts on one device, decoding on another, KV sent from here to there"
STEPS = (4, 9)  # of those who decode: from before the prompt comes until its request decodes too
ARRIVAL = (7, 8)  # those in which the last of its KV arrives


def timing() -> str:
    """Who works when."""
    return to_puml(stretch(trace_of("pd"), *STEPS, TITLE))


def sequence() -> str:
    """Who tells whom when the KV is there."""
    return to_sequence(trace_of("pd"), *ARRIVAL, TITLE, has_links=True)


PICTURES = {"pd": timing, "pd_sequence": sequence}
