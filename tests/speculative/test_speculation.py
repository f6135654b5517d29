"""Drafters, which say the same whatever was rejected before and whoever had the row before; what is
made of drafts: what a step accepts, what that is worth, what waits, who is refused.

That drafts never change a token is judged by ``tests/laws/test_every_design.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.case import Case
from minisched.checks.causes import waits
from minisched.checks.judge import judge
from minisched.checks.many import case_of
from minisched.checks.oracle import hash_logits
from minisched.core import (
    ForwardMode,
    Lease,
    Request,
    Result,
    SamplingParams,
    ScheduleBatch,
)
from minisched.devices.base import Device
from minisched.devices.cost import SIM_COST
from minisched.devices.registry import open_device
from minisched.engine.engine import Engine
from minisched.features.logprobs import logprobs_of
from minisched.loops.design import LOOPS
from minisched.loops.run import Run, fresh, run_loop
from minisched.models.base import Model, flatten, make_forward_batch
from minisched.models.hash import HashModel
from minisched.models.registry import open_model
from minisched.relay import CARRIERS
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.scheduler.config import ALGORITHMS
from minisched.scheduler.verify import Drafts, VerifyResult
from minisched.speculative.draft_model import check_fits, open_draft_model, open_hash_draft
from minisched.speculative.lookup import MAX_N, MIN_N, propose
from minisched.trace import Recorder
from tests.support import EVERY_BACKEND, Workload, hash_model, many, no_rows, play, tokens

Oracle = Callable[[list[int], int], list[int]]


def alone(model: Model, device: Device) -> Oracle:
    num_slots = 80
    model.allocate(device, num_slots, num_slots)
    page_table = device.memory("page table", 2 * num_slots)
    page_table[device.xp.asarray(range(num_slots, 2 * num_slots))] = device.xp.asarray(
        range(num_slots)
    )

    @cache
    def next_token(text: tuple[int, ...]) -> int:
        batch = no_rows(1, ForwardMode.EXTEND, 1)
        batch.reqs, batch.leases = [Request("alone", text)], [Lease(1)]
        batch.starts, batch.ids = [0], [text]
        flat = flatten(batch, list(text), [1], num_slots, 1)
        inputs = make_forward_batch(flat, device.xp, model.pad_to)
        token: int = model.sample(model.forward(inputs, inputs.ids, page_table), inputs).tolist()[0]
        return token

    def drafts(text: list[int], count: int) -> list[int]:
        found = list(text)
        for _ in range(count):
            found.append(next_token(tuple(found)))
        return found[len(text) :]

    return drafts


# -- prompt lookup ---------------------------------------------------------------------------------

histories = st.integers(1, 3).flatmap(  # letters in the alphabet
    lambda letters: st.lists(st.integers(0, letters - 1), min_size=1, max_size=24)
)


@given(history=histories, count=st.integers(1, 6))
def test_a_lookup_finds_the_longest_suffix_and_its_latest_occurrence(
    history: list[int], count: int
) -> None:
    length = len(history)
    occurrences = [
        (n, start)
        for n in range(MIN_N, MAX_N + 1)
        for start in range(length - n)
        if history[start : start + n] == history[length - n :]
    ]
    text = list(history)
    if occurrences:
        n, start = max(occurrences)
        for at in range(start + n, start + n + count):
            text.append(text[at])  # what followed, and then what was drafted
    assert propose(history, count) == text[length:]


# -- drafts are of the settled tokens alone --------------------------------------------------------


class Watched:
    """Holds every draft of a run against an oracle: of nothing rejected, and of no other's row."""

    def __init__(self, oracle: Oracle, context_len: int) -> None:
        self.oracle, self.context_len, self.seen = oracle, context_len, 0

    def patch(self, engine: Engine) -> None:
        process, k = engine.scheduler.process, engine.scheduler.config.num_draft_tokens

        def checked(batch: ScheduleBatch, result: Result) -> Any:
            outputs = process(batch, result)
            for at, row in enumerate(batch.rows):
                going = row.req.lease is row.lease and not row.req.finished
                drafts = result.drafts if isinstance(result, VerifyResult) else ()
                if drafts and row.deliver and going:
                    settled = row.req.computed_len - row.req.num_output_placeholders
                    assert settled == row.req.known_len - 1, "vLLM's invariant"
                    text = list(row.req.known_tokens(0, row.req.known_len))
                    used = min(k, self.context_len + 1 - len(text))  # others have no place to go
                    assert drafts[at * k : at * k + used] == self.oracle(text, used), text
                    self.seen += used
            return outputs

        engine.scheduler.process = checked  # type: ignore[method-assign]


@EVERY_BACKEND
@pytest.mark.parametrize(("algorithm", "first"), [("NGRAM_GPU", 5), ("STANDALONE", 7)])
def test_drafts_are_what_a_drafter_says_of_the_settled_tokens_alone(
    backend: str, algorithm: str, first: int
) -> None:
    seen = 0
    for seed in range(first, first + 8 * many(2, 24), 8):
        case = case_of(seed, "overlap:pool", backend)
        config, vocab_size = case.workload.config, case.workload.vocab_size
        assert config.speculative_algorithm == algorithm
        with closing(open_device("sim")) as sim:
            oracle: Oracle = looked_up
            if algorithm == "STANDALONE":
                agree = int(config.speculative_draft_model_path.partition(":")[2])
                oracle = alone(open_hash_draft("sim", HashModel(vocab_size), agree), sim)
            watched = Watched(oracle, config.context_len)
            verdict = judge(case, watched.patch)
        assert verdict.holds, (seed, verdict.findings)
        seen += watched.seen
    assert seen > 10


def looked_up(text: list[int], count: int) -> list[int]:
    return propose(text, count) or [text[-1]] * count


@pytest.fixture(scope="module", params=["thread", "mlx"])
def llama(request: pytest.FixtureRequest, kinds: dict[str, Path]) -> tuple[str, Any]:
    return request.param, open_model(str(kinds["qwen3 scaled"]), request.param)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_llama_drafts_from_the_settled_tokens_alone_and_verifies_to_the_bit(
    llama: tuple[str, Any], layers: int
) -> None:
    backend, model = llama
    told = []
    for algorithm in ("", "STANDALONE"):
        params = tokens(12, return_logprob=True, top_logprobs_num=4)
        prompts = [[5, 6, 7], [9] * 11, [5, 6, 7, 1, 2, 3, 4], [3]]
        requests = [Request(f"r{at}", prompt, params) for at, prompt in enumerate(prompts)]
        config = SchedulerConfig(
            kv_tokens=90, page_size=2, chunked_prefill_size=4, context_len=64,
            schedule_conservativeness=0.0, speculative_algorithm=algorithm,
            speculative_num_draft_tokens=3,
            speculative_draft_model_path=f"first_layers:{layers}" if algorithm else "",
        )  # fmt: skip
        workload = Workload(requests, [0, 0, 2, 5], {}, config)
        with closing(open_device(backend)) as device:
            watched = Watched(alone(model.first_layers(layers), device), 64)
            play(workload, "overlap", "pool", {}, open_device(backend), model, patch=watched.patch)
        assert watched.seen > 20 or not algorithm
        told.append([(req.output_ids, logprobs_of(req)) for req in requests])
    assert told[0] == told[1]


# -- draft models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("agree", [0, 3, 7, 10])
def test_a_hash_draft_agrees_as_often_as_it_was_told(agree: int) -> None:
    target, rnd, tries = HashModel(257), Random(0), 400
    texts = [[rnd.randrange(257) for _ in range(rnd.randint(1, 20))] for _ in range(tries)]
    with closing(open_device("sim")) as device:
        draft = alone(open_hash_draft("sim", target, agree), device)
        right = [draft(text, 1)[0] for text in texts]
    chosen = [max(range(257), key=hash_logits(text, 257).__getitem__) for text in texts]
    hits = sum(a == b for a, b in zip(right, chosen, strict=True))
    assert abs(hits / tries - agree / 10) < 0.06, "and one in 257 by chance"
    assert hits == tries or agree < 10


def test_as_many_first_layers_as_there_are_are_the_model(llama: tuple[str, Any]) -> None:
    backend, model = llama
    text = [Random(1).randrange(512) for _ in range(30)]
    with closing(open_device(backend)) as device:
        whole = alone(model, device)(text, 20)
        assert alone(model.first_layers(1), device)(text, 20) != whole
        assert alone(model.first_layers(2), device)(text, 20) == whole


# -- what it is worth, and what waits --------------------------------------------------------------


def speculating(algorithm: str, draft_model: str = "", **settings: Any) -> SchedulerConfig:
    return SchedulerConfig(
        speculative_algorithm=algorithm, speculative_draft_model_path=draft_model, **settings
    )


def run_one(loop: str, config: SchedulerConfig, backend: str = "sim") -> Run:
    relay = next(name for name in ("pool", "host") if name in LOOPS[loop].relays)
    requests, device = [Request("r", [1, 2, 3, 4, 5], tokens(25))], open_device(backend)
    model = hash_model(backend, frozenset()) if backend != "sim" else HashModel()
    return run_loop(loop, device, model, requests, config, SIM_COST, relay)


@pytest.mark.parametrize(("loop", "steps"), [("serial", 5), ("overlap", 6)])
def test_a_draft_model_that_is_the_target_is_always_right(loop: str, steps: int) -> None:
    run = run_one(loop, speculating("STANDALONE", "hash:10"))
    modes = [item.mode for item in run.trace.slices if item.name == "forward"]
    assert modes == [ForwardMode.EXTEND.value] + [ForwardMode.TARGET_VERIFY.value] * steps
    drafts = {item.mode for item in run.trace.slices if item.name == "draft"}
    assert drafts == {ForwardMode.DRAFT_EXTEND.value} and len(run.outputs["r"]) == 25


def test_a_repeating_text_is_looked_up() -> None:
    request = Request("r", [1] * 5, tokens(25, logit_bias={0: -100.0}))
    model = HashModel(2, eos_ids=frozenset())
    run = run_loop("serial", open_device("sim"), model, [request], speculating("NGRAM"))
    steps = [item for item in run.trace.slices if item.name == "forward"]
    assert len(steps) == 1 + 5 and run.outputs["r"] == [1] * 25


def test_overlap_looks_up_after_the_tokens_of_the_step_in_flight() -> None:
    """They are processed during the forward pass. The last step is wasted, as drafts ended r."""
    request = Request("r", [1] * 5, tokens(25, logit_bias={0: -100.0}))
    model = HashModel(2, eos_ids=frozenset())
    run = run_loop("overlap", open_device("sim"), model, [request], speculating("NGRAM"), SIM_COST)
    forwards = [item for item in run.trace.slices if item.name == "forward"]
    assert len(forwards) == 1 + 5 + 1 and run.outputs["r"] == [1] * 25
    copies = {item.step: item.end for item in run.trace.slices if item.name == "copy"}
    launches = {item.step: item.start for item in run.trace.slices if item.name == "launch"}
    processed = {item.step: item for item in run.trace.slices if item.name == "process"}
    marks = [(it.attrs["reason"], it.attrs["op"], it.attrs["step"]) for it in waits(run.trace)]
    assert marks == [("speculation", "forward", item.step) for item in forwards[1:]]
    for item in forwards[1:]:
        assert copies[item.step - 1] < launches[item.step] < processed[item.step - 1].start
        assert processed[item.step - 1].start < item.end


@pytest.mark.parametrize("algorithm", ["NGRAM_GPU", "STANDALONE"])
def test_a_mixed_step_has_one_token_for_each_decode_and_the_others_have_drafts(
    algorithm: str,
) -> None:
    config = speculating(algorithm, "hash:7" if algorithm == "STANDALONE" else "")
    config = replace(config, chunked_prefill_size=8, kv_tokens=400)
    requests = [
        Request("a", [1, 2, 3], tokens(40)),
        Request("b", range(50, 90), tokens(9), arrival_time=60 * 10**6),
    ]
    runs = {
        loop: run_loop(
            loop, open_device("sim"), HashModel(), [*map(fresh, requests)], config, SIM_COST
        )
        for loop in ("serial", "mixed")
    }
    assert runs["mixed"].outputs == runs["serial"].outputs
    trace = runs["mixed"].trace
    modes = {item.step: item.mode for item in trace.slices if item.name == "forward"}
    mixed = {step for step, mode in modes.items() if mode == ForwardMode.MIXED.value}
    verified = {int(mark.attrs["step"]) for mark in trace.marks if mark.name == "verified"}
    assert len(mixed) > 3 and verified and not mixed & verified


@pytest.mark.parametrize("room", range(1, 6))
def test_a_draft_counts_as_accepted_once_its_request_has_it(room: int) -> None:
    for accepted in range(4):
        config = speculating("NGRAM_GPU", speculative_num_draft_tokens=3)
        scheduler = Scheduler(config, Recorder(), [Drafts(3)])
        scheduler.receive([Request("r", [1, 2], tokens(1 + room))])
        prompt = scheduler.next_batch()
        assert prompt
        scheduler.process(prompt, VerifyResult([5], num_accepted_tokens=[1], drafts=[6, 7, 8]))
        verify = scheduler.next_batch()
        assert verify
        (carried,) = verify.sample_lens
        got = min(accepted, carried - 1) + 1
        result = VerifyResult([6] * carried, num_accepted_tokens=[got], drafts=[6, 7, 8])
        outputs = scheduler.process(verify, result)
        marks = scheduler.recorder.marks
        found = [(m.attrs["drafts"], m.attrs["accepted"]) for m in marks if m.name == "verified"]
        assert found == ([(carried - 1, len(outputs) - 1)] if carried > 1 else [])
        assert len(outputs) == min(got, room)


@pytest.mark.parametrize("algorithm", ["NGRAM_GPU", "STANDALONE"])
@pytest.mark.parametrize("backend", ["sim", "mlx"])
def test_who_builds_the_ops_waits_for_the_step_in_front(backend: str, algorithm: str) -> None:
    config = speculating(algorithm, "hash:7" if algorithm == "STANDALONE" else "")
    trace = run_one("overlap", config, backend=backend).trace
    verified = [item.step for item in trace.on("forward") if item.name == "forward"][1:]
    marks = [(it.attrs["reason"], it.attrs["op"], it.attrs["step"]) for it in waits(trace)]
    expected = [("speculation", "forward", step) for step in verified]
    assert marks == (expected if backend == "mlx" else []) and len(verified) > 5


# -- refusals --------------------------------------------------------------------------------------

REFUSED = {
    "": "STANDALONE needs a draft model: ",
    "hash:11": "agrees on 11 of 10 tokens; it must be 0 to 10.",
    "hash:most": "'most' is no whole number.",
    "first_layers:2": "hash can't be cut in two.",
    "nowhere": "model 'nowhere' can't run on device 'sim'",
}


@pytest.mark.parametrize("path", REFUSED)
def test_a_draft_model_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[path]):
        open_draft_model(path, "sim", HashModel())


def test_a_draft_model_that_does_not_fit_is_refused(llama: tuple[str, Any]) -> None:
    with pytest.raises(ValueError, match="of 19 tokens and the target hash one of 257; they must"):
        check_fits(HashModel(19), HashModel(257), 100)
    with pytest.raises(ValueError, match="has a context of 100 tokens, but steps reach 101"):
        check_fits(HashModel(context_len=100), HashModel(), 101)
    check_fits(HashModel(context_len=100), HashModel(), 100)
    backend, model = llama
    for path in ("first_layers:0", "first_layers:3", "first_layers:", "first_layers:-1"):
        with pytest.raises(ValueError, match=f"^the draft model is '{path}', .* layers 1 to 2"):
            open_draft_model(path, backend, model)
    config = speculating("STANDALONE", "hash", context_len=100)
    with pytest.raises(ValueError, match="the draft model hash has a vocabulary of 257 tokens"):
        run_loop("serial", open_device(backend), model, [Request("r", [1])], config)


@pytest.mark.parametrize("backend", ["thread", "mlx"])
def test_a_draft_model_computes_in_its_targets_dtype(backend: str, kinds: dict[str, Path]) -> None:
    target = open_model(str(kinds["llama"]), backend, "bfloat16")
    assert open_draft_model(str(kinds["qwen2"]), backend, target).dtype == "bfloat16"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_an_original_refuses_is_refused_with_its_reason(algorithm: str) -> None:
    config, refusing = speculating(algorithm, chunked_prefill_size=8), 0
    for loop, spec in LOOPS.items():
        if algorithm not in spec.refuses:
            assert set(spec.relays) & set(CARRIERS)
            continue
        refusing += 1
        with pytest.raises(ValueError, match="does not speculate with") as caught:
            run_loop(loop, open_device("sim"), HashModel(), [Request("r", [1])], config)
        assert spec.refuses[algorithm] in str(caught.value) and "\n" not in str(caught.value)
    assert 0 < refusing < len(LOOPS)


def test_a_request_that_drafts_would_carry_past_the_pool_is_refused_alone() -> None:
    requests = [Request("long", [1] * 8, tokens(10)), Request("short", [1] * 4, tokens(10))]
    config = speculating("STANDALONE", "hash:7", kv_tokens=18)
    run = run_loop("overlap", open_device("sim"), HashModel(), requests, config, relay="pool")
    assert set(run.errors) == {"long"} and len(run.outputs["short"]) == 10


# -- a wasted row whose lease is released before its step is laid out ------------------------------


def test_a_wasted_row_writes_into_its_own_positions_whenever_its_step_is_laid_out() -> None:
    """Its length came from the lease: released by then, it had none, and the row began too early.

    There it overwrote a page of the prefix cache, which the second request reads.
    """
    regex = r"(?:(?:(?:[\x00-\x02](?:[\x02-\x02]|(?:[\x02-\x02])?)(?:[\x02-\x02]){2})?|" + (
        r"(?:[\x00-\x02]){1,3})){2}"
    )
    first = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 2, 1, 2, 2]
    requests = [
        Request("r2", first, SamplingParams(0.7, seed=1, max_new_tokens=4, regex=regex)),
        Request("r3", [*first, 1, 0, 1], SamplingParams(max_new_tokens=5)),
    ]
    workload = Workload(requests, [0, 4], {}, speculating("NGRAM_GPU"), vocab_size=3)
    options = {"supports_grammar_overlap": False}
    case = Case(workload, "overlap_pool_indexed", "pool", options, SIM_COST)
    assert judge(case).findings == ()
