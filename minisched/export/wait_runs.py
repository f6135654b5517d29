"""The runs that show what a wait costs: four requests, with something that needs history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ..checks.causes import lost_ns, waits
from ..core import Request, SamplingParams
from ..devices.cost import MICROSECOND, MILLISECOND, SIM_COST, CostModel
from ..devices.registry import open_device
from ..loops.design import find_loop
from ..loops.run import run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .units import ms

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
