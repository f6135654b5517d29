"""Loops over several processes: the tokens of one, one trace of all, and a receive per send."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch")

from minisched.checks.leaks import find_leaks
from minisched.checks.races import find_races
from minisched.core import Request, SamplingParams
from minisched.devices.dist import Ranks, WrongRanks, needs, started
from minisched.devices.registry import open_device
from minisched.loops.pp_ranks import BATCH
from minisched.loops.run import Run, fresh, run_loop
from minisched.models.registry import open_model
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.devices.fake_cuda import fake_cuda

LANES = {  # of each loop, those without which it is not on several ranks
    "pd": {"prefill host", "decode host", "prefill forward", "kv transfer", "decode kv recv"},
    "vllm_pp2": {"host", "rank 1 host", "stage 0", "stage 1", "send", "rank 1 send", "copy"},
}


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    with started(2) as ranks:
        yield ranks


def draw(seed: int) -> tuple[list[Request], SchedulerConfig]:
    """A few requests, and a pool that hardly holds the longest."""
    rng = Random(seed)
    requests = []
    for number in range(rng.randint(1, 6)):
        length, new = rng.randint(1, 40), rng.randint(1, 12)
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.8]), max_new_tokens=new, seed=seed,
            return_logprob=rng.random() < 0.2,
        )  # fmt: skip
        prompt = [rng.randrange(256) for _ in range(length)]
        arrival = rng.choice([0, rng.randrange(20_000_000)])
        requests.append(Request(f"r{number}", prompt, params, arrival))
    page = rng.choice([1, 2, 4])
    longest = max(len(req.prompt) + req.params.max_new_tokens for req in requests)
    pages = -(-longest // page) + rng.randint(1, 20)
    return requests, SchedulerConfig(
        kv_tokens=pages * page, page_size=page, max_running_requests=rng.randint(1, 4),
        chunked_prefill_size=page * rng.randint(1, 8),
    )  # fmt: skip


def without_logprobs(requests: list[Request]) -> list[Request]:
    """The same; where stages are ranks, nobody gets log-probabilities."""
    for request in requests:
        request.params = replace(request.params, return_logprob=False)
    return requests


def run(
    loop: str, device: str, model: Any, requests: list[Request], config: SchedulerConfig
) -> Run:
    again = [fresh(request) for request in requests]
    return run_loop(loop, open_device(device), open_model(model, device), again, config)


def check_run(found: Run, expected: Run) -> None:
    """The same tokens, on every lane, and no law of a trace is broken."""
    assert found.outputs == expected.outputs
    assert found.errors == expected.errors
    for lane in {item.lane for item in found.trace.slices}:
        assert all(a.end <= b.start for a, b in pairwise(found.trace.on(lane)))
    assert not find_races(found.trace)
    assert not find_leaks(found.trace)
    lanes = {item.lane for item in found.trace.slices}
    assert lanes >= LANES.get(found.loop, set())
    offset, *_ = [mark for mark in found.trace.marks if mark.name == "clock offset"]
    sent = {edge.src: edge.dst for edge in found.trace.edges if edge.kind == "recv"}
    by_id = {item.id: item for item in found.trace.slices}
    assert sent
    for source, come in sent.items():  # nothing is there before it was sent, as far as is known
        assert by_id[come].end >= by_id[source].start - int(offset.attrs["error"])


def check_law(loop: str, seeds: range) -> None:
    for seed in seeds:
        requests, config = draw(seed)
        requests = requests if loop == "pd" else without_logprobs(requests)
        serial = run("serial", "sim", "hash", requests, config)
        check_run(run(loop, "dist", "hash", requests, config), serial)


@pytest.mark.parametrize("loop", LANES)
def test_two_ranks_give_the_tokens_of_one(two_ranks: Ranks, loop: str) -> None:
    check_law(loop, range(3))


@pytest.mark.thorough
@pytest.mark.parametrize("loop", LANES)
def test_two_ranks_give_the_tokens_of_one_for_many(two_ranks: Ranks, loop: str) -> None:
    check_law(loop, range(100, 120))


@pytest.mark.thorough
def test_four_stages_give_the_tokens_of_one(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "minisched"]
    ask = ["--device", "dist", "--nproc", "4", "--loops", "vllm_pp4", "--requests", "3", "--json"]
    command = [*program, "compare", *ask, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["identical"] is True
    files = [str(tmp_path / f"{loop}.json") for loop in ("serial", "vllm_pp4")]
    subprocess.run([*program, "check", *files], capture_output=True, check=True)


def without_waits(trace: Trace, lane: str) -> Trace:
    """The same, where one lane goes on without waiting for anybody."""
    left = tuple(act for act in trace.program if (act.lane, act.kind) != (lane, "wait"))
    return replace(trace, program=left)


@pytest.mark.parametrize(("loop", "lane"), [("pd", "decode kv recv"), ("vllm_pp2", "copy")])
def test_a_receive_that_waits_for_no_send_is_a_race(two_ranks: Ranks, loop: str, lane: str) -> None:
    requests, config = draw(1)
    trace = run(loop, "dist", "hash", without_logprobs(requests), config).trace
    assert find_races(without_waits(trace, lane))


def test_a_step_that_can_not_be_sent_fails_alone(
    two_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank fills its page table all the same, on which the next step relies."""
    send, sent = Ranks.send, list[int]()

    def fail_once(
        ranks: Ranks, to: int, tag: str, value: Any = None, *rest: Any, **more: Any
    ) -> None:
        if tag == BATCH:
            sent.append(to)
            if len(sent) == 2:
                raise MemoryError("there is none")
        send(ranks, to, tag, value, *rest, **more)

    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    requests = [Request(f"r{at}", [at] * 5, params) for at in range(3)]
    config = SchedulerConfig(chunked_prefill_size=5)  # a step for each prompt
    expected = run("serial", "sim", "hash", requests, config).outputs
    monkeypatch.setattr(Ranks, "send", fail_once)
    found = run("vllm_pp2", "dist", "hash", requests, config)
    assert found.errors.keys() == {"r1"} and "there is none" in found.errors["r1"]
    assert found.outputs == {**expected, "r1": []}


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_llama_on_two_ranks_is_exact_to_the_bit(
    two_ranks: Ranks, tiny_llama: Path, dtype: str
) -> None:
    model = open_model(str(tiny_llama), "dist", dtype)
    for seed in range(5):
        requests, config = draw(seed)
        params = SamplingParams(max_new_tokens=8, ignore_eos=True)
        requests = [Request(req.rid, [t % 100 for t in req.prompt], params) for req in requests]
        config = replace(config, kv_tokens=256)
        runs = [
            run_loop(loop, open_device("dist"), model, [fresh(req) for req in requests], config)
            for loop in ("serial", *LANES)
        ]
        for other in runs[1:]:
            check_run(other, runs[0])


def test_what_ranks_can_not_do_is_one_sentence(two_ranks: Ranks) -> None:
    requests, config = draw(0)
    model = open_model("hash", "dist")
    with pytest.raises(ValueError, match="latency of loop 'pd' is for the simulated link"):
        run_loop("pd", open_device("dist"), model, requests, config, latency=5)
    with pytest.raises(WrongRanks, match="loop 'pd' needs 3 ranks, but there are 2"):
        needs(two_ranks, 3, "pd")


@pytest.mark.parametrize("regex", [None, "[a-f]+"])
def test_a_first_stage_on_a_gpu_gives_the_tokens_of_one(
    two_ranks: Ranks, regex: str | None
) -> None:
    """On one that is not there; the other has none. A mask is built behind its batch's send."""
    requests, config = draw(1)
    for request in without_logprobs(requests):
        request.params = replace(request.params, regex=regex)
    serial = run("serial", "sim", "hash", requests, config)
    with fake_cuda():
        found = run("vllm_pp2", "dist", "hash", requests, config)
    check_run(found, serial)
    launched = {(item.name, item.step): item.id for item in found.trace.slices}
    masks = {step: at for (name, step), at in launched.items() if name == "mask"}
    assert bool(masks) == bool(regex)
    assert all(launched["send", step] < at for step, at in masks.items())
