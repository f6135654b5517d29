"""Runs one case with one fault in it, and says what did not hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ...core import FinishReason, Output, Request
from ...devices.registry import open_device
from ...engine.engine import Engine
from ...trace import Trace
from ..books import check_idle, threads
from ..judge import STOPPED_BY, Books, Case, Finding, broken, hash_model, run
from ..laws import Broken, check_leaks, check_races, tokens_alone
from ..leaks import find_leaks
from ..workload import Workload, fresh
from .fault import Fault
from .in_thread import ThreadDies

WATCHDOG = 60.0  # seconds after which a run in real time is taken for hung
ENDED_BADLY = (FinishReason.ERROR, FinishReason.ABORT)


class Trial(NamedTuple):
    """What became of a run with a fault in it.

    ``num_ended`` are the requests that ended early, or were refused; ``num_whole`` those that got
    all their tokens. Those that the workload itself gives up are in neither.
    """

    is_hit: bool
    findings: tuple[Finding, ...]
    num_ended: int = 0
    num_whole: int = 0

    @property
    def survived(self) -> bool:
        """Whether it was hit, and every law held."""
        return self.is_hit and not self.findings


@dataclass
class Course:
    """A run as it comes along; it may be another thread's."""

    case: Case
    fault: Fault
    workload: Workload
    engines: list[Engine] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)
    trace: Trace | None = None
    books: Books = field(default_factory=Books)

    def go(self) -> None:
        """Drive the case to its end, whatever that is."""
        device = open_device(self.case.device)
        model = hash_model(self.case.device, self.workload)
        try:
            self.engines, self.outputs = run(
                self.case, self.workload, device, model, self.fault.put_in, self.look
            )
        except Exception as error:  # there is no other way out for a fault that is not survived
            kinds = (name for kind, name in STOPPED_BY.items() if isinstance(error, kind))
            law = next(kinds, "crash")
            self.findings[law] = Finding(law, f"{type(error).__name__}: {error}")
        self.trace = device.recorder.trace(self.case.loop, device.name, model.name, device.clock)

    def look(self, engine: Engine) -> None:
        """After a turn."""
        self.fault.each_turn(engine)
        self.books.look(engine)


def try_fault(case: Case, fault: Fault) -> Trial:
    """Run a fresh copy of a case with the fault in it, and hold every law against what is left."""
    workload, before = fresh(case.workload), threads()
    fault.prepare(workload)
    course = Course(case, fault, workload)
    if not finished(course):
        return Trial(fault.is_hit, (Finding("hang", f"it still runs after {WATCHDOG:.0f} s"),))
    assert course.trace is not None
    is_dead = isinstance(fault, ThreadDies)
    laws: list[Callable[[], None]] = [
        course.books.check,
        partial(check_races, course.trace, bool(course.engines) and not is_dead),
    ]
    if course.engines:
        refusal = course.engines[0].scheduler.config.refusal
        allowed = Allowed(fault, course, failed_steps(course))
        laws = [
            partial(check_tokens, allowed, refusal),
            partial(check_heard, allowed),
            partial(check_no_leak, course.trace, is_dead),
            *laws,
            *(partial(check_idle, engine.scheduler, before) for engine in course.engines),
            *(partial(check_leaks, engine) for engine in course.engines),
        ]
    findings = course.findings | broken(laws)
    ends = [req.finish_reason for req in workload.requests if req.rid not in workload.aborts.values()]
    ended = sum(reason in ENDED_BADLY for reason in ends)
    whole = sum(reason not in (None, *ENDED_BADLY) for reason in ends)
    return Trial(fault.is_hit, tuple(findings.values()), ended, whole)


def finished(course: Course) -> bool:
    """Let it run; on a wall clock on a thread of its own, which is given up when it hangs."""
    if course.case.device == "sim":
        course.go()
        return True
    thread = threading.Thread(target=course.go, name="trial", daemon=True)
    thread.start()
    thread.join(WATCHDOG)
    return not thread.is_alive()


@dataclass
class Allowed:
    """Which requests may have ended because of the fault."""

    fault: Fault
    course: Course
    failed: dict[int, set[str]]  # step -> its requests

    def may_end(self, req: Request) -> bool:
        """The fault's own victims; of a step that failed by it, all that were in it."""
        if self.fault.may_end(req.rid) or req.rid in self.course.workload.aborts.values():
            return True
        is_unknown = self.fault.is_hit and not self.fault.touched
        return is_unknown and any(req.rid in rids for rids in self.failed.values())


def failed_steps(course: Course) -> dict[int, set[str]]:
    """The steps which requests name as the reason of their end, with all that were in them.

    One at the most may have failed by itself; those built upon it name it, too.
    """
    assert course.trace is not None
    found: dict[int, set[str]] = {}
    for req in course.workload.requests:
        words = req.error.split()
        if words[:1] == ["step"] and words[2:3] == ["failed:"]:
            step = int(words[1])
            found[step] = {rid for item in course.trace.slices if item.step == step
                           for rid in item.rids}  # fmt: skip
    return found


def check_no_leak(trace: Trace, is_dead: bool) -> None:
    """Whoever took memory gave it back; a dead thread has not run what was launched for it.

    Raises:
        Broken: somebody did not.
    """
    for leak in find_leaks(trace):
        if not (is_dead and str(leak).endswith("it never ran")):
            raise Broken(f"leak: {leak}")


def check_tokens(allowed: Allowed, refusal: Callable[[Request], str | None]) -> None:
    """Whoever may have ended got the first of its tokens and a reason; all others got all.

    Raises:
        Broken: somebody did not.
    """
    for req in allowed.course.workload.requests:
        is_refused = refusal(req) is not None
        truth = [] if is_refused else tokens_alone(allowed.course.workload, req)
        given_up = req.finish_reason in ENDED_BADLY and allowed.may_end(req)
        if req.output_ids != (truth[: len(req.output_ids)] if given_up else truth):
            reason = f" ({req.error})" if req.error else ""
            raise Broken(f"identity: {req.rid} gave {req.output_ids}, alone {truth}{reason}")
        if req.finish_reason is FinishReason.ERROR and not req.error:
            raise Broken(f"reason: {req.rid} ended with an error, and nobody knows why")
        if truth and not given_up and req.finish_reason in ENDED_BADLY:
            raise Broken(f"identity: {req.rid} ended although the fault was none of its own")


def check_heard(allowed: Allowed) -> None:
    """Every request ended, once, and its client heard its tokens, if it heard anything.

    Raises:
        Broken: it did not.
    """
    for req in allowed.course.workload.requests:
        mine = [output for output in allowed.course.outputs if output.rid == req.rid]
        heard = [output.token for output in mine if output.token is not None]
        ends = sum(output.finish_reason is not None for output in mine)
        is_silent = allowed.fault.is_silent and allowed.fault.may_end(req.rid)
        if req.finish_reason is None or ends != (0 if is_silent and not ends else 1):
            raise Broken(f"ends: {req.rid} ended {ends} times")
        if heard != (req.output_ids[: len(heard)] if is_silent else req.output_ids):
            raise Broken(f"ends: {req.rid} heard {heard}, produced {req.output_ids}")


def describe(fault: Fault) -> dict[str, Any]:
    """What repeats a fault."""
    return {"fault": fault.name, "at": fault.at, "pick": fault.pick}
