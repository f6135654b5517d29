"""What waits, and for what: the same steps of the same requests, without history and with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ...checks.causes import lost_ns, waits
from ...core import Request, SamplingParams
from ...devices.cost import MICROSECOND, MILLISECOND, SIM_COST, CostModel
from ...devices.registry import open_device
from ...loops.design import find_loop
from ...loops.run import run_loop
from ...models.hash import HashModel
from ...scheduler import SchedulerConfig
from ...trace import Trace
from ..layout import View, steady_views, view_of_steps
from ..runs import side_by_side
from ..scene_puml import to_puml
from ..units import ms

# -- The runs that show what a wait costs: four requests, with something that needs history --------

PROMPTS, PROMPT_LENGTH = 4, 32  # of the runs with one prefill behind the other
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
OPS = {"sample": "sampling", "forward": "the forward pass"}


@dataclass(frozen=True)
class Feature:
    """Something that needs history; ``name`` is the one under which loops refuse it.

    ``params`` are those of the first of four requests, ``settings`` the scheduler's. Where all
    requests speculate, the model has few tokens.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> HashModel:
        """The model of its runs, and of those that they are compared with."""
        return HashModel(VOCAB) if "speculative_algorithm" in self.settings else HashModel()


def speculation(algorithm: str, **settings: Any) -> Feature:
    """All requests speculate, with three drafts a step."""
    settings |= {"speculative_algorithm": algorithm, "speculative_num_draft_tokens": 3}
    return Feature(algorithm, settings=settings)


FEATURES = {
    "grammar": Feature("grammar", {"regex": "[a-z]{30}"}),
    "penalties": Feature("penalties", {"frequency_penalty": 0.5}),
    "late penalties": Feature("penalties", {"frequency_penalty": 0.5}, {"late_penalties": True}),
    "NGRAM": speculation("NGRAM"),
    "NGRAM_GPU": speculation("NGRAM_GPU"),
    "STANDALONE": speculation("STANDALONE", speculative_draft_model_path="hash:8"),
}
FEATURES["grammar with speculation"] = replace(
    FEATURES["STANDALONE"], name="grammar with speculation", params={"regex": "[\x01-\x02]{30}"}
)


def refusal(loop: str, feature: str) -> str:
    """Why a loop does not do this, or nothing."""
    asked = FEATURES[feature]
    names = [asked.name, str(asked.settings.get("speculative_algorithm", ""))]
    spec = find_loop(loop)
    refuses = spec.refusals(spec.relays[0])
    return next((refuses[name] for name in names if name in refuses), "")


@cache
def run_with(loop: str, feature: str, cost: str = "usual") -> Trace:
    """A loop's run, with one of ``COSTS``."""
    asked = FEATURES[feature]
    return _run(loop, asked, asked.model, COSTS[cost])


@cache
def run_without(loop: str, feature: str, cost: str = "usual") -> Trace:
    """The same requests without it."""
    asked = FEATURES[feature]
    return _run(loop, replace(asked, params={}, settings={}), asked.model, COSTS[cost])


def _run(loop: str, feature: Feature, model: HashModel, cost: CostModel) -> Trace:
    plain = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True)
    params = [replace(plain, **feature.params), plain, plain, plain]
    requests = [
        Request(rid, [(20 * at + i) % model.vocab_size for i in range(6)], each)
        for at, (rid, each) in enumerate(zip("abcd", params, strict=True))
    ]
    config = SchedulerConfig(**feature.settings)
    run = run_loop(loop, open_device("sim"), model, requests, config, cost)
    assert not run.errors, run.errors
    return run.trace


def run_prefills(disable_consecutive_prefill_overlap: bool) -> Trace:
    """Prompts that come at once, one of which fills a prefill step."""
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    prompts = [range(i * PROMPT_LENGTH, (i + 1) * PROMPT_LENGTH) for i in range(PROMPTS)]
    run = run_loop(
        "overlap",
        open_device("sim"),
        HashModel(),
        [Request(rid, prompt, params) for rid, prompt in zip("abcd", prompts, strict=True)],
        SchedulerConfig(chunked_prefill_size=PROMPT_LENGTH),
        SIM_COST,
        disable_consecutive_prefill_overlap=disable_consecutive_prefill_overlap,
    )
    return run.trace


def waits_for(trace: Trace) -> str:
    """What waited, and for what: ``sampling of 23 steps (grammar)``."""
    counted = Counter((str(mark.attrs["op"]), str(mark.attrs["reason"])) for mark in waits(trace))
    parts = (f"{OPS[op]} of {count} steps ({reason})" for (op, reason), count in counted.items())
    return ", ".join(parts) or "nothing"


def time_lost(trace: Trace) -> str:
    """For how long devices have idled, by reason: ``20.7 ms grammar, 3.2 ms host``."""
    lost = lost_ns(trace)
    return ", ".join(f"{ms(lost[why])} ms {why}" for why in lost if lost[why]) or "nothing"


STEPS = 2
COST = "slow mask"  # with a fast one the device has enough to do meanwhile
SLOW = "; masks and sampling are slow, as with a large vocabulary"
GRAMMAR = {  # loop -> what waits there for the token that a mask needs
    "overlap": "SGLang: sampling is launched when the step before was processed",
    "overlap_thread": "SGLang's thread: it waits for sampling_info_done",
    "vllm_async": "vLLM: the step is deferred",
    "mindie_plugin": "MindIE: forward_loop builds the bitmask before it launches",
    "mlx_async": "MLX: nothing is chained on a step with a grammar",
}


def grammars() -> str:
    """SGLang's loop without any grammar, and every loop when one of four requests has one."""
    runs = {
        "no grammar": run_without("overlap", "grammar", COST),
        **{name: run_with(loop, "grammar", COST) for loop, name in GRAMMAR.items()},
    }
    return one_above_the_other(
        runs, "A grammar needs the token before: who waits for it, and how", SLOW
    )


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
    names = [
        (name, f"{STEPS} steps in {ms(view.duration)} ms, {lost_in(view)}")
        for name, view in views.items()
    ]
    shown = [*views.values()]
    about = f"steps {shown[0].first_step} to {shown[0].last_step} of the same four requests{note}"
    return to_puml(side_by_side(shown, title, names), [about])


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
    "wait_grammar": grammars,
    "wait_prefill": prefills,
    "wait_penalties": penalties,
    "wait_speculation_drafts": drafts,
    "wait_speculation_grammar": drafts_with_a_grammar,
}
