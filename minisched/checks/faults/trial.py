"""Runs one case with one fault in it, and says what did not hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ...core import Output
from ...devices.registry import open_device
from ...engine.engine import Engine
from ...trace import Trace
from ..case import Case
from ..judge import STOPPED_BY, Finding, Witness, broken, hash_model, run
from ..laws import check_leaks
from ..leaks.books import check_idle, threads
from ..workload import Workload, fresh
from .fault import Fault
from .in_thread import ThreadDies
from .survival import (
    Aftermath,
    check_heard,
    check_no_leak,
    check_threads,
    check_tokens,
)
from .whom import Whom, kept_from_starting, whom

WATCHDOG = 30.0  # seconds after which a run in real time is taken for hung


class Trial(NamedTuple):
    """What became of a run with a fault in it; ``whom`` is empty where a law was broken."""

    is_hit: bool
    findings: tuple[Finding, ...]
    whom: Whom = Whom()
    num_chances: int = 0  # how often the fault could have struck

    @property
    def survived(self) -> bool:
        """Whether it was hit, and every law held."""
        return self.is_hit and not self.findings

    @property
    def hit_nobody(self) -> bool:
        """Whether it was hit, and cost nobody anything but whom the workload itself gives up."""
        return self.survived and not self.whom.struck


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

    def __post_init__(self) -> None:
        self.witness, self.device = Witness(self.workload), open_device(self.case.device)

    def go(self) -> None:
        """Drive the case to its end, whatever that is."""
        device = self.device
        model = hash_model(self.case.device, self.workload)
        self.fault.open(device)
        try:
            self.engines, self.outputs = run(
                self.case, self.workload, device, model, self.put_in, self.look
            )
        except Exception as error:  # there is no other way out for a fault that is not survived
            if not (self.fault.keeps_from_starting and says_what_is_missing(error)):
                kinds = (name for kind, name in STOPPED_BY.items() if isinstance(error, kind))
                law = next(kinds, "crash")
                self.findings[law] = Finding(law, f"{type(error).__name__}: {error}")
        finally:
            device.close()
        self.trace = device.recorder.trace(self.case.loop, device.name, model.name, device.clock)

    @property
    def aftermath(self) -> Aftermath:
        """What is left when it is over."""
        assert self.trace is not None
        return Aftermath(self.fault, self.workload, self.outputs, self.trace)

    def put_in(self, engine: Engine) -> None:
        """Before an engine starts; the fault stands between it and its clients."""
        self.witness.watch(engine)
        self.fault.put_in(engine)

    def look(self, engine: Engine) -> None:
        """After a turn."""
        self.fault.each_turn(engine)
        self.witness.look(engine)


def says_what_is_missing(error: Exception) -> bool:
    """Whether it is the one sentence of a run that finds no memory to begin with."""
    said = str(error)
    return isinstance(error, ValueError) and "has no memory for" in said


def try_fault(case: Case, fault: Fault) -> Trial:
    """Run a fresh copy of a case with the fault in it, and hold every law against what is left."""
    workload, before = fresh(case.workload), threads()
    fault.prepare(workload)
    course = Course(case, fault, workload)
    if not finished(course):
        return Trial(fault.is_hit, (Finding("hang", f"it still runs after {WATCHDOG:.0f} s"),))
    findings = course.findings | broken(laws_of(course, before))
    counted = Whom() if findings else whom_of(course)
    return Trial(fault.is_hit, tuple(findings.values()), counted, fault.num_chances)


def whom_of(course: Course) -> Whom:
    """Whom the fault has cost something, in a run in which every law held."""
    if not course.engines:
        return kept_from_starting(len(course.workload.requests))
    return whom(course.aftermath)


def laws_of(course: Course, before: list[str]) -> list[Callable[[], None]]:
    """What is to hold; of a run that has stopped, only what follows from nothing else."""
    assert course.trace is not None
    fault, engines = course.fault, course.engines
    is_dead = isinstance(fault, ThreadDies)
    laws = course.witness.laws(
        course.trace, course.device, is_over=bool(engines), all_alive=not is_dead
    )
    laws.append(partial(check_threads, before))
    if not engines:
        return laws
    after = course.aftermath
    return [
        partial(check_tokens, after, engines[0].scheduler.config.refusal),
        partial(check_heard, after),
        *course.witness.laws_of_clients(engines[0], course.outputs, not fault.is_silent),
        partial(check_no_leak, course.trace, is_dead),
        *laws,
        *(partial(check_idle, engine.scheduler) for engine in engines),
        *(partial(check_leaks, engine) for engine in engines),
    ]


def finished(course: Course) -> bool:
    """Let it run; on a wall clock on a thread of its own, which is given up when it hangs."""
    if course.case.device == "sim":
        course.go()
        return True
    thread = threading.Thread(target=course.go, name="trial", daemon=True)
    thread.start()
    thread.join(WATCHDOG)
    return not thread.is_alive()
