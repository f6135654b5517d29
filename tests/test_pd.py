"""PD separation: two schedulers, two clocks, and pages that are held until their KV has arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import measure, step_intervals
from minisched.core import FinishReason, Lease, Request, SamplingParams
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.pd import Pair
from minisched.loops.pd_kv_transfer import Link
from minisched.loops.pd_messages import Message, Transferred
from minisched.loops.pd_run import RELAYS
from minisched.loops.registry import find_loop
from minisched.loops.run import Run, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.models.length import LengthModel
from minisched.relay.registry import RELAYS as REGISTERED
from minisched.relay.registry import RelayShape
from minisched.scheduler import MemoryLeak, SchedulerConfig
from tests.pd_runs import LINK, PdRun, check_pd, links, play_pd, timed
from tests.support import COST, VOCAB, Broken, Workload, fresh, timed_workloads

SLOW = {
    "latency": 60,
    "bytes_per_second": 10**9,
    "slot_bytes": 15,
}  # several steps long


def tokens(count: int) -> SamplingParams:
    """Exactly so many."""
    return SamplingParams(max_new_tokens=count, ignore_eos=True)


def workload_of(*requests: Request, **config: Any) -> Workload:
    """Requests that come when they say, under a small configuration."""
    settings = {"kv_tokens": 64, "max_running_requests": 4, "context_len": 32, **config}
    return Workload(list(requests), [0] * len(requests), {}, SchedulerConfig(**settings))


def run(*requests: Request, config: SchedulerConfig | None = None, **options: Any) -> Run:
    """A run with an end-of-text token that is never sampled."""
    model = HashModel(VOCAB, eos_ids=frozenset())
    return run_loop("pd", SimDevice(), model, requests, config, COST, **options)


@pytest.mark.parametrize("relay", RELAYS)
@given(workload=timed, options=links)
@settings(max_examples=150, deadline=None)
def test_every_law_on_both_sides(relay: str, workload: Workload, options: dict[str, Any]) -> None:
    check_pd(workload, play_pd(workload, options, relay=relay))


@pytest.mark.parametrize("relay", RELAYS)
def test_both_sides_have_the_relay_that_was_asked_for(relay: str) -> None:
    kinds: list[type] = []

    def look(pair: Pair) -> None:
        kinds.extend(type(side.worker.relay) for side in (pair.prefill, pair.decode))

    play_pd(workload_of(Request("r", [1, 2], tokens(2))), LINK, look, relay)
    asked_for = REGISTERED[relay].make(SimDevice(), RelayShape(1, 1))
    assert kinds == [type(asked_for)] * 2


@pytest.mark.parametrize("side", ["prefill", "decode"])
@given(workload=timed, options=links, failing=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_a_failed_step_on_either_side(
    side: str, workload: Workload, options: dict[str, Any], failing: int
) -> None:
    """Whoever is in it ends with its reason; the rest goes on, and nothing is held for ever."""

    def fail(pair: Pair) -> None:
        engine: Engine = getattr(pair, side)
        forward = engine.worker._forward

        def broken(batch: Any, inputs: Any, previous: Any) -> Any:
            if inputs.label.step == failing:
                raise RuntimeError("the device says no")
            return forward(batch, inputs, previous)

        engine.worker._forward = broken  # type: ignore[method-assign]

    run = play_pd(workload, options, fail)
    for req in workload.requests:
        if "the device says no" in req.error:
            assert req.finish_reason is FinishReason.ERROR
            workload.struck[req.name] = {req.error}  # its tokens are the beginning of the truth
    check_pd(workload, run)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_leak_on_either_side_is_found_when_nothing_runs(side: str) -> None:
    """Not only at the end: the second request is still to come."""
    second = Request("second", [3, 4], tokens(2), arrival_time=10**6)

    def lose_a_row(pair: Pair) -> None:
        getattr(pair, side).scheduler.leases.table.alloc()

    with pytest.raises(MemoryLeak, match="3 of 4 rows are free, but nothing runs"):
        play_pd(workload_of(Request("first", [1, 2], tokens(2)), second), LINK, lose_a_row)
    assert not second.finished


@given(workload=timed_workloads(with_aborts=False), options=links, turn=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_ctrl_c_ends_everything_on_both_sides(
    workload: Workload, options: dict[str, Any], turn: int
) -> None:
    def interrupt(pair: Pair) -> None:
        for _ in range(turn):
            if not pair.is_done:
                pair.turn()
        pair.decode.frontend.interrupt()

    check_pd(workload, play_pd(workload, options, interrupt))
    reasons = {req.finish_reason for req in workload.requests}
    assert FinishReason.ERROR not in reasons


# -- the bugs that the hold is there against: each is caught, and does nothing wrong when mended --


def pages_freed_before_the_transfer_ends(pair: Pair) -> None:
    """The prefill side frees a prompt's pages once the transfer is launched, and not over."""
    prefill = pair.prefill
    send = prefill.send_kv_chunk

    def early(rid: str, lease: Lease, end: int, step: int, last: Transferred | None = None) -> None:
        send(rid, lease, end, step, last)
        for _, held in prefill.senders[rid].transfers:
            prefill.scheduler.leases.let_go(held)
        prefill.senders[rid].transfers.clear()

    prefill.send_kv_chunk = early  # type: ignore[method-assign]


def pages_freed_under_the_transfer(pair: Pair) -> None:
    """The decode side frees an aborted request's pages while KV is on its way to them."""
    leases = pair.decode.scheduler.leases
    leases.hold = lambda lease: None  # type: ignore[method-assign]
    leases.let_go = lambda lease: None  # type: ignore[method-assign]


def decode_before_the_kv_is_there(pair: Pair) -> None:
    """The first token is taken for the whole of it: decoding starts before its KV has come."""
    transfer = pair.prefill.transfer
    assert transfer is not None
    launch = transfer.launch

    def early(
        label: Any, slots: list[int], to_slots: list[int], last: Transferred | None, *before: Any
    ) -> Any:
        if last is not None:
            transfer.mailbox.post(pair.prefill.device.now(), last)
        return launch(label, slots, to_slots, None, *before)

    transfer.launch = early  # type: ignore[method-assign]


def one_chunk_is_not_sent(pair: Pair) -> None:
    """Chunks count as sent although they are not."""
    send = pair.prefill.send_kv_chunk

    def forgetful(
        rid: str, lease: Lease, end: int, step: int, last: Transferred | None = None
    ) -> None:
        if last is None:
            pair.prefill.senders[rid].sent_len = end
        else:
            send(rid, lease, end, step, last)

    pair.prefill.send_kv_chunk = forgetful  # type: ignore[method-assign]


def table_row_not_sent(pair: Pair) -> None:
    """The decode device's page table is not told where the KV lies that was sent to it."""
    scheduler = pair.decode.scheduler
    reserve = scheduler.pop_preallocated

    def forgetful() -> list[tuple[Request, Lease]]:
        found = reserve()
        for _, lease in found:
            lease.sent_pages = len(lease.pages)
        return found

    scheduler.pop_preallocated = forgetful  # type: ignore[method-assign]


BUGS: list[tuple[Callable[[Pair], None], type[Exception]]] = [
    (pages_freed_before_the_transfer_ends, Broken),
    (pages_freed_under_the_transfer, Broken),
    (decode_before_the_kv_is_there, Broken),
    (one_chunk_is_not_sent, Broken),
    (table_row_not_sent, Broken),
]


@st.composite
def long_prompts(draw: st.DrawFn) -> Workload:
    """Chunked prompts that come one after the other, in a pool for two, some of them given up."""
    prompts = st.lists(st.integers(0, 18), min_size=4, max_size=9)
    requests = [
        Request(f"r{i}", draw(prompts), tokens(draw(st.integers(2, 20))),
                arrival_time=draw(st.integers(0, 300)))
        for i in range(draw(st.integers(2, 5)))
    ]  # fmt: skip
    workload = workload_of(
        *requests,
        kv_tokens=draw(st.integers(29, 50)),
        chunked_prefill_size=draw(st.sampled_from([-1, 4])),
        disable_radix_cache=draw(st.booleans()),
    )
    times, rids = st.integers(0, 900), st.sampled_from([req.rid for req in requests])
    workload.aborts = draw(st.dictionaries(times, rids, max_size=3))
    return workload


def again(workload: Workload) -> Workload:
    """A copy whose requests keep their arrival times."""
    copy = fresh(workload)
    for req, old in zip(copy.requests, workload.requests, strict=True):
        req.arrival_time = old.arrival_time
    return copy


@pytest.mark.parametrize(("patch", "law"), BUGS, ids=lambda item: getattr(item, "__name__", ""))
def test_a_law_catches_the_bug(patch: Callable[[Pair], None], law: type[Exception]) -> None:
    def outcome(workload: Workload, patch: Callable[[Pair], None]) -> Exception | None:
        workload = again(workload)
        try:
            check_pd(workload, play_pd(workload, SLOW, patch))
        except Exception as error:  # a broken pair may crash in any way
            return error
        return None

    found = find(
        long_prompts(),
        lambda workload: isinstance(outcome(workload, patch), law),
        settings=settings(
            max_examples=2000, deadline=None, derandomize=True, database=None,
            phases=[Phase.generate],  # shrinking takes ten times as long, and shows nobody
        ),
    )  # fmt: skip
    assert "identity" in str(outcome(found, patch))
    assert outcome(found, lambda pair: None) is None, "the healthy pair must pass"


# -- what the trace shows --------------------------------------------------------------------------

SIDES = ("prefill", "decode")
LANES = {f"{side} {lane}" for side in SIDES for lane in ("host", "forward", "copy")}


@given(workload=timed, options=links)
@settings(max_examples=60, deadline=None)
def test_a_transfer_takes_latency_and_bytes_and_comes_between(
    workload: Workload, options: dict[str, Any]
) -> None:
    """One after the other; after its prompt's step on one side, before its first on the other."""
    found = play_pd(workload, options).trace
    assert {item.lane for item in found.slices} <= LANES | {"kv transfer"}
    link = Link(**{name: value for name, value in options.items() if name != "prealloc_first"})
    transfers = found.on("kv transfer")
    marks = [mark for mark in found.marks if mark.name == "kv transfer"]
    assert sum(item.duration for item in transfers) == sum(
        link.cost(int(mark.attrs["slots"])) for mark in marks[: len(transfers)]
    )
    assert all(before.end <= after.start for before, after in pairwise(transfers))
    for rid in {rid for item in transfers for rid in item.rids}:
        last = max(item.end for item in transfers if item.rids == (rid,))
        decodes = [item.start for item in found.on("decode forward") if rid in item.rids]
        assert all(start >= last for start in decodes)
        prompts = [item for item in found.on("prefill forward") if rid in item.rids]
        assert min(item.end for item in prompts) <= min(
            item.start for item in transfers if item.rids == (rid,)
        )
        parts = [int(mark.attrs["slots"]) for mark in marks if mark.attrs["rid"] == rid]
        sent = sum(parts)
        prompt = next(req.prompt for req in workload.requests if req.rid == rid)
        assert sent <= len(prompt) and (not decodes or sent == len(prompt))
        if sent == len(prompt):
            chunks = parts[:-1]
            assert all(part % workload.config.page_size == 0 for part in chunks), "whole pages"


@given(workload=timed, options=links)
@settings(max_examples=60, deadline=None)
def test_nobody_decodes_here_or_prefills_there(workload: Workload, options: dict[str, Any]) -> None:
    found = play_pd(workload, options).trace
    assert {item.mode for item in found.on("prefill forward")} <= {"extend"}
    assert {item.mode for item in found.on("decode forward")} <= {"decode"}
    retracted = [mark for mark in found.marks if mark.name == "retraction"]
    assert not retracted, "room for the longest outputs was reserved"


@given(workload=timed, options=links)
@settings(max_examples=60, deadline=None)
def test_a_message_never_comes_too_late(workload: Workload, options: dict[str, Any]) -> None:
    """Conservative clocks: no side has begun a turn after the time at which a message arrives."""

    def watch(pair: Pair) -> None:
        for side in (pair.prefill, pair.decode):
            begun = [0]
            receive, post = side.recv_requests, side.mailbox.post

            def turn(side: Any = side, receive: Any = receive, begun: list[int] = begun) -> None:
                begun.append(side.device.now())
                receive()

            def check(
                time: int, message: Message, after: int, post: Any = post, begun: Any = begun
            ) -> None:
                assert begun[-1] <= time, f"{message} arrives at {time}, a turn began {begun[-1]}"
                post(time, message, after)

            side.recv_requests = turn  # type: ignore[method-assign]
            side.mailbox.post = check  # type: ignore[method-assign]

    check_pd(workload, play_pd(workload, options, watch))


@given(workload=timed, options=links)
@settings(max_examples=60, deadline=None)
def test_every_request_is_answered_once(workload: Workload, options: dict[str, Any]) -> None:
    answers: Counter[str] = Counter()

    def watch(pair: Pair) -> None:
        post = pair.decode.mailbox.post

        def count(time: int, message: Message, after: int) -> None:
            answers[message.room] += isinstance(message, Transferred)
            post(time, message, after)

        pair.decode.mailbox.post = count  # type: ignore[method-assign]

    play_pd(workload, options, watch)
    assert answers and set(answers.values()) == {1}
    assert set(answers) == {req.rid for req in workload.requests}


def held_pages(run: PdRun, at: int) -> int:
    """KV slots in use on the prefill side at a moment."""
    found = [item for item in run.trace.counters if item.name == "prefill kv used"]
    return next(item.value for item in reversed(found) if item.time <= at)


@pytest.mark.parametrize("prealloc_first", [True, False])
def test_pages_are_held_until_the_transfer_ends(prealloc_first: bool) -> None:
    """Without a radix cache, so that what is used is held: all of it at the last moment."""
    request = Request("r", [1] * 8, tokens(3))
    workload = workload_of(request, disable_radix_cache=True)
    played = play_pd(workload, {**SLOW, "prealloc_first": prealloc_first})
    (transfer,) = played.trace.on("kv transfer")
    assert held_pages(played, transfer.end - 1) == 8
    assert played.pair.prefill.scheduler.num_used_tokens == 0


def test_a_prompt_waits_for_its_reservation_or_its_pages_do() -> None:
    """Decode has room for one: with SGLang's order the second prompt is not computed before the
    first request is done; with vLLM's it is computed, and its pages are held so long."""

    def play(prealloc_first: bool) -> tuple[int, int, int]:
        first = Request("first", [1] * 8, tokens(20))
        second = Request("second", [2] * 8, tokens(20))
        workload = workload_of(first, second, kv_tokens=30, disable_radix_cache=True)
        played = play_pd(workload, {**LINK, "prealloc_first": prealloc_first})
        end = next(t for t, out in played.heard if out.rid == "first" and out.finish_reason)
        trace = played.trace
        computed = next(s.start for s in trace.on("prefill forward") if "second" in s.rids)
        sent = next(s.start for s in trace.on("kv transfer") if s.rids == ("second",))
        assert sent > end, "no transfer without pages on the other side"
        return computed, end, held_pages(played, end)

    computed, end, held = play(prealloc_first=True)
    assert computed > end and held == 0
    computed, end, held = play(prealloc_first=False)
    assert computed < end and held == 8


def test_a_prompt_on_its_way_does_not_delay_who_decodes() -> None:
    """A long prompt is computed in chunks beside it: in pd each step takes as long as before."""
    busy = Request("busy", [1, 2], tokens(80))
    long = Request("long", [3] * 400, tokens(2), arrival_time=400)
    config = SchedulerConfig(chunked_prefill_size=50, context_len=512)
    found = run(busy, long, config=config, **LINK).trace
    arrival = max(item.end for item in found.on("kv transfer"))
    steps = [item for item in found.on("decode forward") if item.name == "forward"]
    before = [item.start for item in steps if item.start < arrival][2:]
    first = found.on("prefill forward")[-1].start
    assert before[-1] > first > 400, "the prompt was computed while the other one decoded"
    one = replace(COST, forward_per_token=0)  # a step of one token
    device, host, copy = one.forward_base + 1 + one.sample, 15, one.copy
    law = max(2 * device, 2 * host, device + host + copy)
    intervals = [after - before for before, after in pairwise(before)]
    disturbed = [gap for gap in map(sum, pairwise(intervals)) if gap != law]
    assert len(disturbed) <= 4, "only where a message is heard, or a row reserved"


def test_the_clients_time_to_first_token_includes_the_transfer() -> None:
    found = run(Request("r", [1] * 8, tokens(3)), **SLOW)
    (transfer,) = found.trace.on("kv transfer")
    times = found.metrics.ended[0]
    assert times.first_token is not None and times.first_token > transfer.end
    assert times.queue_ns is not None and times.queue_ns > SLOW["latency"], "the reservation"
    assert transfer.duration == SLOW["latency"] + 8 * SLOW["slot_bytes"]


def test_the_prefill_side_shares_prefixes() -> None:
    """The second prompt's prefix is computed once and sent twice."""
    prompts = [1, 2, 3, 4, 5, 6, 7, 8]
    first = Request("first", prompts, tokens(2))
    second = Request("second", [*prompts, 9], tokens(2), arrival_time=500)
    found = run(first, second, **LINK)
    assert found.metrics.cached_tokens == 8
    sent = {m.attrs["rid"]: m.attrs["slots"] for m in found.trace.marks if m.name == "kv transfer"}
    assert sent == {"first": 8, "second": 9}


def test_a_failed_transfer_ends_its_request() -> None:
    workload = workload_of(*(Request(rid, [1] * 6, tokens(4)) for rid in "abc"))

    def fail(pair: Pair) -> None:
        read = pair.prefill.worker.model.read_kv  # type: ignore[attr-defined]
        calls: list[int] = []

        def broken(slots: list[int]) -> list[list[int]]:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("link down")
            values: list[list[int]] = read(slots)
            return values

        pair.prefill.worker.model.read_kv = broken  # type: ignore[attr-defined]

    played = play_pd(workload, LINK, fail)
    failed = [req for req in workload.requests if req.finish_reason is FinishReason.ERROR]
    assert [req.error for req in failed] == ["transfer failed: link down"]
    workload.struck[failed[0].name] = {failed[0].error}
    check_pd(workload, played)


def test_requests_that_are_refused_never_reach_the_prefill_side() -> None:
    good = Request("r", [1, 2], tokens(3))
    namesake = Request("r", [3, 4], tokens(3), arrival_time=50)
    long = Request("long", [1] * 60, tokens(60))
    found = run(good, namesake, long, config=SchedulerConfig(kv_tokens=64, context_len=64))
    assert found.outputs["r"] == good.output_ids and len(good.output_ids) == 3
    assert "already in use" in namesake.error and "together more than" in long.error
    prompts = [item.rids for item in found.trace.on("prefill forward") if item.name == "forward"]
    assert prompts == [("r",)]


def test_the_report_counts_two_devices() -> None:
    found = run(*(Request(rid, [1, 2, 3], tokens(5)) for rid in "ab"))
    report = measure(found.trace)
    assert report.devices == 2 and len(step_intervals(found.trace)) > 2


# -- what is refused -------------------------------------------------------------------------------


def test_pd_is_refused_where_there_are_no_two_clocks() -> None:
    model = HashModel()
    with pytest.raises(ValueError, match="'pd' does not run on device 'thread': it needs two dev"):
        run_loop("pd", open_device("thread"), model, [Request("r", [1])])


def test_pd_is_refused_as_one_engine() -> None:
    engine = make_engine("pd", SimDevice(), HashModel(), SchedulerConfig(), Frontend())
    with pytest.raises(ValueError, match="'pd' is two engines, so it runs only as a whole"):
        find_loop("pd").start(engine)


def test_a_model_without_kv_is_refused() -> None:
    model = LengthModel(1000, 3, 64)
    with pytest.raises(ValueError, match="'pd' copies KV, but model 'length' has none"):
        run_loop("pd", SimDevice(), model, [Request("r", [1])])


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("latency", -1, 0), ("bytes_per_second", 0, 1), ("slot_bytes", -3, 0)],
)
def test_a_link_that_cannot_be_is_refused(name: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, but it must be at least {least}"):
        Link(**{name: value})


@given(st.integers(0, 10**6), st.integers(1, 10**12), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_links_cost_is_latency_and_bytes_rounded_up(
    latency: int, rate: int, slot: int, count: int
) -> None:
    cost = Link(latency, rate, slot).cost(count) - latency
    assert (cost - 1) * rate < count * slot * 10**9 <= cost * rate


def test_mixed_is_overlap_with_mixed_chunks() -> None:
    requests = [Request("a", [1, 2], tokens(30)), Request("b", [3] * 40, tokens(4), 60)]
    model, config = HashModel(VOCAB, eos_ids=frozenset()), SchedulerConfig(chunked_prefill_size=8)
    found = run_loop("mixed", SimDevice(), model, requests, config, COST)
    assert "mixed" in {item.mode for item in found.trace.on("forward")}
