"""vLLM's batch queue at any depth, with and without async scheduling, and AsyncScheduler."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.waits import num_waits
from minisched.core import Request, SamplingParams, ScheduleBatch
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.run import run_loop
from minisched.loops.vllm_placeholders import is_length_foreseen, settled_tokens
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from minisched.worker import GenerationBatchResult
from tests.support import (
    VOCAB,
    Broken,
    Workload,
    check_all,
    check_identity,
    hash_model,
    play,
    workloads,
)
from tests.test_laws import costs
from tests.vllm_runs import (
    ALONE,
    cost_of,
    drive_watching,
    marks,
    run_alone,
    settled_sums,
    some_alone,
)

DEPTHS = range(1, 6)
ASYNC = [
    *((relay, depth) for relay in ("prev_sampled", "fill_device") for depth in (1, 2)),
    *(("ring", depth) for depth in (2, 4)),
    *(("pool", depth) for depth in DEPTHS),
]
EVERY_DEPTH = pytest.mark.parametrize("depth", DEPTHS)
EVERY_ASYNC = pytest.mark.parametrize(("relay", "depth"), ASYNC)
QUICK = settings(max_examples=60, deadline=None)


# -- the laws of every loop, at every depth ------------------------------------------------------


@EVERY_DEPTH
@given(workload=workloads(), cost=costs)
@QUICK
def test_laws_without_async_scheduling(depth: int, workload: Workload, cost: CostModel) -> None:
    device, model = SimDevice(), hash_model("sim", workload.eos_ids)
    options = {"depth": depth}
    engine, outputs = play(workload, "vllm_batch_queue", "host", options, device, model, cost)
    check_all(workload, engine, outputs)


@EVERY_ASYNC
@given(workload=workloads(), cost=costs)
@QUICK
def test_laws_with_async_scheduling(
    relay: str, depth: int, workload: Workload, cost: CostModel
) -> None:
    device, model = SimDevice(), hash_model("sim", workload.eos_ids)
    options = {"depth": depth}
    engine, outputs = play(workload, "vllm_async", relay, options, device, model, cost)
    check_all(workload, engine, outputs)


# -- fill while there is room, or harvest what has ended first -------------------------------------


@pytest.mark.parametrize("loop", ["vllm_batch_queue", "vllm_async", "vllm_pp4"])
@given(workload=workloads(), cost=costs, depth=st.integers(1, 8))
@QUICK
def test_what_has_ended_is_harvested_before_a_second_batch_is_scheduled(
    loop: str, workload: Workload, cost: CostModel, depth: int
) -> None:
    """vLLM up to v0.21: the oldest step that is done is never passed over for the queue's sake."""
    device, model = SimDevice(), hash_model("sim", workload.eos_ids)
    options: dict[str, Any] = {"harvest_when_done": True}
    options |= {} if loop == "vllm_pp4" else {"depth": depth}
    relay = "pool" if loop == "vllm_async" else "host"
    engine, outputs = play(workload, loop, relay, options, device, model, cost)
    check_all(workload, engine, outputs)
    assert passed_over(device.recorder.trace(loop, "sim", "hash", "virtual")) <= 1


def passed_over(trace: Trace) -> int:
    """How often, at the most, the host scheduled while the oldest step had ended and lay unread."""
    host = trace.on("host")
    schedules = [item.start for item in host if item.name == "schedule"]
    read, most = -1, 0
    copied = {item.step: item.end for item in trace.on("copy") if item.name == "copy"}
    for item in (item for item in host if item.name == "process" and item.step in copied):
        since = max(read, copied[item.step])
        most = max(most, sum(since < start < item.start for start in schedules))
        read = item.end
    return most


def test_the_rule_of_late_leaves_results_unread_and_the_older_one_does_not() -> None:
    """Whoever needs the token for their next step waits for the queue to be full."""
    for loop in ("vllm_async:pool:depth=8", "vllm_pp4"):
        late, older = (
            run_loop(f"{loop}{more}", SimDevice(), HashModel(), one_by_one(), cost=SIM_COST)
            for more in ("", ":harvest_when_done=true")
        )
        assert late.outputs == older.outputs
        assert passed_over(late.trace) > 1 >= passed_over(older.trace)
        assert older.trace.end < late.trace.end


def one_by_one() -> list[Request]:
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    return [Request(f"r{i}", range(1, 9), params, i * 18_000_000) for i in range(8)]


# -- depth ---------------------------------------------------------------------------------------


@EVERY_DEPTH
@pytest.mark.parametrize("loop", ["vllm_batch_queue", "vllm_async"])
def test_so_many_steps_are_in_flight_and_never_more(loop: str, depth: int) -> None:
    in_flight: list[int] = []
    waits: list[int] = []

    def watch(engine: Engine) -> None:
        in_flight.append(engine.scheduler.batches_in_flight)
        waits.append(engine.scheduler.leases.returned_step)

    relay = "pool" if loop == "vllm_async" else ""
    drive_watching(loop, some_alone(depth), ALONE, CostModel(), watch, relay, depth=depth)
    assert max(in_flight) == depth - 1, "a turn ends when the oldest has come back"
    assert in_flight[: depth - 1] == list(range(1, depth)), "filling beats harvesting"
    assert waits[: depth - 1] == [0] * (depth - 1), "nothing is harvested before the queue is full"
    assert in_flight.count(depth - 1) > 40


@EVERY_DEPTH
@pytest.mark.parametrize("tenths", [1, 3, 9, 12, 30])
def test_a_settled_step_of_async_scheduling_takes_what_the_law_says(
    depth: int, tenths: int
) -> None:
    """max(d, h, (d + h + c) / depth): one request is enough, since it runs ahead of itself."""
    device, host, copy = 10_000, 1000 * tenths, 600
    cost = cost_of(host, forward_base=device - 1000, sample=1000, copy=copy)
    law = max(depth * device, depth * host, device + host + copy)
    assert settled_sums(run_alone("vllm_async", 1, cost, "pool", depth=depth), depth) == {law}


@EVERY_DEPTH
@pytest.mark.parametrize("tenths", [1, 3, 9, 12, 30])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_async_scheduling_it_takes_independent_batches(
    depth: int, tenths: int, count: int
) -> None:
    """The same law with the smaller of depth and batches: a request waits for its own token.

    While there is room in the queue, the host also looks for a batch in vain, once a step.
    """
    device, host, copy = 10_000, 1000 * tenths, 600
    cost = cost_of(host, forward_base=device - 1000, sample=1000, copy=copy)
    trace = run_alone("vllm_batch_queue", count, cost, depth=depth)
    ahead = min(depth, count)
    in_vain = cost.host["schedule"] if count < depth else 0
    law = max(ahead * device, ahead * (host + in_vain), device + host + copy)
    assert settled_sums(trace, ahead) == {law}


@given(workload=workloads(), depth=st.integers(1, 5))
@QUICK
def test_without_async_scheduling_a_request_is_in_one_batch_in_flight(
    workload: Workload, depth: int
) -> None:
    flying: list[ScheduleBatch] = []

    def watch(engine: Engine) -> None:
        launch, process = engine.launch_batch, engine.process_result

        def launched(batch: ScheduleBatch, *args: Any) -> GenerationBatchResult:
            live = [row for row in batch.rows if row.deliver]
            for other in flying:
                delivered = {row.req for row in other.rows if row.deliver}
                assert not delivered & {row.req for row in live if row.lease in other.leases}
            flying.append(batch)
            return launch(batch, *args)

        def processed(pending: GenerationBatchResult, *args: Any) -> None:
            flying.remove(pending.batch)
            process(pending, *args)

        engine.launch_batch = launched  # type: ignore[method-assign]
        engine.process_result = processed  # type: ignore[method-assign]

    model = hash_model("sim", workload.eos_ids)
    options = {"depth": depth}
    play(workload, "vllm_batch_queue", "host", options, SimDevice(), model, patch=watch)


def test_depths_that_cannot_be_are_refused() -> None:
    def start(depth: int, relay: str = "") -> None:
        requests = [Request("r", [1])]
        run_loop("vllm_async", SimDevice(), HashModel(), requests, relay=relay, depth=depth)

    with pytest.raises(ValueError, match="depth is 0, but it must be at least 1"):
        start(0)
    for relay, most in {"prev_sampled": 2, "fill_device": 2, "ring": 4}.items():
        start(most, relay)
        wanted = f"depth is {most + 1}, but relay {relay!r} allows at most {most}: "
        with pytest.raises(ValueError, match=wanted):
            start(most + 1, relay)
    start(9, "pool")
    start(9, "token_pool")


# -- what an end costs ---------------------------------------------------------------------------


@EVERY_ASYNC
@given(workload=workloads(max_requests=1, with_aborts=False))
@QUICK
def test_an_unforeseen_end_costs_a_row_for_each_further_step_in_flight(
    relay: str, depth: int, workload: Workload
) -> None:
    """depth - 1 rows, or fewer where the length, which is foreseen, left no room for them."""
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, "vllm_async", relay, {"depth": depth}, device, model)
    (req,) = workload.requests
    left = req.params.max_new_tokens - len(req.output_ids)
    assert marks(device, "wasted row")["r0"] == min(depth - 1, left)


@given(workload=workloads(with_aborts=False), depth=st.integers(1, 5))
@QUICK
def test_without_async_scheduling_no_end_costs_a_row(workload: Workload, depth: int) -> None:
    workload.config = SchedulerConfig(kv_tokens=200, context_len=32)
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, "vllm_batch_queue", "host", {"depth": depth}, device, model)
    assert not marks(device, "wasted row")


# -- AsyncScheduler ------------------------------------------------------------------------------


class AsyncScheduler:
    """vLLM's own books, kept from nothing but what is scheduled, preempted and delivered."""

    def __init__(self, engine: Engine) -> None:
        self.computed: Counter[str] = Counter()
        self.placeholders: Counter[str] = Counter()
        self.scheduler = engine.scheduler
        next_batch, process = engine.scheduler.next_batch, engine.scheduler.process
        retract = engine.scheduler.retraction.retract

        def schedule() -> Any:
            batch = next_batch()
            for row in batch.rows if batch else ():
                self.computed[row.req.rid] = max(self.computed[row.req.rid], row.start)  # a hit
                self.computed[row.req.rid] += row.extend_len
                self.placeholders[row.req.rid] += row.deliver
            return batch

        def preempt(req: Request, reason: str) -> None:
            self.computed[req.rid] = self.placeholders[req.rid] = 0
            retract(req, reason)

        def update_from_output(batch: ScheduleBatch, result: Any) -> Any:
            for row in batch.rows:
                if row.deliver and row.req.lease is row.lease:
                    self.placeholders[row.req.rid] -= 1
                    assert self.placeholders[row.req.rid] >= 0
            return process(batch, result)

        self.scheduler.next_batch = schedule  # type: ignore[method-assign]
        self.scheduler.process = update_from_output  # type: ignore[method-assign]
        self.scheduler.retraction.retract = preempt  # type: ignore[method-assign]

    def check(self) -> None:
        """The lengths of our requests say the same."""
        for req in self.scheduler.live.values():
            assert req.num_output_placeholders == self.placeholders[req.rid] >= 0
            assert req.computed_len == self.computed[req.rid]
        for req in self.scheduler.running_batch:
            assert settled_tokens(req) == req.known_len - 1
            assert req.lease is not None and req.lease.settled_len <= req.known_len - 1


@EVERY_ASYNC
@given(workload=workloads())
@QUICK
def test_computed_less_placeholders_is_settled_at_every_turn(
    relay: str, depth: int, workload: Workload
) -> None:
    def keep_books(engine: Engine) -> None:
        books = AsyncScheduler(engine)
        schedule, recv = engine.get_next_batch_to_run, engine.recv_requests

        def scheduled() -> Any:
            batch = schedule()
            books.check()
            return batch

        def received() -> None:
            books.check()
            recv()

        engine.get_next_batch_to_run = scheduled  # type: ignore[method-assign]
        engine.recv_requests = received  # type: ignore[method-assign]

    model = hash_model("sim", workload.eos_ids)
    options = {"depth": depth}
    play(workload, "vllm_async", relay, options, SimDevice(), model, patch=keep_books)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_vllms_rule_for_a_foreseen_length_is_ours_at_depth_two(depth: int) -> None:
    """Deeper, it counts on one token of those in flight, and would launch what we do not."""
    apart = 0

    def compare(engine: Engine) -> None:
        nonlocal apart
        for req in engine.scheduler.running_batch:
            foreseen = not engine.scheduler.decode.may_run(req)
            assert foreseen or not is_length_foreseen(req), "theirs never stops before ours"
            apart += foreseen and not is_length_foreseen(req)

    drive_watching("vllm_async", some_alone(2), ALONE, CostModel(), compare, "pool", depth=depth)
    assert bool(apart) == (depth > 2)


# -- deferred sampling ---------------------------------------------------------------------------


@pytest.mark.parametrize(("params", "reason"), [
    ({"regex": "[^a]{60}"}, "grammar"), ({"presence_penalty": 0.5}, "penalty"),
])  # fmt: skip
def test_in_steady_decode_a_structured_request_defers_every_step(
    params: dict[str, Any], reason: str
) -> None:
    """The forward pass is launched ahead all the same; only the sampling waits for the host."""
    cost = cost_of(100, 30, forward_base=900, sample=50, copy=20)
    trace = run_alone("vllm_async", 1, cost, params=params)
    assert num_waits(trace) == {reason: 47}, "every step but the prompt's"
    forwards = {s.step: s for s in trace.on("forward") if s.name == "forward"}
    samples = {s.step: s for s in trace.on("forward") if s.name == "sample"}
    processes = {s.step: s for s in trace.on("host") if s.name == "process"}
    masks = {s.step: s for s in trace.on("host") if s.name == "mask"}
    for step in range(2, 48):
        assert forwards[step].start == samples[step - 1].end, "the device does not wait"
        assert processes[step - 1].end <= masks[step].start, "the mask had to"
        assert masks[step].end <= samples[step].start
    trace = run_alone("vllm_batch_queue", 2, cost, params=params)
    assert not num_waits(trace), "nothing runs ahead, nothing is deferred"


@EVERY_ASYNC
def test_a_step_is_deferred_until_every_token_before_it_is_there(relay: str, depth: int) -> None:
    """At any depth: no other step of the request is in flight when it is sampled."""
    samplings: list[tuple[int, int]] = []

    def watch(engine: Engine) -> None:
        launch = engine.worker.launch_sample

        def launched(pending: GenerationBatchResult, *args: Any) -> None:
            samplings.append((engine.scheduler.batches_in_flight, pending.batch.step))
            launch(pending, *args)

        engine.worker.launch_sample = launched  # type: ignore[method-assign]

    requests = some_alone(1, 12, regex=r"[\x00-\x05]{60}")
    workload = Workload(requests, [0], {}, SchedulerConfig(context_len=32))
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=frozenset())
    options = {"depth": depth}
    play(workload, "vllm_async", relay, options, device, model, CostModel(), watch)
    check_identity(workload)
    assert samplings == [(1, step) for step in range(1, 13)]
    waits = num_waits(device.recorder.trace("", "", "", "virtual"))
    assert waits == ({"grammar": 11} if depth > 1 else {})


# -- async output copy ---------------------------------------------------------------------------


def test_the_copy_runs_beside_the_next_forward_pass() -> None:
    """The copy stream waits for the tokens, the host for the copy; the device for neither."""
    trace = run_alone("vllm_async", 1, cost_of(100, forward_base=900, sample=50, copy=600))
    forwards = {s.step: s for s in trace.on("forward") if s.name == "forward"}
    copies = {s.step: s for s in trace.on("copy")}
    samples = {s.step: s for s in trace.on("forward") if s.name == "sample"}
    waits = {s.step: s for s in trace.on("host") if s.name == "wait"}
    for step in range(10, 40):
        assert copies[step].start == samples[step].end == forwards[step + 1].start
        assert waits[step].end == copies[step].end < forwards[step + 1].end


def test_what_a_chunk_samples_is_cleared() -> None:
    """The row of a partial prompt comes back with the others, and nobody hears of it."""
    heard: list[str] = []
    long, short = Request("long", [1] * 9, SamplingParams(max_new_tokens=2)), Request("short", [2])
    config = SchedulerConfig(chunked_prefill_size=4)
    run = run_loop("vllm_async", SimDevice(), HashModel(eos_ids=frozenset()), [long, short], config,
                   on_output=lambda output: heard.append(output.rid))  # fmt: skip
    sampled = sum("long" in s.rids for s in run.trace.on("forward") if s.name == "sample")
    assert sampled == 4 and heard.count("long") == 2, "three chunks, of which the last counts"


@pytest.mark.parametrize("depth", [3, 5])
@pytest.mark.parametrize("is_held", [True, False])
def test_a_step_in_flight_holds_its_output(depth: int, is_held: bool) -> None:
    """With one buffer for all, a copy that had to wait brings another step's tokens.

    It takes three steps: at depth 2 the third is launched only when the first was copied.
    """

    def take_away(engine: Engine) -> None:
        if not is_held:
            del engine.worker.outputs.buffers[1:]

    workload = Workload(some_alone(1, 12), [0], {}, SchedulerConfig(context_len=32))
    slow_copy, model = CostModel(forward_base=10, copy=25), HashModel(VOCAB, eos_ids=frozenset())
    options = {"depth": depth}
    play(workload, "vllm_async", "pool", options, SimDevice(), model, slow_copy, take_away)
    if is_held:
        check_identity(workload)
    else:
        with pytest.raises(Broken, match="identity"):
            check_identity(workload)
