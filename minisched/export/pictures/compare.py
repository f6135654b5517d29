"""Several designs on one time axis: the same steps of the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...checks.overlap import measure
from ..layout import steady_views
from ..one_token import finding, one_token, way_of
from ..poster import poster
from ..recipes.recipe import run_of
from ..runs import side_by_side as one_above_another
from ..scene_puml import to_puml
from ..scene_svg import to_svg
from ..units import ms

STEPS = 3
DESIGNS = (  # of one device each, and of the same requests
    "serial", "overlap", "overlap_thread", "mini_normal", "mini_overlap", "mlx_async", "vllm_step",
    "vllm_async", "vllm_batch_queue", "mindie_plugin", "mindie_placeholder", "mindie_dual",
    "mindie_single", "multi_step",
)  # fmt: skip
VLLM = "vLLM: a Future for each step in batch_queue; the host blocks where it pops the oldest;"
SGLANG = "SGLang: result_queue, a forward and a copy stream; the host blocks on copy_done;"
MINDIE = (
    "MindIE: -1 in the scheduler's lists; the plugin answers with the tokens of the call before; "
    "tokens by filling the next inputs"
)
MEANS = (  # what settled steps of these cannot show, since their time is the same
    f"{VLLM} tokens by prev_sampled_token_ids",
    f"{SGLANG} tokens by FutureMap",
    "A settled step is the same in both. They differ where something is waited for: see wait_*",
)


def side_by_side(designs: Mapping[str, str], title: str, notes: Sequence[str] = ()) -> str:
    """The same settled steps of several loops; ``designs`` maps loops to the names shown.

    ``notes`` stand under the title, a line each.
    """
    views = steady_views([run_of(loop) for loop in designs], STEPS)
    names = []
    for name, view in zip(designs.values(), views, strict=True):
        report = measure(view.trace)
        about = (
            f"{STEPS} steps in {ms(view.duration)} ms; device busy "
            f"{report.device_busy_percent:.0f} %, host hidden {report.host_hidden_percent:.0f} %"
        )
        names.append((name, about))
    first, last = views[0].first_step, views[0].last_step
    about = f"steps {first} to {last} of the same five requests; shares are the whole run's"
    return to_puml(one_above_another(views, title, names), [about, *notes])


def cpu_gpu_overlap() -> str:
    """No overlap, vLLM's and SGLang's."""
    designs = {
        "serial": "no overlap",
        "vllm_async": "vLLM, async scheduling",
        "overlap": "SGLang event_loop_overlap",
    }
    return side_by_side(designs, "Host and device: in turns, and overlapped", MEANS)


def three_way() -> str:
    """The three ways to schedule ahead, by a token's way to the next step."""
    names = {"vllm_async": "vLLM", "overlap": "SGLang", "mindie_dual": "MindIE"}
    title = "Three ways to schedule a step before the last one's tokens are known"
    scene = one_token([run_of(loop) for loop in names], title, list(names.values()))
    return to_puml(scene, (*MEANS[:2], MINDIE, finding([way_of(run_of(loop)) for loop in names])))


def mindie_refactor() -> str:
    """MindIE's two layers, and the proposal of one."""
    designs = {
        "mindie_dual": "C++ scheduler over Python plugin",
        "mindie_single": "a single main pipeline",
    }
    return side_by_side(designs, "MindIE: two layers, and one pipeline in their place")


PICTURES = {
    "compare_cpu_gpu_overlap": cpu_gpu_overlap,
    "three_way_async_scheduling_compare": three_way,
    "mindie_pipeline_refactor_compare": mindie_refactor,
}


def every_design() -> str:
    """The poster."""
    runs = [run_of(loop) for loop in DESIGNS]
    return to_svg(poster(runs))


RELAYS = (  # a loop for each relay
    "overlap", "overlap:pool", "mini_overlap", "vllm_async", "mlx_async", "mindie_single",
    "mindie_plugin", "serial",
)  # fmt: skip


def every_relay() -> str:
    """One token's way through each relay."""
    return to_svg(one_token([run_of(loop) for loop in RELAYS]))


DRAWINGS = {"poster": every_design, "one_token": every_relay}
