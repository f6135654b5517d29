"""Speculation: drafts never change tokens, and memory, lengths and order survive being wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import ForwardMode, Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.models.registry import HASH, load
from minisched.scheduler import SchedulerConfig

from .laws import check_ends, check_leaks, play
from .oracle import grammar_of, hash_oracle
from .workloads import Workload, workloads

VOCAB = 3  # so few that a guess is often right
ALGORITHMS = ("NGRAM", "NGRAM_GPU", "STANDALONE")
CARRIERS = ("host", "pool")

Spec = tuple[str, str, dict[str, Any], str]  # loop, relay, options, algorithm

SPECULATIVE: list[Spec] = [
    (loop, relay, options, algorithm)
    for loop, spec in LOOPS.items()
    for algorithm in ALGORITHMS
    if algorithm not in spec.refuses
    for relay in spec.relays
    if relay in CARRIERS
    for options in ([{}, {"depth": 4}] if loop == "vllm_async" else [{}])
]
EVERY = pytest.mark.parametrize(("loop", "relay", "options", "algorithm"), SPECULATIVE, ids=str)

costs = st.builds(
    lambda host, forward, sample, copy, draft: CostModel(
        {"schedule": host, "launch": 1, "process": host}, forward, 0, sample, copy, 1, draft
    ),
    host=st.sampled_from([0, 1, 5, 30]),
    forward=st.sampled_from([1, 4, 10]),
    sample=st.sampled_from([0, 2]),
    copy=st.sampled_from([0, 1, 9]),
    draft=st.sampled_from([0, 3]),
)


@st.composite
def speculative_workloads(draw: st.DrawFn, algorithm: str, history: bool = False) -> Workload:
    """A workload of few tokens, with drafts; the pool holds the longest request and its slack."""
    workload: Workload = draw(workloads())
    k = draw(st.integers(1, 4))
    for req in workload.requests:
        req.prompt = [token % VOCAB for token in req.prompt]
        wanted = draw(histories) if history else {}
        req.params = replace(req.params, stop_token_ids=draw(st.sampled_from(STOPS)), **wanted)
        req.__post_init__()
    size = workload.config.page_size
    slack = -(-3 * k // size) * size  # vllm_async with four steps in flight
    config = replace(
        workload.config,
        enable_mixed_chunk=False,
        kv_tokens=workload.config.kv_tokens + slack,
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=k,
        speculative_draft_model_path=draw(st.sampled_from(DRAFT_MODELS[algorithm])),
    )
    return replace(workload, config=config, eos_ids=draw(st.sampled_from([frozenset(), STOPS[1]])))


REGEXES = [None, r"[\x00-\x02]*", r"(\x00\x01?)+", r"\x00{2,9}\x01*"]  # 2 may be the end of text
histories = st.fixed_dictionaries(
    {
        "regex": st.sampled_from(REGEXES),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.4, -1.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3]),
        "logit_bias": st.sampled_from([{}, {1: 0.5}, {2: -9.0}]),
    }
)
STOPS: list[frozenset[int]] = [frozenset(), frozenset({2})]
DRAFT_MODELS = {"NGRAM": [""], "NGRAM_GPU": [""], "STANDALONE": ["hash:10", "hash:7", "hash:0"]}


def target(backend: str, eos_ids: frozenset[int]) -> Any:
    """The hash model with hardly any vocabulary."""
    return load(*HASH[backend], "a test")(VOCAB, eos_ids=eos_ids)


def check_laws(workload: Workload, spec: Spec, backend: str, cost: CostModel) -> Engine:
    """Every request gets the tokens it would get alone; nothing is lost and nothing leaks."""
    loop, relay, options, _ = spec
    device, model = open_device(backend), target(backend, workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, device, model, cost)
    for req in workload.requests:
        grammar = grammar_of(req, VOCAB, workload.eos_ids)
        truth = hash_oracle(
            list(req.prompt), req.params, req.sampling_key, VOCAB, workload.eos_ids, grammar
        )
        aborted = req.finish_reason is not None and req.finish_reason.value == "abort"
        assert req.output_ids == (truth[: len(req.output_ids)] if aborted else truth), req.error
        assert req.num_draft_tokens_in_flight == 0 or req.finished
    check_ends(workload, outputs)
    check_leaks(engine)
    return engine


@EVERY
@given(data=st.data(), cost=costs)
@settings(max_examples=60, deadline=None)
def test_drafts_never_change_tokens(
    loop: str, relay: str, options: dict[str, Any], algorithm: str, data: Any, cost: CostModel
) -> None:
    workload = data.draw(speculative_workloads(algorithm))
    check_laws(workload, (loop, relay, options, algorithm), "sim", cost)


@EVERY
@given(data=st.data(), cost=costs)
@settings(max_examples=40, deadline=None)
def test_drafts_grammars_and_penalties_together(
    loop: str, relay: str, options: dict[str, Any], algorithm: str, data: Any, cost: CostModel
) -> None:
    """A mask at every place of a row, each as if the drafts before it were right."""
    workload = data.draw(speculative_workloads(algorithm, history=True))
    check_laws(workload, (loop, relay, options, algorithm), "sim", cost)


@pytest.mark.parametrize("backend", ["thread", "mlx"])
@EVERY
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_drafts_never_change_tokens_in_real_time(
    backend: str, loop: str, relay: str, options: dict[str, Any], algorithm: str, data: Any
) -> None:
    workload = data.draw(speculative_workloads(algorithm, history=True))
    check_laws(workload, (loop, relay, options, algorithm), backend, CostModel())


# -- what it is worth ----------------------------------------------------------------------------


def one_request(algorithm: str = "", draft_model: str = "", count: int = 25) -> Any:
    """A greedy request and a scheduler that speculates."""
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    config = SchedulerConfig(
        speculative_algorithm=algorithm, speculative_draft_model_path=draft_model
    )
    return [Request("r", [1, 2, 3, 4, 5], params)], config


@pytest.mark.parametrize(("loop", "relay"), [("serial", "host"), ("overlap", "pool")])
def test_a_draft_model_that_is_the_target_is_always_right(loop: str, relay: str) -> None:
    """25 tokens: one of the prompt, then 5 a step; serial knows when it is done."""
    requests, config = one_request("STANDALONE", "hash:10")
    run = run_loop(loop, SimDevice(), HashModel(), requests, config, SIM_COST, relay)
    verifies = [s for s in run.trace.slices if s.name == "forward" and s.mode == "target verify"]
    assert len(verifies) == (5 if loop == "serial" else 6), "the last one of overlap is wasted"
    assert len(run.outputs["r"]) == 25


def test_a_repeating_text_is_looked_up() -> None:
    """With one token in the vocabulary everything repeats: every draft is right."""
    requests, config = one_request("NGRAM")
    requests[0].prompt = [0] * 5
    run = run_loop("serial", SimDevice(), HashModel(1, eos_ids=frozenset()), requests, config)
    steps = [item for item in run.trace.slices if item.name == "forward"]
    assert len(steps) == 1 + 5 and run.outputs["r"] == [0] * 25


def test_the_mode_says_that_drafts_are_verified() -> None:
    requests, config = one_request("STANDALONE", "hash:10")
    run = run_loop("serial", SimDevice(), HashModel(), requests, config)
    modes = {item.mode for item in run.trace.slices if item.name == "forward"}
    assert modes == {ForwardMode.EXTEND.value, ForwardMode.TARGET_VERIFY.value}
    drafts = {item.mode for item in run.trace.slices if item.name == "draft"}
    assert drafts == {ForwardMode.DRAFT_EXTEND.value}


def test_overlap_hides_the_host_behind_verification_too() -> None:
    """The step law: a settled step of overlap takes what the device takes, verify and draft too."""
    requests, config = one_request("STANDALONE", "hash:10", count=101)
    run = run_loop("overlap", SimDevice(), HashModel(), requests, config, SIM_COST, "pool")
    forwards = [s for s in run.trace.on("forward") if s.name == "forward"]
    device = [s.duration for s in run.trace.on("forward") if s.step == 10]
    gaps = {after.start - before.start for before, after in pairwise(forwards[5:15])}
    assert gaps == {sum(device)}


# -- books ---------------------------------------------------------------------------------------


def test_rejected_positions_are_given_back() -> None:
    """vLLM's invariant: computed less placeholders is what the host knows, after every result."""
    requests, config = one_request("STANDALONE", "hash:5", count=40)
    seen: list[tuple[int, int]] = []

    def watch(engine: Engine) -> None:
        process = engine.scheduler.process

        def checked(batch: ScheduleBatch, result: Any) -> Any:
            outputs = process(batch, result)
            for req in batch.reqs:
                if not req.finished:
                    settled = req.computed_len - req.num_output_placeholders
                    seen.append((settled, req.known_len - 1))
            return outputs

        engine.scheduler.process = checked  # type: ignore[method-assign]

    workload = Workload(requests, [0], {}, config)
    play(workload, "overlap", "pool", {}, SimDevice(), HashModel(), SIM_COST, watch)
    assert seen and all(a == b for a, b in seen)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("loop", LOOPS)
def test_what_an_original_refuses_is_refused_with_its_reason(loop: str, algorithm: str) -> None:
    spec = LOOPS[loop]
    config = SchedulerConfig(speculative_algorithm=algorithm, chunked_prefill_size=8)
    if algorithm not in spec.refuses:
        assert set(spec.relays) & set(CARRIERS)
        return
    requests = [Request("r", [1])]
    with pytest.raises(ValueError, match="does not speculate with") as caught:
        run_loop(loop, SimDevice(), HashModel(), requests, config)
    assert spec.refuses[algorithm] in str(caught.value) and "\n" not in str(caught.value)


def test_a_relay_that_carries_no_drafts_is_refused() -> None:
    requests, config = one_request("STANDALONE", "hash:10")
    with pytest.raises(ValueError, match=r"relay 'ring' does not fit loop 'overlap'.*drafts"):
        run_loop("overlap", SimDevice(), HashModel(), requests, config, relay="ring")


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [
        ({"speculative_algorithm": "EAGLE"}, "speculative_algorithm is 'EAGLE'"),
        ({"speculative_num_draft_tokens": 0}, "speculative_num_draft_tokens is 0"),
        (
            {"speculative_algorithm": "NGRAM", "enable_mixed_chunk": True},
            "enable_mixed_chunk does not go with speculation",
        ),
        (
            {"speculative_algorithm": "NGRAM", "late_penalties": True},
            "late_penalties does not go with speculation",
        ),
    ],
)
def test_settings_that_make_no_sense(settings_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SchedulerConfig(**settings_)


def test_a_request_that_drafts_would_carry_past_the_pool_is_refused_alone() -> None:
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    requests = [Request("long", [1] * 8, params), Request("short", [1] * 4, params)]
    config = SchedulerConfig(
        kv_tokens=18, speculative_algorithm="STANDALONE", speculative_draft_model_path="hash:7"
    )
    run = run_loop("overlap", SimDevice(), HashModel(), requests, config, relay="pool")
    assert set(run.errors) == {"long"} and len(run.outputs["short"]) == 10
