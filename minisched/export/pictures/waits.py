"""What waits, and for what: the same steps of the same requests, without history and with it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...trace import Trace
from ..layout import View
from ..puml_timing import Panel, draw_panels
from ..units import ms
from ..wait_runs import run_with, run_without
from ..window import steady_views

STEPS, FAST = 2, 2  # the device is so fast that not all of a wait is hidden
GRAMMAR = {  # picture -> loop, title
    "wait_grammar_delay_sample": (
        "overlap",
        "SGLang: with a grammar, sampling is launched when the step before was processed",
    ),
    "wait_grammar_sampling_info_done": (
        "overlap_thread",
        "SGLang's thread: it launches the forward pass, and waits for sampling_info_done",
    ),
    "wait_grammar_deferred": (
        "vllm_async",
        "vLLM: a step whose grammar needs a token in flight is deferred",
    ),
    "wait_grammar_forward_loop": (
        "mindie_plugin",
        "MindIE: forward_loop builds the bitmask before it launches the forward pass",
    ),
    "wait_grammar_no_chain": (
        "mlx_async",
        "MLX: a step with a grammar is not chained",
    ),
}


def grammar(name: str) -> str:
    """A loop with four requests, without any grammar and with one."""
    loop, title = GRAMMAR[name]
    runs = {
        "no grammar": run_without(loop, "grammar", FAST),
        "one of four requests has a grammar": run_with(loop, "grammar", FAST),
    }
    return one_above_the_other(runs, title)


def penalties() -> str:
    """Penalties that count every token, and the originals', which are one token late."""
    runs = {
        "penalties wait for the token before": run_with("overlap", "penalties", FAST),
        "penalties do without it": run_with("overlap", "late penalties", FAST),
    }
    return one_above_the_other(runs, "Penalties: in time, or one step late")


def one_above_the_other(runs: Mapping[str, Trace], title: str) -> str:
    """The same settled steps of each run, with the time that it lost in them."""
    views = steady_views(list(runs.values()), STEPS)
    panels = [
        Panel(view, f"p{at}_", f"{name}: {STEPS} steps in {ms(view.duration)} ms, {lost_in(view)}")
        for at, (name, view) in enumerate(zip(runs, views, strict=True), 1)
    ]
    first, last = views[0].first_step, views[0].last_step
    return draw_panels(panels, f"{title}\\nsteps {first} to {last} of the same four requests")


def lost_in(view: View) -> str:
    """For how long the device idles in a view, by reason."""
    lost: dict[str, int] = {}
    for bubble in view.bubbles:
        start, end = view.clip(bubble.start, bubble.end)
        lost[bubble.reason or "host"] = lost.get(bubble.reason or "host", 0) + end - start
    parts = [f"{ms(time)} ms for {reason}" for reason, time in lost.items()]
    return f"of which the device waits {', '.join(parts)}" if parts else "none of them lost"


PICTURES = {
    **{name: partial(grammar, name) for name in GRAMMAR},
    "wait_penalties": penalties,
}
