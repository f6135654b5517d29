"""Speculation: drafts never change tokens, and memory, lengths and order survive being wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.waits import waits
from minisched.checks.tokens.oracle import grammar_of, hash_oracle, says
from minisched.core import (
    FinishReason,
    ForwardMode,
    Lease,
    NoBatch,
    Request,
    Result,
    SamplingParams,
    ScheduleBatch,
)
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.models.registry import HASH, load
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.scheduler.verify import accepted_tokens
from minisched.trace import Recorder
from minisched.worker.unread_steps import UnreadSteps
from tests.support import Workload, check_ends, check_leaks, play, workloads

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
        late_stop_strings=history and draw(st.booleans()),
        kv_tokens=workload.config.kv_tokens + slack,
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=k,
        speculative_draft_model_path=draw(st.sampled_from(DRAFT_MODELS[algorithm])),
    )
    return replace(workload, config=config, eos_ids=draw(st.sampled_from([frozenset(), STOPS[1]])))


REGEXES = [None, r"[\x00-\x02]*", r"(\x00\x01?)+", r"\x00{2,9}\x01*"]  # 2 may be the end of text
strings = st.text([chr(token) for token in range(VOCAB)], min_size=2, max_size=4)
histories = st.fixed_dictionaries(
    {
        "regex": st.sampled_from(REGEXES),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.4, -1.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3]),
        "logit_bias": st.sampled_from([{}, {1: 0.5}, {2: -9.0}]),
        "stop": st.lists(strings, max_size=2).map(tuple),
    }
)
STOPS: list[frozenset[int]] = [frozenset(), frozenset({2})]
DRAFT_MODELS = {"NGRAM": [""], "NGRAM_GPU": [""], "STANDALONE": ["hash:10", "hash:7", "hash:0"]}


def target(backend: str, eos_ids: frozenset[int]) -> Any:
    """The hash model with hardly any vocabulary."""
    return load(*HASH[backend], "a test")(VOCAB, eos_ids=eos_ids)


def check_laws(
    workload: Workload, spec: Spec, backend: str, cost: CostModel,
    patch: Callable[[Engine], None] = lambda engine: None,
) -> Engine:  # fmt: skip
    """Every request gets the tokens it would get alone; nothing is lost and nothing leaks."""
    loop, relay, options, _ = spec
    device, model = open_device(backend), target(backend, workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, device, model, cost, patch)
    for req in workload.requests:
        grammar = grammar_of(req, VOCAB, workload.eos_ids)
        truth = hash_oracle(
            list(req.prompt), req.params, req.sampling_key, VOCAB, workload.eos_ids, grammar,
            late_stop_strings=workload.config.late_stop_strings,
        ).tokens  # fmt: skip
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


# -- ends and waits ------------------------------------------------------------------------------


class Cut:
    """Requests that stopped although the step had accepted more tokens behind that one."""

    def __init__(self) -> None:
        self.by: Counter[str] = Counter()

    def patch(self, engine: Engine) -> None:
        """Look at every result that is processed."""
        process, late = engine.scheduler.process, engine.scheduler.config.late_stop_strings

        def watched(batch: ScheduleBatch, result: Result) -> Any:
            going = {req.rid: len(req.output_ids) for req in batch.reqs if not req.finished}
            outputs = process(batch, result)
            for req, tokens in zip(batch.reqs, accepted_tokens(batch, result), strict=True):
                heard = len(req.output_ids) - going.get(req.rid, len(req.output_ids))
                if req.finish_reason is FinishReason.STOP and 0 < heard < len(tokens):
                    said = says(req.output_ids[: len(req.output_ids) - late], req.params.stop)
                    self.by[("late " * late + "string") if said else "token"] += 1
            return outputs

        engine.scheduler.process = watched  # type: ignore[method-assign]


repeating = st.builds("{}{}".format, st.integers(1, 7).map("\0".__mul__), st.just("") | strings)


@st.composite
def stopping(draw: st.DrawFn, algorithm: str) -> Workload:
    """Longer texts that repeat themselves, so that drafts are right, until they say a stop."""
    workload: Workload = draw(speculative_workloads(algorithm))
    for req in workload.requests:
        req.params = replace(
            req.params,
            max_new_tokens=24,
            logit_bias=draw(st.sampled_from([{}, {0: 3.0}, {0: 6.0}])),
            stop=draw(st.lists(repeating, max_size=2).map(tuple)),
        )
        req.__post_init__()
    config = workload.config
    workload.config = replace(
        config,
        kv_tokens=config.kv_tokens + 24,
        context_len=64,
        late_stop_strings=draw(st.booleans()),
    )
    return workload


@pytest.mark.parametrize(
    ("loop", "relay", "algorithm"),
    [("serial", "host", "NGRAM"), ("overlap", "pool", "NGRAM_GPU")],
)
def test_accepted_tokens_behind_a_stop_are_nobodys(loop: str, relay: str, algorithm: str) -> None:
    """Stop tokens and strings in the middle of what a step accepted, in time or one token late."""
    cut = Cut()

    @given(stopping(algorithm), costs)
    @settings(max_examples=100, deadline=None, derandomize=True)
    def law(workload: Workload, cost: CostModel) -> None:
        check_laws(workload, (loop, relay, {}, algorithm), "sim", cost, cut.patch)

    law()
    assert min(cut.by[kind] for kind in ("token", "string", "late string")) >= 3, cut.by


class InFlight:
    """Steps that were committed while a row's last token was still on the device."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.batches: dict[int, ScheduleBatch] = {}

    def patch(self, engine: Engine) -> None:
        """Look at every batch that is committed, and every result that is processed."""
        next_batch, process = engine.scheduler.next_batch, engine.scheduler.process

        def committed() -> ScheduleBatch | NoBatch:
            batch = next_batch()
            if batch:
                leases = [lease for flying in self.batches.values() for lease in flying.leases]
                decodes = batch.leases[batch.num_extend_reqs :]
                if any(lease in leases for lease in decodes):
                    self.steps.append(batch.step)
                self.batches[batch.step] = batch
            return batch

        def processed(batch: ScheduleBatch, result: Result) -> Any:
            del self.batches[batch.step]
            return process(batch, result)

        engine.scheduler.next_batch = committed  # type: ignore[method-assign]
        engine.scheduler.process = processed  # type: ignore[method-assign]


@pytest.mark.parametrize("algorithm", ["NGRAM_GPU", "STANDALONE"])
@pytest.mark.parametrize("backend", ["sim", "mlx"])
def test_who_builds_the_ops_waits_for_the_step_in_front(backend: str, algorithm: str) -> None:
    """On MLX shapes are numbers; sim takes lengths from the relay, and waits for nothing."""
    num_waits = 0

    @given(speculative_workloads(algorithm))
    @settings(max_examples=12, deadline=None, derandomize=True)
    def law(workload: Workload) -> None:
        nonlocal num_waits
        flying, spec = InFlight(), ("overlap", "pool", {}, algorithm)
        engine = check_laws(workload, spec, backend, CostModel(), flying.patch)
        marks = waits(engine.device.recorder.trace("", "", "", ""))
        found = {(mark.attrs["reason"], mark.attrs["op"]) for mark in marks}
        assert found <= {("speculation", "forward")}
        steps = [mark.attrs["step"] for mark in marks]
        assert steps == (flying.steps if backend == "mlx" else [])
        num_waits += len(flying.steps)

    law()
    assert num_waits > 12, "otherwise nothing was in flight"


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


@pytest.mark.parametrize("accepted", range(4))
@pytest.mark.parametrize("room", range(1, 6))
def test_a_draft_counts_as_accepted_once_its_request_has_it(accepted: int, room: int) -> None:
    """The step's own token is no draft; what comes behind the request's last token is nobody's."""
    config = SchedulerConfig(speculative_algorithm="NGRAM_GPU", speculative_num_draft_tokens=3)
    scheduler = Scheduler(config, Recorder())
    params = SamplingParams(max_new_tokens=1 + room, ignore_eos=True)
    scheduler.receive([Request("r", [1, 2], params)])
    prompt = scheduler.next_batch()
    assert prompt
    scheduler.process(prompt, Result([5], num_accepted_tokens=[1], drafts=[6, 7, 8]))
    verify = scheduler.next_batch()
    assert verify
    (carried,) = verify.sample_lens
    got = min(accepted, carried - 1) + 1
    outputs = scheduler.process(
        verify, Result([6] * carried, num_accepted_tokens=[got], drafts=[6, 7, 8])
    )
    marks = scheduler.recorder.trace("", "", "", "").marks
    found = [(m.attrs["drafts"], m.attrs["accepted"]) for m in marks if m.name == "verified"]
    assert found == ([(carried - 1, len(outputs) - 1)] if carried > 1 else [])


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


def test_a_retracted_request_has_no_drafts_in_flight() -> None:
    """Those of its old lease come back to nobody, and must not reserve memory for ever."""
    req = Request("r", [1, 2])
    req.num_draft_tokens, req.num_draft_tokens_in_flight, req.spec_token_ids = 3, 6, [1, 1, 1]
    req.restart()
    assert (req.num_draft_tokens_in_flight, req.spec_token_ids) == (0, [])
    assert req.reach == req.device_len + 3


@pytest.mark.parametrize("depth", range(2, 10))
@pytest.mark.parametrize("algorithm", ["NGRAM_GPU", "STANDALONE"])
@pytest.mark.parametrize("name", ["sim", "mlx"])
def test_where_the_host_builds_the_ops_any_number_of_steps_may_be_in_flight(
    name: str, algorithm: str, depth: int
) -> None:
    """Prompt after prompt goes before who decodes: a token is unread for up to ``depth`` steps."""
    device = open_device(name)
    device.built_by_host = True  # so does ``sim`` for once
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    requests = [Request(f"r{i}", [(7 * i + at) % 250 for at in range(8)], params) for i in range(8)]
    config = SchedulerConfig(
        chunked_prefill_size=8, speculative_algorithm=algorithm, speculative_num_draft_tokens=2,
        speculative_draft_model_path="hash:10" if algorithm == "STANDALONE" else "",
        disable_radix_cache=True,
    )  # fmt: skip
    model = load(*HASH[name], "a test")(257)
    run = run_loop("vllm_async", device, model, requests, config, relay="pool", depth=depth)
    assert not run.errors
    for req in requests:
        assert (
            req.output_ids
            == hash_oracle(list(req.prompt), params, req.sampling_key, 257, frozenset()).tokens
        )


def test_a_token_that_no_launched_step_brings_is_an_error_and_never_a_zero() -> None:
    lease, batch = Lease(3, "a"), ScheduleBatch(2, ForwardMode.TARGET_VERIFY, 0)
    batch.reqs, batch.leases = [Request("a", [1], num_draft_tokens=1)], [lease]
    batch.starts, batch.ids, batch.delivers = [1], [(None, None)], [True]
    with pytest.raises(
        RuntimeError, match=r"step 2 wants a token of 'a' \(row 3\) that no launched"
    ):
        UnreadSteps().fill(batch)
