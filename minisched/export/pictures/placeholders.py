"""Placeholder fill as a story, and what MindIE's gate and its two layers do to the ledger."""

from __future__ import annotations

from dataclasses import replace

from ..puml_story import to_story
from ..recipes import recipes, trace_of
from ..recipes.mindie import mindie_placeholder
from ..story import Actor, Story
from ..svg import to_svg
from ..views import draw

FILL = Story(
    actors={
        "host": Actor("host", "host"),
        "inputs": Actor("input_ids of the step", "relay"),
        "forward": Actor("forward stream", "device"),
        "copy": Actor("copy stream", "device"),
    },
    says={
        "prepare": ["host: prepare {step} ({rids})\n{ms} ms"],
        "mark placeholder fill": [
            "host -> inputs: {step}: filled from the rows [{rows}] of step {before} "
            "(-1: not filled)",
        ],
        "wait": ["host: blocked ({step})\n{ms} ms"],
        "fill": [
            "host: fill {step}\n{ms} ms",
            "host -> inputs: tokens of step {before}, positions + 1",
        ],
        "forward": ["inputs -> forward: step {step}", "forward: forward {step}\n{ms} ms"],
        "sample": ["forward: sample {step}\n{ms} ms"],
        "copy": ["forward ->> copy: tokens of {step}"],
        "copy end": ["copy ->> host: tokens of {step}"],
        "mark wasted row": ["host -> host: the row of {rid} in step {step} was wasted"],
    },
)


def placeholder_fill() -> str:
    """A settled step, the step that somebody ends in, and the one whose rows have moved up."""
    trace = trace_of("placeholder_fill")
    wasted = next(mark for mark in trace.marks if mark.name == "wasted row")
    step = int(wasted.attrs["step"])
    title = "placeholder fill: which row of N-1 has a row's token is known before N-1 has run"
    return to_story(trace, FILL, step - 1, step + 1, title)


def gate_of_two() -> str:
    """The same run with the gate at 1, as published, and at 2."""
    recipe = recipes()["mindie_placeholder"]
    options = {"max_async_schedule_times": 2}
    two = replace(recipe, relay="fill_device", options=options).run()
    one = trace_of("mindie_placeholder")
    named = [replace(trace, loop=f"gate {gate}") for gate, trace in ((1, one), (2, two))]
    return to_svg(named, title="mindie_placeholder: what a gate of 1 costs")


def ledger_of_both_layers() -> str:
    """The ledger where the layer below answers one call late."""
    return draw("mindie_placeholder", mindie_placeholder("mindie_dual").run())


PICTURES = {"placeholder_fill": placeholder_fill}
DRAWINGS = {
    "mindie_placeholder_gate_2": gate_of_two,
    "mindie_dual_ledger": ledger_of_both_layers,
}
