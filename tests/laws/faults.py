"""What can go wrong around a scheduler, thirteen kinds of it, and what must hold all the same.

A kind is a name and what it puts into an engine (``FAULTS``, behind the functions that do it). It
goes wrong once, at a chance that can be chosen: in a step on the device, of who asks, of memory, or
of a thread. The first five a drawn workload may have, too (``minisched/checks/judge.py``). What a
fault may cost, and whom it may not, says ``Aftermath``; ``try_fault`` puts one into a case, and
``try_place`` draws the case.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

from minisched.checks.case import FAILURES, Case, Failure, Workload, fresh
from minisched.checks.draw import Drawn, Variant, all_designs, draw
from minisched.checks.identity import find_bad_ends, find_misreads
from minisched.checks.judge import (
    Finding,
    Witnesses,
    first_of_each,
    stopped_by,
)
from minisched.checks.laws import Clients, bad_end, ends_in, tokens_in
from minisched.checks.oracle import alone, tokens_alone, tokens_so_far
from minisched.checks.step_fault import BadLuck, StepFault, wrap
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.base import Device
from minisched.engine.engine import Engine
from minisched.loops.pd import PrefillEngine
from minisched.models.base import ForwardBatch
from minisched.trace import Trace
from minisched.worker import Step

# -- A fault: something outside the scheduler that goes wrong once, at a place that can be chosen --

EVERYBODY = frozenset({"*"})  # in the place of request ids: whoever is there


class Fault(StepFault):
    """What goes wrong, by name, and when: at the ``at``-th chance, from 1 on.

    A run may have no such chance: then it was not ``is_hit``, and counts as not tried.
    """

    def __init__(self, name: str, at: int, pick: int = 0) -> None:
        super().__init__(name, Failure("", 0, name))
        self.name, self.at = name, at
        self.pick = pick  # a number that decides what else there is to decide
        self.num_chances = 0  # so far
        self.num_arrays = 0  # of which not each is a chance
        self.rid = ""  # whom it has chosen
        self.each_turn: Callable[[], None] = lambda: None

    @property
    def effect(self) -> FaultKind:
        """What it does, and what it may cost."""
        return FAULTS[self.name]

    def put_in(self, engine: Engine) -> None:
        """Change an engine before it starts; ``pd`` has two, and the ``client``'s comes last."""
        self.client = engine
        self.effect.put_in(self, engine)

    def may_end(self, rid: str) -> bool:
        """Whether a request may end because of it."""
        return self.is_hit and bool(self.touched & {rid, *EVERYBODY})

    def is_due(self, step: object = None, engine: object = None) -> bool:
        """Whether this chance is the one; called once at each."""
        self.num_chances += 1
        return self.num_chances == self.at

    def nan_row(self, step: ForwardBatch, engine: Engine) -> int:
        return self.pick % len(step.rids)

    def copy_of(self, step: Step) -> str:
        return super().copy_of(step) if self.pick % 2 else "copy"


class FaultKind(NamedTuple):
    """What a fault changes before a run, and what is known of it.

    Those of whom it ``is_silent`` can't be told that they have ended: their reader is the fault.
    """

    put_in: Callable[[Fault, Engine], None] = lambda fault, engine: None
    says: str = ""  # stands in the reason of whoever ends with an error because of it
    prepare: Callable[[Fault, Workload], None] = lambda fault, workload: None
    open: Callable[[Fault, Device], None] = lambda fault, device: None
    fits: Callable[[str, str], bool] = lambda loop, device: True  # whether it can happen there
    is_silent: bool = False
    keeps_from_starting: bool = False  # then nothing runs, and a sentence says why


# -- Of one step on the device ---------------------------------------------------------------------


def out_of_memory(fault: Fault, engine: Engine) -> None:
    """A forward pass finds no memory; every other time it is an array that is shipped.

    A step ships several, so not each is a chance: it would always be in the first step. Which step
    an array was for, the requests' reasons say.
    """
    if fault.pick % 2:
        StepFault.put_in(fault, engine)
        return

    def asarray(inner: Any, values: Any) -> Any:
        fault.num_arrays += 1
        if fault.num_arrays % (1 + fault.pick // 2 % 9) == 0 and fault.is_due():
            fault.hit()
            raise MemoryError("tried to allocate 2.00 GiB")
        return inner(values)

    wrap(engine.device.xp, "asarray", asarray)


def copy_fails(fault: Fault, engine: Engine) -> None:
    """A copy fails: of tokens or log-probabilities to the host, or of KV on ``pd``."""

    def transfer(inner: Any, rid: str, *args: Any) -> None:
        if fault.is_due():
            fault.hit(rid)
            raise BadLuck("the KV did not arrive")
        inner(rid, *args)

    if isinstance(engine, PrefillEngine) and fault.pick % 2:
        wrap(engine, "copy_kv", transfer)
    else:
        StepFault.put_in(fault, engine)


# -- Of who asks: giving up at any moment, Ctrl-C, and a reader that is not there any more ---------


def choose(fault: Fault, workload: Workload) -> None:
    """Choose a request."""
    fault.rid = workload.requests[fault.pick % len(workload.requests)].rid


def given_up(fault: Fault, engine: Engine) -> None:
    """A request is given up after the ``at``-th turn, or output: twice, and one that nobody has.

    Every other time it is a client that says so while it is told something.
    """

    def look() -> None:
        if fault.is_due():
            fault.hit(fault.rid)
            for rid in (fault.rid, "nobody", fault.rid):
                fault.client.frontend.abort(rid)

    def on_output(inner: Any, output: Output) -> None:
        inner(output)
        look()

    if fault.pick // 7 % 2:
        wrap(engine.frontend, "on_output", on_output)
    else:
        fault.each_turn = look


def ctrl_c(fault: Fault, engine: Engine) -> None:
    """Ctrl-C after the ``at``-th turn, as the handler of the signal does it."""

    def look() -> None:
        if fault.is_due():
            fault.hit(*EVERYBODY)
            engine.frontend.interrupt()

    fault.each_turn = look


def reader_raises(fault: Fault, engine: Engine) -> None:
    """A client's callback raises from the ``at``-th output on; or it is the pipe of all."""
    is_pipe = fault.name == "pipe closes"  # everybody is written to it

    def on_output(inner: Any, output: Output) -> None:
        if fault.is_due():
            fault.hit(*(EVERYBODY if is_pipe else [output.rid]))
        if fault.may_end(output.rid):
            if is_pipe:
                raise BrokenPipeError(32, "Broken pipe")  # as the operating system says it
            raise ConnectionResetError("the client has gone")
        inner(output)

    wrap(engine.frontend, "on_output", on_output)


# -- Of memory: a request for which there never is enough ------------------------------------------

TOO_LARGE = "too large"


def none_at_start(fault: Fault, device: Device) -> None:
    """The device has no memory for what a run needs from its beginning to its end.

    KV, page table, relay or outputs find none, from the ``at``-th time on.
    """

    def memory(inner: Any, name: str, size: int) -> Any:
        if fault.is_due():
            fault.hit()
        if fault.is_hit:
            raise MemoryError(f"tried to allocate {8 * size} bytes")
        return inner(name, size)

    wrap(device, "memory", memory)


def never_fits(fault: Fault, workload: Workload, max_new_tokens: int = 0) -> None:
    """A request comes that needs more than the whole pool, or the context: it is refused."""
    params = SamplingParams(
        max_new_tokens=max_new_tokens or workload.config.num_slots, ignore_eos=True
    )
    workload.requests = [*workload.requests, Request(TOO_LARGE, [1, 2], params)]
    workload.arrivals = [*workload.arrivals, fault.at]
    fault.hit(TOO_LARGE)


def longer_than_the_pool(fault: Fault, workload: Workload) -> None:
    """One request more, as long as the context, and so longer than the pool.

    A scheduler that reserves all remaining tokens would never admit it. With one budget a loop's
    own rules may do so (mini-sglang's), and the workload does not name them.
    """
    config = workload.config
    if "unified" in (config.run_first, config.in_force.run_first):
        config = replace(config, rules=f"{config.rules or 'sglang'},reserves=ratio")
    longest = max(config.context_len, config.num_slots + config.page_size)
    workload.config = replace(config, context_len=longest)
    never_fits(fault, workload, longest - 2)
    fault.is_hit = False


def runs_out(fault: Fault, engine: Engine) -> None:
    """A request that nobody refused runs out of pages on the way, when all others have made room.

    The scheduler's own refusal is switched off for it, and the context made longer than the pool:
    an engine that does not bound outputs has such requests every day. It is hit when the request
    has memory and can't go on.
    """
    scheduler, refusal = engine.scheduler, engine.scheduler.config.refusal

    def of_others(req: Request) -> str | None:
        return None if req.rid == TOO_LARGE else refusal(req)

    def look() -> None:
        req = scheduler.live.get(TOO_LARGE)
        fault.is_hit |= req is not None and req.lease is not None

    object.__setattr__(scheduler.config, "refusal", of_others)
    fault.each_turn = look


# -- Of who works beside the host: a thread of the loop's own --------------------------------------

WITH_A_THREAD = ("overlap_thread", "mindie_plugin", "mindie_dual")  # loops


def thread_raises(fault: Fault, engine: Engine) -> None:
    """A call of the loop's own thread raises before it has launched anything of a step."""

    def launch(inner: Any, step: Step, *args: Any, **options: Any) -> Any:
        if not step.launched and fault.is_due():
            fault.hit(*step.batch.rids)
            raise RuntimeError(fault.effect.says)
        return inner(step, *args, **options)

    wrap(engine.worker, "launch", launch)


# -- All of them -----------------------------------------------------------------------------------

FAULTS = {
    "forward raises": FaultKind(StepFault.put_in, FAILURES["forward raises"]),
    "sampling raises": FaultKind(StepFault.put_in, FAILURES["sampling raises"]),
    "NaN logits": FaultKind(StepFault.put_in, FAILURES["NaN logits"]),
    "copy fails": FaultKind(copy_fails, FAILURES["copy fails"]),
    "out of device memory": FaultKind(out_of_memory, FAILURES["out of device memory"]),
    "worker call raises": FaultKind(
        thread_raises,
        "the thread is out of luck",
        fits=lambda loop, device: loop in WITH_A_THREAD,
    ),
    "no memory at start": FaultKind(open=none_at_start, keeps_from_starting=True),
    "never fits": FaultKind(prepare=never_fits),
    "runs out of pages": FaultKind(
        runs_out,
        prepare=longer_than_the_pool,
        # These reserve all that a request may ever want, and so never admit it.
        fits=lambda loop, device: loop not in ("pd", "trtllm_overlap"),
    ),
    "abort": FaultKind(given_up, prepare=choose),
    "Ctrl-C": FaultKind(ctrl_c),
    "reader raises": FaultKind(reader_raises, is_silent=True),
    "pipe closes": FaultKind(reader_raises, is_silent=True),
}
"""What can go wrong, by name."""


# -- What must hold although something has gone wrong: who may have ended, and who may not notice --

ENDED_EARLY = (FinishReason.ERROR, FinishReason.ABORT)


@dataclass(frozen=True)
class Aftermath:
    """A run that is over, and the fault that was in it: each law is what breaks it, in sentences.

    A request may have ended early by the fault, or because the workload itself gives it up.
    """

    fault: Fault
    workload: Workload
    trace: Trace

    def is_given_up(self, req: Request) -> bool:
        """Whether the workload itself gives a request up, at one time or another."""
        return req.rid in self.workload.aborts.values()

    def is_touched(self, req: Request) -> bool:
        """Whether the fault has to do with a request; where it can't say with whom, they do."""
        return self.fault.may_end(req.rid) or (self.is_unknown and req.rid in self.failed_with)

    @property
    def is_unknown(self) -> bool:
        """Whether the fault has struck and can't say whom: then requests name the step."""
        return self.fault.is_hit and not self.fault.touched

    @cached_property
    def failed_steps(self) -> set[str]:
        """The steps that requests name as the reason of their end."""
        reasons = [req.error.split() for req in self.workload.requests]
        return {words[1] for words in reasons if words[:1] == ["step"]}

    @cached_property
    def failed_with(self) -> set[str]:
        """All who were in a step that has failed."""
        mine = (item for item in self.trace.slices if str(item.step) in self.failed_steps)
        return {rid for item in mine for rid in item.rids}

    def may_have_ended(self, req: Request) -> bool:
        """Whether it ended early and may have."""
        may = self.is_given_up(req) or self.is_touched(req)
        return may and req.finish_reason in ENDED_EARLY

    def bad_reasons(self) -> Iterator[str]:
        """Who ends early has a reason, and a step failed because of the fault and no other."""
        if self.is_unknown and len(self.failed_steps) > 1:
            yield f"steps {', '.join(sorted(self.failed_steps))} have failed, and one was to"
        for req in self.workload.requests:
            if req.finish_reason in ENDED_EARLY and req.output_ids and not self.may_have_ended(req):
                yield f"{req.rid} ended although the fault was none of its own"
            if req.finish_reason is not FinishReason.ERROR:
                continue
            if not req.error:
                yield f"{req.rid} ended with an error, and nobody knows why"
            if req.error.startswith("step ") and self.fault.effect.says not in req.error:
                yield f"{req.rid} ended with {req.error!r}, and not with {self.fault.effect.says!r}"

    def bad_ends(self, clients: Clients) -> Iterator[str]:
        """Every request ended, once, and its client heard its tokens, if it heard anything."""
        for req in self.workload.requests:
            outputs = clients.heard[req]
            if not (self.fault.effect.is_silent and self.fault.may_end(req.rid)):
                yield from bad_end(req, outputs, clients.delivered(req))
                continue
            ends, heard = ends_in(outputs), tokens_in(outputs)
            if req.finish_reason is None or ends > 1:
                yield f"{req.rid} ended {ends} times"
            if heard != req.output_ids[: len(heard)]:
                yield f"{req.rid} heard {heard}, produced {req.output_ids}"

    def wrong_tokens(self, refusal: Callable[[Request], str | None]) -> Iterator[str]:
        """Whose tokens are not those that it would get alone, or the first of them."""
        for req in self.workload.requests:
            truth = tokens_alone(self.workload, req, alone(self.workload, req, refusal))
            if self.may_have_ended(req):
                truth = tokens_so_far(self.workload, req, truth)
            if req.output_ids != truth:
                yield f"{req.rid} gave {req.output_ids}, alone it gives {truth} ({req.error})"


# -- A case with a fault in it ---------------------------------------------------------------------

WATCHDOG = 30.0  # seconds after which a run in real time is taken for hung


class FaultTrial(NamedTuple):
    """What became of a run with a fault in it.

    Of the requests that the workload itself does not give up, ``struck`` ended early because of the
    fault, and ``spared`` got all their tokens, untouched by it. ``can_spare`` is whether there
    could be such a one: not if the fault touches everybody, or if there is only one request.
    """

    place: str  # design and chance
    is_hit: bool
    findings: tuple[Finding, ...]
    num_chances: int = 0  # how often the fault could have struck
    struck: int = 0
    spared: int = 0
    can_spare: bool = False

    @property
    def survived(self) -> bool:
        """Whether it was hit, and every law held."""
        return self.is_hit and not self.findings

    @property
    def tells(self) -> bool:
        """Whether there was somebody to judge on either side."""
        return self.struck > 0 and (self.spared > 0 or not self.can_spare)


def judge_with(case: Case, fault: Fault) -> FaultTrial:
    """Run a fresh copy of a case with the fault in it, and hold every law against what is left.

    Who may run may have to wait, so that neither progress nor order is looked at.
    """
    workload, effect = fresh(case.workload), fault.effect
    seen = Witnesses(case, workload)
    effect.prepare(fault, workload)
    effect.open(fault, seen.device)
    seen.run(fault.put_in, lambda engine: fault.each_turn() if engine is fault.client else None)
    seen.progress.clear()
    after, findings, laws = Aftermath(fault, workload, seen.trace), list[Finding](), list[Any]()
    judged = {"crash", "identity", "ends", *(["client"] if effect.is_silent else [])}
    if seen.error:
        is_meant = effect.keeps_from_starting and isinstance(seen.error, ValueError)
        is_meant &= "has no memory for" in str(seen.error)
        findings += [] if is_meant else [stopped_by(seen.error)]
    if seen.engines:
        refusal = seen.engines[0].scheduler.config.refusal
        laws += [
            ("reason", after.bad_reasons()),
            ("identity", after.wrong_tokens(refusal)),
            ("ends", after.bad_ends(seen.clients)),
            ("ends", find_bad_ends(seen.trace)),
            ("identity", find_misreads(seen.trace)),
        ]
    laws += [item for item in seen.laws() if item[0] not in judged]
    findings += first_of_each(laws)
    where = f"{case.loop}:{case.relay} {dict(case.options)}, chance {fault.at} of {fault.name}"
    trial = FaultTrial(where, fault.is_hit, tuple(findings), fault.num_chances)
    if findings or not seen.engines:  # where nothing has run, everybody is struck
        return trial._replace(struck=0 if findings else len(workload.requests))
    others = [req for req in workload.requests if not after.is_given_up(req)]
    ended = [req for req in others if req.finish_reason in ENDED_EARLY]
    return trial._replace(
        struck=sum(map(after.is_touched, ended)),
        spared=sum(not after.is_touched(req) for req in others if req not in ended),
        can_spare=len(others) > 1 and not EVERYBODY & fault.touched,
    )


def try_fault(case: Case, fault: Fault) -> FaultTrial:
    """The same; on a wall clock on a thread of its own, which is given up when it hangs."""
    judged = Future[FaultTrial]()

    def go() -> None:
        try:
            judged.set_result(judge_with(case, fault))
        except BaseException as error:
            judged.set_exception(error)

    if case.device == "sim":
        go()
    else:
        threading.Thread(target=go, name="trial", daemon=True).start()
    try:
        return judged.result(WATCHDOG)
    except TimeoutError:
        hang = Finding("hang", f"it still runs after {WATCHDOG:.0f} s")
        return FaultTrial(f"{case.loop}", fault.is_hit, (hang,), fault.num_chances)


# -- Every fault on every loop ---------------------------------------------------------------------

LATEST = 8  # of the chances in a run, one among so many is chosen
MOST_WORKLOADS = 12  # that are drawn for a place
MANY = 10**6  # workloads that these are among


def settled_alone(case: Case) -> Case:
    """The case with a cache that takes no page before its step has returned: the step may fail."""
    config = case.workload.config
    rules = re.sub(",enters_cache=(launched|known)", "", config.rules)
    return replace(case, workload=replace(case.workload, config=replace(config, rules=rules)))


def try_place(name: str, loop: str, device: str, number: int) -> FaultTrial:
    """Draw a workload and a moment for a fault, until the trial tells something.

    Where the moment did not come, the run was too short, and it is drawn once more from those that
    did. Another workload is drawn where the fault can't happen in it at all, where it hits nobody
    but whom the workload itself gives up, and where nobody is left who must not notice. If none of
    them will do, it is the trial that tells most: one that was never hit, or that hit nobody,
    counts as not tried.
    """
    rng = Random(f"{name} {loop} {number}")
    trials: list[FaultTrial] = []
    for _ in range(MOST_WORKLOADS):
        seed = rng.randrange(MANY)
        drawn, latest = draw(seed, odd=False), LATEST
        case = settled_alone(drawn.on(design_for(loop, drawn), device))
        while latest:
            at, pick = rng.randint(1, latest), rng.randrange(1000)
            trials.append(try_fault(case, Fault(name, at, pick)))
            if trials[-1].findings or trials[-1].tells:
                return trials[-1]
            latest = 0 if trials[-1].is_hit else min(trials[-1].num_chances, at - 1)
    return max(trials, key=lambda trial: (trial.is_hit, trial.struck))


def design_for(loop: str, drawn: Drawn) -> Variant:
    """A loop's relays and options, one after the other; those that take the workload's drafts."""
    algorithm = drawn.workload.config.speculative_algorithm
    mine = [item for item in all_designs() if item.loop == loop]
    designs = [item for item in mine if algorithm not in item.refuses()] or mine
    return designs[drawn.seed % len(designs)]
