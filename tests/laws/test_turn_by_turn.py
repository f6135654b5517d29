"""An engine driven turn by turn, by clients that react to what they receive.

A random workload has all its messages from the start. Here a message may answer an output: a client
gives up after its third token, goes on from an answer, or sends a failed request again. The laws of
``check`` judge each run after it has run dry.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from minisched.checks.case import FAILURES, Failure, fresh
from minisched.checks.draw import (
    CONTEXT_LEN,
    DRAFTERS,
    FEW,
    PLAIN,
    USUAL,
    Variant,
    all_designs,
    draw,
    draw_odd,
    draw_request,
)
from minisched.checks.judge import Witnesses, first_of_each, livelock, most_turns
from minisched.checks.step_fault import POSTPROCESS, StepFault
from minisched.core import FinishReason, Output, Request
from minisched.core.form import wrong_form
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.engine.owner import release
from minisched.loops.design import LOOPS, take_turn
from minisched.loops.run import make_engine
from minisched.museum.patch import Edit, put_in
from tests.support import many, survived

any_rng = st.randoms(use_true_random=False)
any_design = st.sampled_from([item for item in all_designs() if not LOOPS[item.loop].whole_run])
SURVIVED = sorted({*FAILURES} - {POSTPROCESS})  # an error in a loop's own layer ends the run
any_plan = st.sampled_from(["", "again", "give up", "again", "go on", "again", "flush"])
MOST_REQUESTS = 16
happened: Counter[str] = Counter()


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        design=any_design,
        drafts=st.integers(0, len(DRAFTERS) - 1),
        rng=any_rng,
        plans=st.lists(any_plan, min_size=7, max_size=7),
    )
    def start(self, design: Variant, drafts: int, rng: Random, plans: list[str]) -> None:
        """Make an engine with drawn settings, and send it the requests that fit them."""
        case = draw(drafts, rng=rng).on(design)
        # Requests that come later may be longer than the longest one now, which fills the context.
        config = replace(case.workload.config, context_len=CONTEXT_LEN)
        case = replace(case, workload=replace(case.workload, config=config))
        first = fresh(case.workload).requests
        self.design, self.letters = design, FEW if case.workload.config.num_draft_tokens else PLAIN
        self.workload = replace(
            case.workload, requests=[], arrivals=[], aborts={}, flushes=frozenset(),
            sent_again={}, interrupt=None, failures=survived(case.workload.failures),
        )  # fmt: skip
        self.seen = Witnesses(case, self.workload)
        frontend = Frontend(on_output=self.react)
        self.engine = make_engine(
            design.loop, self.seen.device, self.seen.model, self.workload.config, frontend,
            case.cost, design.relay, **design.options,
        )  # fmt: skip
        self.seen.watch(self.engine)
        self.turns = LOOPS[design.loop].start(self.engine, **design.options)
        self.plans: dict[str, str] = {}  # of a client, by its request's id
        self.received: defaultdict[str, list[int]] = defaultdict(list)  # by the same
        self.has_stopped = False
        for req, plan in zip(first, plans, strict=False):
            self.send(req, plan)

    # -- clients ---------------------------------------------------------------------------------

    def send(self, req: Request, plan: str) -> None:
        """Send a request whose client follows a plan."""
        self.plans.setdefault(req.name, plan)
        self.workload.requests.append(req)
        self.workload.arrivals.append(0)
        self.seen.clients.sent.append(req)
        self.engine.frontend.push(req)

    def react(self, output: Output) -> None:
        """Answer an output from within the loop, as its client has planned."""
        name, reason, frontend = output.rid, output.finish_reason, self.engine.frontend
        if output.namesake:
            return
        told, plan = self.received[name], self.plans.get(name, "")
        told += [] if output.token is None else [output.token]
        happened[reason.value if reason else "token"] += 1
        if plan == "give up" and len(told) == 3 and not reason:
            happened["gave up"] += 1
            frontend.abort(name)
        elif plan == "flush" and reason:
            frontend.flush_cache()
        elif plan and reason and len(self.workload.requests) < MOST_REQUESTS:
            sent = next(req for req in reversed(self.workload.requests) if req.name == name)
            prompt = [*sent.prompt, *told] if not wrong_form(sent) else []
            if plan == "again" and reason is FinishReason.ERROR:
                happened["again"] += 1
                self.plans[name] = ""
                self.send(replace(fresh_one(sent), arrival_time=0), "")
            elif plan == "go on" and reason in END and 0 < len(prompt) < CONTEXT_LEN:
                happened["went on"] += 1
                self.send(replace(fresh_one(sent), rid=f"{name}+", prompt=prompt), plan)
        if reason:
            self.received.pop(name)

    # -- rules -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.workload.requests) < MOST_REQUESTS)
    @rule(rng=any_rng, plan=any_plan, odd=st.integers(0, 4))
    def submit(self, rng: Random, plan: str, odd: int) -> None:
        number = len(self.workload.requests)
        theme, wishes = rng.choice(USUAL.themes), rng.choice(USUAL.wishes)
        req = draw_request(rng, number, self.letters, theme, wishes, logprobs=odd == 1)
        if odd == 0:
            req = draw_odd(rng, [req, *(it for it in self.workload.requests if not wrong_form(it))])
            req = replace(req, rid=f"odd{number}") if req.rid == "odd" else req
        self.send(fresh_one(req), plan)

    @precondition(lambda self: self.engine.scheduler.live)
    @rule(data=st.data())
    def abort_one(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.engine.scheduler.live)))
        self.engine.frontend.abort(rid)

    @precondition(lambda self: self.engine.scheduler.live)
    @rule()
    def abort_all(self) -> None:
        happened["abort all"] += 1
        for rid in self.engine.scheduler.live:
            self.engine.frontend.abort(rid)

    @rule()
    def flush(self) -> None:
        self.engine.frontend.flush_cache()

    @precondition(lambda self: self.engine.scheduler.live)
    @rule(data=st.data(), ahead=st.integers(0, 2), kind=st.sampled_from(SURVIVED))
    def fail_a_step(self, data: st.DataObject, ahead: int, kind: str) -> None:
        """Let the step fail that computes a position of a live request: the next one, or soon."""
        name = data.draw(st.sampled_from(sorted(self.engine.scheduler.live)))
        req = self.engine.scheduler.live[name]
        position = len(req.prompt) + len(req.output_ids) + ahead - (not req.output_ids)
        fault = StepFault(kind, Failure(name, position, kind))
        self.seen.failing.append(fault)
        fault.put_in(self.engine)

    @rule(count=st.integers(1, 6))
    def some_turns(self, count: int) -> None:
        for _ in range(count):
            self.has_stopped = True  # unless the turn comes to its end
            take_turn(self.turns)
            self.has_stopped = False
            self.seen.clients.look(self.engine)

    @rule()
    def run_dry(self) -> None:
        turns = 0
        while not self.engine.is_done:
            turns += 1
            run_ahead = self.engine.scheduler.config.run_ahead
            most = most_turns(self.workload, self.engine.worker.depth, run_ahead)
            if turns > most:
                raise livelock(self.workload, most)
            self.some_turns(1)

    # -- the end ---------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Run dry, close the device, and judge the run by all laws."""
        if not hasattr(self, "engine"):
            return
        device = self.seen.device
        try:
            if not self.has_stopped:
                self.run_dry()
        finally:
            while isinstance(device, SimDevice) and device.next_event is not None:
                device.idle_until(device.next_event)
            device.close()
            release(self.seen.model, device)
        if self.has_stopped:
            return  # a rule has raised the reason
        self.seen.engines = [self.engine]
        self.seen.collect()
        happened["failed step"] += sum(fault.is_hit for fault in self.seen.failing)
        for finding in first_of_each(self.seen.laws()):
            raise AssertionError(f"{self.design.name}: {finding.law}: {finding.sentence}")


END = (FinishReason.STOP, FinishReason.LENGTH)


def fresh_one(req: Request) -> Request:
    """The same request, not yet run."""
    return Request(req.rid, req.prompt, req.params, priority=req.priority)


def run_machine(examples: int, *phases: Phase) -> None:
    steps = settings(
        max_examples=examples, stateful_step_count=20, deadline=None, phases=phases or Phase
    )
    run_state_machine_as_test(EngineMachine, settings=steps)


def test_an_engine_keeps_the_laws_turn_by_turn() -> None:
    happened.clear()
    run_machine(many(32, 300))
    for name in ("gave up", "went on", "again", "failed step", "abort", "error", "abort all"):
        assert happened[name], f"{name} never happened: {happened}"


DEAF = Edit(
    "scheduler.scheduler:Scheduler.abort",
    "is not None",
    "is not None and len(req.output_ids) != 3",
)


def test_a_client_that_gives_up_without_effect_breaks_a_law() -> None:
    """The scheduler ignores an abort that comes when a request has three tokens."""
    with put_in([DEAF]), pytest.raises(AssertionError, match="was aborted in turn"):
        run_machine(40, Phase.generate)
