"""Several designs on one time axis: the same steps of the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...recipes import run_of
from ...trace import Trace
from ..by_step import by_step
from ..layout import steady_views
from ..one_token import token_lanes
from ..scene import Scene
from ..units import ms

STEPS = 3
MEANS = {  # by loop: its name, and how it schedules ahead
    "serial": ("No overlap", "a step is processed before the next is scheduled"),
    "vllm_async": ("vLLM", "blocks on a Future in batch_queue, token by prev_sampled_token_ids"),
    "overlap": ("SGLang", "blocks on copy_done in result_queue, token by FutureMap"),
    "mindie_dual": ("MindIE", "-1 in the scheduler's lists, token by a fill of the next inputs"),
}


def cpu_gpu_overlap() -> Scene:
    """Draw no overlap, vLLM and SGLang by step."""
    loops = ("serial", "vllm_async", "overlap")
    runs = [run_of(loop) for loop in loops]
    scene = in_step(dict(zip((MEANS[loop][0] for loop in loops), runs, strict=True)))
    parts = [
        replace(part, note=f"{part.note.partition(',')[0]}; {MEANS[loop][1]}")
        for part, loop in zip(scene.parts, loops, strict=True)
    ]
    none, *_, ahead = (ms(view.duration // STEPS) for view in steady_views(runs, STEPS))
    title = f"vLLM and SGLang overlap alike: a step takes {ahead} instead of {none} ms"
    return replace(scene, title=title, parts=parts)


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
    scene = token_lanes([*map(run_of, loops)])
    parts = [
        replace(part, heading=f"{name}:{part.heading.partition(':')[2]}", note=means)
        for part, (name, means) in zip(scene.parts, (MEANS[loop] for loop in loops), strict=True)
    ]
    title = f"vLLM, SGLang and MindIE: a token waits {scene.title.partition(': ')[2]}"
    return replace(scene, title=title, parts=parts)


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
WAYS = ("overlap", "mindie_plugin", "serial")  # of a token: on the device, and two over the host
