"""PD separation: two schedulers, two clocks, and pages that are held until their KV has arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from minisched.checks.overlap import measure, step_intervals
from minisched.core import FinishReason, Lease, Output, Request, SamplingParams
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.kv_messages import Message, Metadata, Transferred
from minisched.loops.kv_transfer import Link
from minisched.loops.pd import Pair
from minisched.loops.pd_run import RELAYS
from minisched.loops.registry import find_loop
from minisched.loops.run import Run, make_engine, run_loop
from minisched.memory import OwnershipError
from minisched.models.hash import HashModel
from minisched.models.length import LengthModel
from minisched.scheduler import SchedulerConfig

from .laws import Broken
from .pd_runs import LINK, PdRun, check_pd, links, play_pd, timed
from .timed_runs import COST, timed_workloads
from .workloads import VOCAB, Workload, fresh

SLOW = {"latency": 60, "bytes_per_second": 10**9, "slot_bytes": 15}  # a transfer takes several steps


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

        def broken(inputs: Any, previous: Any) -> Any:
            if inputs.label.step == failing:
                raise RuntimeError("the device says no")
            return forward(inputs, previous)

        engine.worker._forward = broken  # type: ignore[method-assign]

    run = play_pd(workload, options, fail)
    for req in workload.requests:
        if "the device says no" in req.error:
            assert req.finish_reason is FinishReason.ERROR
            req.finish_reason = FinishReason.ABORT  # its tokens are the beginning of the truth
    check_pd(workload, run)


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

    def early(rid: str, lease: Lease, end: int, last: Transferred | None = None) -> None:
        send(rid, lease, end, last)
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

    def early(rid: str, slots: list[int], to_slots: list[int], last: Transferred | None) -> Any:
        if last is not None:
            transfer.mailbox.post(pair.prefill.device.now(), last)
        return launch(rid, slots, to_slots, None)

    transfer.launch = early  # type: ignore[method-assign]


def one_chunk_is_not_sent(pair: Pair) -> None:
    """Chunks count as sent although they are not."""
    send = pair.prefill.send_kv_chunk

    def forgetful(rid: str, lease: Lease, end: int, last: Transferred | None = None) -> None:
        if last is None:
            pair.prefill.senders[rid].sent_len = end
        else:
            send(rid, lease, end, last)

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

    smallest = find(
        long_prompts(),
        lambda workload: isinstance(outcome(workload, patch), law),
        settings=settings(max_examples=2000, deadline=None, derandomize=True, database=None),
    )
    assert "identity" in str(outcome(smallest, patch))
    assert outcome(smallest, lambda pair: None) is None, "the healthy pair must pass"
