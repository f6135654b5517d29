"""What is made of drafts: what a step accepts, what that is worth, what waits, who is refused.

That drafts never change a token is judged by ``tests/laws/test_every_design.py``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from minisched.checks.overlap.waits import waits
from minisched.core import (
    ForwardMode,
    Lease,
    NoBatch,
    Request,
    Result,
    SamplingParams,
    ScheduleBatch,
)
from minisched.devices.cost import SIM_COST
from minisched.engine.engine import Engine
from minisched.loops.registry import LOOPS
from minisched.loops.run import Run, run_loop
from minisched.loops.speculation import CARRIERS
from minisched.models.hash import HashModel
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.scheduler.config import ALGORITHMS
from minisched.trace import Recorder
from minisched.worker.unread_steps import UnreadSteps
from tests.support import Workload, check_all, hash_model, open_device, play


def speculating(algorithm: str, draft_model: str = "", **settings: Any) -> SchedulerConfig:
    return SchedulerConfig(
        speculative_algorithm=algorithm, speculative_draft_model_path=draft_model, **settings
    )


def run_one(loop: str, config: SchedulerConfig, count: int = 25) -> Run:
    """A greedy request, whose loop has drafts on the device if it can."""
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    relay = next(name for name in ("pool", "host") if name in LOOPS[loop].relays)
    requests, device = [Request("r", [1, 2, 3, 4, 5], params)], open_device("sim")
    return run_loop(loop, device, HashModel(), requests, config, SIM_COST, relay)


# -- what it is worth ------------------------------------------------------------------------------


@pytest.mark.parametrize(("loop", "steps"), [("serial", 5), ("overlap", 6)])
def test_a_draft_model_that_is_the_target_is_always_right(loop: str, steps: int) -> None:
    """25 tokens: one of the prompt, then 5 a step; the last step of overlap is wasted."""
    run = run_one(loop, speculating("STANDALONE", "hash:10"))
    modes = [item.mode for item in run.trace.slices if item.name == "forward"]
    assert modes == [ForwardMode.EXTEND.value] + [ForwardMode.TARGET_VERIFY.value] * steps
    drafts = {item.mode for item in run.trace.slices if item.name == "draft"}
    assert drafts == {ForwardMode.DRAFT_EXTEND.value} and len(run.outputs["r"]) == 25


def test_a_repeating_text_is_looked_up() -> None:
    """With two tokens in the vocabulary, one of them banned, every draft is right."""
    only = SamplingParams(max_new_tokens=25, ignore_eos=True, logit_bias={0: -100.0})
    model, request = HashModel(2, eos_ids=frozenset()), Request("r", [1] * 5, only)
    run = run_loop("serial", open_device("sim"), model, [request], speculating("NGRAM"))
    steps = [item for item in run.trace.slices if item.name == "forward"]
    assert len(steps) == 1 + 5 and run.outputs["r"] == [1] * 25


def test_a_settled_step_of_overlap_takes_what_the_device_takes() -> None:
    """Verification and drafting too: the host is hidden behind them."""
    run = run_one("overlap", speculating("STANDALONE", "hash:10"), count=101)
    forwards = [item for item in run.trace.on("forward") if item.name == "forward"]
    device = [item.duration for item in run.trace.on("forward") if item.step == 10]
    gaps = {after.start - before.start for before, after in pairwise(forwards[5:15])}
    assert len(device) > 2 and gaps == {sum(device)}


@pytest.mark.parametrize("room", range(1, 6))
def test_a_draft_counts_as_accepted_once_its_request_has_it(room: int) -> None:
    """The step's own token is no draft; what comes behind the request's last token is nobody's."""
    for accepted in range(4):
        config = speculating("NGRAM_GPU", speculative_num_draft_tokens=3)
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
        result = Result([6] * carried, num_accepted_tokens=[got], drafts=[6, 7, 8])
        outputs = scheduler.process(verify, result)
        marks = scheduler.recorder.trace("", "", "", "").marks
        found = [(m.attrs["drafts"], m.attrs["accepted"]) for m in marks if m.name == "verified"]
        assert found == ([(carried - 1, len(outputs) - 1)] if carried > 1 else [])
        assert len(outputs) == min(got, room)


# -- books -----------------------------------------------------------------------------------------


def some_workload(algorithm: str) -> Workload:
    """Requests of few tokens, so that a guess is often right, which come one after the other."""
    params = [SamplingParams(at % 2 * 0.8, max_new_tokens=9, seed=at) for at in range(4)]
    requests = [Request(f"r{at}", [at, 2, 1] * 2, one) for at, one in enumerate(params)]
    config = speculating(
        algorithm, "hash:7" if algorithm == "STANDALONE" else "", kv_tokens=72,
        chunked_prefill_size=4, schedule_conservativeness=0.0, speculative_num_draft_tokens=3,
        context_len=32,
    )  # fmt: skip
    return Workload(requests, [0, 1, 2, 6], {}, config, frozenset())


class Books:
    """Steps committed while a row's last token was still on the device; and what was settled."""

    def __init__(self, engine: Engine) -> None:
        self.steps: list[int] = []
        self.settled: list[bool] = []
        self.batches: dict[int, ScheduleBatch] = {}
        self.scheduler = engine.scheduler
        self.next_batch, self.process = engine.scheduler.next_batch, engine.scheduler.process
        engine.scheduler.next_batch = self.committed  # type: ignore[method-assign]
        engine.scheduler.process = self.processed  # type: ignore[method-assign]

    def committed(self) -> ScheduleBatch | NoBatch:
        batch = self.next_batch()
        if batch:
            leases = [lease for flying in self.batches.values() for lease in flying.leases]
            if any(lease in leases for lease in batch.leases[batch.num_extend_reqs :]):
                self.steps.append(batch.step)
            self.batches[batch.step] = batch
        return batch

    def processed(self, batch: ScheduleBatch, result: Result) -> Any:
        del self.batches[batch.step]
        outputs = self.process(batch, result)
        for req in batch.reqs:
            if not req.finished and req.lease is not None and req.known_len > len(req.prompt):
                settled = req.computed_len - req.num_output_placeholders
                self.settled.append(settled == req.known_len - 1)
        return outputs


@pytest.mark.parametrize("algorithm", ["NGRAM_GPU", "STANDALONE"])
@pytest.mark.parametrize("backend", ["sim", "mlx"])
def test_who_builds_the_ops_waits_for_the_step_in_front(backend: str, algorithm: str) -> None:
    """On MLX shapes are numbers; sim takes lengths from the relay, and waits for nothing.

    And vLLM's invariant: computed less placeholders is what the host knows, after every result.
    """
    workload, books = some_workload(algorithm), list[Books]()
    device, model = open_device(backend), hash_model(backend, frozenset())
    engine, outputs = play(
        workload, "overlap", "pool", {}, device, model,
        patch=lambda engine: books.append(Books(engine)),
    )  # fmt: skip
    check_all(workload, engine, outputs)
    marks = waits(device.recorder.trace("", "", "", ""))
    assert {(mark.attrs["reason"], mark.attrs["op"]) for mark in marks} <= {
        ("speculation", "forward")
    }
    steps = [mark.attrs["step"] for mark in marks]
    assert books[0].steps and steps == (books[0].steps if backend == "mlx" else [])
    assert books[0].settled and all(books[0].settled)


def test_a_retracted_request_has_no_drafts_in_flight() -> None:
    """Those of its old lease come back to nobody, and must not reserve memory for ever."""
    req = Request("r", [1, 2])
    req.num_draft_tokens, req.num_draft_tokens_in_flight, req.spec_token_ids = 3, 6, [1, 1, 1]
    req.restart()
    assert (req.num_draft_tokens_in_flight, req.spec_token_ids) == (0, [])
    assert req.reach == req.device_len + 3


def test_a_token_that_no_launched_step_brings_is_an_error_and_never_a_zero() -> None:
    lease, batch = Lease(3, "a"), ScheduleBatch(2, ForwardMode.TARGET_VERIFY, 0)
    batch.reqs, batch.leases = [Request("a", [1], num_draft_tokens=1)], [lease]
    batch.starts, batch.ids, batch.delivers = [1], [(None, None)], [True]
    with pytest.raises(RuntimeError, match=r"step 2 wants a token of 'a' \(row 3\)"):
        UnreadSteps().fill(batch)


# -- refusals --------------------------------------------------------------------------------------


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


def test_a_relay_that_carries_no_drafts_is_refused() -> None:
    config = speculating("STANDALONE", "hash:10")
    with pytest.raises(ValueError, match=r"relay 'ring' does not fit loop 'overlap'.*drafts"):
        run_loop(
            "overlap", open_device("sim"), HashModel(), [Request("r", [1])], config, relay="ring"
        )


def test_a_request_that_drafts_would_carry_past_the_pool_is_refused_alone() -> None:
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    requests = [Request("long", [1] * 8, params), Request("short", [1] * 4, params)]
    config = speculating("STANDALONE", "hash:7", kv_tokens=18)
    run = run_loop("overlap", open_device("sim"), HashModel(), requests, config, relay="pool")
    assert set(run.errors) == {"long"} and len(run.outputs["short"]) == 10
