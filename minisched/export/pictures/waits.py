"""Steps that wait for an earlier token: the same requests with and without such a need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...core import Request
from ...devices.cost import MICROSECOND, MILLISECOND, SIM_COST, CostModel
from ...models.hash import HashModel
from ...recipes import Recipe, tokens
from ...scheduler import SchedulerConfig
from ...trace import Trace
from ..by_step import READ
from ..layout import View, steady_views
from ..looks import PHASES
from ..runs import LEGEND as RUN_LEGEND
from ..runs import side_by_side
from ..scene import LaneItem, LaneRow, Lanes, Scene, Show
from ..units import ms

# -- The runs: four requests, and features that need the tokens of earlier steps -------------------

LENGTH, VOCAB = 24, 4  # tokens of each request; a small vocabulary makes drafts often right

LIGHT = {"receive": 200, "schedule": 500, "prepare": 300, "launch": 200, "fill": 200,
         "postprocess": 200, "process": 500, "output": 300, "mask": 6500}  # fmt: skip
SLOW_MASK = replace(  # a light host, but masks and sampling for a large vocabulary
    SIM_COST,
    host={name: us * MICROSECOND for name, us in LIGHT.items()},
    forward_base=6 * MILLISECOND,
    sample=5 * MILLISECOND // 2,
)

Wishes = Mapping[str, Any]
DRAFTS = {"speculative_num_draft_tokens": 3}
BY_A_MODEL = {
    **DRAFTS, "speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "hash:8"
}  # fmt: skip
FEATURES: dict[str, tuple[Wishes, Wishes]] = {  # of the first of four requests; of the scheduler
    "grammar": ({"regex": "[a-z]{30}"}, {}),
    "penalties": ({"frequency_penalty": 0.5}, {}),
    "late penalties": ({"frequency_penalty": 0.5}, {"late_penalties": True}),
    "NGRAM": ({}, {**DRAFTS, "speculative_algorithm": "NGRAM"}),
    "NGRAM_GPU": ({}, {**DRAFTS, "speculative_algorithm": "NGRAM_GPU"}),
    "STANDALONE": ({}, BY_A_MODEL),
    "grammar with speculation": ({"regex": "[\x01-\x02]{30}"}, BY_A_MODEL),
}


def run_with(loop: str, feature: str, cost: CostModel = SIM_COST, *, is_on: bool = True) -> Trace:
    """Run a loop with one of ``FEATURES``; not ``is_on``: the same requests without the feature.

    If all requests speculate, with three drafts a step, the model has few tokens.
    """
    wishes, settings = FEATURES[feature]
    model = HashModel(VOCAB) if "speculative_algorithm" in settings else HashModel()
    params = [tokens(LENGTH)] * 4
    if is_on:
        params[0] = replace(params[0], **wishes)
    requests = [
        Request(rid, [(20 * at + i) % model.vocab_size for i in range(6)], each)
        for at, (rid, each) in enumerate(zip("abcd", params, strict=True))
    ]
    config = SchedulerConfig(**settings if is_on else {})
    run = Recipe(loop, requests, config, cost=cost, model=model).play()
    assert not run.errors, run.errors
    return run.trace


# -- The same settled steps of several runs, and the waits of the device in them -------------------

SLOW = "masks and sampling are slow, as with a large vocabulary"


def grammars() -> Scene:
    """Draw SGLang's loop without a grammar, and loops with one in one of four requests.

    ``overlap_thread`` and ``vllm_async`` take the same times as ``overlap``.
    """
    loops = {
        "SGLang, and vLLM alike: sampling is launched when the step before is processed": "overlap",
        "MindIE: forward_loop builds the bitmask before it launches": "mindie_plugin",
        "MLX: nothing is chained on a step with a grammar": "mlx_async",
    }
    runs = {"no grammar": run_with("overlap", "grammar", SLOW_MASK, is_on=False)}
    runs |= {name: run_with(loop, "grammar", SLOW_MASK) for name, loop in loops.items()}
    views = steady_views([*runs.values()][1:], 1)
    lost = [ms(sum(lost_times(view).values())) for view in views]
    least, most = min(lost, key=float), max(lost, key=float)
    title = f"A grammar needs the token before: the device waits {least} to {most} ms a step"
    return stacked(runs, title, SLOW)


def dependency_points() -> Scene:
    """Draw vLLM's loop with needs for earlier tokens: a mask, and drafts from either side."""
    needs = {
        "nothing: a step needs no token on the host": ("NGRAM_GPU", False),
        "a grammar, and penalties alike: sampling waits for the token before": ("grammar", True),
        "drafts by the device (NGRAM_GPU): no step waits, the host corrects later":
            ("NGRAM_GPU", True),
        "drafts and a grammar: sampling waits (deferred_scheduler_output)":
            ("grammar with speculation", True),
    }  # fmt: skip
    runs = {
        name: run_with("vllm_async", feature, SLOW_MASK, is_on=is_on)
        for name, (feature, is_on) in needs.items()
    }
    views = steady_views([*runs.values()], 1)
    _, mask, drafts, _ = (ms(sum(lost_times(view).values())) for view in views)
    title = f"vLLM: a step waits {mask} ms for a mask, and {drafts} ms for drafts"
    return stacked(runs, title, SLOW)


VERBS = {**dict.fromkeys(READ, "process"), "prepare": "schedule", "launch": "schedule"}
LEGEND = {**RUN_LEGEND, "process": "read", "schedule": "plan"}


def stacked(runs: Mapping[str, Trace], title: str, note: str) -> Scene:
    """Draw a step of each run under its name, with the time that its device lost."""
    views = steady_views(list(runs.values()), 1)
    names = [
        (name, f"1 step in {ms(view.duration)} ms, {lost_in(view)}")
        for name, view in zip(runs, views, strict=True)
    ]
    scene = side_by_side(views, title, names)
    parts = [replace(part, shows=[*map(by_verb, part.shows)]) for part in scene.parts]
    return replace(scene, about=f"{scene.about}; {note}", parts=parts, legend=LEGEND)


def by_verb(lanes: Show) -> Show:
    """Return lanes with the host's phases as verbs, without signs and copies: waits matter."""
    assert isinstance(lanes, Lanes)
    rows = list[LaneRow]()
    for row in lanes.rows:
        spans = list[LaneItem]()
        for item in row.boxes:
            kind, step = VERBS.get(item.kind, item.kind), item.data.get("step", 0)
            word = LEGEND[kind]
            verb = LaneItem(kind, item.start, item.end, f"{word} {step}", word, data={"step": step})
            if spans and spans[-1].label == verb.label:
                spans[-1] = replace(spans[-1], end=item.end)
            else:
                spans.append(verb if kind in PHASES else item)
        rows += [replace(row, spans=spans)] * (not row.name.startswith("Copy"))
    return replace(lanes, rows=rows, links=())


def lost_times(view: View) -> Counter[str]:
    """Return the nanoseconds that the device idles in a view, by reason."""
    lost = Counter[str]()
    for bubble in view.bubbles:
        start, end = view.clip(bubble.start, bubble.end)
        lost[bubble.cause or "the host"] += end - start
    return lost


def lost_in(view: View) -> str:
    """Write the idle times in words."""
    parts = [f"{ms(time)} ms for {why}" for why, time in lost_times(view).items()]
    return f"the device waits {' and '.join(parts)}" if parts else "the device never waits"
