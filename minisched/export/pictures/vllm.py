"""vLLM's figure: the batch queue, filled before it is harvested."""

from __future__ import annotations

from ...engine.engine import Engine
from ...loops.vllm import execute_model, sample_tokens, update_from_output
from ...relay.prev_sampled import PrevSampled
from ...scheduler import Scheduler
from ...worker import Worker
from ..layout import make_view, steady_steps
from ..recipes import trace_of
from ..recipes.recipe import run_of
from ..story import ON_DEVICE, Actor, Chapter, Story, to_chapters, to_story
from .waits import run_with

# -- vLLM's loops over time, and its relay: what is in flight, and where a step's input comes from

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


def prev_sampled() -> str:
    """The last slice before b ends, and the scatter by which c moves up."""
    title = "prev_sampled: a row's token is where its request was in the step before"
    return to_story(trace_of("prev_sampled"), PREV_SAMPLED, 3, 5, title)


BATCH_QUEUE = Story(
    actors={
        "core": Actor("EngineCore", "host"),
        "scheduler": Actor("AsyncScheduler", "host"),
        "queue": Actor("batch_queue", "host"),
        "worker": Actor("GPU worker", "device"),
        "copy": Actor("copy stream", "device"),
    },
    says={
        **ON_DEVICE,
        "schedule": ["core -> scheduler: schedule()", "scheduler: schedule\n{ms} ms"],
        "prepare": ["core: prepare inputs of {step}\n{ms} ms"],
        "mark prev sampled": [
            "core ->> worker: execute_model({step}, non_block=True); "
            "prev_sampled_token_ids: {path}, {new} ids from the host"
        ],
        "launch": ["core: launch {step}\n{ms} ms"],
        "put": ["core -> queue: appendleft the Future of {step}, in flight: {queue}"],
        "take": ["queue --> core: pop {step}, in flight: {queue}"],
        "wait": ["core: block on {step}\n{ms} ms"],
        "process": [
            "copy ->> core: tokens of {step}",
            "core -> scheduler: update_from_output({step})",
            "scheduler: one placeholder less\nfor {rids}\n{ms} ms",
        ],
        "output": ["core: output of {step}\n{ms} ms"],
    },
    code={
        "execute_model": execute_model,
        "schedule": Scheduler.next_batch,
        "update_from_output": update_from_output,
        "prev_sampled_token_ids": PrevSampled,
    },
)


FIRST = {  # in the same moment the next turn begins, so it is told with the launch
    "launch": [
        *BATCH_QUEUE.says["launch"],
        "core -> queue: appendleft the Future of {step}, in flight: {step}",
        "core -> core: there is room: return without waiting",
    ]
}
SECOND = {"put": [], "put 1 2": BATCH_QUEUE.says["put"]}


def batch_queue() -> str:
    """The first turns with async scheduling, the default on one device: fill, then harvest."""
    trace = run_of("vllm_async")
    _, second, third = [item.start for item in trace.on("host") if item.name == "schedule"][:3]
    end = next(item.end for item in trace.on("host") if item.name == "wait" and item.step == 2)
    chapters = [
        Chapter("The queue is empty: fill it", make_view(trace, 0, second, 1, 1), FIRST),
        Chapter("It is full: block on the oldest", make_view(trace, second, third, 1, 2), SECOND),
        Chapter("And so on: launch N+1, block on N", make_view(trace, third, end, 2, 3), {}),
    ]
    title = "vLLM step_with_batch_queue: fill the queue, then launch N+1 and block on N"
    return to_chapters(BATCH_QUEUE, chapters, title)


# -- Where vLLM's host and device depend on one another: what waits, and what needs not ------------

DEPENDENCY_POINTS = Story(
    actors={
        "core": Actor("EngineCore", "host"),
        "scheduler": Actor("AsyncScheduler", "host"),
        "manager": Actor("StructuredOutputManager", "host"),
        "worker": Actor("GPU worker", "device"),
        "copy": Actor("copy stream", "device"),
    },
    says={
        **ON_DEVICE,
        "schedule": ["core -> scheduler: schedule()", "scheduler: schedule\n{ms} ms"],
        "launch": ["core ->> worker: execute_model({step})"],
        "relay": ["worker -> worker: {step} takes the tokens of {src}, without the host"],
        "wait": ["core: block on {step}\n{ms} ms"],
        "process": [
            "copy ->> core: tokens of {step}",
            "core -> scheduler: update_from_output({step})",
            "scheduler: process {step}\n{ms} ms",
        ],
    },
    code={
        "schedule": Scheduler.next_batch,
        "execute_model": execute_model,
        "sample_tokens": sample_tokens,
        "update_from_output": update_from_output,
        "get_grammar_bitmask": Engine.update_vocab_mask,
    },
)
GRAMMAR_WAITS = "A grammar (and penalties alike): sampling waits for the token before"
DRAFTS_WAIT = (
    "Drafts and a grammar: sampling waits for tokens and drafts (deferred_scheduler_output)"
)
GRAMMAR = {
    "mark wait": ["core: {step} is deferred: its bitmask\nneeds a token in flight"],
    "mask": [
        "core -> manager: get_grammar_bitmask({step})",
        "manager: mask {step}\n{ms} ms",
        "core ->> worker: sample_tokens({step})",
    ],
}
DRAFTS = {
    "relay": ["worker -> worker: {step} takes tokens, drafts and lengths of {src}"],
    "verify": ["worker: verify {step}"],
    "draft": ["worker: draft for the step after {step}\n{ms} ms"],
    "sample end": [],
    "copy": [
        "worker ->> copy: tokens of {step}, how many count, drafts",
        "copy: copy {step}\n{ms} ms",
    ],
    "process": [
        "copy ->> core: what {step} gave",
        "core -> scheduler: update_from_output({step})",
        "scheduler: take back the drafts\nthat were rejected\n{ms} ms",
    ],
}

BOTH = {  # the mask of a draft's place needs the draft: EngineCore takes drafts to the host first
    **DRAFTS,
    "mark wait": [
        "core: {step} is deferred: its bitmask needs\nthe tokens in flight and the drafts"
    ],
    "process": [
        "copy ->> core: what {step} gave: take_draft_token_ids",
        "core -> scheduler: update_from_output({step})",
        "scheduler: process {step}, keep its drafts\n{ms} ms",
    ],
    "mask": [
        "core -> manager: get_grammar_bitmask({step}): a row for each draft",
        "manager: mask {step}\n{ms} ms",
        "core ->> worker: sample_tokens({step})",
    ],
}


def dependency_points() -> str:
    """One settled step each, with a grammar, with drafts from the device, and with both.

    What penalties wait for is told alike (``wait_penalties``); in vLLM itself it is the worker
    that waits for them.
    """
    chapters = [
        chapter(GRAMMAR_WAITS, "grammar", "slow mask", GRAMMAR),
        chapter(
            "Drafts: no step waits for the host, which corrects later", "NGRAM_GPU", "usual", DRAFTS
        ),
        chapter(DRAFTS_WAIT, "grammar with speculation", "usual", BOTH),
    ]
    title = "vLLM: where the host waits for the device, and the device for the host"
    return to_chapters(DEPENDENCY_POINTS, chapters, title)


def chapter(heading: str, feature: str, cost: str, says: dict[str, list[str]]) -> Chapter:
    """A settled step of one run, from its schedule until it is sampled."""
    trace = run_with("vllm_async", feature, cost)
    step, _ = steady_steps(trace, 1) or (1, 1)
    of_step = {item.name: item for item in trace.slices if item.step == step}
    schedules = (item.start for item in trace.on("host") if item.name == "schedule")
    start = max(time for time in schedules if time < of_step["prepare"].start)
    return Chapter(heading, make_view(trace, start, of_step["sample"].start + 1, step, step), says)


PICTURES = {
    "prev_sampled": prev_sampled,
    "vllm_cpu_gpu_overlap_batch_queue": batch_queue,
    "vllm_cpu_gpu_overlap_dependency_points": dependency_points,
}
