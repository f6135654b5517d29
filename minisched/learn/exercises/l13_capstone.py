"""Lesson 13, the capstone: a scheduler and a loop of one's own, held against the laws."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...checks.case import Case
from ...checks.draw import LEVELS
from ...checks.history import many
from ...core import FinishReason, Request
from ...museum.exhibit import case
from ...policy.plan import Plan
from ...scheduler import Scheduler, SchedulerConfig
from ...trace import Recorder
from ..exercise import COST, Calls, Exercise, Loop, Workloads, engine_with
from ..guard import Mistake
from .l01_bubble import no_busy_turn

# -- What a learner's scheduler sees of the engine, and how its plan becomes a step ----------------


class StepRoom:
    """How much there is: memory, rows, and tokens of prompts in one step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        config = scheduler.config
        chunk = config.chunked_prefill_size
        self.page_size = config.page_size
        self.prompt_tokens = min(
            config.max_prefill_tokens, chunk if chunk > 0 else config.max_prefill_tokens
        )
        self.may_cut = chunk > 0

    @property
    def free_pages(self) -> int:
        """Pages that can be had now."""
        return self._scheduler.leases.available_pages

    @property
    def free_rows(self) -> int:
        """How many more requests may start."""
        return self._scheduler.table.available_size

    def pages_held(self, req: Request) -> int:
        """Pages that a request has."""
        return len(req.lease.pages) if req.lease else 0

    def may_run(self, req: Request) -> bool:
        """Whether the next token of a request whose prompt is done may be launched now."""
        return req.lease is not None and self._scheduler.decode.may_run(req)


def plain_memory(case: Case) -> Case:
    """Without drafts, a prefix cache, and a rule on who goes first: that is for the learner."""
    config = replace(
        case.workload.config, disable_radix_cache=True, speculative_algorithm="",
        speculative_draft_model_path="", run_first="",
    )  # fmt: skip
    return replace(case, workload=replace(case.workload, config=config))


HALF_A_PAGE = plain_memory(
    case("a: 1 2 3 -> 4; b: 4 5 6 -> 4", "overlap", kv=12, rows=2, page_size=4, cost=COST)
)
"""Three pages for two requests, each of which ends up with a page and a half: one at a time."""

IN_ONE_PIECE = plain_memory(
    case("a: 1 2 3 4 5 6 -> 4; b: 4 5 6 -> 4", "overlap", kv=48, rows=2, chunked_prefill_size=-1,
         max_prefill_tokens=4, cost=COST)
)  # fmt: skip
"""A prompt that is longer than the budget of a step, where nothing may be cut."""

HELD = (
    "identity", "ends", "client", "logprobs", "abort", "budget", "leak", "race", "touches",
    "ownership", "time", "livelock", "deadlock", "crash",
)  # fmt: skip
"""Who goes first is the learner's own decision; all else is not."""


@dataclass
class OwnPlan:
    """Asks the learner's scheduler, and does to the books what its plan says."""

    scheduler: Scheduler
    own: Any

    def plan(self) -> Plan:
        """The next step's work.

        Raises:
            Mistake: the plan can't be carried out; the sentence says why.
        """
        given = self.own.next_batch(StepRoom(self.scheduler))
        if not (isinstance(given, tuple) and len(given) == 2):
            raise Mistake(f"`next_batch` gave {given!r}, but it must give two lists")
        prompts, decodes = given
        for req, length in prompts:
            self._start(req, length)
        for req in decodes:
            if req.lease is None or not self.scheduler.decode.may_run(req):
                raise Mistake(
                    f"the next token of {req.rid} may not be launched: ask `room.may_run`"
                )
            if req in {one for one, _ in prompts}:
                raise Mistake(f"{req.rid} is among the prompts and among those who decode")
        if (short := self.scheduler.leases.pages_short(decodes)) > 0:
            raise Mistake(f"those who decode lack {many(short, 'page')}: keep some free")
        return list(prompts), list(decodes), None

    def _start(self, req: Request, length: int) -> None:
        """Let a prompt begin, or go on, with so many tokens."""
        scheduler = self.scheduler
        if req.finished or req.rid not in scheduler.live:
            raise Mistake(f"request {req.rid} has ended, so it can't be in a step")
        if req.lease is None:
            if not scheduler.table.available_size:
                raise Mistake(f"no row is free for {req.rid}: see `room.free_rows`")
            half = scheduler.prefill.chunked_req
            if half is not None and length < req.extend_len:
                raise Mistake(
                    f"{req.rid}'s prompt begins while that of {half.rid} is half computed"
                )
            req.start(scheduler.leases.open(scheduler.prefix_cache.match_prefix(req), req.rid))
            scheduler.prefill.start(req, length)
        elif req is not scheduler.prefill.chunked_req:
            raise Mistake(f"the prompt of {req.rid} is done: it belongs into the second list")
        elif length == req.extend_len:
            scheduler.prefill.chunked_req = None
        if length < req.extend_len and scheduler.config.chunked_prefill_size <= 0:
            raise Mistake(f"the prompt of {req.rid} may not be cut here: see `room.may_cut`")
        if not 0 < length <= req.extend_len:
            raise Mistake(
                f"{many(length, 'token')} of {req.rid}, but it has {req.extend_len} to compute"
            )
        lease = req.lease
        assert lease is not None
        short = scheduler.leases.pages_lacking(lease, req.computed_len + length)
        if short > scheduler.leases.available_pages:
            pages = many(short, "page")
            raise Mistake(f"{req.rid} needs {pages}, but fewer are free: `room.free_pages`")
        scheduler.leases.reserve(lease, req.computed_len + length)


def own_scheduler(lines: Any, calls: Calls) -> Callable[..., Scheduler]:
    """The package's books, with a learner's decisions: what a ``Design`` has as its scheduler."""
    make, _ = lines

    class Own(Scheduler):
        def __init__(self, config: SchedulerConfig, recorder: Recorder | None = None) -> None:
            super().__init__(config, recorder)
            self.own = calls.call(make)
            asks = OwnPlan(self, self.own)
            self.run_first.plan = lambda: calls.call(asks.plan)  # type: ignore[method-assign]

        def receive(self, reqs: Iterable[Request]) -> None:
            reqs, before = list(reqs), set(self.live)
            super().receive(reqs)
            for req in reqs:
                if req.rid in self.live.keys() - before and self.live[req.rid] is req:
                    calls.call(self.own.receive, req)

        def _finish(
            self, req: Request, reason: FinishReason, token: int | None = None, error: str = ""
        ) -> None:
            super()._finish(req, reason, token, error)
            calls.call(self.own.ended, req)

    return Own


class AtOnce(Calls):
    """Calls that nobody counts."""

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call it."""
        return function(*args, **options)


def made_with(make: Callable[[], Any]) -> dict[str, Callable[..., Any]]:
    """For ``swapped``: engines with somebody's own scheduler, whose instructions nobody counts."""
    return {"loops.run:make_engine": partial(engine_with, own_scheduler((make, None), AtOnce()))}


SOLUTION = """
class Scheduler:
    def __init__(self):
        self.waiting, self.running = [], []
        self.chunked = None  # the prompt that is half computed

    def receive(self, req):
        self.waiting.append(req)

    def ended(self, req):
        for queue in (self.waiting, self.running):
            if req in queue:
                queue.remove(req)
        if self.chunked is req:
            self.chunked = None

    def next_batch(self, room):
        prompts = self.prompts(room)
        if prompts:
            return prompts, []
        return [], [req for req in self.running if room.may_run(req)]

    def prompts(self, room):
        left, free, rows = room.prompt_tokens, room.free_pages - self.promised(room), room.free_rows
        prompts = []
        if self.chunked:
            left = self.add(prompts, self.chunked, left)
        while self.waiting and not self.chunked and left > 0 and rows > 0:
            req = self.waiting[0]
            need = -(-req.max_device_len // room.page_size)
            if need > free or (req.extend_len > left and not room.may_cut and prompts):
                break
            if not room.may_cut:
                left = max(left, req.extend_len)
            self.waiting.remove(req)
            left, free, rows = self.add(prompts, req, left), free - need, rows - 1
        return prompts

    def add(self, prompts, req, left):
        length = min(req.extend_len, left)
        self.chunked = req if length < req.extend_len else None
        if not self.chunked:
            self.running.append(req)
        prompts.append((req, length))
        return left - length

    def promised(self, room):
        holding = self.running + ([self.chunked] if self.chunked else [])
        whole = (-(-req.max_device_len // room.page_size) for req in holding)
        return sum(whole) - sum(map(room.pages_held, holding))


def loop(engine):
    last = None
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        step, delay = None, False
        if batch:
            delay = engine.must_delay_sample(batch)
            step = engine.run_batch(batch, delay_sample=delay)
        if last:
            engine.process_batch_result(last)
        elif not batch:
            engine.on_idle()
        if delay:
            engine.launch_batch_sample_if_needed(step)
        last = step
        yield


capstone = Scheduler, loop
"""

EXERCISES = (
    Exercise(
        name="capstone",
        lesson="13_capstone",
        hole=Loop("overlap", call=lambda lines: lines[1], scheduler=own_scheduler),
        solution=SOLUTION,
        mistakes=(
            ("self.waiting.append(req)", "pass", "Level 1 of 5"),
            ("if room.may_run(req)", "", "ask `room.may_run`"),
            ("queue.remove(req)", "pass", "Level 2 of 5"),
            (" - self.promised(room)", "", "keep some free"),
            ("need = -(-req.max_device_len // room.page_size)",
             "need = req.max_device_len // room.page_size", "Level 3 of 5"),
            ("whole = (-(-req.max_device_len // room.page_size)",
             "whole = (req.max_device_len // room.page_size", "Level 3 of 5"),
            ("if not room.may_cut:", "if False:", "may not be cut here"),
            ("delay = engine.must_delay_sample(batch)", "delay = False", "Level 4 of 5"),
            ("        if last:\n            engine.process_batch_result(last)\n        elif",
             "        if step:\n            engine.process_batch_result(step)\n        elif",
             "Level"),
        ),
        workloads=Workloads(
            level=" ".join(LEVELS), seeds=24, change=plain_memory,
            first={"tight": (HALF_A_PAGE, IN_ONE_PIECE)},
        ),
        laws=HELD,
        extra=(no_busy_turn,),
        no_worse=(("makespan", 1.05),),
        reach=20,
        survivors=(
            "if need > free or (req.extend_len >= left and (not room.may_cut) and prompts):",
            # too careful, which no law forbids:
            "return sum(whole) + sum(map(room.pages_held, holding))",
            "whole = (-(-req.max_device_len * room.page_size) for req in holding)",
        ),
        hints=(
            "Level 1: two lists, `waiting` and `running`. A prompt goes from one to the other: "
            "`next_batch` gives `[(req, req.extend_len)]` for it, and then those who run.",
            "Level 2: `ended` is called for whoever ends or is given up: forget them everywhere.",
            "Level 3: never promise more pages than there are. `req.max_device_len` is the most a "
            "request can ever have; start it only if all that is promised fits.",
            "Level 4: `engine.must_delay_sample(batch)`, `run_batch(batch, delay_sample=True)`; "
            "when the step before is processed, `engine.launch_batch_sample_if_needed(step)`.",
            "Level 5: process a step one turn late. That was lesson 1.",
        ),
        why=(
            "You own a scheduler and a loop that overlap, under every law. Yours keeps memory for "
            "the worst case, so it never has to take any back; SGLang bets on the average and "
            "retracts. `minisched check --loop mine.py` tries it on as many workloads as you like."
        ),
    ),
)  # fmt: skip
