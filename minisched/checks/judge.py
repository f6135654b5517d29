"""Run one case through one loop, and return the laws that it broke."""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, cast

from ..core import Output, ScheduleBatch
from ..core.form import wrong_form
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..devices.registry import library, open_device
from ..devices.sim import Deadlock, SimDevice
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..engine.owner import release
from ..loops.design import LOOPS, Design, own_line, take_turn
from ..loops.pd import Pair
from ..loops.run import RunSetup, make_engine
from ..memory import MemoryLeak, OwnershipError, self_check
from ..models.base import Model
from ..models.registry import hash_class
from ..scheduler import SchedulerStuck
from ..trace import Trace
from .case import FAILURES, Case, Failure, Workload, fresh
from .details import find_wrong_ledgers
from .drafts import DraftRules
from .exact import find_inexact
from .figures import Figures
from .freed import Freed
from .history import Offence
from .identity import find_bad_ends, find_misreads
from .labels import (
    Labels,
    find_untold,
    find_wrong_edges,
    find_wrong_labels,
    find_wrong_marks,
    find_wrong_results,
    find_wrong_set_up,
)
from .launches import (
    Shape,
    find_misplaced,
    find_needless_copies,
    find_sent_twice,
    find_unawaited,
    find_unpinned,
    find_unreleased,
    find_unreleased_copies,
    find_wrong_halves,
)
from .laws import (
    Clients,
    Touched,
    find_negative,
    lacking,
    over_budget,
)
from .leaks import AT_ONCE, find_leaks, find_unlisted
from .marked import MarkWatch, find_wrong_rows, find_wrong_transfers
from .oracle import OF_HASH, Alone, find_unlike, find_wrong_beams
from .positions import Cached, Ids, Positions, enters_planned, find_unwritten
from .prefix_audit import PrefixAudit
from .progress import Watched
from .races import find_endless, find_races
from .recorded import find_bad_steps, find_out_of_time, find_unwritten_reads
from .refusals import find_accepted
from .remains import find_remains
from .set_up import find_unfit
from .step_fault import POSTPROCESS, BadLuck, StepFault
from .turns import LoopTurns, is_published
from .waste import Waste, overrun_of
from .whole_run import TooManyPhases, find_other_ends, tick_of

# -- The violations of one run ---------------------------------------------------------------------

# violations by law: sentences, or offences of the trace
Laws = Iterable[tuple[str, Iterable[object]]]
Hook = Callable[[Engine], None]


@dataclass(frozen=True)
class Finding:
    """A broken law, by name, and the violation, in a sentence.

    ``offence`` is the same violation for a picture, if the trace alone shows it.
    """

    law: str
    sentence: str
    offence: Offence | None = None
    is_in_loop: bool = False  # an error raised in a line of the user's own loop


@dataclass(frozen=True)
class Verdict:
    """The violations of one run, in the order of the checks, and its trace.

    ``workload`` holds the requests as the run has left them. ``finished`` is False if the run
    stopped with an error. ``refused`` are the names of the requests that had to be refused.
    ``unknown`` maps a law that does not know the rules in force to the reason. ``hit`` are the
    injected faults that occurred. ``in_depth`` is that of the case.
    """

    findings: tuple[Finding, ...]
    workload: Workload
    trace: Trace
    finished: bool = True
    refused: frozenset[str] = frozenset()
    unknown: Mapping[str, str] = field(default_factory=dict)
    hit: frozenset[Failure] = frozenset()
    in_depth: bool = True

    @property
    def holds(self) -> bool:
        """Return whether no law was broken."""
        return not self.findings

    def lacking(self, law: str) -> str:
        """Return why a law can't judge the run; '' if it can, or was broken."""
        if self.broke(law):
            return ""
        if law == "record" and not self.in_depth:
            return "the case is not judged in depth"
        return self.unknown.get(law) or lacking(law, self.trace)

    def broke(self, law: str) -> Finding | None:
        """Return the finding of one law, or None."""
        return next((item for item in self.findings if item.law == law), None)


class Witnesses:
    """A case with the observers of its run, and the laws that they judge after it.

    ``run`` sets ``trace``, and either ``engines``, the one with the clients first, or the ``error``
    that stopped the run.
    """

    def __init__(self, case: Case, workload: Workload) -> None:
        self.case, self.workload = case, workload
        self.device, self.model = open_device(case.device), hash_model(case.device, workload)
        self.device.built_by_host |= case.built_by_host
        self.clients, self.touched = Clients(workload), Touched()
        self.progress, self.over_budget = dict[str, str](), list[str]()
        self.num_tokens = dict[tuple[str, int], int]()  # by side of ``pd`` and step
        self.shapes = dict[int, Shape]()  # by step
        self.last_rows = dict[int, set[int]]()  # by step; of requests that end by their length
        self.ids = list[Ids]()  # of each engine
        self.positions = list[Positions]()  # of each scheduler
        self.cached = list[Cached]()  # of each scheduler
        self.freed = list[Freed]()  # of each scheduler
        self.waste = list[Waste]()  # of each scheduler
        self.audits = list[PrefixAudit]()  # of each scheduler's prefix cache
        self.turns = list[LoopTurns]()  # of each engine
        self.drafts = list[DraftRules]()  # of each engine
        self.labels = list[Labels]()  # of each scheduler
        self.marked = list[MarkWatch]()  # of each engine
        self.shares_planned = False  # pages enter the prefix cache before they are written
        self.unknown = dict[str, str]()  # by law, why it does not know the rules in force
        self.threads = alive()
        self.failing = [StepFault(it.kind, it) for it in workload.failures]
        self.engines = list[Engine]()
        self.figures = list[Figures]()  # in the order in which the engines were made
        self.error: Exception | None = None

    def run(self, patch: Hook, each_turn: Hook = lambda engine: None) -> None:
        """Drive the case; ``patch`` may change an engine before it starts (``pd`` has two)."""
        device, case, workload = self.device, self.case, self.workload

        def watch(engine: Engine) -> None:
            """Attach to an engine, and change it."""
            self.watch(engine)
            patch(engine)

        def look(engine: Engine) -> None:
            """Check after each turn."""
            each_turn(engine)
            self.clients.look(engine)
            for turns in self.turns:
                turns.end(engine)
            for audit in self.audits:
                audit.look()

        try:
            self.engines = run(case, workload, device, self.model, watch, look)
        except Exception as error:  # a faulty scheduler may raise any error
            self.error = error
        self.collect()

    def watch(self, engine: Engine) -> None:
        """Attach the observers and the injected faults to an engine before it starts."""
        config, positions = engine.scheduler.config, Positions()
        waste = Waste(engine, overrun_of(self.case.loop, self.case.options))
        side = getattr(engine.device.recorder, "side", "")
        self.positions.append(positions)
        self.waste.append(waste)
        self.audits.append(PrefixAudit(engine))
        labels = Labels(engine) if self.case.in_depth else None
        if labels is not None:
            self.labels.append(labels)
            self.marked.append(MarkWatch(engine))
        cached = Cached(engine)
        self.cached.append(cached)
        self.freed.append(freed := Freed(engine))
        self.ids.append(Ids(engine.worker.model))
        self.shares_planned |= enters_planned(config.in_force)

        def committed(batch: ScheduleBatch) -> None:
            """Check a step's size, and the positions and leases of its rows."""
            self.over_budget += over_budget(config, batch)
            positions.look(batch)
            waste.look(batch)
            cached.look(batch)
            freed.look(batch)
            if labels is not None:
                labels.look(batch)
            others = (config.beam_width - 1) * (len(batch.reqs) - batch.num_extend_reqs)
            self.shapes[batch.step] = [len(ids) for ids in batch.ids], batch.num_extend_reqs
            self.last_rows[batch.step] = {
                row.lease.row for row in batch.rows if row.end + 1 >= row.req.max_device_len
            }
            self.num_tokens[side, batch.step] = batch.num_tokens + others  # of the other beams

        engine.scheduler.on_commit = committed
        self.touched.watch(engine)
        self.clients.watch(engine)
        self.figures.append(Figures(engine))
        self.turns.append(LoopTurns(engine, self.case.loop, self.case.options))
        self.drafts.append(DraftRules(engine))
        Watched(engine, self.progress, self.unknown)
        for fault in self.failing:
            fault.put_in(engine)

    def collect(self) -> None:
        """Keep the trace after the run, and the requests that its injected faults hit."""
        device, case = self.device, self.case
        for fault in self.failing:
            for rid in fault.touched:
                self.workload.struck.setdefault(rid, set()).add(FAILURES[fault.kind])
        self.trace = Trace.of(
            device.recorder, case.loop, device.name, self.model.name, device.clock
        )

    @property
    def is_stopped_by_a_fault(self) -> bool:
        """Return whether an injected fault of the loop's own layer has stopped the run."""
        hit = any(fault.kind == POSTPROCESS and fault.is_hit for fault in self.failing)
        return hit and isinstance(self.error, BadLuck)

    def laws(self) -> Laws:
        """Yield each law with its violations, those of the clients first.

        Ends and most leaks are skipped if the run stopped with an error: they follow from it.
        """
        trace, is_over, clients = self.trace, bool(self.engines), self.clients
        if is_over:
            tolerance = OF_HASH[library(self.device.name)]
            told = ((req, clients.heard[req]) for req in self.workload.requests)
            for law, sentence in clients.find(self.engines[0].metrics.ended):
                yield law, [sentence]
            for figures in self.figures if self.device.clock == "virtual" else ():
                yield "client", figures.find(clients.heard)
            yield "crash", self.failed_steps()
            config = self.engines[0].scheduler.config
            yield "crash", find_accepted(self.case, config.run_ahead)
            yield "crash", find_unfit(self.case) if self.case.runs_whole else ()
            if config.beam_width == 1:  # a search delivers its tokens at the end
                yield "identity", find_wrong_ledgers(trace)
            elif not self.workload.struck:
                yield "identity", find_wrong_beams(trace, self.workload)
            yield "logprobs", find_unlike(told, self.workload.vocab_size, tolerance)
            yield "leak", find_leaks(trace)
            yield "ends", find_bad_ends(trace)
            yield "identity", find_misreads(trace)
        else:
            yield "leak", [leak for leak in find_leaks(trace) if leak.kind in AT_ONCE]
        yield "ownership", find_unlisted(trace)
        for freed in self.freed:
            yield "ownership", freed.early
        for ids in self.ids:
            yield "positions", ids.wrong
        for positions in self.positions:
            yield "positions", positions.gaps
        for cached in self.cached:
            yield "positions", cached.missing
        yield "positions", find_unwritten(trace, self.shares_planned, self.touched.failed_ops)
        for audit in self.audits:
            yield "leak", audit.found
        yield "race", find_races(trace)
        yield "deadlock", find_endless(trace) if is_over else ()
        yield "budget", self.over_budget
        for waste in self.waste:
            yield "waste", waste.found
        for drafts in self.drafts if not self.workload.struck else ():
            yield "waste", drafts.found.values()
        yield "time", find_out_of_time(trace) if self.case.in_depth else ()
        is_on_sim = self.device.name == "sim" and is_published(self.case.loop)
        is_plain = is_on_sim and not self.workload.struck
        if is_plain and self.case.in_depth:
            yield "time", find_inexact(trace, self.case, self.num_tokens)
            yield "time", find_misplaced(trace)
            yield "time", find_unawaited(trace)
        if is_plain:
            yield "waste", find_sent_twice(trace)
            if self.case.loop == "two_batch":
                yield "time", find_wrong_halves(trace, self.case, self.shapes)
            if is_over:
                yield "leak", find_unpinned(trace, self.case)
                if config.beam_width == 1:  # the rows of other beams are not released
                    yield "leak", find_unreleased(trace)
                else:
                    num_slots = config.num_slots + config.page_size
                    yield "leak", find_unreleased_copies(trace, config.beam_width, num_slots)
                    row_len = self.engines[0].worker.max_len
                    yield "waste", find_needless_copies(trace, row_len, self.last_rows)
        if is_over and self.case.in_depth:
            yield "crash", find_bad_steps(trace) if not self.workload.struck else ()
            yield "ownership", find_unwritten_reads(trace)
        for figures in self.figures:
            yield "time", figures.too_early
        yield "lifetime", self.device.lifetimes
        yield "touches", self.touched.check(trace, is_over)
        for law, sentence in self.progress.items():
            if law != "record":
                yield law, [sentence]
        for turns in self.turns:
            yield "progress", turns.found.values()
        threads = [name for name in alive() if name not in self.threads]
        yield "leak", (f"the thread {name} is still alive" for name in threads)
        for engine in self.engines:
            yield "leak", find_held(engine)
            if self.case.in_depth:
                yield "leak", find_remains(engine, self.workload.requests)
            yield "time", find_negative(engine.metrics.ended)
        for engine in self.engines:
            yield "leak", find_unguarded(engine)

    def records(self) -> Laws:
        """Yield the law ``record``, which is judged if no other one is broken.

        After an injected fault, an edge may begin at an op that never ran. No beam has a token of
        its own before the end.
        """
        is_on_sim = self.device.name == "sim" and is_published(self.case.loop)
        if not (self.engines and is_on_sim and self.case.in_depth):
            return
        steps = {(it.side, step): of for it in self.labels for step, of in it.steps.items()}
        yield "record", [self.progress["record"]] if "record" in self.progress else []
        for marked in self.marked:
            yield "record", marked.found
        yield "record", find_wrong_rows(self.trace)
        yield "record", find_wrong_labels(self.trace, steps)
        yield "record", find_wrong_marks(self.trace, steps, self.labels)
        yield "record", find_wrong_set_up(self.trace, self.labels)
        yield "record", find_wrong_transfers(self.trace)
        if not self.workload.struck:
            yield "record", find_wrong_edges(self.trace, steps)
        if self.workload.config.beam_width == 1:
            yield "record", find_wrong_results(self.trace, steps)
            yield "record", find_untold(self.trace, self.clients.heard)

    def failed_steps(self) -> Iterator[str]:
        """Yield the steps that failed, although no fault was injected into them."""
        for req in self.workload.requests:
            if req.error.startswith("step ") and not self.workload.has_failed(req):
                yield f"{req.error.rstrip('.')} (no fault was injected)"


def find_held(engine: Engine) -> Iterator[str]:
    """Yield what a live scheduler still holds although every request has ended.

    The trace shows the owner and the missing release (``leaks.py``).
    """
    try:
        self_check(engine.scheduler.leases)
    except MemoryLeak as error:
        yield str(error)


def find_unguarded(engine: Engine) -> Iterator[str]:
    """Yield a sentence if an idle engine does not notice that a row is lost. It loses one here."""
    engine.scheduler.leases.open()
    try:
        type(engine).on_idle(engine)  # an exercise counts the calls of its loop on the object
        yield "a row is lost, and the idle engine does not look for leaks"
    except MemoryLeak:
        pass


def alive() -> list[str]:
    """Return the names of all live threads."""
    return [thread.name for thread in threading.enumerate()]


def judge(case: Case, patch: Callable[[Engine], None] = lambda engine: None) -> Verdict:
    """Run a fresh copy of a case and apply the laws to it, as deep as the case says.

    ``patch`` may change an engine before it starts; ``pd`` has two.
    """
    workload = fresh(case.workload)
    seen = Witnesses(case, workload)
    seen.run(patch)
    error = None if seen.is_stopped_by_a_fault else seen.error
    stopped = [stopped_by(error, LOOPS[case.loop])] if error else []
    refusals = [engine.scheduler.config.refusal for engine in seen.engines[:1]]
    refused = {req.name for req in workload.requests if any(it(req) is not None for it in refusals)}
    found = [*stopped, *first_of_each(seen.laws())]
    if not found:
        found += first_of_each(seen.records())
    if case.runs_whole and seen.engines and not found:
        found += run_whole(case, [seen.clients.truth.get(req) for req in workload.requests])
    findings = {item.law: item for item in found}
    return Verdict(
        tuple(findings.values()), workload, seen.trace, bool(seen.engines), frozenset(refused),
        seen.unknown, frozenset(fault.of for fault in seen.failing if fault.is_hit), case.in_depth,
    )  # fmt: skip


def run_whole(case: Case, truths: Sequence[Alone | None]) -> list[Finding]:
    """Return the laws that a whole run of the case breaks; see ``whole_run.py``."""
    try:
        most = PHASES * most_turns(case.workload, 1 + LOOPS[case.loop].in_flight)
        by_law = {law: said for law, said in find_other_ends(case, truths, most)}
    except Exception as error:  # a faulty engine may raise any error
        return [stopped_by(error, LOOPS[case.loop])]
    return [Finding(law, said) for law, said in by_law.items()]


def stopped_by(error: Exception, design: Design | None = None) -> Finding:
    """Return the law that an error broke when it stopped a run.

    The sentence about the user's own loop names the line.
    """
    law = next((name for kind, name in STOPPED_BY.items() if isinstance(error, kind)), "crash")
    frames = traceback.extract_tb(error.__traceback__)
    words = str(error) or (frames[-1].line if frames else "")  # an assert may have no message
    place, is_in_loop = own_line(error, design) if design else ("", False)
    is_in_loop &= law == "crash"
    words = (words or "").rstrip(".") if place else words
    said = f"{type(error).__name__}: {words}{place}"
    return Finding(law, said, is_in_loop=is_in_loop)


def first_of_each(laws: Laws) -> Iterator[Finding]:
    """Yield the first finding of each law, in their order."""
    found: set[str] = set()
    for law, sentences in laws:
        for sentence in sentences if law not in found else ():
            found.add(law)
            yield Finding(law, str(sentence), sentence if isinstance(sentence, Offence) else None)
            break


def breaks_the_same(finding: Finding) -> Callable[[Case], bool]:
    """Return a test of cases for ``case.py:shrink``: does a case break the law of ``finding``?

    A crash has to be the same one, apart from numbers.
    """

    def kind_of(sentence: str) -> str:
        """Return a sentence without its numbers."""
        return re.sub(r"\d+", "N", sentence)

    def shows(case: Case) -> bool:
        """Return whether a case violates the law in the same way."""
        found = judge(case).broke(finding.law)
        if found is None or finding.law != "crash":
            return found is not None
        return kind_of(found.sentence) == kind_of(finding.sentence)

    return shows


# -- Drive a case through its loop, turn by turn ---------------------------------------------------

EACH = 2  # turns for each step; see ``most_turns``
PHASES = 8  # of the host in a turn, at most; measured on 384 healthy runs: 1.1
SIDES = 4  # turns per side for one engine's turn: the side with the earlier clock runs alone


class Livelock(AssertionError):
    """Requests are left after the most turns that a healthy run takes."""


STOPPED_BY: dict[type[Exception], str] = {
    OwnershipError: "ownership",
    Livelock: "livelock",
    SchedulerStuck: "livelock",
    TooManyPhases: "livelock",
    Deadlock: "deadlock",
    MemoryLeak: "leak",
}
"""The law that each error breaks when it stops a run; any other error is a ``crash``."""


def run(
    case: Case, workload: Workload, device: Device, model: Model, patch: Hook, each_turn: Hook
) -> list[Engine]:
    """Drive the case and return its engines, the one with the clients first."""
    if case.loop == "pd":
        return play_pd(case, workload, device, model, patch, each_turn)
    loop, relay, options = case.loop, case.relay, dict(case.options)
    return [play(workload, loop, relay, options, device, model, case.cost, patch, each_turn)[0]]


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
    """Drive the loop turn by turn; requests and aborts arrive on their turns.

    ``patch`` may change the engine before it starts, and ``each_turn`` is called after every turn.
    The device is closed at the end. On ``sim`` the launched ops end first, so the trace of a
    stopped run contains them, too.

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
                    delay = workload.delay
                    frontend.push(req, at=device.now() + delay if delay else None)
            if turn in workload.aborts:
                at = device.now() + workload.delay if workload.delay else None
                frontend.abort(workload.aborts[turn], at=at)
            if turn in workload.flushes:
                frontend.flush_cache()
            if turn in workload.sent_again:
                send_again(workload, turn, frontend)
            if turn == workload.interrupt:
                frontend.interrupt()
            take_turn(turns)
            each_turn(engine)
            if turn > last and engine.is_done:
                return engine, outputs
        raise livelock(workload, most)
    finally:
        while isinstance(device, SimDevice) and device.next_event is not None:
            device.idle_until(device.next_event)
        device.close()
        release(model, device)


def play_pd(
    case: Case, workload: Workload, device: Device, model: Model, patch: Hook, each_turn: Hook
) -> list[Engine]:
    """Turn both sides of PD separation, with arrivals by their clocks, until no request is left.

    A turn of the workload lasts as long as a step with one token and no overlap. The case's options
    are the link's. The hooks are called with either engine. No request is sent again, because the
    load balancer has sent all of them by then. The device is closed at the end.

    Raises:
        Livelock: requests are left after ``SIDES * most_turns``.
    """
    cost, requests = case.cost, workload.requests
    tick = tick_of(case)
    for req, turn in zip(requests, workload.arrivals, strict=True):
        req.arrival_time = turn * tick
        req.admission.bootstrap_room = requests[0].name
    frontend = Frontend(requests, lambda output: None)
    for turn, rid in workload.aborts.items():
        frontend.abort(rid, at=turn * tick)
    try:
        setup = RunSetup(
            "pd", LOOPS["pd"], device, model, workload.config, frontend, cost, case.relay, requests
        )
        pair = Pair(setup, **case.options)
        patch(pair.prefill)
        patch(pair.decode)
        most = SIDES * most_turns(workload, pair.decode.worker.depth)
        for turn in range(most):
            if turn in workload.flushes:
                frontend.flush_cache()
            if turn == workload.interrupt:
                frontend.interrupt()
            if pair.is_done:
                return [pair.decode, pair.prefill]
            pair.turn()
            each_turn(pair.prefill)
            each_turn(pair.decode)
        raise livelock(workload, most)
    finally:
        device.close()
        release(model, device)


def most_turns(workload: Workload, depth: int, run_ahead: bool = True) -> int:
    """Return the turns that a workload may take with ``depth`` steps in flight; more is a livelock.

    It counts the steps of requests that run alone in order, each prompt twice, because a retracted
    request computes it again. A step has ``EACH`` turns, as some only wait. Measured on 2,064
    healthy runs, half of them with so little memory that many requests were retracted: none took
    more than 0.67 of the limit; on ``pd``, with ``SIDES`` times the limit, none more than 0.34.
    A loop that fills its queue but does not ``run_ahead`` may let each token wait ``depth`` turns
    (vllm_pp4).
    """
    budget, steps = workload.config.prefill_budget, depth
    each = EACH if run_ahead else max(EACH, depth)
    for req in workload.requests:
        if not wrong_form(req):
            outputs = req.params.max_new_tokens
            steps += ceil(len(req.prompt) / budget) + ceil(req.max_device_len / budget) + outputs
    return 1 + last_event(workload) + each * steps


def last_event(workload: Workload) -> int:
    """Return the last turn with an arrival or another event."""
    events = *workload.aborts, *workload.flushes, *workload.sent_again, workload.interrupt or 0
    return max([0, *workload.arrivals, *events])


def send_again(workload: Workload, turn: int, frontend: Frontend) -> None:
    """Send a request object once more that was sent in an earlier turn."""
    for req, arrival in zip(workload.requests, workload.arrivals, strict=True):
        if req.name == workload.sent_again[turn] and arrival < turn:
            frontend.push(req)
            break


def livelock(workload: Workload, turns: int) -> Livelock:
    """Return the error of a run that has used up its turns."""
    left = [req.name for req in workload.requests if not req.finished]
    who = f"{' and '.join(left)} {'has' if len(left) == 1 else 'have'} not ended"
    if not left:
        who = "a step is still in flight"
    return Livelock(f"every request must end within {turns} turns of this workload, but {who}")


def hash_model(device: str, workload: Workload) -> Model:
    """Return the hash model in a device's tensors, with the workload's vocabulary.

    Raises:
        ValueError: an extra is missing.
    """
    return cast(Model, hash_class(device)(workload.vocab_size, eos_ids=workload.eos_ids))
