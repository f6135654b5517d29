"""Runs one case through one loop, and says which laws it broke."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from ..core import Output
from ..devices.base import Device
from ..devices.registry import library, open_device
from ..devices.sim import Deadlock
from ..engine.engine import Engine
from ..memory import OwnershipError
from ..models.base import Model
from ..models.registry import hash_class
from ..scheduler import MemoryLeak, SchedulerStuck
from ..trace import Trace
from .case import Case
from .clients import Clients
from .evidence import lacking
from .faults.in_step import step_fault
from .laws import (
    Broken,
    Budgets,
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
from .leaks.books import check_idle, threads
from .leaks.books_each_turn import Books
from .play import Hooks, Livelock, play
from .play_pd import play_pd
from .progress.progress import Progress
from .tokens.logprobs import OF_HASH
from .touches import Touched
from .workload import Workload, fresh

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
