"""What waits, and for what: the same steps of the same requests, without history and with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ...trace import Trace
from ..layout import View
from ..puml_timing import RunPanel, draw_panels
from ..units import ms
from ..wait_runs import PROMPTS, run_prefills, run_with, run_without
from ..window import steady_views, view_of_steps

STEPS = 2
COST = "slow mask"  # with a fast one the device has enough to do meanwhile
SLOW = "; masks and sampling are slow, as with a large vocabulary"
GRAMMAR = {  # picture -> loop, title
    "wait_grammar_delay_sample": (
        "overlap",
        "SGLang: sampling is launched when the step before was processed and the mask is built",
    ),
    "wait_grammar_sampling_info_done": (
        "overlap_thread",
        "SGLang's thread: it launches the forward pass, then waits for sampling_info_done",
    ),
    "wait_grammar_deferred": (
        "vllm_async",
        "vLLM: a step is deferred if its grammar needs a token in flight",
    ),
    "wait_grammar_forward_loop": (
        "mindie_plugin",
        "MindIE: forward_loop builds the bitmask before it launches the forward pass",
    ),
    "wait_grammar_no_chain": ("mlx_async", "MLX: nothing is chained on a step with a grammar"),
}


def grammar(name: str) -> str:
    """A loop with four requests, without any grammar and with one."""
    loop, title = GRAMMAR[name]
    runs = {
        "no grammar": run_without(loop, "grammar", COST),
        "one of four requests has a grammar": run_with(loop, "grammar", COST),
    }
    return one_above_the_other(runs, title, SLOW)


def penalties() -> str:
    """Penalties that count every token, and SGLang's, which are one token late.

    SGLang ``schedule_batch.py:prepare_for_decode``.
    """
    runs = {
        "penalties that count every token": run_with("overlap", "penalties", COST),
        "one token late, as in SGLang": run_with("overlap", "late penalties", COST),
    }
    title = "Penalties on SGLang's loop: they wait for the token before, or do without as in SGLang"
    return one_above_the_other(runs, title, SLOW)


def prefills() -> str:
    """Prompts one behind the other, without the option that keeps them from overlapping, and with.

    SGLang ``SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP``.
    """
    runs = {
        "prefills may overlap": run_prefills(False),
        "they may not": run_prefills(True),
    }
    title = "SGLang: a prefill behind a prefill waits if disable_consecutive_prefill_overlap is set"
    views = [view_of_steps(trace, PROMPTS - STEPS, PROMPTS - 1) for trace in runs.values()]
    return stacked(dict(zip(runs, views, strict=True)), title, ", one prompt a step")


def drafts() -> str:
    """Where the host drafts, it needs every token first; the device has them already."""
    runs = {
        "the host drafts (NGRAM), no overlap": run_with("serial", "NGRAM"),
        "the device drafts (NGRAM_GPU), overlapped": run_with("overlap", "NGRAM_GPU"),
    }
    return one_above_the_other(runs, "Speculation: the device waits only where the host drafts")


def drafts_with_a_grammar() -> str:
    """Which token a draft stands behind is known only when the step before was processed."""
    runs = {
        "a draft model": run_with("overlap", "STANDALONE"),
        "and one of four requests has a grammar": run_with("overlap", "grammar with speculation"),
    }
    return one_above_the_other(runs, "SGLang: speculation with a grammar does not overlap")


def one_above_the_other(runs: Mapping[str, Trace], title: str, note: str = "") -> str:
    """The same settled steps of each run, with the time that it lost in them."""
    views = steady_views(list(runs.values()), STEPS)
    return stacked(dict(zip(runs, views, strict=True)), title, note)


def stacked(views: Mapping[str, View], title: str, note: str = "") -> str:
    """The same steps, as they are shown of each run."""
    panels = [
        RunPanel(
            view, f"p{at}_", f"{name}: {STEPS} steps in {ms(view.duration)} ms, {lost_in(view)}"
        )
        for at, (name, view) in enumerate(views.items(), 1)
    ]
    first, last = panels[0].view.first_step, panels[0].view.last_step
    return draw_panels(panels, f"{title}\\nsteps {first} to {last} of the same four requests{note}")


def lost_in(view: View) -> str:
    """For how long the device idles in a view, by reason."""
    lost: dict[str, int] = {}
    for bubble in view.bubbles:
        start, end = view.clip(bubble.start, bubble.end)
        why = bubble.reason or "the host"
        lost[why] = lost.get(why, 0) + end - start
    parts = [f"{ms(time)} ms for {why}" for why, time in lost.items()]
    return f"the device waits {' and '.join(parts)}" if parts else "the device never waits"


PICTURES: dict[str, Callable[[], str]] = {
    **{name: partial(grammar, name) for name in GRAMMAR},
    "wait_prefill": prefills,
    "wait_penalties": penalties,
    "wait_speculation_drafts": drafts,
    "wait_speculation_grammar": drafts_with_a_grammar,
}
