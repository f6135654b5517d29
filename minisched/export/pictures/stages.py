"""The stages of a request: decoding, and prompts whole, in chunks, or mixed with decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from ...trace import Trace
from ..pd_or_mixed import pause
from ..pd_or_mixed_page import both
from ..puml_timing import RunPanel, draw_panels
from ..recipes import recipes, trace_of
from ..requests_view import longest_pause, requests_view, works
from ..units import ms


def decode_stage() -> str:
    """The golden run of ``decode``: three requests in memory for two."""
    trace = trace_of("decode")
    retracted = sum(mark.name == "retraction" for mark in trace.marks)
    title = (
        "The decode stage: one token for every running request and step\\n"
        f"{trace.loop} on {trace.device}, whole run: {len(works(trace))} steps, "
        f"{ms(trace.end)} ms, {retracted} retraction; {NUMBERS}"
    )
    return draw_panels([RunPanel(requests_view(trace))], title)


@cache
def prompt_run(chunk: int, mixed: bool) -> Trace:
    """The workload of ``mixed_chunk`` with chunks of so many tokens (0: prompts stay whole)."""
    recipe = recipes()["mixed_chunk"]
    config = replace(recipe.config, chunked_prefill_size=chunk or 1024, enable_mixed_chunk=mixed)
    return replace(recipe, config=config).run()


def prefill_stage() -> str:
    """One long prompt beside two requests that decode, in three ways."""
    runs = {
        "whole prompts": prompt_run(0, False),
        "chunked prefill": prompt_run(24, False),
        "chunked and mixed with decodes": prompt_run(24, True),
    }
    title = "Prefill whole, chunked, and mixed: what a long prompt does to those who decode"
    pauses = {
        name: f"longest pause between two tokens {ms(longest_pause(trace))} ms"
        for name, trace in runs.items()
    }
    return draw_panels(panels(runs, pauses), f"{title}\\n{NUMBERS}")


def pd_or_mixed() -> str:
    """The same requests on two devices with KV sent between them, and mixed on one."""
    names = ("PD separation, two devices", "mixed chunks, one device")
    runs = dict(zip(names, both(recipes()["pd"].requests), strict=True))
    title = "PD separation against mixed chunks: who waits for a long prompt"
    pauses = {
        name: f"longest pause while a prompt is computed {pause(runs[name])}" for name in runs
    }
    traces = {name: run.trace for name, run in runs.items()}
    return draw_panels(panels(traces, pauses), f"{title}\\n{NUMBERS}")


def panels(runs: Mapping[str, Trace], pauses: Mapping[str, str]) -> list[RunPanel]:
    """The requests of each run, under its name and what it made of their time."""
    return [
        RunPanel(
            requests_view(trace), f"run{at}_",
            f"{name}: {len(works(trace))} steps, {ms(trace.end)} ms, {pauses[name]}",
        )
        for at, (name, trace) in enumerate(runs.items())
    ]  # fmt: skip


NUMBERS = "a box is a step, with its number or its tokens of a prompt"
PICTURES = {
    "decode_stage": decode_stage,
    "chunked_and_mixed_prefill": prefill_stage,
    "pd_against_mixed_chunk": pd_or_mixed,
}
