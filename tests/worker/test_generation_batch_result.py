"""What a step returns, and what keeps its inputs alive until it has run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings

from minisched.checks.draw.designs import Design
from minisched.checks.draw.draw import draw
from minisched.checks.judge import judge
from minisched.core import NoBatch, Request, SamplingParams, ScheduleBatch
from minisched.core.residence import residences
from minisched.devices.base import WRONG_TOKEN, Label
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.export.recipes import trace_of
from minisched.export.views.copy_paths import paths_of
from minisched.loops.registry import LOOPS
from minisched.loops.run import make_engine, run_loop
from minisched.models.forward_batch import ForwardBatch
from minisched.models.hash import HashModel
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from minisched.worker import GenerationBatchResult
from minisched.worker.batch_record import BatchRecord, OverlapWorker
from tests.support import (
    EVERY_BACKEND,
    VOCAB,
    Broken,
    Workload,
    check_all,
    hash_model,
    many,
    open_device,
    play,
    workloads,
)

# -- generation_batch_result: nine fields, and one answer ------------------------------------------


def test_the_nine_published_fields_stand_behind_the_batch() -> None:
    assert tuple(item.name for item in fields(GenerationBatchResult))[:10] == (
        "batch", "logits_output", "next_token_ids", "num_accepted_tokens", "next_draft_input",
        "extend_input_len_per_req", "extend_logprob_start_len_per_req", "copy_done",
        "delay_sample_func", "future_indices",
    )  # fmt: skip


@EVERY_BACKEND
def test_who_asks_again_gets_the_same(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Loops on MLX ask a step for its tokens once for each of its parts.

    Chunks of 4 of a prompt of 10, of which log-probabilities are wanted from 6 on (SGLang).
    """
    kept: list[tuple[GenerationBatchResult, Any]] = []
    result = GenerationBatchResult.result

    def keep(pending: GenerationBatchResult) -> Any:
        kept.append((pending, result(pending)))
        return kept[-1][1]

    monkeypatch.setattr(GenerationBatchResult, "result", keep)
    params = SamplingParams(max_new_tokens=2, return_logprob=True, logprob_start_len=6)
    requests = [Request("r", list(range(10)), params), Request("plain", [5, 6])]
    config = SchedulerConfig(chunked_prefill_size=4)
    run_loop("serial", open_device(backend), hash_model(backend, frozenset()), requests, config)
    assert all(result(pending) is found and not found.error for pending, found in kept)
    lens = [(one.extend_input_len_per_req, one.extend_logprob_start_len_per_req) for one, _ in kept]
    assert lens[:4] == [([4], [4]), ([4], [2]), ([2, 2], [0, 2]), ([], [])]


def test_sampling_that_nobody_launched_is_a_result_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step without tokens never raises; its requests end, and hear why."""
    edit = Edit("worker.worker:Worker.launch", "self.launch_sample(pending, inputs)", "pass")
    with put_in([edit]):
        run = run_loop("serial", SimDevice(), HashModel(), [Request("r", [1])])
    assert "nobody has launched it since" in run.errors["r"]


@pytest.mark.parametrize("topic", ["mindie_plugin", "overlap_thread", "pd", "vllm_pp", "serial"])
def test_all_waits_of_a_whole_run_are_somebody_s(topic: str) -> None:
    """Also where a step is waited for twice, or two engines number their steps by themselves."""
    trace = trace_of(topic)
    waits = sorted(item.id for item in trace.slices if item.name == "wait")
    assert sorted(item.id for one in paths_of(trace) for item in one.waits) == waits != []


def test_the_golden_run_waits_for_prompts_only() -> None:
    paths = paths_of(trace_of("generation_batch_result"))
    prompts = [one.step for one in paths if one.mode == "extend"]
    assert [one.step for one in paths if one.waited] == prompts and len(prompts) == 2
    assert [one.step for one in paths if one.upload] == prompts
    assert all(one.ready for one in paths if one.step not in prompts)


# -- the record that pins a batch: as many slots as steps are in flight ----------------------------

COST = CostModel({"schedule": 1, "launch": 1, "process": 1}, forward_base=50, sample=5, copy=3)
TWO_IN_FLIGHT = pytest.mark.parametrize(
    ("loop", "options"),
    [
        ("overlap", {}),
        ("overlap", {"delay_sample": True}),
        ("overlap_thread", {"delay_sample": True}),
        ("overlap_thread", {"wait_launch_done": False}),
    ],
)


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlap that processes the step before the last one: what two slots were not made for."""

    def three_in_flight(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
        result_queue: deque[GenerationBatchResult] = deque()
        while True:
            engine.recv_requests()
            batch = engine.get_next_batch_to_run()
            if batch:
                result_queue.append(engine.run_batch(batch))
            if len(result_queue) == 3 or (result_queue and not batch):
                engine.process_batch_result(result_queue.popleft())
            elif not batch:
                engine.on_idle()
            yield batch

    spec = replace(LOOPS["overlap_pool_indexed"], run=three_in_flight, depth=3)
    monkeypatch.setitem(LOOPS, "three_in_flight", spec)


class Reusing(BatchRecord):
    """What a caching allocator does: memory that nobody names any more belongs to somebody else.

    ``still_read`` says how many batches were let go of while their step had not ended.
    """

    def __init__(self, slots: int, ended: Callable[[int], bool]) -> None:
        super().__init__(slots)
        self.batch_record_buf = [None] * slots
        self.ended = ended
        self.still_read = 0

    def record_batch_in_overlap(self, batch: ForwardBatch) -> None:
        old = self.batch_record_buf[(self.batch_record_ct + 1) % len(self.batch_record_buf)]
        super().record_batch_in_overlap(batch)
        if old is not None:
            self.still_read += not self.ended(old.label.step)
            for name, residence in residences(ForwardBatch).items():
                if residence.where == "device":
                    array = getattr(old, name)
                    array[:] = [WRONG_TOKEN] * len(array)


def play_reusing(workload: Workload, loop: str, slots: int, options: dict[str, Any]) -> int:
    """Play with every record of the run replaced; how often one let go too early."""
    device, records = SimDevice(), list[Reusing]()

    def ended(step: int) -> bool:
        slices = device.recorder.trace("", "", "", "virtual").slices
        return any(item.step == step and item.name == "sample" for item in slices)

    def made(depth: int) -> Reusing:
        records.append(Reusing(slots, ended))
        return records[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minisched.worker.batch_record.BatchRecord", made)
        patch.setattr("minisched.loops.overlap_thread_worker.BatchRecord", made)
        model = HashModel(VOCAB, eos_ids=workload.eos_ids)
        check_all(workload, *play(workload, loop, "pool", options, device, model, COST))
    assert records
    return sum(record.still_read for record in records)


@TWO_IN_FLIGHT
@given(workload=workloads())
@settings(max_examples=many(12, 100))
def test_with_two_steps_in_flight_two_slots_are_enough(
    loop: str, options: dict[str, Any], workload: Workload
) -> None:
    """What falls out may be overwritten at once."""
    assert play_reusing(workload, loop, 2, options) == 0


@pytest.mark.usefixtures("deep")
def test_with_three_in_flight_three_are() -> None:
    @given(workload=workloads())
    def check(workload: Workload) -> None:
        assert play_reusing(workload, "three_in_flight", 3, {}) == 0

    check()


@pytest.mark.usefixtures("deep")
@pytest.mark.parametrize(
    ("loop", "slots"), [("overlap", 1), ("overlap_thread", 1), ("three_in_flight", 2)]
)
def test_one_slot_less_gives_wrong_tokens(loop: str, slots: int) -> None:
    """A step reads what somebody else has written."""
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    requests = [Request(f"r{i}", [5 + i, 2, 3], params) for i in range(2)]
    workload = Workload(requests, [0, 0], {}, SchedulerConfig(kv_tokens=40, context_len=32))
    with pytest.raises(Broken, match="identity"):
        play_reusing(workload, loop, slots, {})


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_record_is_a_ring_of_the_newest_batches(depth: int) -> None:
    record, slots = BatchRecord(depth), max(2, depth)
    batches: list[Any] = [SimpleNamespace(label=Label(step)) for step in range(1, 7)]
    for count, batch in enumerate(batches, 1):
        record.record_batch_in_overlap(batch)
        assert record.batch_record_buf[record.batch_record_ct] is batch
        kept = [item for item in batches if item in record.batch_record_buf]
        assert kept == batches[max(0, count - slots) : count]


@pytest.mark.parametrize("loop", ["overlap", "overlap_pool_indexed", "mixed", "overlap_thread"])
def test_the_law_of_races_sees_a_batch_that_nobody_names(loop: str) -> None:
    """Dropping the last name is the free: nobody has to say it, so nobody can forget to."""
    where, who = "worker.batch_record:OverlapWorker.prepare", "batch_record"
    if loop == "overlap_thread":
        where, who = "loops.overlap_thread_worker:ForwardThread.forward", "batch_lists"
    else:
        assert LOOPS[loop].worker is OverlapWorker
    case = next(drawn for drawn in map(draw, range(40)) if loop != "mixed" or
                drawn.workload.config.enable_mixed_chunk).on(Design(loop, "pool"))  # fmt: skip
    assert judge(case).holds
    with put_in([Edit(where, f"self.{who}.record_batch_in_overlap(inputs)", "pass")]):
        found = judge(case).broke("race")
    assert found is not None and "inputs" in found.sentence


# -- a loop's depth is one number, given once ------------------------------------------------------


@pytest.mark.usefixtures("deep")
@pytest.mark.parametrize("relay", ["pool", "ring"])
def test_three_in_flight_need_nothing_but_the_number_in_the_spec(relay: str) -> None:
    plain = [drawn for drawn in map(draw, range(60)) if drawn.wishes == "none"]
    for drawn in plain[:20]:  # what waits for history needs more than this loop has
        assert judge(drawn.on(Design("three_in_flight", relay))).findings == ()


@pytest.mark.usefixtures("deep")
@pytest.mark.parametrize(
    ("loop", "options", "depth"),
    [
        ("vllm_async", {}, 2),
        ("vllm_async", {"depth": 5}, 5),
        ("vllm_pp4", {}, 4),
        ("mindie_placeholder", {}, 1),
        ("mindie_placeholder", {"max_async_schedule_times": 2}, 2),
        ("overlap", {}, 2),
        ("three_in_flight", {}, 3),
    ],
)
def test_a_loops_depth_is_that_of_its_worker(
    loop: str, options: dict[str, Any], depth: int
) -> None:
    """And it is not started deeper than its engine was made."""

    def make(**options: Any) -> Engine:
        relay = "pool" if "pool" in LOOPS[loop].relays else "host"
        return make_engine(
            loop, SimDevice(), HashModel(), SchedulerConfig(), Frontend(), relay=relay, **options
        )

    engine = make(**options)
    assert engine.worker.depth == len(engine.worker.outputs) == depth
    if options:
        with pytest.raises(ValueError, match=r"is \d, but the worker was made for \d steps"):
            LOOPS[loop].start(make(), **options)
