"""Several designs on one time axis: the same steps of the same requests."""

from __future__ import annotations

from dataclasses import replace

from ...checks.overlap import measure
from ..layout import View, steady_views, view_of_steps
from ..one_token import finding, one_token, way_of
from ..recipes import run_of
from ..runs import lanes_of, side_by_side
from ..scene import LaneItem, LaneRow, Lanes, Scene
from ..units import ms

# -- The first steps, in the words of each design --------------------------------------------------

FIRST = 5  # steps: prompts arrive in order, and the designs begin to differ
TOKEN = {
    "promised": "the next step refers to it, its value is not known yet",
    "stored": "the device has it, the host not yet",
}
WAYS = {  # by loop: its name, its means, its sync point in short and in full, an unknown token
    "serial": (
        "No overlap", "a step is processed before the next is scheduled", "wait",
        "the tokens of the only step", "none is named before it is known",
    ),
    "vllm_async": (
        "vLLM", "a Future for each step in batch_queue", "result()",
        "future.result() of the oldest",
        "a placeholder each, filled from prev_sampled_token_ids on the device",
    ),
    "overlap": (
        "SGLang", "result_queue, a forward and a copy stream", "copy_done",
        "copy_done of the step before",
        "a negative id each, resolved from the FutureMap on the device",
    ),
}  # fmt: skip


def cpu_gpu_overlap() -> Scene:
    """Draw no overlap, vLLM and SGLang: means, sync points, and simultaneous work."""
    views = [view_of_steps(run_of(loop), 1, FIRST) for loop in WAYS]
    names = [
        (f"{name}, {ms(view.duration)} ms: {means}",
         f"the host blocks on {blocks_on}; tokens: {token}")
        for (name, means, _, blocks_on, token), view in zip(WAYS.values(), views, strict=True)
    ]  # fmt: skip
    title = f"Launched ahead, the host works while the device does: {FIRST} steps from the first on"
    scene, end = side_by_side(views, title, names), max(view.duration for view in views)
    parts = [
        replace(part, shows=[in_their_words(view, way[2], end)])
        for part, view, way in zip(scene.parts, views, WAYS.values(), strict=True)
    ]
    return replace(scene, parts=parts, legend={**scene.legend, **TOKEN})


def in_their_words(view: View, sync: str, end: int) -> Lanes:
    """Return each step's work and the host's waits, in the design's words.

    A lane of its own shows the place of a step's tokens until the host has them.
    """
    lanes, said = lanes_of(view, end), dict[int, str]()
    when = dict[tuple[str, int], tuple[int, int]]()
    for item in view.slices:
        when[item.name, item.step] = view.clip(item.start, item.end)
        if item.name in ("wait", "forward"):
            said[item.id] = f"{sync if item.name == 'wait' else item.mode} {item.step}"
    rows = [
        replace(row, spans=[
            replace(item, label=said.get(int(item.data.get("id", 0)), item.label))
            for item in row.spans
        ])
        for row in lanes.rows
    ]  # fmt: skip
    tokens = []
    for step in range(1, FIRST):
        (_, sampled), (_, processed) = when["sample", step], when["process", step]
        named_by, _ = when.get(("prepare", step + 1), (sampled, 0))
        if named_by < sampled:
            tokens.append(LaneItem("promised", named_by, sampled, f"promised: {step}", str(step)))
        tokens.append(LaneItem("stored", sampled, processed, str(step)))
    return replace(lanes, rows=[*rows, LaneRow("Tokens", tokens)])


# -- The three ways, and MindIE's two layers -------------------------------------------------------

STEPS = 3
MEANS = (
    "vLLM: a Future for each step in batch_queue; the host blocks where it pops the oldest; "
    "tokens by prev_sampled_token_ids",
    "SGLang: result_queue, a forward and a copy stream; the host blocks on copy_done; "
    "tokens by FutureMap",
    "MindIE: -1 in the scheduler's lists; the plugin answers with the call before's tokens; "
    "tokens by a fill of the next inputs",
)


def three_way() -> Scene:
    """Draw the three ways to schedule ahead, by a token's way to the next step."""
    names = {"vllm_async": "vLLM", "overlap": "SGLang", "mindie_dual": "MindIE"}
    found = finding([way_of(run_of(loop)) for loop in names])
    title = f"vLLM, SGLang and MindIE: a token waits {found.partition(': ')[2]}"
    scene = one_token([run_of(loop) for loop in names], title, list(names.values()))
    return replace(scene, notes=MEANS)


def mindie_refactor() -> Scene:
    """Draw MindIE's two layers, and the proposal of one: the same settled steps."""
    loops = {
        "mindie_dual": "C++ scheduler over Python plugin",
        "mindie_single": "a single main pipeline",
    }
    views, names = steady_views([run_of(loop) for loop in loops], STEPS), []
    for view, name in zip(views, loops.values(), strict=True):
        report = measure(view.trace)
        busy = f"device busy {report.device_busy_percent:.0f} %"
        hidden = f"host hidden {report.host_hidden_percent:.0f} %"
        names.append((name, f"{STEPS} steps in {ms(view.duration)} ms; {busy}, {hidden}"))
    two, one = (ms(view.duration) for view in views)
    title = f"MindIE: {STEPS} steps take {two} ms in two layers, {one} ms in one pipeline"
    return side_by_side(views, title, names)


# -- The workload that all designs share -----------------------------------------------------------

DESIGNS = (  # of one device each, and of the same requests
    "serial", "overlap", "overlap_thread", "mini_normal", "mini_overlap", "mlx_async", "vllm_step",
    "vllm_async", "vllm_batch_queue", "mindie_plugin", "mindie_placeholder", "mindie_dual",
    "mindie_single", "multi_step",
)  # fmt: skip
RELAYS = (  # a loop for each relay
    "overlap", "overlap:pool", "mini_overlap", "vllm_async", "mlx_async", "mindie_single",
    "mindie_plugin", "serial",
)  # fmt: skip
