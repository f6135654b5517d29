"""PD separation: two schedulers, two clocks, and pages held until their KV has arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.case import Case
from minisched.checks.draw import Variant, draw
from minisched.checks.judge import judge
from minisched.checks.overlap import measure
from minisched.core import Request
from minisched.devices.base import Device
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.design import find_loop
from minisched.loops.pd import Link, PrefillEngine, RoomMessage
from minisched.loops.run import Run, make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.replay.replay import LengthModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import COST, VOCAB, many, tokens

LINK = {"latency": 5, "bytes_per_second": 10**9, "slot_bytes": 2}
SLOW = {"latency": 60, "bytes_per_second": 10**9, "slot_bytes": 15}  # several steps long
LINKS = [  # from a network that costs nothing to one that is slower than everything else
    {"latency": latency, "bytes_per_second": 10**9, "slot_bytes": slot}
    for latency, slot in ((0, 0), (1, 15), (20, 1), (300, 15))
]


def run(*requests: Request, config: SchedulerConfig | None = None, **options: Any) -> Run:
    model = HashModel(VOCAB, eos_ids=frozenset())
    return run_loop("pd", SimDevice(), model, requests, config, COST, **options)


# -- pd: what holds of every run -------------------------------------------------------------------


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_transfers_come_between_and_messages_never_too_late(link: dict[str, Any]) -> None:
    for seed in range(many(8, 100)):
        check_run(replace(draw(seed, odd=False).on(Variant("pd", "pool")), options=link, cost=COST))


def check_run(case: Case) -> None:
    answers: Counter[str] = Counter()

    def watch(side: Any) -> None:
        begun = [0]
        receive, post, take = side.recv_requests, side.mailbox.post, side.mailbox.take
        receive_reqs, has_come = side.scheduler.receive, set[str]()

        def turn() -> None:
            begun.append(side.device.now())
            receive()

        def check(time: int, message: RoomMessage) -> None:
            assert begun[-1] <= time, f"{message} arrives at {time}, a turn began {begun[-1]}"
            answers[message.room] += message.word == "transferred"
            post(time, message)

        def come(reqs: Iterable[Request]) -> None:
            reqs = list(reqs)
            has_come.update(req.rid for req in reqs)
            receive_reqs(reqs)

        def read(reader: Device) -> list[RoomMessage]:
            messages: list[RoomMessage] = take(reader)
            assert {it.room for it in messages} <= has_come, "a message precedes its request"
            return messages

        side.recv_requests, side.mailbox.post = turn, check
        if isinstance(side, PrefillEngine):
            side.scheduler.receive, side.mailbox.take = come, read
        sides.append(side)

    sides = list[Any]()
    verdict = judge(case, watch)
    found, requests = verdict.trace, verdict.workload.requests
    assert verdict.holds, verdict.findings
    sent = Counter(req.admission.bootstrap_room for req in requests if req.admission.bootstrap_room)
    assert answers == sent, "each is answered once"  # who is given up before has no room
    lanes = {f"{side} {lane}" for side in ("prefill", "decode")
             for lane in ("host", "forward", "copy")}  # fmt: skip
    assert {item.lane for item in found.slices} <= lanes | {"kv transfer"}
    assert {item.mode for item in found.on("prefill forward")} <= {"extend"}
    assert {item.mode for item in found.on("decode forward")} <= {"decode", "target verify"}
    retracted = [mark for mark in found.marks if mark.name == "retraction"]
    assert all(mark.attrs["side"] == "prefill" for mark in retracted), "the other side has reserved"
    link = Link(**{name: case.options[name] for name in LINK})
    transfers = found.on("kv transfer")
    marks = [mark for mark in found.marks if mark.name == "kv transfer"]
    sizes = [int(mark.attrs["slots"]) for mark in marks[: len(transfers)]]
    assert sum(item.duration for item in transfers) == sum(map(link.cost, sizes))
    assert all(before.end <= after.start for before, after in pairwise(transfers))
    prompts = {req.rid: len(req.prompt) for req in requests}
    for rid in {rid for item in transfers for rid in item.rids}:
        mine = [item for item in transfers if item.rids == (rid,)]
        decodes = [item.start for item in found.on("decode forward") if rid in item.rids]
        assert all(start >= mine[-1].end for start in decodes)
        computed = [item.end for item in found.on("prefill forward") if rid in item.rids]
        assert min(computed) <= mine[0].start
        parts = [int(mark.attrs["slots"]) for mark in marks if mark.attrs["rid"] == rid]
        assert sum(parts) <= prompts[rid] and (not decodes or sum(parts) == prompts[rid])
        if sum(parts) == prompts[rid]:
            assert all(part % case.workload.config.page_size == 0 for part in parts[:-1])


# -- pd: what is held, and who waits ---------------------------------------------------------------


def held_pages(trace: Trace, at: int) -> int:
    found = [item for item in trace.counters if item.name == "prefill kv used"]
    return next(item.value for item in reversed(found) if item.time <= at)


def test_a_prompt_waits_for_its_reservation() -> None:
    requests = Request("first", [1] * 8, tokens(20)), Request("second", [2] * 8, tokens(20))
    config = SchedulerConfig(kv_tokens=30, disable_radix_cache=True, context_len=30)
    found = run(*requests, config=config, **LINK)
    end = next(item.last_token or 0 for item in found.metrics.ended if item.rid == "first")
    computed = next(s.start for s in found.trace.on("prefill forward") if "second" in s.rids)
    sent = next(s.start for s in found.trace.on("kv transfer") if s.rids == ("second",))
    transfer = found.trace.on("kv transfer")[0]
    assert held_pages(found.trace, transfer.end - 1) >= 8, "up to the last moment"
    assert sent > end, "no transfer without pages on the other side"
    assert computed > end and held_pages(found.trace, end) == 0


def test_a_prompt_on_its_way_does_not_delay_who_decodes() -> None:
    busy = Request("busy", [1, 2], tokens(80))
    long = Request("long", [3] * 400, tokens(2), arrival_time=400)
    config = SchedulerConfig(chunked_prefill_size=50, context_len=512)
    found = run(busy, long, config=config, **LINK).trace
    arrival = max(item.end for item in found.on("kv transfer"))
    steps = [item.start for item in found.on("decode forward") if item.name == "forward"]
    before = [start for start in steps if start < arrival][2:]
    first = found.on("prefill forward")[-1].start
    assert before[-1] > first > 400, "the prompt was computed while the other one decoded"
    device, host, copy = COST.forward(1) + COST.sample, 15, COST.copy  # a step of one token
    law = max(2 * device, 2 * host, device + host + copy)
    intervals = [after - before for before, after in pairwise(before)]
    disturbed = [gap for gap in map(sum, pairwise(intervals)) if gap != law]
    assert len(disturbed) <= 4, "only where a message is heard, or a row reserved"


def test_the_clients_time_to_first_token_includes_the_transfer() -> None:
    found = run(Request("r", [1] * 8, tokens(3)), **SLOW)
    (transfer,), (times,) = found.trace.on("kv transfer"), found.metrics.ended
    assert times.first_token is not None and times.first_token > transfer.end
    assert times.queue_ns is not None and times.queue_ns > SLOW["latency"], "the reservation"
    assert measure(found.trace).devices == 2


def test_the_prefill_side_computes_a_prefix_once_and_it_is_sent_twice() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    second = Request("second", [*prompt, 9], tokens(2), arrival_time=500)
    found = run(Request("first", prompt, tokens(2)), second, **LINK)
    assert found.metrics.cached_tokens == 8
    sent = {m.attrs["rid"]: m.attrs["slots"] for m in found.trace.marks if m.name == "kv transfer"}
    assert sent == {"first": 8, "second": 9}


# -- pd: what is refused ---------------------------------------------------------------------------


def test_pd_needs_two_clocks_two_engines_and_a_model_with_kv() -> None:
    requests = [Request("r", [1])]
    with pytest.raises(ValueError, match="'pd' does not run on device 'thread'"):
        run_loop("pd", open_device("thread"), HashModel(), requests)
    engine = make_engine("pd", SimDevice(), HashModel(), SchedulerConfig(), Frontend())
    with pytest.raises(ValueError, match="it is two engines"):
        find_loop("pd").start(engine)
    with pytest.raises(ValueError, match="model 'length' has none"):
        run_loop("pd", SimDevice(), LengthModel(1000, 3, 64), requests)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("latency", -1, 0), ("bytes_per_second", 0, 1), ("slot_bytes", -3, 0)],
)
def test_a_link_that_cannot_be_is_refused(name: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, .* at least {least}"):
        Link(**{name: value})


@given(st.integers(0, 10**6), st.integers(1, 10**12), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_links_cost_is_latency_and_bytes_rounded_up(
    latency: int, rate: int, slot: int, count: int
) -> None:
    cost = Link(latency, rate, slot).cost(count) - latency
    assert (cost - 1) * rate < count * slot * 10**9 <= cost * rate
