"""Several designs on one time axis: the same steps of the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...recipes import run_of
from ...trace import Trace
from ..by_step import by_step
from ..layout import steady_views
from ..one_token import finding, one_token, way_of
from ..scene import Scene
from ..units import ms

STEPS = 3
MEANS = {  # by loop: its name, and how it schedules ahead
    "serial": ("No overlap", "a step is processed before the next is scheduled"),
    "vllm_async": (
        "vLLM",
        "a Future for each step in batch_queue; the host blocks where it pops the oldest; tokens "
        "by prev_sampled_token_ids",
    ),
    "overlap": (
        "SGLang",
        "result_queue, a forward and a copy stream; the host blocks on copy_done; tokens by "
        "FutureMap",
    ),
    "mindie_dual": (
        "MindIE",
        "-1 in the scheduler's lists; the plugin answers with the call before's tokens; tokens by "
        "a fill of the next inputs",
    ),
}


def means_of(loops: Sequence[str]) -> list[str]:
    """Return a sentence for each loop: how it schedules ahead."""
    return [": ".join(MEANS[loop]) for loop in loops]


def cpu_gpu_overlap() -> Scene:
    """Draw no overlap, vLLM and SGLang by step."""
    loops = ("serial", "vllm_async", "overlap")
    runs = [run_of(loop) for loop in loops]
    scene = in_step(dict(zip((MEANS[loop][0] for loop in loops), runs, strict=True)))
    none, *_, ahead = (ms(view.duration // STEPS) for view in steady_views(runs, STEPS))
    title = f"With no overlap a step takes {none} ms, in vLLM and SGLang alike {ahead} ms"
    return replace(scene, title=title, notes=means_of(loops))


def mindie_refactor() -> Scene:
    """Draw MindIE's two layers, and the proposal of one, by step."""
    runs = {
        "C++ scheduler over Python plugin": run_of("mindie_dual"),
        "a single main pipeline": run_of("mindie_single"),
    }
    two, one = (ms(view.duration) for view in steady_views([*runs.values()], STEPS))
    title = f"MindIE: {STEPS} steps take {two} ms in two layers, {one} ms in one pipeline"
    return replace(in_step(runs), title=title)


def in_step(runs: Mapping[str, Trace]) -> Scene:
    """Draw a few settled steps of each run under its name."""
    scene = by_step([*runs.values()], STEPS)
    parts = [replace(part, heading=name) for name, part in zip(runs, scene.parts, strict=True)]
    run = next(iter(runs.values()))
    about = f"a colour is a step; {run.what_ran}, {run.clock_words}"
    return replace(scene, about=about, parts=parts)


def three_way() -> Scene:
    """Draw the three ways to schedule ahead, by a token's way to the next step."""
    loops = ("vllm_async", "overlap", "mindie_dual")
    runs = [run_of(loop) for loop in loops]
    found = finding([*map(way_of, runs)])
    title = f"vLLM, SGLang and MindIE: a token waits {found.partition(': ')[2]}"
    scene = one_token(runs, title, [MEANS[loop][0] for loop in loops])
    return replace(scene, notes=means_of(loops))


# -- The workload that all designs share -----------------------------------------------------------

DESIGNS = (  # of one device each, and of the same requests
    "serial", "overlap", "overlap_thread", "mini_normal", "mini_overlap", "mlx_async", "vllm_step",
    "vllm_async", "vllm_batch_queue", "mindie_plugin", "mindie_placeholder", "mindie_dual",
    "mindie_single", "multi_step",
)  # fmt: skip
RELAYS = (  # a loop for each relay
    "overlap", "overlap:pool", "mini_overlap", "vllm_async", "vllm_async:request_state",
    "mlx_async", "mindie_single", "mindie_plugin", "serial",
)  # fmt: skip
