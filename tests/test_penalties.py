"""Penalties: the same on every device, in every batch and on every schedule; and a step late."""

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

from minisched.checks.waits import num_waits
from minisched.core import FinishReason, LogitAdjustment, Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.mlx import MlxDevice
from minisched.devices.sim import SimDevice
from minisched.devices.thread import ThreadDevice
from minisched.loops.registry import LOOPS
from minisched.loops.run import Run, run_loop
from minisched.models import adjust, adjust_mlx, adjust_torch
from minisched.models.hash import HashModel
from minisched.models.llama_mlx import LlamaMlx
from minisched.models.llama_torch import LlamaTorch
from minisched.scheduler import SchedulerConfig
from minisched.worker import sampling_info

from .adjusting import Rows, Wishes, adjusted, cases, chosen
from .backends import EVERY_BACKEND, PROMPTS, check_no_thread_left, hash_model, open_device
from .laws import LOOP_OPTIONS, Broken, check_all, play
from .oracle import penalised
from .test_laws import costs
from .workloads import Workload, fresh, params_with_history, workloads

HISTORY = [item for item in LOOP_OPTIONS if "penalties" not in LOOPS[item[0]].refuses]
EVERY = pytest.mark.parametrize(("loop", "relay", "options"), HISTORY, ids=str)
STRONG = SamplingParams(presence_penalty=2.0, repetition_penalty=1.5, max_new_tokens=9)
QUICK = settings(max_examples=2000, deadline=None, phases=[Phase.generate])  # finds, never shrinks
with_history = workloads(params=params_with_history)

# -- what is done to logits ------------------------------------------------------------------------


@given(
    logits=st.lists(st.floats(-20, 20), min_size=9, max_size=9),
    prompt=st.lists(st.integers(0, 8), max_size=5),
    output=st.lists(st.integers(0, 8), max_size=5),
    params=st.builds(
        SamplingParams,
        frequency_penalty=st.floats(-2, 2),
        presence_penalty=st.floats(-2, 2),
        repetition_penalty=st.floats(0.5, 2),
        logit_bias=st.dictionaries(st.integers(0, 8), st.floats(-100, 100), max_size=3),
    ),
)
def test_a_history_becomes_what_the_definition_says(
    logits: list[float], prompt: list[int], output: list[int], params: SamplingParams
) -> None:
    wish = sampling_info.make_adjustment(params, prompt, output, None)
    assert adjusted("sim", [logits], [wish])[0] == penalised(logits, prompt, output, params)


@EVERY_BACKEND
@given(case=cases())
@settings(deadline=None)
def test_every_backend_does_the_same(backend: str, case: tuple[Rows, Wishes]) -> None:
    logits, wishes = case
    assert adjusted(backend, logits, wishes) == adjusted("sim", logits, wishes)


@pytest.mark.parametrize("backend", ["thread", "mlx"])
@given(case=cases())
@settings(deadline=None)
def test_a_row_is_the_same_in_every_batch(backend: str, case: tuple[Rows, Wishes]) -> None:
    logits, wishes = case
    together = adjusted(backend, logits, wishes, wide=False)
    for row, wish, found in zip(logits, wishes, together, strict=True):
        assert adjusted(backend, [row], [wish], wide=False) == [found]
        assert wish is not None or found == row


@EVERY_BACKEND
@given(
    case=cases(),
    key=st.integers(0, 99),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([-1, 1, 3]),
    top_p=st.sampled_from([1.0, 0.5, 0.99]),
)
@settings(deadline=None)
def test_a_masked_token_is_never_drawn(
    backend: str, case: tuple[Rows, Wishes], key: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits, wishes = case
    how = [(SamplingParams(temperature, top_k, top_p), key, at) for at, _ in enumerate(logits)]
    tokens = chosen(backend, logits, wishes, how)
    assert tokens == chosen("sim", logits, wishes, how)
    for wish, token, row in zip(wishes, tokens, logits, strict=True):
        assert 0 <= token < len(row)
        bits = int.from_bytes(wish.vocab_mask or b"", "little") if wish is not None else 0
        may_come = [at for at, _ in enumerate(row) if bits >> at & 1]
        assert token in may_come or not may_come


@EVERY_BACKEND
@pytest.mark.parametrize("mask", [b"", bytes(2), bytes(9), b"\x00\x00\xf8", b"\x00\x00\x00\x01"])
def test_a_mask_that_lets_nothing_pass_makes_no_nan(backend: str, mask: bytes) -> None:
    logits, wish = [[float(at) for at in range(19)]], LogitAdjustment(vocab_mask=mask)
    assert adjusted(backend, logits, [wish]) == logits


@EVERY_BACKEND
def test_a_bias_can_not_bring_a_masked_token_back(backend: str) -> None:
    wish = LogitAdjustment(logit_bias={0: 100.0}, vocab_mask=b"\x06")
    assert adjusted(backend, [[1.0, 2.0, 3.0]], [wish]) == [[float("-inf"), 2.0, 3.0]]


def test_nothing_is_done_where_nobody_wants_anything() -> None:
    rows, tensor, array = [[1.0]], torch.ones(1, 1), mx.ones((1, 1))
    for wishes in ([], [None]):
        assert adjust.adjust(rows, wishes) is rows
        assert adjust_torch.adjust(tensor, wishes) is tensor
        assert adjust_mlx.adjust(array, wishes) is array


@pytest.mark.parametrize("wish", [LogitAdjustment(logit_bias={0: 1.0}),
                                  LogitAdjustment(vocab_mask=b"\x02")])  # fmt: skip
def test_the_logits_that_came_in_are_left_alone(wish: LogitAdjustment) -> None:
    """Log-probabilities are read off them as well."""
    rows, tensor, array = [[1.0, 2.0]], torch.tensor([[1.0, 2.0]]), mx.array([[1.0, 2.0]])
    outs = [
        adjust.adjust(rows, [wish]),
        adjust_torch.adjust(tensor, [wish]).tolist(),
        adjust_mlx.adjust(array, [wish]).tolist(),
    ]
    assert rows == tensor.tolist() == array.tolist() == [[1.0, 2.0]]
    assert outs[0] == outs[1] == outs[2] != rows


def test_sixteen_bits_are_enough_for_a_penalty() -> None:
    """Near 100 a bfloat16 is a multiple of 0.5: a penalty of 0.1 would be lost."""
    wish = LogitAdjustment(presence_penalty=0.1, counts={0: 1})
    halves = torch.tensor([[100.0, 100.0]], dtype=torch.bfloat16)
    assert adjust_torch.adjust(halves, [wish]).argmax() == 1
    assert mx.argmax(adjust_mlx.adjust(mx.array([[100.0, 100.0]], mx.bfloat16), [wish])) == 1


# -- the laws --------------------------------------------------------------------------------------


@EVERY
@given(workload=with_history, cost=costs)
@settings(max_examples=25, deadline=None)
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

    model = LlamaMlx(smollm2)
    prompts = [model.tokenizer.encode(text) for text in PROMPTS[:2]]
    truth = {}
    for at, prompt in enumerate(prompts):
        processors = make_logits_processors(repetition_penalty=1.3, repetition_context_size=999)
        steps = generate_step(
            mx.array(prompt), model.lm, max_tokens=16, logits_processors=processors
        )
        truth[f"r{at}"] = [int(token) for token, _ in steps]
    wish = SamplingParams(repetition_penalty=1.3, max_new_tokens=16, ignore_eos=True)
    for loop in ("serial", "mlx_async"):
        requests = [Request(f"r{i}", prompt, wish) for i, prompt in enumerate(prompts)]
        assert run_loop(loop, MlxDevice(), model, requests).outputs == truth, loop
