"""Runs one case through one loop, and says which laws it broke."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from .fault import step_fault
from .laws import (
    Broken,
    Budgets,
    Clients,
    Touched,
    check_aborts,
    check_clients,
    check_ends,
    check_identity,
    check_leaks,
    check_lifetimes,
    check_logprobs,
    check_positions,
    check_races,
    check_story,
    check_times,
    check_told,
    check_touches,
)
from .oracle import OF_HASH
from .progress import Progress

# -- Drives one workload through one loop, turn by turn --------------------------------------------

EACH = 2  # turns for each step that is needed; see ``most_turns``


class Hooks(NamedTuple):
    """What is called with an engine before it starts, and after each of its turns."""

    patch: Callable[[Engine], None] = lambda engine: None
    each_turn: Callable[[Engine], None] = lambda engine: None


class Livelock(AssertionError):
    """Turns go by and requests never end."""


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


def play(
    workload: Workload,
    loop: str,
    relay: str,
    options: dict[str, Any],
    device: Device,
    model: Model,
    cost: CostModel = NO_COST,
    patch: Callable[[Engine], None] = lambda engine: None,
    each_turn: Callable[[Engine], None] = lambda engine: None,
) -> tuple[Engine, list[Output]]:
    """Drive the loop turn by turn; requests and aborts come in on their turns.

    ``patch`` may change the engine before it starts, and ``each_turn`` look at it after every turn
    (``leaks/books.py:check_step`` of its scheduler does). The device is closed at the end.

    Raises:
        Livelock: requests are left after ``most_turns``.
    """
    outputs: list[Output] = []
    frontend = Frontend(on_output=outputs.append)
    engine = make_engine(loop, device, model, workload.config, frontend, cost, relay, **options)
    patch(engine)
    turns = LOOPS[loop].start(engine, **options)
    last, most = (
        last_event(workload),
        most_turns(workload, engine.worker.depth, engine.scheduler.config.run_ahead),
    )
    try:
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
        let_end(device)
        device.close()


def let_end(device: Device) -> None:
    """On ``sim``, what was launched ends, so that the trace of a run that stopped has it, too."""
    while isinstance(device, SimDevice) and device.next_event is not None:
        device.idle_until(device.next_event)


# -- Drives one workload through both sides of PD separation, whose clocks bring what comes --------

NO_HOOKS = Hooks()
SIDES = 4  # turns of either side for a turn of one engine: the side that is behind goes on alone


def play_pd(
    case: Case, device: Device, model: Model, hooks: Hooks = NO_HOOKS
) -> tuple[Pair, list[Output]]:
    """Turn the pair until nothing is left; a turn of the workload is as long as a short step.

    The case's options are the link's. The ``hooks`` are called with either engine. The device is
    closed at the end.

    Raises:
        Livelock: requests are left after ``SIDES * most_turns``.
    """
    workload, cost, outputs = case.workload, case.cost, list[Output]()
    requests, config = workload.requests, workload.config
    tick = step_ns(cost)
    for req, turn in zip(requests, workload.arrivals, strict=True):
        req.arrival_time = turn * tick
    frontend = Frontend(requests, outputs.append)
    for turn, rid in workload.aborts.items():
        frontend.abort(rid, at=turn * tick)
    try:
        pair = Pair(device, model, requests, config, frontend, cost, case.relay, **case.options)
        hooks.patch(pair.prefill)
        hooks.patch(pair.decode)
        most = SIDES * most_turns(workload, pair.decode.worker.depth)
        for turn in range(most):
            if turn in workload.flushes:
                frontend.flush_cache()
            if pair.is_done:
                return pair, outputs
            pair.turn()
            hooks.each_turn(pair.prefill)
            hooks.each_turn(pair.decode)
        raise livelock(workload, most)
    finally:
        device.close()


def step_ns(cost: CostModel) -> int:
    """Nanoseconds of a step with one token, where nothing overlaps; at least one."""
    return max(1, sum(cost.host.values()) + cost.forward(1) + cost.sample + cost.copy)


STOPPED_BY: dict[type[Exception], str] = {
    OwnershipError: "ownership",
    Livelock: "livelock",
    SchedulerStuck: "livelock",
    Deadlock: "deadlock",
    MemoryLeak: "leak",
}


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


def judge(case: Case, patch: Callable[[Engine], None] = lambda engine: None) -> Verdict:
    """Run a fresh copy of a case and hold every law against it.

    ``patch`` may change an engine before it starts; ``pd`` has two. A run that stops with an error
    is not looked at for ends, and for leaks only as far as it came: they follow from it.
    """
    before, workload, device = threads(), fresh(case.workload), open_device(case.device)
    device.built_by_host |= case.built_by_host
    model = hash_model(case.device, workload)
    findings: dict[str, Finding] = {}  # the first of each law
    faults, witness = [step_fault(failure) for failure in workload.failures], Witness(workload)
    progress = Progress()

    def watched(engine: Engine) -> None:
        witness.watch(engine)
        progress.watch(engine)
        for fault in faults:
            fault.put_in(engine)
        patch(engine)

    engines, outputs = list[Engine](), list[Output]()
    try:
        engines, outputs = run(case, workload, device, model, watched, witness.look)
    except Exception as error:  # a broken scheduler may stop in any way
        law = next((name for kind, name in STOPPED_BY.items() if isinstance(error, kind)), "crash")
        findings[law] = Finding(law, f"{type(error).__name__}: {error}")
    for fault in faults:
        for rid in fault.touched:
            workload.struck.setdefault(rid, set()).add(fault.says)
    trace = device.recorder.trace(case.loop, device.name, model.name, device.clock)
    laws = witness.laws(trace, device, is_over=bool(engines))
    laws += [partial(progress.check, law) for law in ("progress", "order")]
    refused: frozenset[str] = frozenset()
    if engines:
        refusal = engines[0].scheduler.config.refusal
        refused = frozenset(r.name for r in workload.requests if refusal(r) is not None)
        laws = [
            partial(check_identity, workload, witness.clients.refusal),
            partial(check_ends, workload, outputs),
            *witness.laws_of_clients(engines[0], outputs),
            partial(check_story, trace),
            *laws,
            *(partial(check_idle, engine.scheduler, before) for engine in engines),
            *(partial(check_leaks, engine) for engine in engines),
        ]
    findings |= broken(laws)
    return Verdict(tuple(findings.values()), workload, trace, bool(engines), refused)


class Witness:
    """Looks on at a run, whatever goes wrong in it, for the laws that hold of any."""

    def __init__(self, workload: Workload) -> None:
        self.books, self.budgets, self.clients = Books(), Budgets(), Clients(workload)
        self.touched = Touched()

    def watch(self, engine: Engine) -> None:
        """Before an engine starts."""
        self.budgets.watch(engine)
        self.touched.watch(engine)
        self.clients.watch(engine)

    def look(self, engine: Engine) -> None:
        """After one of its turns."""
        self.books.look(engine)
        self.clients.look(engine)

    def laws(
        self, trace: Trace, device: Device, is_over: bool, all_alive: bool = True
    ) -> list[Callable[[], None]]:
        """What is to hold; of a run that ``is_over``, of its ends as well.

        Whatever was waited for has come then, and what ops say is what they do, unless somebody who
        was to see to it is dead.
        """
        laws: list[Callable[[], None]] = [
            self.books.check,
            partial(check_positions, trace),
            partial(check_races, trace, is_over and all_alive),
            self.budgets.check,
            partial(check_times, trace),
            partial(check_lifetimes, device),
        ]
        if all_alive:
            laws.append(partial(check_touches, self.touched, trace, is_over))
        return [partial(check_told, trace), *laws] if is_over else laws

    def laws_of_clients(
        self, engine: Engine, outputs: Sequence[Output], are_heard: bool = True
    ) -> list[Callable[[], None]]:
        """What is to hold of a run that is over, as its clients heard it; if ``are_heard``, all."""
        clients, tolerance = self.clients, OF_HASH[library(engine.device.name)]
        laws: list[Callable[[], None]] = [
            partial(check_logprobs, clients.workload, outputs, tolerance),
            partial(check_aborts, clients, outputs),
        ]
        return [partial(check_clients, clients, engine, outputs), *laws] if are_heard else laws


def broken(laws: Iterable[Callable[[], None]]) -> dict[str, Finding]:
    """What is found, the first of each law."""
    findings: dict[str, Finding] = {}
    for law_holds in laws:
        try:
            law_holds()
        except Broken as error:
            law, _, sentence = str(error).partition(": ")
            findings.setdefault(law, Finding(law, sentence))
    return findings


def run(
    case: Case,
    workload: Workload,
    device: Device,
    model: Model,
    patch: Callable[[Engine], None],
    each_turn: Callable[[Engine], None],
) -> tuple[list[Engine], list[Output]]:
    """Drive the case; its engines, the one that clients talk to first, and what these heard."""
    if case.loop == "pd":
        hooks = Hooks(patch, each_turn)
        pair, outputs = play_pd(replace(case, workload=workload), device, model, hooks)
        return [pair.decode, pair.prefill], outputs
    options = dict(case.options)
    engine, outputs = play(
        workload, case.loop, case.relay, options, device, model, case.cost, patch, each_turn
    )
    return [engine], outputs


def hash_model(device: str, workload: Workload) -> Model:
    """The hash model in a device's tensors, with the workload's vocabulary.

    Raises:
        ValueError: an extra is missing.
    """
    return cast(Model, hash_class(device)(workload.vocab_size, eos_ids=workload.eos_ids))
