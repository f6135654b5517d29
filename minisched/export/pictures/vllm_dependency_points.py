"""Where vLLM's host and device depend on one another: what waits, and what needs not."""

from __future__ import annotations

from ...engine.engine import Engine
from ...loops.vllm import execute_model, sample_tokens, update_from_output
from ...scheduler import Scheduler
from ..layout import make_view
from ..puml_story import Chapter, to_chapters
from ..story import Actor, Story
from ..wait_runs import run_with
from ..window import steady_steps
from .words import ON_DEVICE

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


PICTURES = {"vllm_cpu_gpu_overlap_dependency_points": dependency_points}
