"""Penalties: the same tokens on every schedule, which waits for them; or late, and nobody waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.waits import num_waits
from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.mlx import MlxDevice
from minisched.devices.sim import SimDevice
from minisched.devices.thread import ThreadDevice
from minisched.loops.registry import LOOPS
from minisched.loops.run import Run, run_loop
from minisched.models.hash import HashModel
from minisched.models.llama_mlx import LlamaMlx
from minisched.models.llama_torch import LlamaTorch
from minisched.scheduler import SchedulerConfig
from minisched.worker import sampling_info
from tests.support import (
    LOOP_OPTIONS,
    PROMPTS,
    Broken,
    LoopOptions,
    Workload,
    check_all,
    check_no_thread_left,
    fresh,
    hash_model,
    open_device,
    params_with_history,
    play,
    workloads,
)
from tests.test_laws import costs

SOME: list[LoopOptions] = [
    ("serial", "host", {}),
    ("vllm_step", "host", {}),
    *[("overlap", relay, {}) for relay in LOOPS["overlap"].relays],
]
HISTORY = [item for item in LOOP_OPTIONS if "penalties" not in LOOPS[item[0]].refuses]
EVERY = pytest.mark.parametrize(("loop", "relay", "options"), HISTORY, ids=str)
STRONG = SamplingParams(presence_penalty=2.0, repetition_penalty=1.5, max_new_tokens=9)
QUICK = settings(
    max_examples=20_000, deadline=None, phases=[Phase.generate]
)  # finds, never shrinks
with_history = workloads(params=params_with_history)

# -- the laws --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loop", "relay", "options"), SOME, ids=str)
@given(workload=with_history, cost=costs)
@settings(max_examples=40, deadline=None)
def test_laws_with_history(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, cost: CostModel
) -> None:
    model = hash_model("sim", workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, SimDevice(), model, cost)
    check_all(workload, engine, outputs)


@pytest.mark.parametrize("loop", ["serial", "overlap"])
@pytest.mark.parametrize("backend", ["thread", "mlx"])
@given(workload=with_history)
@settings(max_examples=25, deadline=None)
def test_laws_with_history_in_real_time(backend: str, loop: str, workload: Workload) -> None:
    model, relay = hash_model(backend, workload.eos_ids), LOOPS[loop].relays[0]
    engine, outputs = play(workload, loop, relay, {}, open_device(backend), model)
    check_all(workload, engine, outputs)
    check_no_thread_left()


@EVERY
@given(workload=with_history, cost=costs)
@settings(max_examples=25, deadline=None)
def test_late_penalties_are_those_of_a_late_oracle(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, cost: CostModel
) -> None:
    workload = late(workload)
    model, device = hash_model("sim", workload.eos_ids), SimDevice()
    engine, outputs = play(workload, loop, relay, options, device, model, cost)
    check_all(workload, engine, outputs)
    if options.get("depth", 2) == 2:
        assert "penalty" not in num_waits(device.recorder.trace("", "", "", ""))


def late(workload: Workload) -> Workload:
    """The same, with penalties a step late."""
    return replace(workload, config=replace(workload.config, late_penalties=True))


def test_late_is_something_else() -> None:
    def differs(workload: Workload) -> bool:
        runs = [fresh(workload), late(fresh(workload))]
        for one in runs:
            play(one, "serial", "host", {}, SimDevice(), hash_model("sim", one.eos_ids))
        return len({str([req.output_ids for req in one.requests]) for one in runs}) == 2

    find(with_history, differs, settings=QUICK)


# -- the laws can fail -----------------------------------------------------------------------------


def test_reading_what_is_there_by_now_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM #27878: penalties read what the host knows, which is a token less if nobody waits."""
    monkeypatch.setattr(sampling_info, "_lacks", lambda *asked: "")
    monkeypatch.setattr(sampling_info, "output_before", lambda row, *asked: row.req.output_ids)
    broken(with_history)


def test_a_loop_that_does_not_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_info, "_lacks", lambda *asked: "")
    with pytest.raises(RuntimeError, match="penalties of a read 1 tokens, but the host knows"):
        run("overlap", [STRONG])


def broken(strategy: st.SearchStrategy[Workload]) -> None:
    """There is a workload on which overlap breaks a law."""

    def breaks(workload: Workload) -> bool:
        one = fresh(workload)
        try:
            model = hash_model("sim", one.eos_ids)
            check_all(one, *play(one, "overlap", "ring", {}, SimDevice(), model))
        except Broken:
            return True
        return False

    find(strategy, breaks, settings=QUICK)


# -- waits -----------------------------------------------------------------------------------------


def run(
    loop: str,
    wishes: list[SamplingParams],
    config: SchedulerConfig | None = None,
    cost: CostModel = SIM_COST,
) -> Run:
    """A request for each of ``wishes``."""
    requests = [Request("abcd"[at], [1, 2, 3 + at], one) for at, one in enumerate(wishes)]
    return run_loop(loop, SimDevice(), HashModel(), requests, config, cost)


def test_every_decode_waits_for_the_token_before_it() -> None:
    waits = num_waits(run("overlap", [STRONG]).trace)
    assert waits == Counter({"penalty": STRONG.max_new_tokens}), "and one more, which is wasted"


@pytest.mark.parametrize("wish", [SamplingParams(logit_bias={1: 3.0}), SamplingParams()])
def test_what_reads_no_history_waits_for_nothing(wish: SamplingParams) -> None:
    wish = replace(wish, max_new_tokens=9)
    assert not num_waits(run("overlap", [wish]).trace)


def test_late_penalties_cost_nothing() -> None:
    """A short forward pass hides a copy and the host's work only if sampling waits for neither."""
    cost = CostModel(
        {"schedule": 1, "launch": 1, "process": 3, "mask": 1}, forward_base=4, sample=6, copy=1
    )
    config = SchedulerConfig(late_penalties=True)
    wish = replace(STRONG, ignore_eos=True)
    plain = run("overlap", [SamplingParams(max_new_tokens=9, ignore_eos=True)], cost=cost)
    late, prompt = run("overlap", [wish], config, cost), run("overlap", [wish], cost=cost)
    assert late.trace.end == plain.trace.end < prompt.trace.end
    assert late.outputs == run("serial", [wish], config).outputs


def test_deeper_queues_wait_even_for_late_penalties() -> None:
    """At depth 4 three tokens may be missing; late penalties can do without one."""
    config = SchedulerConfig(late_penalties=True)
    deep = run("vllm_async:pool:depth=4", [STRONG], config)
    assert num_waits(deep.trace)["penalty"]
    assert deep.outputs == run("serial", [STRONG], config).outputs


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("loop", ["pd", "mixed"])
def test_loops_that_the_laws_drive_elsewhere(loop: str, late: bool) -> None:
    """PD's first token comes from another engine, which has heard nothing but the prompt."""
    config = SchedulerConfig(late_penalties=late, chunked_prefill_size=2)
    wishes = [STRONG, replace(STRONG, temperature=1.0), SamplingParams(max_new_tokens=7)]
    assert run(loop, wishes, config).outputs == run("serial", wishes, config).outputs


# -- bad input -------------------------------------------------------------------------------------

BAD = {
    "frequency_penalty is 2.5, but it must be between -2 and 2.": {"frequency_penalty": 2.5},
    "presence_penalty is nan, but it must be between -2 and 2.": {"presence_penalty": float("nan")},
    "repetition_penalty is 0.0, but it must be between 0.001 and 2.": {"repetition_penalty": 0.0},
    "repetition_penalty is 2.1, but it must be between 0.001 and 2.": {"repetition_penalty": 2.1},
}


@pytest.mark.parametrize("sentence", BAD)
@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_bad_penalties_end_their_request_alone(loop: str, sentence: str) -> None:
    bad = SamplingParams(**BAD[sentence])
    together = run(loop, [STRONG, STRONG, bad])
    assert together.errors == {"c": sentence}
    assert together.requests[2].finish_reason is FinishReason.ERROR
    alone = run(loop, [STRONG, STRONG])
    assert together.outputs == {**alone.outputs, "c": []}


@pytest.mark.parametrize("params", [{"frequency_penalty": 2.0, "presence_penalty": -2.0},
                                    {"repetition_penalty": 0.001}])  # fmt: skip
def test_the_limits_themselves_are_fine(params: dict[str, Any]) -> None:
    assert not run("serial", [SamplingParams(**params, temperature=1.0)]).errors


# -- real models -----------------------------------------------------------------------------------

PENALISED = SamplingParams(
    frequency_penalty=0.4, presence_penalty=0.7, repetition_penalty=1.3, max_new_tokens=24,
    logit_bias={3: 2.0, 5: -4.0}, ignore_eos=True,
)  # fmt: skip


@pytest.mark.parametrize("late_penalties", [False, True])
def test_a_llama_says_the_same_serially_and_overlapped(
    tiny_llama: Path, late_penalties: bool
) -> None:
    """In 32 bits, where a penalty is rounded: to the same bits in every batch."""
    config = SchedulerConfig(late_penalties=late_penalties, chunked_prefill_size=5)
    said = []
    for loop in ("serial", "overlap"):
        requests = [
            Request(f"r{at}", [at, 2, 3, 4, 5, 6][: 1 + at], replace(wish, seed=at))
            for at, wish in enumerate([PENALISED, replace(PENALISED, temperature=1.2)] * 2)
        ]
        said.append(run_loop(loop, ThreadDevice(), LlamaTorch(tiny_llama), requests, config))
    assert said[0].outputs == said[1].outputs
    assert not said[0].errors


@pytest.mark.weights
def test_smollm2_is_penalised_as_by_transformers(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = LlamaTorch(smollm2)
    prompts = [model.tokenizer.encode(text) for text in PROMPTS[:2]]
    theirs: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    theirs.generation_config.eos_token_id = None  # every request runs to its length
    truth = {
        f"r{i}": theirs.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=16, pad_token_id=0,
            repetition_penalty=1.3,
        )[0, len(prompt) :].tolist()
        for i, prompt in enumerate(prompts)
    }  # fmt: skip
    wish = SamplingParams(repetition_penalty=1.3, max_new_tokens=16, ignore_eos=True)
    for loop in ("serial", "overlap"):
        requests = [Request(f"r{i}", prompt, wish) for i, prompt in enumerate(prompts)]
        assert run_loop(loop, ThreadDevice(), model, requests).outputs == truth, loop


@pytest.mark.weights
def test_smollm2_is_penalised_as_by_mlx_lm(smollm2: Path) -> None:
    from mlx_lm.generate import generate_step
    from mlx_lm.sample_utils import make_logits_processors
    from mlx_lm.utils import load_model

    model, lm = LlamaMlx(smollm2), load_model(smollm2)[0]
    prompts = [model.tokenizer.encode(text) for text in PROMPTS[:2]]
    truth = {}
    for at, prompt in enumerate(prompts):
        processors = make_logits_processors(repetition_penalty=1.3, repetition_context_size=999)
        steps = generate_step(mx.array(prompt), lm, max_tokens=16, logits_processors=processors)
        truth[f"r{at}"] = [int(token) for token, _ in steps]
    wish = SamplingParams(repetition_penalty=1.3, max_new_tokens=16, ignore_eos=True)
    for loop in ("serial", "mlx_async"):
        requests = [Request(f"r{i}", prompt, wish) for i, prompt in enumerate(prompts)]
        assert run_loop(loop, MlxDevice(), model, requests).outputs == truth, loop
