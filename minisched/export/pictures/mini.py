"""mini-sglang's figures: the token pool."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ...devices.base import Stream
from ...relay.token_pool import TokenPool
from ...trace import Trace
from ..recipes import recipes, trace_of
from ..story import Actor, Story, to_story

TOKEN_POOL = Story(
    actors={
        "scheduler": Actor("Scheduler", "host"),
        "copies": Actor("scheduler stream", "device"),
        "pool": Actor("token_pool\\n[table_idx, pos]", "relay"),
        "engine": Actor("engine stream", "device"),
    },
    says={
        "schedule": ["scheduler: schedule\n{ms} ms"],
        "prepare": ["scheduler: prepare {step}\n{ms} ms"],
        "mark token pool": [
            "scheduler -> scheduler: {step}: rows {rows}, input from {starts} up to {ends}, "
            "output to {writes}",
        ],
        "upload": ["copies: upload {step} ({rids})\n{ms} ms"],
        "upload end": [
            "copies -> pool: prompt of {rids}: row {rows}, from {uploads} up to {ends}",
            "copies ->> engine: wait_stream: {step} may start now",
        ],
        "launch": ["scheduler: launch {step}\n{ms} ms"],
        "put": ["scheduler ->> engine: step {step}"],
        "forward": [
            "pool --> engine: gather rows {rows}, from {starts} up to {ends}",
            "engine: forward {step} ({rids})\n{ms} ms",
        ],
        "sample": ["engine: sample {step}\n{ms} ms"],
        "sample end": ["engine -> pool: rows {rows}, positions {writes}: tokens of {step}"],
        "process": [
            "engine ->> scheduler: tokens of {step} are on the host",
            "scheduler: process {step}\n{ms} ms",
        ],
        "mark wasted row": [
            "scheduler -> scheduler: the row of {rid} in step {step} was wasted",
        ],
    },
    code={"wait_stream": Stream.wait, "gather": TokenPool.resolve},
)


@cache
def at_once() -> Trace:
    """The token pool's run, with memory that goes back as soon as a request has ended."""
    recipe = recipes()["token_pool"]
    return replace(recipe, config=replace(recipe.config, free_rule="at_once")).run()


def wasted_step(trace: Trace) -> int:
    """The step that computed a row for nobody."""
    mark = next(mark for mark in trace.marks if mark.name == "wasted row")
    return int(mark.attrs["step"])


def token_pool() -> str:
    """A wasted row, the step after it, and the prompt that gets the wasted row's place."""
    trace = trace_of("token_pool")
    first = wasted_step(trace)
    title = "token pool: inputs are gathered by row and position, samples written one further"
    return to_story(trace, TOKEN_POOL, first, first + 2, title)


def free_rule() -> str:
    """The same, freed at once: the prompt is copied before the wasted row's token is written."""
    trace = at_once()
    first = wasted_step(trace)
    title = "free_rule at_once: a wasted row's token lands in the next owner's prompt"
    return to_story(trace, TOKEN_POOL, first, first + 1, title)


PICTURES = {
    "token_pool": token_pool,
    "free_rule": free_rule,
}
