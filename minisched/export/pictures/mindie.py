"""MindIE's figures: the plugin pipeline with its thread, and the placeholders of the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ...core import Request
from ...loops.mindie_placeholder import PlaceholderLedger
from ...loops.mindie_plugin import ModelInput, ModelOutput, PluginManager
from ...trace import Trace
from ..layout import steady_steps
from ..recipes import trace_of
from ..recipes.recipe import Recipe, run_of, tokens
from ..story import ON_DEVICE, Actor, Story, to_story

# -- Placeholder fill as a story -------------------------------------------------------------------

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


PICTURES: dict[str, Callable[[], str]] = {"placeholder_fill": placeholder_fill}
PIPELINE = Story(
    actors={
        "engine": Actor("LlmEngine", "host"),
        "manager": Actor("PluginManager", "host"),
        "input": Actor("input_queue", "host"),
        "output": Actor("output_queue", "host"),
        "thread": Actor("forward_loop\\n(thread)", "host"),
        "worker": Actor("NPU", "device"),
        "copy": Actor("copy stream", "device"),
    },
    says={
        **ON_DEVICE,
        "schedule": ["engine: schedule\n{ms} ms"],
        "prepare": [
            "engine -> manager: generate_token_async({step})",
            "manager: preprocess {step}, one step behind\n{ms} ms",
        ],
        "mark placeholder fill": [
            "manager -> manager: hit mask of {step}: rows ({rows}) of the step before"
        ],
        "fill": [
            "output --> manager: get: {before}",
            "manager: fill tokens of {before} into {step}\n{ms} ms",
        ],
        "fill end": ["manager -> input: put {step}"],
        "forward thread launch": [
            "input --> thread: get {step}",
            "thread: launch forward {step}\n{ms} ms",
        ],
        "forward thread launch end": [
            "thread ->> worker: forward {step}",
            "thread --> manager: launch_done of {before}",
        ],
        "forward thread verify end": ["thread -> output: put {step}"],
        "copy end": ["copy ->> manager: tokens of {step}"],
        "wait": ["manager: blocked ({step})\n{ms} ms"],
        "postprocess": ["manager: postprocess {step}\n{ms} ms"],
        "postprocess end": ["manager ->> thread: postprocess_done of {step}"],
        "process": [
            "manager --> engine: answer: the tokens of {step}",
            "engine: process {step}\n{ms} ms",
        ],
        "output": ["engine: output of {step}\n{ms} ms"],
    },
    code={
        "generate_token_async": PluginManager.generate_token_async,
        "launch_done": ModelOutput,
        "postprocess_done": ModelInput,
    },
)

PLACEHOLDERS = Story(
    actors={
        "client": Actor("client", "host"),
        "engine": Actor("LlmEngine (C++)", "host"),
        "ledger": Actor("the sequence's\\noutput tokens", "host"),
        "python": Actor("generate_token_async\\n(Python)", "host"),
        "worker": Actor("NPU", "device"),
    },
    says={
        "schedule": ["engine: schedule\n{ms} ms"],
        "mark ledger schedule": [
            "engine -> ledger: {step} is on its way: AddNextTokenPlaceHolder gives {lists}"
        ],
        "prepare": ["engine ->> python: execute {step}", "python: prepare {step}\n{ms} ms"],
        "forward": ["worker: forward {step}\n{ms} ms"],
        "sample": ["worker: sample {step}\n{ms} ms"],
        "mark ledger response": [
            "python --> engine: tokens of {step}, in answer to the call after it",
            "engine -> ledger: ReplacePlaceHolderWithToken gives {lists}",
        ],
        "mark ledger dummy": [
            "python --> engine: a dummy: nothing has ended before the first call",
            "engine -> ledger: nothing is replaced: {lists} goes on standing",
        ],
        "process": ["engine: process {step}\n{ms} ms"],
        "output": ["engine ->> client: output of {step}"],
    },
    code={
        "AddNextTokenPlaceHolder": PlaceholderLedger.add_next_token_placeholder,
        "ReplacePlaceHolderWithToken": PlaceholderLedger.replace_placeholder_with_token,
    },
)


def plugin_pipeline() -> str:
    """Two settled turns of the Python layer."""
    trace = run_of("mindie_plugin")
    title = "MindIE's plugin pipeline: a call puts N and answers with the tokens of N-1"
    return to_story(trace, PIPELINE, *(steady_steps(trace, 2) or (1, 2)), title)


@cache
def one_request() -> Trace:
    """One request through both layers."""
    return Recipe("mindie_dual", [Request("s", range(12), tokens(4))]).run()


def scheduler_placeholders() -> str:
    """From the prompt to the third token of one request."""
    title = "MindIE's scheduler: -1 stands for a token to come"
    return to_story(one_request(), PLACEHOLDERS, 1, 3, title)


PICTURES |= {
    "mindie_async_plugin_manager_pipeline": plugin_pipeline,
    "mindie_scheduler_placeholder_async": scheduler_placeholders,
}
