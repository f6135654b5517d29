"""Lesson 13, the capstone: a scheduler and a loop of one's own, held against the laws."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from ...checks.case import Case
from ...checks.draw import LEVELS
from ...checks.history import many
from ...core import FinishReason, Request, SamplingParams
from ...core.feature import Feature
from ...devices.cost import NO_COST, CostModel
from ...engine.engine import Engine
from ...loops.design import find_loop
from ...loops.run import RunSetup, wire
from ...museum.exhibit import case
from ...policy import Plan
from ...scheduler import Scheduler, SchedulerConfig
from ...trace import Recorder
from ..exercise import COST, Calls, Exercise, Loop, Workloads
from ..guard import Mistake
from ..runs import VOCAB
from .l01_bubble import idle_only_without_work, no_busy_turn
from .l10_must_wait import PENALTY, RULE

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
        """Pages that are free or evictable now."""
        return self._scheduler.leases.available_pages

    @property
    def free_rows(self) -> int:
        """How many more requests may start."""
        return self._scheduler.table.available_size

    def pages_held(self, req: Request) -> int:
        """Pages that a request has."""
        return len(req.lease.pages) if req.lease else 0

    def may_run(self, req: Request) -> bool:
        """Return whether a request has computed its prompt and may launch its next token now."""
        is_half = req is self._scheduler.prefill.chunked_req
        return req.lease is not None and not is_half and self._scheduler.decode.may_run(req)


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

ONE_TOO_MANY = plain_memory(
    case("a: 1 2 -> 4; b: 3 4 5 -> 4; c: 6 -> 4", "overlap", kv=48, rows=3, cost=COST,
         chunked_prefill_size=-1, max_prefill_tokens=4)
)  # fmt: skip
"""Two prompts that nothing may cut, and together a token more than a step may have."""

TOO_LONG = plain_memory(
    case("a: 1 2 3 4 5 6 -> 9; b: 7 -> 9; c: 8 -> 9; d at 4: 9 8 7 6 5 4 -> 9", "overlap", kv=96,
         rows=4, cost=COST, chunked_prefill_size=-1, max_prefill_tokens=4)
)  # fmt: skip
"""Two prompts longer than a step, which go alone: before a short one, and while others decode."""

TOGETHER = plain_memory(
    case("a: 1 2 -> 6; b at 3: 3 4 -> 6", "overlap", kv=16, rows=2, page_size=2, cost=COST,
         schedule_conservativeness=0.0)
)  # fmt: skip
"""Just enough memory for both requests. One holds some of it when the other one comes."""

MORE_THAN_A_CHUNK = plain_memory(
    case("a: 1 -> 9; b: 2 3 -> 9; c: 4 5 -> 9; d: 6 -> 9", "overlap", kv=99, rows=4,
         chunked_prefill_size=2, cost=COST)
)  # fmt: skip
"""More requests decode in a step than prompts may have tokens, which fill three steps if cut."""


MANY_AT_A_TIME = plain_memory(
    case("; ".join(f"r{at}: {at % 9} {'1 ' * 8}-> 9" for at in range(70)), "overlap", kv=4000,
         rows=70, chunked_prefill_size=640, cost=COST)
)  # fmt: skip
"""More requests at a time, and more tokens of prompts in a step, than a small constant allows."""

LONG = plain_memory(
    case(f"a: {'1 2 3 ' * 30}-> 9; b: 1 2 -> 150", "overlap", kv=512, rows=2, page_size=32,
         chunked_prefill_size=64, cost=COST)
)  # fmt: skip
"""A long prompt, a long answer, and large pages and chunks."""

WITH_RULE, WITH_PENALTY = (
    plain_memory(
        case("a: 7 7 11 2 -> 12; b at 1: 3 -> 12", "overlap", kv=64, rows=3, vocab_size=128,
             cost=COST, wishes=wishes)
    )
    for wishes in (RULE, PENALTY)
)  # fmt: skip
"""Each sampling waits for the token before, while the next forward pass need not."""


def small_case(seed: int, is_tight: bool) -> Case:
    """Return a few short requests: all sizes are near those of a page, a chunk and a step.

    If memory is tight, it is enough for the first two requests, or a page less, and some clients
    give up.
    """
    random = Random(f"capstone {seed}")
    page, may_cut = random.choice((1, 2, 4, 4)), random.random() < 0.6
    longest, requests, pages = random.choice((4, 9)), list[str](), list[int]()
    for at in range(random.randint(2, 5)):
        size, new = random.randint(1, longest), random.randint(1, 6)
        prompt, turn = " ".join(map(str, range(at, at + size))), random.choice((0, 0, 0, 2))
        gone = ", gone at 5" * (is_tight and random.random() < 0.15)
        requests.append(f"{'abcde'[at]} at {turn}: {prompt} -> {new}{gone}")
        pages.append(-(-(size + new) // page))
    most = max(*pages, sum(pages[:2]) - random.choice((0, 1, 1))) if is_tight else 99
    chunk = page * random.randint(1, 3) if may_cut else -1
    step: dict[str, Any] = {} if may_cut else {"max_prefill_tokens": random.randint(4, 9)}
    return plain_memory(
        case("; ".join(requests), "overlap", kv=most * page, rows=random.choice((1, 2, 4, 4)),
             vocab_size=VOCAB, page_size=page, chunked_prefill_size=chunk, cost=COST,
             schedule_conservativeness=0.0, **step)
    )  # fmt: skip


HELD = (
    "identity", "ends", "client", "logprobs", "abort", "budget", "leak", "race", "touches",
    "ownership", "time", "livelock", "deadlock", "crash",
)  # fmt: skip
"""All laws but those of order and progress: the learner decides which request goes first."""


FOREIGN = Request("foreign", (1,), SamplingParams(max_new_tokens=1))
"""A request that another object of the learner's class receives."""


class OwnScheduler(Scheduler):
    """The package's scheduler with a learner's decisions: ``make`` returns the learner's object."""

    def __init__(
        self, make: Callable[[], Any], calls: Calls, config: SchedulerConfig,
        recorder: Recorder | None = None, features: Iterable[Feature] = (),
    ) -> None:  # fmt: skip
        super().__init__(config, recorder, features)
        self.calls, self.own = calls, calls.call(make)
        calls.call(calls.call(make).receive, FOREIGN)

    def receive(self, reqs: Iterable[Request]) -> None:
        """Receive requests, and pass those that are accepted to the learner's object."""
        reqs, before = list(reqs), set(self.live)
        super().receive(reqs)
        for req in reqs:
            if req.name in self.live.keys() - before and self.live[req.name] is req:
                self.calls.call(self.own.receive, req)

    def _finish(
        self, req: Request, reason: FinishReason, token: int | None = None, error: str = ""
    ) -> None:
        super()._finish(req, reason, token, error)
        self.calls.call(self.own.ended, req)

    def plan(self) -> Plan:
        """Return the next step's work, as the learner decides it."""
        plan: Plan = self.calls.call(self.own_plan)
        return plan

    def own_plan(self) -> Plan:
        """Return the learner's plan, and reserve rows and pages for it.

        Raises:
            Mistake: the plan can't be carried out; the sentence gives the reason.
        """
        given = self.own.next_batch(StepRoom(self))
        if not (isinstance(given, tuple | list) and len(given) == 2):
            raise Mistake(f"`next_batch` gave {given!r}, but it must give two lists")
        prompts, decodes = given
        for one in prompts:
            if not (isinstance(one, tuple | list) and len(one) == 2):
                kind = type(one).__name__
                raise Mistake(
                    f"`next_batch` gave a `{kind}` as a prompt, but it must be `(req, length)`"
                )
        found = dict[str, str]()  # request -> the list that it is in
        for name, reqs in (("prompts", [req for req, _ in prompts]), ("decodes", decodes)):
            for req in reqs:
                if req.rid in found:
                    raise Mistake(
                        f"{req.rid} is twice in one step: in the {found[req.rid]}, and again in "
                        f"the {name}"
                    )
                found[req.rid] = name
        room = StepRoom(self)
        for req in decodes:
            if not room.may_run(req):
                half = req is self.prefill.chunked_req
                why = "its prompt is half computed" if half else "ask `room.may_run`"
                raise Mistake(f"the next token of {req.rid} may not be launched: {why}")
        for req, length in prompts:
            if length > room.prompt_tokens and not room.may_cut and len(found) > 1:
                raise Mistake(
                    f"the prompt of {req.rid} has {many(length, 'token')}, more than "
                    f"`room.prompt_tokens` ({room.prompt_tokens}), and is not alone in its step"
                )
            self._compute(req, length)
        if (short := self.leases.pages_short(decodes)) > 0:
            raise Mistake(f"the decoding requests lack {many(short, 'page')}: keep some free")
        return list(prompts), list(decodes)

    def _compute(self, req: Request, length: int) -> None:
        """Compute ``length`` tokens of a prompt that begins or goes on."""
        if req is FOREIGN:
            raise Mistake(
                "your scheduler gave a request of another scheduler: make its lists in `__init__`"
            )
        if req.finished or req.rid not in self.live:
            raise Mistake(f"request {req.rid} has ended, so it can't be in a step")
        half = self.prefill.chunked_req
        if req.lease is None:
            if not self.table.available_size:
                raise Mistake(f"no row is free for {req.rid}: see `room.free_rows`")
            if half is not None and length < req.extend_len:
                raise Mistake(
                    f"{req.rid}'s prompt begins while that of {half.rid} is half computed"
                )
            req.start(self.leases.open(self.prefix_cache.match_prefix(req), req.rid))
            self.prefill.start(req, length)
        elif req is not half:
            raise Mistake(f"the prompt of {req.rid} is done: it belongs into the second list")
        elif length == req.extend_len:
            self.prefill.chunked_req = None
        if length < req.extend_len and self.config.chunked_prefill_size <= 0:
            raise Mistake(f"the prompt of {req.rid} may not be cut here: see `room.may_cut`")
        if not 0 < length <= req.extend_len:
            raise Mistake(
                f"{many(length, 'token')} of {req.rid}, but its prompt has {req.extend_len} left"
            )
        lease, end = req.lease, req.computed_len + length
        assert lease is not None
        short = self.leases.pages_lacking(lease, end)
        if short > self.leases.available_pages:
            pages = many(short, "page")
            raise Mistake(f"{req.rid} needs {pages}, but fewer are free: `room.free_pages`")
        self.leases.reserve(lease, end)


def engine_with(
    scheduler: Callable[..., Scheduler], loop: str, device: Any, model: Any,
    config: SchedulerConfig, frontend: Any, cost: CostModel = NO_COST, relay: str = "",
    **options: object,
) -> Engine:  # fmt: skip
    """``make_engine`` with another scheduler."""
    spec = find_loop(loop, options)
    setup = RunSetup(loop, spec, device, model, config, frontend, cost, relay)
    return wire(setup, scheduler_class=scheduler)


class AtOnce(Calls):
    """Calls without a count of instructions."""

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call it."""
        return function(*args, **options)


def engine_of(lines: Any, calls: Calls) -> dict[str, Callable[..., Any]]:
    """Return engines with a learner's scheduler, for ``swapped``."""
    return {"loops.run:make_engine": partial(engine_with, partial(OwnScheduler, lines[0], calls))}


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
        hole=Loop("overlap", call=lambda lines: lines[1], swaps=engine_of),
        solution=SOLUTION,
        workloads=Workloads(
            levels=LEVELS, seeds=22, change=plain_memory,
            first={
                "tight": (HALF_A_PAGE, ONE_TOO_MANY, TOO_LONG,
                          *(small_case(n, True) for n in range(20))),
                "time": (TOGETHER, MORE_THAN_A_CHUNK, WITH_RULE, WITH_PENALTY, MANY_AT_A_TIME, LONG,
                         *(small_case(n, False) for n in range(10))),
            },
        ),
        laws=HELD,
        extra=(no_busy_turn, idle_only_without_work),
        no_worse=(("makespan", 1.05),),
        reach=20,
        hints=(
            "Level 1: two lists, `waiting` and `running`. A prompt goes from one to the other: "
            "`next_batch` gives `[(req, req.extend_len)]` for it, and then those who run.",
            "Level 2: `ended` gets each request that ends or is given up: remove it everywhere.",
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
