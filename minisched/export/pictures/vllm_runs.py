"""vLLM's loops over time, and its relay: what is in flight, and where a step's input comes from."""

from __future__ import annotations

from functools import partial

from ...worker import Worker
from ..puml_sequence import to_sequence
from ..puml_story import to_story
from ..puml_timing import to_timing
from ..recipes import trace_of
from ..story import Actor, Story

PREV_SAMPLED = Story(
    actors={
        "host": Actor("GPUModelRunner", "host"),
        "stream": Actor("default stream\\n(forward, sample)", "device"),
        "prev": Actor("prev_sampled_token_ids", "relay"),
        "copy": Actor("output copy stream", "device"),
    },
    says={
        "mark prev sampled full": ["host: input of {step}: {new} ids on the CPU, none is -1"],
        "mark prev sampled slice": [
            "host: input of {step}: -1 at {targets} on the CPU,\nthe rows of the step before"
        ],
        "mark prev sampled scatter": [
            "host: input of {step}: -1 at {targets} on the CPU,\nwhich were rows {sources}"
        ],
        "put": ["host ->> stream: launch {step}: {path}, {new} ids from the CPU"],
        "relay": ["prev --> stream: tokens of {src} for {step}: rows {sources} to {targets}"],
        "forward": ["stream: forward {step} ({rids})\n{ms} ms"],
        "sample": ["stream: sample {step}\n{ms} ms"],
        "sample end": [
            "stream -> prev: tokens of {step} ({rids})",
            "stream ->> copy: tokens of {step}",
        ],
        "copy": ["copy: copy {step}\n{ms} ms"],
        "copy end": ["copy ->> host: tokens of {step}"],
    },
    code={"launch": Worker.launch},
)
TITLES = {
    "vllm_batch_queue": "vllm_batch_queue: two batches take turns, and neither runs ahead",
    "vllm_pp": "vllm_pp4: first one batch for all the stages, then one for each",
}
SEQUENCE_TITLES = {  # of the two steps that it shows
    **TITLES,
    "vllm_pp": "vllm_pp4: one step alone in all the stages, then one behind the other",
}
STEPS = {"vllm_batch_queue": (5, 8), "vllm_pp": (3, 11), "prev_sampled": (3, 5)}


def timing(loop: str) -> str:
    """Who works when."""
    return to_timing(trace_of(loop), *STEPS[loop], TITLES[loop])


def sequence(loop: str) -> str:
    """Who tells whom, for two steps."""
    first = STEPS[loop][0]
    return to_sequence(trace_of(loop), first, first + 1, SEQUENCE_TITLES[loop], has_links=True)


def prev_sampled() -> str:
    """The last slice before b ends, and the scatter by which c moves up."""
    title = "prev_sampled: a row's token is where its request was in the step before"
    return to_story(trace_of("prev_sampled"), PREV_SAMPLED, *STEPS["prev_sampled"], title)


PICTURES = {
    "prev_sampled": prev_sampled,
    **{loop: partial(timing, loop) for loop in TITLES},
    **{f"{loop}_sequence": partial(sequence, loop) for loop in TITLES},
}
