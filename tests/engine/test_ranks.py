"""A scheduler on every rank: with clocks of their own they decide alike, and see it if they don't.

Here a rank is a thread with a simulated device of its own. Processes are in
``tests/loops/test_tp_ranks.py``.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from random import Random
from typing import Any

import pytest

from minisched.checks.draw import draw
from minisched.core import FinishReason, Request
from minisched.devices.base import RankLost
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.engine.ranks import RanksDisagree, TPEngine
from minisched.loops.design import find_loop
from minisched.loops.run import RunSetup, drive, wire
from minisched.models.hash import HashModel
from tests.support import fresh, many

LOOPS = ("serial", "overlap", "vllm_async", "mini_overlap", "multi_step")


@dataclass
class Wire:
    """Queues between threads, in the place of ``devices/dist.py:Ranks``: what comes is a copy."""

    size: int
    lost: RankLost | None = None
    queues: Any = field(default_factory=lambda: defaultdict(SimpleQueue))


@dataclass
class End:
    """One rank's end of it; ``dies_after`` so many messages."""

    wire: Wire
    rank: int
    dies_after: int | None = None

    def __post_init__(self) -> None:
        self.size = self.wire.size
        self.others = [other for other in range(self.size) if other != self.rank]
        self.num_sent = 0

    def send(self, to: int, tag: str, value: Any = None) -> None:
        if self.num_sent == self.dies_after:
            self.wire.lost = RankLost(f"rank {self.rank} is lost.")
        self.num_sent += 1
        self.check()
        self.wire.queues[self.rank, to, tag].put(pickle.dumps(value))

    def receive(self, source: int, tag: str, patient: bool = False) -> Any:
        for _ in range(1000):  # of 10 ms: nobody waits for ever
            try:
                content = self.wire.queues[source, self.rank, tag].get(timeout=0.01)
                return type("Said", (), {"value": pickle.loads(content)})
            except Empty:
                self.check()
        self.wire.lost = RankLost(f"rank {source} has not said {tag!r}.")
        raise self.wire.lost

    def check(self) -> None:
        if self.wire.lost is not None:
            raise self.wire.lost


@dataclass
class Rank:
    """What a rank has at its end."""

    requests: list[Request]
    outputs: list[Any]
    batches: list[Any]
    error: Exception | None = None


Change = Callable[[int, Engine], None]


def run_rank(end: End, seed: int, loop: str, change: Change, kind: Callable[..., Any]) -> Rank:
    drawn = draw(seed, odd=False)
    workload = fresh(drawn.workload)
    rng = Random(f"{seed} {end.rank}")  # a clock of its own: nothing takes as long as elsewhere
    host = {name: rng.randrange(1, 40) for name in ("schedule", "prepare", "launch", "process")}
    cost = CostModel(host=host, forward_base=rng.randrange(200), sample=5, copy=rng.randrange(90))
    for req, turn in zip(workload.requests, workload.arrivals, strict=True):
        req.arrival_time = 97 * turn
    device, model = SimDevice(), HashModel(workload.vocab_size, eos_ids=workload.eos_ids)
    outputs, batches = list[Any](), list[Any]()
    frontend, made = Frontend(() if end.rank else workload.requests, outputs.append), list[Any]()
    if end.rank == 0:
        for turn, rid in workload.aborts.items():
            frontend.abort(rid, at=97 * turn + 50)
    spec, error = find_loop(loop), None
    config = replace(workload.config, speculative_algorithm="", speculative_draft_model_path="")
    of_rank: Any = partial(kind, ranks=end)
    try:
        setup = RunSetup(loop, spec, device, model, config, frontend, cost)
        engine = wire(setup, engine_class=of_rank)
        made.append(engine)
        engine.scheduler.on_commit = lambda batch: batches.append((batch.step, batch.rids))
        change(end.rank, engine)
        drive(spec.start(engine), engine)
    except Exception as raised:
        error = raised
        if not isinstance(raised, RanksDisagree):
            end.wire.lost = RankLost(f"rank {end.rank} is lost: {raised}")
    finally:
        device.close()
    return Rank(
        made[0].received, [(it.rid, it.token, it.finish_reason) for it in outputs], batches, error
    )


def run_ranks(
    seed: int,
    loop: str,
    size: int = 2,
    change: Change = lambda rank, engine: None,
    kind: Callable[..., Any] = TPEngine,
    dies_after: dict[int, int] | None = None,
) -> list[Rank]:
    wire = Wire(size)
    ends = [End(wire, rank, (dies_after or {}).get(rank)) for rank in range(size)]
    play = partial(run_rank, seed=seed, loop=loop, change=change, kind=kind)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(play, ends))


@pytest.mark.parametrize("seed", range(many(40, 400)))
def test_ranks_with_clocks_of_their_own_decide_alike(seed: int) -> None:
    ranks = run_ranks(seed, LOOPS[seed % len(LOOPS)], size=2 + seed % 2)
    first = ranks[0]
    assert [rank.error for rank in ranks] == [None] * len(ranks)
    for rank in ranks:
        assert rank.outputs == first.outputs
        assert rank.batches == first.batches
        assert all(req.finish_reason for req in rank.requests)
        assert [req.output_ids for req in rank.requests] == [
            req.output_ids for req in first.requests
        ]


@pytest.mark.parametrize("seed", range(many(20, 200)))
def test_when_a_rank_is_lost_every_request_has_a_reason_on_those_that_are_left(seed: int) -> None:
    rng = Random(seed)
    victim, moment = rng.randrange(2), rng.randrange(30)
    ranks = run_ranks(seed, LOOPS[seed % len(LOOPS)], dies_after={victim: moment})
    assert [rank.error for rank in ranks] == [None, None]
    for rank in ranks:
        for req in rank.requests:
            assert req.finish_reason is not None
            if req.finish_reason is FinishReason.ABORT and req.error:
                assert req.error == f"rank {victim} is lost."
    assert {req.rid for req in ranks[0].requests} == {
        req.rid for req in draw(seed, odd=False).workload.requests
    }


class ByItsOwnClock(TPEngine):
    """Rank 1 takes a request in when its own clock says so."""

    def broadcast(self, messages: Any) -> Any:
        inner = super().broadcast(messages)
        if self.ranks.rank:
            self.early = [*getattr(self, "early", []), *inner]
            inner = [it for it in self.early if getattr(it, "arrival_time", 0) <= self.device.now()]
            self.early = [it for it in self.early if it not in inner]
        return inner


def disagreements(**how: Any) -> list[str]:
    found = []
    for seed in range(16):
        ranks = run_ranks(seed, "overlap", **how)
        if any(isinstance(rank.error, RanksDisagree) for rank in ranks):
            assert len({(type(rank.error), str(rank.error)) for rank in ranks}) == 1
            found.append(str(ranks[0].error))
    return found


def test_a_rank_that_goes_by_its_own_clock_is_found_out() -> None:
    found = disagreements(kind=ByItsOwnClock)
    assert len(found) > 4
    assert all(said.startswith("rank 1 disagrees with rank 0 in step ") for said in found)


def test_a_rank_with_another_order_of_its_set_is_found_out() -> None:
    """``ranks_disagree`` of the museum, as every rank has it by itself."""

    def shuffled(rank: int, engine: Engine) -> None:
        decode = engine.scheduler.decode
        inner = decode.schedule_next_batch
        decode.schedule_next_batch = lambda: inner()[:: -1 if rank else 1]

    found = disagreements(change=shuffled)
    assert found and all("the requests is" in said or "the first" in said for said in found)
    assert not disagreements()
