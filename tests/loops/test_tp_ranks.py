"""Tensor parallelism on two processes: one rank's tokens to the bit, and nobody decides apart."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from random import Random

import pytest

pytest.importorskip("torch")

from minisched.checks.leaks import find_leaks
from minisched.checks.races import find_races
from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.dist import Ranks, WrongRanks, started
from minisched.devices.registry import open_device
from minisched.engine.engine import Engine
from minisched.engine.ranks import RanksDisagree
from minisched.loops.design import SPLIT, find_loop
from minisched.loops.run import Run, fresh, run_loop
from minisched.models.llama import write_tiny_llama
from minisched.models.registry import open_model
from minisched.museum import find as find_exhibit
from minisched.museum.patch import put_in
from minisched.scheduler import SchedulerConfig
from tests.devices import dist_parts as parts
from tests.devices.killed_ranks import DEADLINE, SLACK, trials
from tests.support import check_trace, many, prompt


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three blocks for two ranks."""
    more = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}
    return str(write_tiny_llama(tmp_path_factory.mktemp("split"), more=more))


def draw(seed: int) -> tuple[list[Request], SchedulerConfig]:
    """Requests that come while others run, and a pool that hardly holds the longest."""
    rng = Random(seed)
    requests = []
    for number in range(rng.randint(2, 8)):
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.9]), max_new_tokens=rng.randint(1, 16), seed=seed,
            return_logprob=True, top_logprobs_num=3,
        )  # fmt: skip
        text = prompt(number + seed, rng.randint(1, 70))
        requests.append(Request(f"r{number}", text, params, rng.randrange(60_000_000)))
    page = rng.choice([1, 4, 16])
    longest = max(req.max_device_len for req in requests)
    pages = -(-longest // page) + rng.randint(1, 20)
    return requests, SchedulerConfig(
        kv_tokens=pages * page, page_size=page, max_running_requests=rng.randint(1, 6),
        chunked_prefill_size=page * rng.randint(1, 8), context_len=128,
    )  # fmt: skip


def run(loop: str, device: str, folder: str, seed: int) -> Run:
    requests, config = draw(seed)
    model = open_model(folder, "dist", split=True)
    return run_loop(loop, open_device(device), model, map(fresh, requests), config)


@pytest.mark.thorough
def test_two_ranks_give_the_bits_of_one(llama: str) -> None:
    with started(2):
        for seed in range(many(4, 30)):
            loop = SPLIT[seed % len(SPLIT)]
            one, two = run(loop, "thread", llama, seed), run(f"{loop}:tp=2", "dist", llama, seed)
            assert two.outputs == one.outputs, seed
            assert two.errors == one.errors == {}
            for here, there in zip(two.requests, one.requests, strict=True):
                assert here.output_token_logprobs == there.output_token_logprobs  # all floats
            check_trace(two.trace)
            assert not find_races(two.trace)
            assert not find_leaks(two.trace)


def everywhere(ranks: Ranks, stack: ExitStack) -> None:
    """A set of requests in the place of a dict, which each rank has in the order of its memory."""
    ranks.call(parts.put_bug_in, "ranks_disagree")
    stack.enter_context(put_in(find_exhibit("ranks_disagree").edits))


def on_rank_1(ranks: Ranks, stack: ExitStack) -> None:
    """One rank that hears of requests by its own time."""
    ranks.call(parts.go_by_own_clock)


@pytest.mark.thorough
@pytest.mark.parametrize("bug", [everywhere, on_rank_1])
def test_ranks_that_decide_apart_are_found_out_before_anything_is_wrong(
    bug: Callable[[Ranks, ExitStack], None], llama: str
) -> None:
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    requests = [Request(f"r{at}", prompt(at, 5), params, at * 20_000_000) for at in range(8)]
    with ExitStack() as stack:
        ranks = stack.enter_context(started(2, 10.0))
        bug(ranks, stack)
        with pytest.raises(RanksDisagree, match=r"rank 1 disagrees with rank 0 in step \d+: the "):
            run_loop("overlap:tp=2", open_device("dist"), open_model(llama, "dist", split=True),
                     requests)  # fmt: skip
    model, again = open_model(llama, "dist", split=True), [fresh(req) for req in requests]
    alone = run_loop("overlap", open_device("thread"), model, again).outputs
    for req in requests:  # what was said before is right
        assert req.output_ids == alone[req.rid][: len(req.output_ids)]


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "count"), [(signal.SIGKILL, 12), (signal.SIGSTOP, 3)])
def test_when_a_rank_dies_or_stalls_everybody_ends_in_time_and_with_a_reason(
    how: signal.Signals, count: int
) -> None:
    """``python -m tests.devices.killed_ranks 200`` does it as often as you like."""
    lost = 0
    for trial in trials(count, how):
        assert list(trial.problems()) == [], trial
        if trial.moment >= 0:
            lost += 1
            assert trial.took < 2 * DEADLINE + SLACK
        else:
            assert all(
                {reason for _, reason, _ in report.requests} <= {FinishReason.LENGTH.value}
                for report in trial.reports.values()
            )
    assert lost > count / 2


@pytest.mark.thorough
@pytest.mark.parametrize("loop", ["vllm_pp2", "pd", "serial:tp=2"])
def test_a_run_that_goes_wrong_on_rank_0_ends_the_others(
    loop: str, llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_wrong(engine: Engine, *args: object) -> None:
        raise ZeroDivisionError("wrong")

    monkeypatch.setattr(Engine, "process_result", go_wrong)
    with started(2, 10.0) as ranks:
        model = open_model(llama, "dist", split=":tp=" in loop)
        requests, config = draw(0)
        for req in requests:
            req.params = SamplingParams(max_new_tokens=4)
        with pytest.raises(ZeroDivisionError):
            run_loop(loop, open_device("dist"), model, requests, config)
        ranks.processes[0].wait(10.0)


def test_what_can_not_be_split_says_why(llama: str) -> None:
    for name, words in {
        "overlap:tp=1": "tp of loop 'overlap' is '1', but it must be at least 2",
        "pd:tp=2": "loop 'pd' can't be split over ranks, which must all decide alike",
        "overlap_thread:tp=2": "can't be split over ranks",
    }.items():
        with pytest.raises(ValueError, match=words):
            find_loop(name)
    with pytest.raises(ValueError, match="'overlap:tp=2' does not run on device 'sim': it takes"):
        find_loop("overlap:tp=2").check_device("overlap:tp=2", "sim")
    with pytest.raises(ValueError, match="'hash' can't be split"):
        open_model("hash", "dist", split=True)
    with pytest.raises(WrongRanks, match="torchrun"):
        open_device("dist")
