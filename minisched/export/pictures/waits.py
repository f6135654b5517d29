"""What waits, and for what: the same steps of the same requests, without history and with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ...checks.causes import lost_ns, waits
from ...core import Request
from ...devices.cost import MICROSECOND, MILLISECOND, SIM_COST
from ...loops.design import find_loop
from ...models.hash import HashModel
from ...scheduler import SchedulerConfig
from ...trace import Trace
from ..layout import View, steady_views
from ..recipes import Recipe, tokens
from ..runs import side_by_side
from ..scene import Scene
from ..tables import table
from ..units import ms

# -- The runs that show what a wait costs: four requests, with something that needs history --------

LENGTH, VOCAB = 24, 4  # tokens of each request; so few different ones that drafts are often right

LIGHT = {"receive": 200, "schedule": 500, "prepare": 300, "launch": 200, "fill": 200,
         "postprocess": 200, "process": 500, "output": 300, "mask": 6500}  # fmt: skip
COSTS = {
    "usual": SIM_COST,
    "fast": replace(  # a device twice as fast
        SIM_COST,
        forward_base=SIM_COST.forward_base // 2,
        forward_per_token=SIM_COST.forward_per_token // 2,
        sample=SIM_COST.sample // 2,
        verify=SIM_COST.verify // 2,
        draft=SIM_COST.draft // 2,
    ),
    "slow mask": replace(  # a light host, but masks and sampling for a large vocabulary
        SIM_COST,
        host={name: us * MICROSECOND for name, us in LIGHT.items()},
        forward_base=6 * MILLISECOND,
        sample=5 * MILLISECOND // 2,
    ),
}


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


@cache
def run_with(loop: str, feature: str, cost: str = "usual", *, is_on: bool = True) -> Trace:
    """A loop's run, with one of ``COSTS``; not ``is_on``: the same requests without the feature.

    Where all requests speculate, with three drafts a step, the model has few tokens.
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
    run = Recipe(loop, requests, config, cost=COSTS[cost], model=model).play()
    assert not run.errors, run.errors
    return run.trace


# -- What waits in them, and the time that is lost with it, in words -------------------------------

OPS = {"sample": "sampling", "forward": "the forward pass"}
HEADS = ("loop", "what waits for what", "time lost by reason", "whole run", "without it",
         "time lost on a device twice as fast", "whole run", "without it")  # fmt: skip


def waits_table(names: Mapping[str, str], feature: str) -> str:
    """A line for each loop by its name; one that does not do this says why."""
    return table(HEADS, (waits_of(loop, name, feature) for loop, name in names.items()))


def waits_of(loop: str, name: str, feature: str) -> Sequence[str]:
    """One loop's line."""
    spec, cells = find_loop(loop), [f"{name} (`{loop}`)"]
    refuses, (_, settings) = spec.refusals(spec.relays[0]), FEATURES[feature]
    # late penalties are refused as penalties are
    for word in (feature.removeprefix("late "), settings.get("speculative_algorithm")):
        if word in refuses:
            return [*cells, f"refused: {refuses[word]}", *[""] * (len(HEADS) - 2)]
    counted = Counter((mark.attrs["op"], mark.attrs["reason"])
                      for mark in waits(run_with(loop, feature)))  # fmt: skip
    waited = (f"{OPS[str(op)]} of {count} steps ({reason})"
              for (op, reason), count in counted.items())  # fmt: skip
    cells.append(", ".join(waited) or "nothing")
    for cost in ("usual", "fast"):
        trace = run_with(loop, feature, cost)
        without = run_with(loop, feature, cost, is_on=False)
        lost = (f"{ms(time)} ms {why}" for why, time in lost_ns(trace).items() if time)
        cells += [", ".join(lost) or "nothing", f"{ms(trace.end)} ms", f"{ms(without.end)} ms"]
    return cells


# -- The same settled steps of several runs, and what the device waits for in them -----------------

STEPS = 2
COST = "slow mask"  # with a fast one the device has enough to do meanwhile
SLOW = "masks and sampling are slow, as with a large vocabulary"


def grammars() -> Scene:
    """SGLang's loop without any grammar, and every loop when one of four requests has one."""
    loops = {
        "SGLang: sampling is launched when the step before was processed": "overlap",
        "SGLang's thread: it waits for sampling_info_done": "overlap_thread",
        "vLLM: the step is deferred": "vllm_async",
        "MindIE: forward_loop builds the bitmask before it launches": "mindie_plugin",
        "MLX: nothing is chained on a step with a grammar": "mlx_async",
    }
    runs = {"no grammar": run_with("overlap", "grammar", COST, is_on=False)}
    runs |= {name: run_with(loop, "grammar", COST) for name, loop in loops.items()}
    views = steady_views([*runs.values()][1:], STEPS)
    lost = [ms(sum(lost_times(view).values())) for view in views]
    least, most = min(lost, key=float), max(lost, key=float)
    title = (
        f"A grammar needs the token before: the device waits {least} to {most} ms in {STEPS} steps"
    )
    return stacked(runs, title, SLOW)


def history() -> Scene:
    """What else needs tokens that are still on their way, each beside the way around it."""
    runs = {
        "penalties that count every token": run_with("overlap", "penalties", COST),
        "penalties one token late, as in SGLang": run_with("overlap", "late penalties", COST),
        "drafts by the host (NGRAM): no overlap": run_with("serial", "NGRAM"),
        "drafts by the device (NGRAM_GPU)": run_with("overlap", "NGRAM_GPU"),
        "drafts by a model": run_with("overlap", "STANDALONE"),
        "the same, and one of four requests has a grammar": run_with(
            "overlap", "grammar with speculation"
        ),
    }
    title = "What needs the token before makes the device wait, unless the device has it itself"
    return stacked(runs, title, "with penalties sampling is slow, as with a large vocabulary")


def stacked(runs: Mapping[str, Trace], title: str, note: str) -> Scene:
    """A few steps of each run under its name, with the time that its device lost in them."""
    views = steady_views(list(runs.values()), STEPS)
    names = [
        (name, f"{STEPS} steps in {ms(view.duration)} ms, {lost_in(view)}")
        for name, view in zip(runs, views, strict=True)
    ]
    scene = side_by_side(views, title, names)
    return replace(scene, about=f"{scene.about}; {note}")


def lost_times(view: View) -> Counter[str]:
    """For how many nanoseconds the device idles in a view, by reason."""
    lost = Counter[str]()
    for bubble in view.bubbles:
        start, end = view.clip(bubble.start, bubble.end)
        lost[bubble.cause or "the host"] += end - start
    return lost


def lost_in(view: View) -> str:
    """The same in words."""
    parts = [f"{ms(time)} ms for {why}" for why, time in lost_times(view).items()]
    return f"the device waits {' and '.join(parts)}" if parts else "the device never waits"
