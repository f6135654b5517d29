"""Log-probabilities: what a request gets does not depend on who runs beside it, or when."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.tokens.logprobs import largest_difference
from minisched.core import Output, Request, SamplingParams, TokenLogprob
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.models.length import LengthModel
from minisched.scheduler import SchedulerConfig
from tests.logprob_laws import check_logprobs, with_logprobs
from tests.pd_runs import check_pd, links, play_pd, timed
from tests.support import (
    EVERY_LOOP,
    LOOP_OPTIONS,
    SOME_LOOP_OPTIONS,
    SOME_LOOPS,
    VOCAB,
    Workload,
    check_all,
    check_ends,
    check_no_thread_left,
    hash_model,
    in_real_time,
    open_device,
    params_with_history,
    play,
    workloads,
)
from tests.test_laws import costs
from tests.test_speculation import SPECULATIVE, speculative_workloads, target
from tests.test_speculation import VOCAB as FEW
from tests.vllm_runs import marks

IN_REAL_TIME = [item for item in LOOP_OPTIONS if item in SOME_LOOP_OPTIONS or "vllm" in item[0]]


# -- the law -------------------------------------------------------------------------------------


@EVERY_LOOP
@given(workload=with_logprobs(), cost=costs)
@settings(max_examples=20, deadline=None)
def test_every_schedule_gives_the_same_on_sim(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, cost: CostModel
) -> None:
    model = hash_model("sim", workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, SimDevice(), model, cost)
    check_all(workload, engine, outputs)
    check_logprobs(workload, outputs)


@given(workload=with_logprobs(workloads(params=params_with_history)))
@settings(max_examples=30, deadline=None)
def test_they_are_the_models_own_whatever_adjusts_its_logits(workload: Workload) -> None:
    model = hash_model("sim", workload.eos_ids)
    _, outputs = play(workload, "serial", "host", {}, SimDevice(), model)
    check_logprobs(workload, outputs)


@in_real_time(IN_REAL_TIME)
@given(workload=with_logprobs())
@settings(max_examples=20, deadline=None)
def test_every_schedule_gives_the_same_in_real_time(
    backend: str, loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    model = hash_model(backend, workload.eos_ids)
    _, outputs = play(workload, loop, relay, options, open_device(backend), model)
    check_logprobs(workload, outputs, backend)
    check_no_thread_left()


@pytest.mark.parametrize(("loop", "relay", "options", "algorithm"), SPECULATIVE, ids=str)
@given(data=st.data(), cost=costs)
@settings(max_examples=25, deadline=None)
def test_each_accepted_token_has_its_own(
    loop: str, relay: str, options: dict[str, Any], algorithm: str, data: Any, cost: CostModel
) -> None:
    workload = data.draw(with_logprobs(speculative_workloads(algorithm), FEW))
    model = target("sim", workload.eos_ids)
    _, outputs = play(workload, loop, relay, options, SimDevice(), model, cost)
    check_ends(workload, outputs)
    check_logprobs(workload, outputs, vocab=FEW)


@pytest.mark.parametrize("backend", ["thread", "mlx"])
@pytest.mark.parametrize("algorithm", ["NGRAM", "NGRAM_GPU"])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_each_accepted_token_has_its_own_in_real_time(
    backend: str, algorithm: str, data: Any
) -> None:
    loop, relay = ("serial", "host") if algorithm == "NGRAM" else ("overlap", "pool")
    workload = data.draw(with_logprobs(speculative_workloads(algorithm), FEW))
    model = target(backend, workload.eos_ids)
    _, outputs = play(workload, loop, relay, {}, open_device(backend), model)
    check_logprobs(workload, outputs, backend, FEW)


@given(workload=with_logprobs(timed), options=links)
@settings(max_examples=50, deadline=None)
def test_pd_sends_the_prompts_with_the_kv(workload: Workload, options: dict[str, Any]) -> None:
    run = play_pd(workload, options)
    check_pd(workload, run)
    check_logprobs(workload, run.outputs)


# -- where they could be lost, or come twice -----------------------------------------------------


def wanting(rid: str, prompt: list[int], start: int = -1, top: int = 0, count: int = 6) -> Request:
    """A request that wants log-probabilities."""
    params = SamplingParams(
        max_new_tokens=count, ignore_eos=True,
        return_logprob=True, logprob_start_len=start, top_logprobs_num=top,
    )  # fmt: skip
    return Request(rid, prompt, params)


def hits(device: SimDevice, rid: str) -> list[int]:
    """What the prefix cache gave a request, each time that it was admitted."""
    found = device.recorder.trace("", "", "", "").marks
    return [mark.attrs["hit_len"] for mark in found
            if mark.name == "admit" and mark.attrs["rid"] == rid]  # fmt: skip


@pytest.mark.parametrize(("start", "hit"), [(-1, 11), (0, 0), (5, 5), (11, 11)])
@pytest.mark.parametrize("page_size", [1, 2])
def test_a_cached_prefix_ends_where_logits_are_wanted(start: int, hit: int, page_size: int) -> None:
    prompt = [7, 7, 11, 2, 7, 7, 11, 5, 3, 3, 1, 4]
    first, second = Request("first", prompt), wanting("second", prompt, start)
    second.arrival_time = 10**9
    config = SchedulerConfig(page_size=page_size, chunked_prefill_size=page_size * 100)
    device, heard = SimDevice(), list[Output]()
    cost = CostModel({"schedule": 1}, forward_base=1)
    run_loop("overlap", device, HashModel(VOCAB), [first, second], config, cost,
             on_output=heard.append)  # fmt: skip
    assert hits(device, "second") == [hit // page_size * page_size]
    check_logprobs(Workload([second], [0], {}, config), heard)
    assert len(second.input_token_logprobs) == (0 if start < 0 else len(prompt) - start)


def two_in_a_pool_for_one(chunk: int, kv_tokens: int, cached: bool) -> Workload:
    """Both decode until the pool is full; then the newer one loses its memory."""
    requests = [wanting("old", [1, 2, 3], 0, 2, 14), wanting("new", list(range(12)), 1, 1, 10)]
    config = SchedulerConfig(
        kv_tokens=kv_tokens, schedule_conservativeness=0.0, context_len=32,
        chunked_prefill_size=chunk, disable_radix_cache=not cached,
    )  # fmt: skip
    return Workload(requests, [0, 0], {}, config)


@SOME_LOOPS
@pytest.mark.parametrize("cached", [True, False])
def test_a_prompt_that_is_computed_again_is_told_once(
    loop: str, relay: str, options: dict[str, Any], cached: bool
) -> None:
    workload = two_in_a_pool_for_one(4, 30, cached)
    device = SimDevice()
    _, outputs = play(workload, loop, relay, options, device, hash_model("sim", frozenset()))
    assert marks(device, "retraction")["new"] >= 1
    assert len(hits(device, "new")) > 3, "it started again, after the three chunks of its prompt"
    check_logprobs(workload, outputs)
    if cached:
        assert hits(device, "new")[3] > 1, "nothing is missing any more, so nothing is limited"


@pytest.mark.parametrize(
    ("loop", "relay"), [("serial", "host"), ("overlap", "pool"), ("vllm_async", "pool")]
)
def test_a_prompt_that_loses_its_memory_between_two_chunks_goes_on_where_it_was(
    loop: str, relay: str
) -> None:
    """Unified: the old one needs a page, and takes the chunks of the new one."""
    requests = [wanting("old", [1, 2], 0, 0, 12), wanting("new", list(range(10)), 2, 1, 2)]
    config = SchedulerConfig(
        kv_tokens=14, context_len=16, chunked_prefill_size=2, run_first="unified",
        disable_radix_cache=True,
    )  # fmt: skip
    workload, seen = Workload(requests, [0, 3], {}, config), list[int]()

    def look(engine: Any) -> None:
        retract = engine.scheduler.retraction.retract

        def spy(victim: Request, reason: str) -> None:
            seen.append(len(victim.input_token_logprobs))
            retract(victim, reason)

        engine.scheduler.retraction.retract = spy

    model = hash_model("sim", frozenset())
    _, outputs = play(workload, loop, relay, {}, SimDevice(), model, patch=look)
    assert any(0 < count < 8 for count in seen), "some were known, and some were not"
    check_logprobs(workload, outputs)


@SOME_LOOPS
def test_who_wants_nothing_pays_nothing(loop: str, relay: str, options: dict[str, Any]) -> None:
    device = SimDevice()
    requests = [Request(f"r{i}", [1, 2, i], SamplingParams(max_new_tokens=4)) for i in range(3)]
    run_loop(loop, device, HashModel(VOCAB), requests, relay=relay, **options)
    names = {item.name for item in device.recorder.trace("", "", "", "").slices}
    assert "copy" in names and not any("logprobs" in name for name in names)


def test_only_steps_with_somebody_who_wants_some_compute_them() -> None:
    device = SimDevice()
    requests = [Request("plain", [1, 2], SamplingParams(max_new_tokens=9, ignore_eos=True)),
                wanting("wants", [3, 4], count=3)]  # fmt: skip
    run_loop("overlap", device, HashModel(VOCAB), requests)
    trace = device.recorder.trace("", "", "", "")
    asked = {item.step for item in trace.on("forward")
             if item.name == "forward" and "wants" in item.rids}  # fmt: skip
    for name in ("logprobs", "copy logprobs"):
        assert {item.step for item in trace.slices if item.name == name} == asked
    assert len(asked) == 4, "one of them wasted"


# -- what can't be asked for ---------------------------------------------------------------------

ON = {"return_logprob": True}
BAD = [
    ({"top_logprobs_num": -1, **ON}, "top_logprobs_num is -1, but it must be at least 0."),
    ({"top_logprobs_num": 2}, "top_logprobs_num is 2, but it needs return_logprob, which is off."),
    ({"logprob_start_len": 0}, "logprob_start_len is 0, but it needs return_logprob, which is off"),
    ({"top_logprobs_num": 20, **ON}, "top_logprobs_num is 20, but the vocabulary has only 19 tok"),
    ({"logprob_start_len": -2, **ON}, "logprob_start_len is -2, but it must be at least 0, or -1"),
    ({"logprob_start_len": 3, **ON}, "logprob_start_len is 3, but the prompt has 3 tokens, so it"),
]


@SOME_LOOPS
@pytest.mark.parametrize(("wish", "sentence"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_wish_is_one_sentence_and_disturbs_nobody(
    loop: str, relay: str, options: dict[str, Any], wish: dict[str, Any], sentence: str
) -> None:
    good, heard = wanting("good", [1, 2, 3], 0, VOCAB), list[Output]()
    bad = Request("bad", [4, 5, 6], SamplingParams(**wish))
    run_loop(loop, SimDevice(), HashModel(VOCAB), [bad, good], relay=relay,
             on_output=heard.append, **options)  # fmt: skip
    assert bad.error.startswith(sentence) and bad.error.count(".") == 1 and not bad.output_ids
    check_logprobs(Workload([good], [0], {}, SchedulerConfig()), heard)
    assert len(good.output_token_logprobs) == 6


def test_a_model_without_logits_refuses() -> None:
    requests = [wanting("bad", [1, 2]), Request("good", [3], SamplingParams(max_new_tokens=2))]
    run = run_loop("overlap", SimDevice(), LengthModel(5, 2, 64), requests)
    assert run.errors == {
        "bad": "return_logprob is on, but this model computes no logits to take them from."
    }
    assert len(requests[1].output_ids) == 2


# -- the command line ----------------------------------------------------------------------------


def test_run_shows_them_as_json_under_sglangs_names(cli: Any) -> None:
    line = "run --prompt abc --max-new-tokens 3 --json --return-logprob --top-logprobs-num 2"
    code, out, err = cli(f"{line} --logprob-start-len 1")
    found = json.loads(out)["logprobs"]["r0"]
    assert code == 0 and [token for _, token in found["input_token_logprobs"]] == [98, 99]
    assert found["input_token_logprobs"][0][0] is None and found["input_top_logprobs"][0] == []
    tokens = json.loads(out)["outputs"]["r0"]
    assert [token for _, token in found["output_token_logprobs"]] == tokens
    assert [len(best) for best in found["output_top_logprobs"]] == [2] * 3
    logprob, top = found["output_token_logprobs"][0], found["output_top_logprobs"][0]
    assert top[0] == logprob, "greedy: it is the likeliest"
    assert f"r0 output: {tokens[0]} {logprob[0]:.2f} " in err
    assert "r0 prompt: 98 - 99 -" in err


def test_without_the_wish_nothing_is_said(cli: Any) -> None:
    _, out, err = cli("run --prompt abc --max-new-tokens 3 --json")
    assert "logprobs" not in json.loads(out) and "r0 output" not in err


def test_compare_says_whether_they_are_equal(cli: Any) -> None:
    line = "compare --requests 2 --max-new-tokens 4 --loops overlap --return-logprob"
    code, out, _ = cli(line)
    assert code == 0 and "Their log-probabilities are equal to the last bit." in out
    found = json.loads(cli(f"{line} --json --tokens")[1])
    assert found["logprob_difference"] == 0.0 and len(found["logprobs"]) == 2
    assert "logprob_difference" not in json.loads(cli("compare --requests 2 --json")[1])


def test_a_difference_is_measured_up_to_where_tokens_differ() -> None:
    one, other = wanting("r", [1, 2]), wanting("r", [1, 2])
    one.output_token_logprobs = [TokenLogprob(-1.0, 5), TokenLogprob(-2.0, 6), TokenLogprob(-3, 7)]
    other.output_token_logprobs = [TokenLogprob(-1.5, 5), TokenLogprob(-9.0, 4)]
    assert largest_difference([one], [other]) == 0.5
    assert largest_difference([Request("r", [1])], [Request("r", [1])]) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--top-logprobs-num 2", "--top-logprobs-num is 2, but it needs --return-logprob, which"),
        ("--return-logprob --top-logprobs-num -3", "--top-logprobs-num is -3, but it must be at"),
        ("--return-logprob --logprob-start-len -2", "--logprob-start-len is -2, but it must be at"),
        ("--logprob-start-len 0", "--logprob-start-len is 0, but it needs --return-logprob, which"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(
    cli: Any, options: str, sentence: str
) -> None:
    code, out, err = cli(f"run {options}")
    assert code == 2 and not out and sentence in err
