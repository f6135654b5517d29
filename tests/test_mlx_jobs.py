"""What MLX's jobs hold, what its runner keeps of a request, and when that goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from minisched.core import ForwardMode, Request, Result, SamplingParams, ScheduleBatch
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.mlx_jobs import (
    MlxPendingDecode,
    MlxPendingExtend,
    MlxPendingJob,
    MlxPendingPrefill,
)
from minisched.loops.mlx_worker import MlxTpModelWorker
from minisched.loops.run import make_engine
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.worker import GenerationBatchResult
from tests.support import Workload, play_timed, timed_workloads


class Watched(MlxTpModelWorker):
    """Keeps every job, and who had state when; compares the runner's books at a fresh launch."""

    last: Watched

    def __init__(self, engine: Engine, clear_cache_every: int) -> None:
        super().__init__(engine, clear_cache_every)
        Watched.last = self
        self.jobs: list[MlxPendingJob] = []
        self.kept: list[tuple[int, set[str]]] = []  # at each finalize: step, who has state
        self.forgotten: dict[str, int] = {}  # who has no state any more, since which fresh step
        self.states = self._mlx_runner.states

    def async_forward_batch_generation_mlx(self, batch: ScheduleBatch) -> Any:
        """Nothing else is in flight; afterwards only the living are known, as they are."""
        assert self.engine.scheduler.batches_in_flight == 1
        before = set(self.states)
        launch = super().async_forward_batch_generation_mlx(batch)
        self.forgotten |= dict.fromkeys(before - set(self.states), batch.step)
        for rid, state in self.states.items():
            req = self.engine.scheduler.live[rid]
            assert req.lease is state.cache and req.lease.row == state.req_pool_idx
            if batch.mode is ForwardMode.DECODE and req in batch.reqs:  # else it may be in chunks
                known = req.known_tokens(0, req.known_len)
                assert tuple(state.token_ids) == known, "the scheduler's tokens are the runner's"
        return launch

    def finalize_mlx_result(self, job: MlxPendingJob) -> Result:
        """Keep it."""
        result = super().finalize_mlx_result(job)
        self.jobs.append(job)
        self.kept.append((job.batch_copy.step, set(self.states)))
        return result


def watched(workload: Workload, patch: Callable[[Engine], None] = lambda engine: None) -> Watched:
    """A run on the clock, with a worker that is watched."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("minisched.loops.mlx_async.MlxTpModelWorker", Watched)
        play_timed(workload, "mlx_async", "chain", {}, patch)
    return Watched.last


def simple(requests: list[Request], **config: Any) -> Workload:
    """A workload without end-of-text tokens and aborts."""
    return Workload(requests, [], {}, SchedulerConfig(**config))


def of_length(rid: str, prompt_len: int, count: int, **options: Any) -> Request:
    """A request that runs to its length."""
    return Request(rid, range(prompt_len), SamplingParams(max_new_tokens=count), **options)


def test_the_published_fields() -> None:
    jobs = (MlxPendingJob, MlxPendingPrefill, MlxPendingExtend, MlxPendingDecode)
    assert [[item.name for item in dataclasses.fields(job)] for job in jobs] == [
        ["lazy_tokens", "prefills", "extends", "decode", "mode", "batch_copy", "schedule_batch",
         "reqs"],
        ["lazy_token", "cache", "req_id", "full_token_ids", "req_pool_idx", "synced_offset"],
        ["lazy_token", "cache", "req_id", "new_token_ids", "new_synced_offset"],
        ["lazy_tokens", "req_ids", "caches"],
    ]  # fmt: skip


def test_a_chunk_is_a_prefill_first_and_an_extend_after_however_short() -> None:
    """A last chunk of one token is no decode."""
    worker = watched(simple([of_length("long", 9, 2)], chunked_prefill_size=4))
    prefills = [part for job in worker.jobs for part in job.prefills]
    extends = [part for job in worker.jobs for part in job.extends]
    assert [(part.full_token_ids, part.synced_offset) for part in prefills] == [([0, 1, 2, 3], 4)]
    assert [(part.new_token_ids, part.new_synced_offset) for part in extends] == [
        ([4, 5, 6, 7], 8),
        ([8], 9),
    ]
    modes = [job.mode for job in worker.jobs]
    assert modes == ["extend", "extend", "extend", "decode", "decode"], "the last one is wasted"


def test_a_mixed_batch_is_an_extend_that_holds_a_decode_and_is_never_chained_upon() -> None:
    requests = [of_length("first", 3, 9), of_length("long", 9, 3, arrival_time=40)]
    worker = watched(simple(requests, chunked_prefill_size=4, enable_mixed_chunk=True))
    mixed = [job for job in worker.jobs if job.batch_copy.mode is ForwardMode.MIXED]
    assert len(mixed) >= 2
    for job in mixed:
        assert job.mode == "extend" and job.decode is not None
        assert job.decode.req_ids == ["first"]
        assert len(job.prefills) + len(job.extends) == 1
    fresh = {job.batch_copy.step for job in worker.jobs if job.batch_copy is job.schedule_batch}
    assert {job.batch_copy.step + 1 for job in mixed} <= fresh


def test_a_chained_job_goes_back_to_the_batch_that_was_scheduled() -> None:
    worker = watched(simple([of_length("a", 2, 6)]))
    assert [job.batch_copy.step for job in worker.jobs] == [1, 2, 3, 4, 5, 6, 7]
    assert [job.schedule_batch.step for job in worker.jobs] == [1, 2, 2, 2, 2, 2, 2]
    roots = [job.decode for job in worker.jobs[1:]]
    assert all(decode is not None and decode.req_ids == ["a"] for decode in roots)


def test_an_idle_batch_launches_nothing_and_gives_nothing() -> None:
    engine = make_engine("mlx_async", SimDevice(), HashModel(), SchedulerConfig(), Frontend([]))
    worker, idle = MlxTpModelWorker(engine, 0), ScheduleBatch(0, ForwardMode.IDLE, 0)
    launch = worker.async_forward_batch_generation_mlx(idle)
    assert launch == (None, [], [], None, "idle")
    job = MlxPendingJob(*launch, batch_copy=idle, schedule_batch=idle, reqs=[])
    assert worker.finalize_mlx_result(job) == Result(())
    assert not engine.device.recorder.trace("", "", "", "").slices


def test_state_outlives_its_request_until_the_next_fresh_launch() -> None:
    """a ends in step 4, while step 5 is in flight; both are finalized before step 6 is fresh."""
    worker = watched(simple([of_length("a", 2, 4), of_length("b", 3, 9)]))
    kept = dict(worker.kept)
    assert kept[4] == kept[5] == {"a", "b"} and kept[6] == {"b"}
    assert worker.forgotten == {"a": 6}
    assert set(worker.states) == {"b"}, "nobody came after it, so b's remains are still there"


@given(workload=timed_workloads())
@settings(max_examples=60, deadline=None)
def test_at_a_fresh_launch_the_runner_knows_the_living_and_nobody_else(workload: Workload) -> None:
    """Also after aborts and retractions; ``Watched`` compares tokens and leases."""
    watched(workload)


def test_state_that_went_at_once_would_be_missed_by_the_step_in_flight() -> None:
    """What the delay is for: that step has a token for the request, and wants to note it."""

    def forget_at_once(engine: Engine) -> None:
        process_result = engine.process_result

        def process(pending: GenerationBatchResult, result: Result) -> None:
            process_result(pending, result)
            for req in pending.batch.reqs:
                if req.finished:
                    Watched.last._mlx_runner.remove_request(req.rid)

        engine.process_result = process  # type: ignore[method-assign]

    with pytest.raises(KeyError, match="'a'"):
        watched(simple([of_length("a", 2, 4), of_length("b", 3, 9)]), forget_at_once)
