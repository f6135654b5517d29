"""Several designs on one time axis: the same steps of the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...checks.overlap import measure
from ..layout import View, choose_view, steady_views
from ..one_token import finding, one_token, way_of
from ..recipes import run_of
from ..runs import side_by_side as one_above_another
from ..scene import LaneItem, LaneRow, Lanes, Scene
from ..units import ms

STEPS = 3


def _figures(view: View, steps: int) -> str:
    report = measure(view.trace)
    return (
        f"{steps} steps in {ms(view.duration)} ms; device busy "
        f"{report.device_busy_percent:.0f} %, host hidden {report.host_hidden_percent:.0f} %"
    )


# -- The first steps, in the words of each design --------------------------------------------------

FIRST = 5  # steps: prompts come one after the other, and the designs part
TOKEN = {
    "promised": "the next step names it, nobody knows it yet",
    "stored": "the device knows it, the host not yet",
}


@dataclass(frozen=True)
class Way:
    """How a design overlaps: what its settled steps alone do not show, since they take as long."""

    name: str
    means: str
    blocks_on: str
    sync: str  # the same in a word
    token: str  # what stands for a token that nobody knows yet


SERIAL = Way(
    "No overlap", "a step is processed before the next is scheduled",
    "the tokens of the only step", "wait", "none is named before it is known",
)  # fmt: skip
VLLM = Way(
    "vLLM", "a Future for each step in batch_queue", "future.result() of the oldest", "result()",
    "a placeholder each, filled from prev_sampled_token_ids on the device",
)  # fmt: skip
SGLANG = Way(
    "SGLang", "result_queue, a forward and a copy stream", "copy_done of the step before",
    "copy_done", "a negative id each, resolved from the FutureMap on the device",
)  # fmt: skip


def in_their_words(ways: Mapping[str, Way]) -> Scene:
    """The first steps of several loops: what each step computes, what the host blocks on, and on a
    lane of its own where a step's tokens are until the host has them."""
    views = [choose_view(run_of(loop), 1, FIRST, FIRST) for loop in ways]
    shown = [*zip(ways.values(), views, strict=True)]
    names = [
        (f"{way.name}, {ms(view.duration)} ms: {way.means}",
         f"the host blocks on {way.blocks_on}; tokens: {way.token}")
        for way, view in shown
    ]  # fmt: skip
    scene = one_above_another(views, "", names)
    parts = [
        replace(part, shows=[_reworded(part.shows[0], view, way)])
        for part, (way, view) in zip(scene.parts, shown, strict=True)
    ]
    return replace(scene, parts=parts, legend={**scene.legend, **TOKEN})


def _reworded(lanes: object, view: View, way: Way) -> Lanes:
    assert isinstance(lanes, Lanes)
    mode = {box.step: box.slice.mode for box in view.boxes}
    when = {(box.slice.name, box.step): view.clip(box.slice.start, box.slice.end)
            for box in view.boxes}  # fmt: skip

    def named(item: LaneItem) -> LaneItem:
        step = int(item.data.get("step", 0))
        words = {"wait": f"{way.sync} {step}", "forward": f"{mode.get(step)} {step}"}
        return replace(item, label=words.get(item.kind, item.label))

    rows = [replace(row, spans=[*map(named, row.spans)]) for row in lanes.rows]
    tokens = []
    for step in range(1, FIRST):
        (_, sampled), (_, processed) = when["sample", step], when["process", step]
        named_by, _ = when.get(("prepare", step + 1), (sampled, 0))
        if named_by < sampled:
            tokens.append(LaneItem("promised", named_by, sampled, f"promised: {step}", str(step)))
        tokens.append(LaneItem("stored", sampled, processed, str(step)))
    return replace(lanes, rows=[*rows, LaneRow("Tokens", tokens)])


def cpu_gpu_overlap() -> Scene:
    """No overlap, vLLM's and SGLang's: means, sync points, and what runs beside what."""
    scene = in_their_words({"serial": SERIAL, "vllm_async": VLLM, "overlap": SGLANG})
    title = f"Launched ahead, the host works while the device does: {FIRST} steps from the first on"
    return replace(scene, title=title)


MEANS = (
    "vLLM: a Future for each step in batch_queue; the host blocks where it pops the oldest; "
    "tokens by prev_sampled_token_ids",
    "SGLang: result_queue, a forward and a copy stream; the host blocks on copy_done; "
    "tokens by FutureMap",
    "MindIE: -1 in the scheduler's lists; the plugin answers with the tokens of the call before; "
    "tokens by filling the next inputs",
)


def three_way() -> Scene:
    """The three ways to schedule ahead, by a token's way to the next step."""
    names = {"vllm_async": "vLLM", "overlap": "SGLang", "mindie_dual": "MindIE"}
    title = "Three ways to schedule a step before the last one's tokens are known"
    scene = one_token([run_of(loop) for loop in names], title, list(names.values()))
    return replace(scene, notes=[*MEANS, f"{finding([way_of(run_of(loop)) for loop in names])}."])


def mindie_refactor() -> Scene:
    """MindIE's two layers, and the proposal of one: the same settled steps."""
    names = ("C++ scheduler over Python plugin", "a single main pipeline")
    views = steady_views([run_of("mindie_dual"), run_of("mindie_single")], STEPS)
    title = "MindIE: two layers, and one pipeline in their place"
    shown = zip(names, views, strict=True)
    return one_above_another(views, title, [(name, _figures(view, STEPS)) for name, view in shown])


# -- Of every design: what is shared ---------------------------------------------------------------

DESIGNS = (  # of one device each, and of the same requests
    "serial", "overlap", "overlap_thread", "mini_normal", "mini_overlap", "mlx_async", "vllm_step",
    "vllm_async", "vllm_batch_queue", "mindie_plugin", "mindie_placeholder", "mindie_dual",
    "mindie_single", "multi_step",
)  # fmt: skip
RELAYS = (  # a loop for each relay
    "overlap", "overlap:pool", "mini_overlap", "vllm_async", "mlx_async", "mindie_single",
    "mindie_plugin", "serial",
)  # fmt: skip
FALLS = ("serial", "overlap", "mindie_plugin", "multi_step", "vllm_batch_queue")
