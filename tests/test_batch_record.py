"""The two slots that pin a batch: enough with two steps in flight, and not with three."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from minisched.loops.registry import LOOPS
from minisched.loops.run import make_engine
from minisched.models.forward_batch import ForwardBatch
from minisched.models.hash import HashModel
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from minisched.worker import GenerationBatchResult
from minisched.worker.batch_record import BatchRecord, OverlapWorker
from tests.support import VOCAB, Broken, Workload, check_all, play, workloads

COST = CostModel({"schedule": 1, "launch": 1, "process": 1}, forward_base=50, sample=5, copy=3)
TWO_IN_FLIGHT = [
    ("overlap", {}),
    ("overlap", {"delay_sample": True}),
    ("overlap_thread", {}),
    ("overlap_thread", {"delay_sample": True}),
    ("overlap_thread", {"wait_launch_done": False}),
]


def three_in_flight(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """Overlap that processes the step before the last one: what two slots were not made for."""
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


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(LOOPS["overlap_pool_indexed"], run=three_in_flight, depth=3)
    monkeypatch.setitem(LOOPS, "three_in_flight", spec)


def arrays_of(batch: ForwardBatch) -> list[Any]:
    """Its tensors on the device."""
    where = residences(ForwardBatch)
    return [getattr(batch, item.name) for item in fields(batch)
            if where[item.name].where == "device"]  # fmt: skip


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
        at = (self.batch_record_ct + 1) % len(self.batch_record_buf)
        old = self.batch_record_buf[at]
        super().record_batch_in_overlap(batch)
        assert self.batch_record_buf[self.batch_record_ct] is batch
        if old is not None:
            self.still_read += not self.ended(old.label.step)
            for array in arrays_of(old):
                array[:] = [WRONG_TOKEN] * len(array)


def play_reusing(
    workload: Workload, loop: str, slots: int, options: dict[str, Any]
) -> list[Reusing]:
    """Play with every record of the run replaced; they are given back."""
    device, records = SimDevice(), []

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
    return records


@given(workload=workloads(), which=st.sampled_from(TWO_IN_FLIGHT))
@settings(max_examples=200, deadline=None)
def test_no_input_of_a_step_that_has_not_ended_is_let_go_of(
    workload: Workload, which: tuple[str, dict[str, Any]]
) -> None:
    """Two slots, two steps in flight: what falls out may be overwritten at once."""
    loop, options = which
    records = play_reusing(workload, loop, 2, options)
    assert sum(record.still_read for record in records) == 0


def check_breaks(loop: str, slots: int, options: dict[str, Any]) -> None:
    """Two requests that decode get wrong tokens: a step reads what somebody else has written."""
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    requests = [Request(f"r{i}", [5 + i, 2, 3], params) for i in range(2)]
    workload = Workload(requests, [0, 0], {}, SchedulerConfig(kv_tokens=40, context_len=32))
    with pytest.raises(Broken, match="identity"):
        play_reusing(workload, loop, slots, options)


@pytest.mark.parametrize("which", TWO_IN_FLIGHT, ids=str)
def test_one_slot_is_not_enough_for_two_steps_in_flight(which: tuple[str, dict[str, Any]]) -> None:
    loop, options = which
    check_breaks(loop, 1, options)


@pytest.mark.usefixtures("deep")
def test_two_slots_are_not_enough_for_three_steps_in_flight() -> None:
    check_breaks("three_in_flight", 2, {})


@pytest.mark.usefixtures("deep")
def test_three_slots_are_enough_for_three_steps_in_flight() -> None:
    @given(workload=workloads())
    @settings(max_examples=150, deadline=None)
    def check(workload: Workload) -> None:
        records = play_reusing(workload, "three_in_flight", 3, {})
        assert sum(record.still_read for record in records) == 0

    check()


@pytest.mark.usefixtures("deep")
@pytest.mark.parametrize("relay", ["pool", "ring"])
def test_a_loops_depth_is_one_number_given_once(relay: str) -> None:
    """Three in flight, and nothing said but ``LoopSpec(depth=3)``: no law is broken."""
    spec = LOOPS["three_in_flight"]
    plain = [drawn for drawn in map(draw, range(60)) if drawn.wishes == "none"]
    for drawn in plain[:20]:  # what waits for history needs more than this loop has
        assert judge(drawn.on(Design("three_in_flight", relay))).findings == ()
    engine = make_engine(
        "three_in_flight", SimDevice(), HashModel(), SchedulerConfig(), Frontend(), relay=relay
    )
    assert spec.in_flight == engine.worker.depth == len(engine.worker.outputs) == 3


@pytest.mark.parametrize(
    ("loop", "options", "depth"),
    [
        ("vllm_async", {}, 2),
        ("vllm_async", {"depth": 5}, 5),
        ("vllm_pp4", {}, 4),
        ("mindie_placeholder", {}, 1),
        ("mindie_placeholder", {"max_async_schedule_times": 2}, 2),
        ("overlap", {}, 2),
    ],
)
def test_a_loops_option_is_that_number(loop: str, options: dict[str, Any], depth: int) -> None:
    relay = "pool" if "pool" in LOOPS[loop].relays else "host"
    engine = make_engine(
        loop, SimDevice(), HashModel(), SchedulerConfig(), Frontend(), relay=relay, **options
    )
    assert engine.worker.depth == len(engine.worker.outputs) == depth


@pytest.mark.parametrize(
    ("loop", "options"),
    [("vllm_async", {"depth": 3}), ("mindie_placeholder", {"max_async_schedule_times": 2})],
)
def test_a_loop_is_not_started_deeper_than_its_engine_was_made(
    loop: str, options: dict[str, int]
) -> None:
    engine = make_engine(loop, SimDevice(), HashModel(), SchedulerConfig(), Frontend(),
                         relay="pool")  # fmt: skip
    with pytest.raises(ValueError, match=r"is \d, but the worker was made for \d steps in flight"):
        LOOPS[loop].start(engine, **options)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_record_is_a_ring_of_the_newest_batches(depth: int) -> None:
    """As many as steps may be in flight, and never fewer than two."""
    record, slots = BatchRecord(depth), max(2, depth)
    batches: list[Any] = [SimpleNamespace(label=Label(step)) for step in range(1, 7)]
    for count, batch in enumerate(batches, 1):
        record.record_batch_in_overlap(batch)
        assert record.batch_record_buf[record.batch_record_ct] is batch
        kept = [item for item in batches if item in record.batch_record_buf]
        assert kept == batches[max(0, count - slots) : count]


@pytest.mark.parametrize("loop", ["overlap", "overlap_pool_indexed", "overlap_thread"])
def test_a_batch_that_nobody_names_is_free(loop: str) -> None:
    """Dropping the last name is the free: nobody has to say it, so nobody can forget to."""
    record = "loops.overlap_thread_worker:ForwardThread.forward"
    if loop != "overlap_thread":
        record = "worker.batch_record:OverlapWorker.prepare"
    who = "batch_lists" if loop == "overlap_thread" else "batch_record"
    edit = Edit(record, f"self.{who}.record_batch_in_overlap(inputs)", "pass")
    case = draw(0).on(Design(loop, "pool"))
    assert judge(case).holds
    with put_in([edit]):
        found = judge(case).broke("race")
    assert found is not None and "inputs" in found.sentence


def test_the_overlap_loops_pin_what_they_ship() -> None:
    for loop in ("overlap", "overlap_pool_indexed", "mixed"):
        assert LOOPS[loop].worker is OverlapWorker
