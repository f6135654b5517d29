"""Runs one case through one loop, and says which laws it broke; also with a fault put into it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple, cast

from ..core import Output
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..devices.registry import library, open_device
from ..devices.sim import Deadlock, SimDevice
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.design import LOOPS
from ..loops.pd import Pair
from ..loops.run import make_engine
from ..memory import MemoryLeak, OwnershipError
from ..models.base import Model
from ..models.registry import hash_class
from ..scheduler import SchedulerStuck
from ..trace import Trace
from .answers import lacking
from .books import Books, check_idle, threads
from .case import Case, Workload, fresh
from .faults import Aftermath, Fault, Whom, step_fault
from .laws import (
    Broken,
    Clients,
    Touched,
    find_backwards,
    find_ends,
    find_wrong_tokens,
    over_budget,
    told_each,
)
from .leaks import find_leaks, find_unlisted
from .oracle import OF_HASH, find_misreads, find_unlike
from .oracle import find_ends as find_bad_ends
from .progress import Progress
from .races import examine

# -- What one run broke ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """A law that does not hold, by name, and what was seen, in a sentence."""

    law: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """What one run broke, in the order in which the laws were looked at, and its trace.

    ``workload`` holds the requests as the run has left them; ``finished`` is False for a run that
    stopped with an error. ``refused`` are the requests that had to be refused, by name.
    """

    findings: tuple[Finding, ...]
    workload: Workload
    trace: Trace
    finished: bool = True
    refused: frozenset[str] = frozenset()

    @property
    def holds(self) -> bool:
        """Whether no law was broken."""
        return not self.findings

    def lacking(self, law: str) -> str:
        """What the run lacks to be judged by a law; nothing where it has all, or broke it."""
        return "" if self.broke(law) else lacking(law, self.trace)

    def broke(self, law: str) -> Finding | None:
        """What was found of one law, or None."""
        return next((item for item in self.findings if item.law == law), None)


def judge(
    case: Case,
    patch: Callable[[Engine], None] = lambda engine: None,
    fault: Fault | None = None,
) -> Verdict:
    """Run a fresh copy of a case and hold every law against it.

    ``patch`` may change an engine before it starts; ``pd`` has two. A run that stops with an error
    is not looked at for ends, and for leaks only as far as it came: they follow from it. With a
    ``fault`` in it, the laws are those of its ``Aftermath``, and who may run may have to wait.
    """
    before, workload, device = threads(), fresh(case.workload), open_device(case.device)
    device.built_by_host |= case.built_by_host
    if fault:
        fault.kind.prepare(fault, workload)
        fault.kind.open(fault, device)
    model = hash_model(case.device, workload)
    planned = [step_fault(failure) for failure in workload.failures]
    books, clients, touched, progress = Books(), Clients(workload), Touched(), Progress()
    over = list[str]()  # the budget of a step, when it was committed

    def watch(engine: Engine) -> None:
        config = engine.scheduler.config
        engine.scheduler.on_commit = lambda batch: over.append(over_budget(config, batch))
        touched.watch(engine)
        clients.watch(engine)
        if not fault:
            progress.watch(engine)
        for one in [*planned, fault] if fault else planned:
            one.put_in(engine)
        patch(engine)

    def look(engine: Engine) -> None:
        if fault and engine is fault.client:
            fault.each_turn()
        books.look(engine)
        clients.look(engine)

    findings: dict[str, Finding] = {}  # the first of each law
    engines, outputs = list[Engine](), list[Output]()
    try:
        engines, outputs = run(case, workload, device, model, watch, look)
    except Exception as error:  # a broken scheduler may stop in any way
        law = next((name for kind, name in STOPPED_BY.items() if isinstance(error, kind)), "crash")
        said = f"{type(error).__name__}: {error}"
        is_meant = fault and fault.kind.keeps_from_starting and isinstance(error, ValueError)
        if not (is_meant and "has no memory for" in said):
            findings[law] = Finding(law, said)
    for one in planned:
        for rid in one.touched:
            workload.struck.setdefault(rid, set()).add(one.kind.says)
    trace = device.recorder.trace(case.loop, device.name, model.name, device.clock)
    is_over, all_alive = bool(engines), not (fault and fault.kind.kills)
    laws: list[tuple[str, Iterable[object]]] = []
    refused = frozenset[str]()
    if engines:
        refusal = engines[0].scheduler.config.refusal
        refused = frozenset(req.name for req in workload.requests if refusal(req) is not None)
        told = told_each(workload, outputs)
        after = Aftermath(fault, workload, trace) if fault else None
        if after:
            laws += [
                ("identity", find_wrong_tokens(workload, refusal, after.may_have_ended)),
                ("reason", after.bad_reasons()),
                ("ends", after.bad_ends(told)),
            ]
        else:
            laws += [
                ("identity", find_wrong_tokens(workload, clients.refusal)),
                ("ends", find_ends(told, outputs)),
            ]
        if not (fault and fault.kind.is_silent):
            laws += [("client", clients.find_untold(told, engines[0].metrics.ended))]
        tolerance = OF_HASH[library(device.name)]
        laws += [
            ("logprobs", find_unlike(told, workload.vocab_size, tolerance)),
            ("abort", clients.find_ignored(told)),
            ("leak", after.leaks() if after else find_leaks(trace)),
            ("ends", find_bad_ends(trace)),
            ("identity", find_misreads(trace)),
        ]
    seen = examine(trace)
    laws += [
        ("leak", raised(books.check)),
        ("ownership", find_unlisted(trace)),
        ("race", seen.races),
        ("deadlock", seen.waits if is_over and all_alive else ()),
        ("budget", filter(None, over)),
        ("time", find_backwards(trace)),
        ("lifetime", device.lifetimes),
        ("touches", touched.check(trace, is_over) if all_alive else ()),
        ("progress", raised(progress.check, "progress")),
        ("order", raised(progress.check, "order")),
        ("leak", (f"the thread {name} is still alive" for name in threads() if name not in before)),
        *(("leak", raised(check_idle, engine.scheduler)) for engine in engines),
    ]
    findings |= first_of_each(laws)
    return Verdict(tuple(findings.values()), workload, trace, is_over, refused)


def raised(check: Callable[..., None], *args: object) -> Iterator[str]:
    """Nothing, but the call may raise ``Broken``, which names the law."""
    check(*args)
    yield from ()


def first_of_each(laws: Iterable[tuple[str, Iterable[object]]]) -> dict[str, Finding]:
    """The first finding of each law, in their order."""
    findings: dict[str, Finding] = {}
    for law, sentences in laws:
        try:
            found = next(iter(sentences), None)
        except Broken as error:
            law, _, found = str(error).partition(": ")
        if found is not None:
            findings.setdefault(law, Finding(law, str(found)))
    return findings


def breaks_the_same(finding: Finding) -> Callable[[Case], bool]:
    """Whether a case breaks the law of a finding; if that is a crash, in the same way but numbers.

    It is what ``case.py:shrink`` asks.
    """

    def kind_of(sentence: str) -> str:
        return re.sub(r"\d+", "N", sentence)

    def shows(case: Case) -> bool:
        found = judge(case).broke(finding.law)
        if found is None or finding.law != "crash":
            return found is not None
        return kind_of(found.sentence) == kind_of(finding.sentence)

    return shows


# -- The same with a fault in it -------------------------------------------------------------------

WATCHDOG = 30.0  # seconds after which a run in real time is taken for hung


class FaultTrial(NamedTuple):
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


def try_fault(case: Case, fault: Fault) -> FaultTrial:
    """Run a fresh copy of a case with the fault in it, and hold every law against what is left.

    On a wall clock it runs on a thread of its own, which is given up when it hangs.
    """
    judged = Future[Verdict]()

    def go() -> None:
        try:
            judged.set_result(judge(case, fault=fault))
        except BaseException as error:
            judged.set_exception(error)

    if case.device == "sim":
        go()
    else:
        threading.Thread(target=go, name="trial", daemon=True).start()
    try:
        verdict = judged.result(WATCHDOG)
    except TimeoutError:
        hang = Finding("hang", f"it still runs after {WATCHDOG:.0f} s")
        return FaultTrial(fault.is_hit, (hang,), num_chances=fault.num_chances)
    whom = Whom()
    if verdict.holds:
        whom = Aftermath(fault, verdict.workload, verdict.trace).whom(verdict.finished)
    return FaultTrial(fault.is_hit, verdict.findings, whom, fault.num_chances)


# -- Drives a case through its loop, turn by turn --------------------------------------------------

EACH = 2  # turns for each step that is needed; see ``most_turns``
SIDES = 4  # turns of either side for a turn of one engine: the side that is behind goes on alone

Hook = Callable[[Engine], None]


class Livelock(AssertionError):
    """Turns go by and requests never end."""


STOPPED_BY: dict[type[Exception], str] = {
    OwnershipError: "ownership",
    Livelock: "livelock",
    SchedulerStuck: "livelock",
    Deadlock: "deadlock",
    MemoryLeak: "leak",
}
"""The law that a run has broken which such an error stopped; any other is a ``crash``."""


def run(
    case: Case, workload: Workload, device: Device, model: Model, patch: Hook, each_turn: Hook
) -> tuple[list[Engine], list[Output]]:
    """Drive the case; its engines, the one that clients talk to first, and what these heard."""
    if case.loop == "pd":
        return play_pd(case, workload, device, model, patch, each_turn)
    engine, outputs = play(
        workload, case.loop, case.relay, dict(case.options), device, model, case.cost, patch,
        each_turn,
    )  # fmt: skip
    return [engine], outputs


def play(
    workload: Workload,
    loop: str,
    relay: str,
    options: dict[str, Any],
    device: Device,
    model: Model,
    cost: CostModel = NO_COST,
    patch: Hook = lambda engine: None,
    each_turn: Hook = lambda engine: None,
) -> tuple[Engine, list[Output]]:
    """Drive the loop turn by turn; requests and aborts come in on their turns.

    ``patch`` may change the engine before it starts, and ``each_turn`` look at it after every turn
    (``books.py:check_step`` of its scheduler does). The device is closed at the end; on ``sim``,
    what was launched ends first, so that the trace of a run that stopped has it, too.

    Raises:
        Livelock: requests are left after ``most_turns``.
    """
    outputs: list[Output] = []
    frontend = Frontend(on_output=outputs.append)
    try:
        engine = make_engine(loop, device, model, workload.config, frontend, cost, relay, **options)
        patch(engine)
        turns, last = LOOPS[loop].start(engine, **options), last_event(workload)
        run_ahead = engine.scheduler.config.run_ahead
        most = most_turns(workload, engine.worker.depth, run_ahead)
        for turn in range(most):
            for req, arrival in zip(workload.requests, workload.arrivals, strict=True):
                if arrival == turn:
                    frontend.push(req)
            if turn in workload.aborts:
                frontend.abort(workload.aborts[turn])
            if turn in workload.flushes:
                frontend.flush_cache()
            next(turns)
            each_turn(engine)
            if turn > last and engine.is_done:
                return engine, outputs
        raise livelock(workload, most)
    finally:
        while isinstance(device, SimDevice) and device.next_event is not None:
            device.idle_until(device.next_event)
        device.close()


def play_pd(
    case: Case, workload: Workload, device: Device, model: Model, patch: Hook, each_turn: Hook
) -> tuple[list[Engine], list[Output]]:
    """Turn both sides of PD separation, whose clocks bring what comes, until nothing is left.

    A turn of the workload is as long as a step with one token where nothing overlaps. The case's
    options are the link's. The hooks are called with either engine. The device is closed at the
    end.

    Raises:
        Livelock: requests are left after ``SIDES * most_turns``.
    """
    cost, outputs, requests = case.cost, list[Output](), workload.requests
    tick = max(1, sum(cost.host.values()) + cost.forward(1) + cost.sample + cost.copy)
    for req, turn in zip(requests, workload.arrivals, strict=True):
        req.arrival_time = turn * tick
    frontend = Frontend(requests, outputs.append)
    for turn, rid in workload.aborts.items():
        frontend.abort(rid, at=turn * tick)
    try:
        pair = Pair(
            device, model, requests, workload.config, frontend, cost, case.relay, **case.options
        )
        patch(pair.prefill)
        patch(pair.decode)
        most = SIDES * most_turns(workload, pair.decode.worker.depth)
        for turn in range(most):
            if turn in workload.flushes:
                frontend.flush_cache()
            if pair.is_done:
                return [pair.decode, pair.prefill], outputs
            pair.turn()
            each_turn(pair.prefill)
            each_turn(pair.decode)
        raise livelock(workload, most)
    finally:
        device.close()


def most_turns(workload: Workload, depth: int, run_ahead: bool = True) -> int:
    """Turns that a workload may take on a loop with ``depth`` steps in flight: more is a livelock.

    As many steps as if requests ran one after the other, each prompt twice, as whoever loses its
    memory computes all of it again; and ``EACH`` turns for a step, as some only wait. Of 2,064
    healthy runs, half of them so short of memory that many were retracted, none took more than 0.67
    of that; on ``pd``, where it is ``SIDES`` times as many, none more than 0.34. A loop that fills
    its queue but does not ``run_ahead`` may let each token wait for ``depth`` turns (vllm_pp4).
    """
    budget, steps = workload.config.prefill_budget, depth
    each = EACH if run_ahead else max(EACH, depth)
    for req in workload.requests:
        if not req.problem():
            outputs = req.params.max_new_tokens
            steps += ceil(len(req.prompt) / budget) + ceil(req.max_device_len / budget) + outputs
    return 1 + last_event(workload) + each * steps


def last_event(workload: Workload) -> int:
    """The last turn in which anything comes from outside."""
    return max([0, *workload.arrivals, *workload.aborts, *workload.flushes])


def livelock(workload: Workload, turns: int) -> Livelock:
    """So many turns are over."""
    left = [req.name for req in workload.requests if not req.finished]
    who = f"{' and '.join(left)} {'has' if len(left) == 1 else 'have'} not ended"
    if not left:
        who = "a step is still in flight"
    return Livelock(f"every request must end within {turns} turns of this workload, but {who}")


def hash_model(device: str, workload: Workload) -> Model:
    """The hash model in a device's tensors, with the workload's vocabulary.

    Raises:
        ValueError: an extra is missing.
    """
    return cast(Model, hash_class(device)(workload.vocab_size, eos_ids=workload.eos_ids))
