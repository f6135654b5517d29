"""Runs one case through one loop on the simulator, and says which laws it broke."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ..core import Output
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..devices.sim import Deadlock, SimDevice
from ..engine.engine import Engine
from ..memory import OwnershipError
from ..models.hash import HashModel
from ..scheduler import MemoryLeak, SchedulerStuck
from ..trace import Trace
from .laws import Broken, check_ends, check_identity, check_leaks, check_races
from .play import Livelock, play
from .workload import VOCAB, Workload, fresh

STOPPED_BY: dict[type[Exception], str] = {
    OwnershipError: "ownership",
    Livelock: "livelock",
    SchedulerStuck: "livelock",
    Deadlock: "deadlock",
    MemoryLeak: "leak",
}


@dataclass(frozen=True)
class Case:
    """A workload, and what it runs on; the same case gives the same run."""

    workload: Workload
    loop: str
    relay: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    cost: CostModel = NO_COST


@dataclass(frozen=True)
class Finding:
    """A law that does not hold, by name, and what was seen, in a sentence."""

    law: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """What one run broke, in the order in which the laws were looked at, and its trace.

    ``workload`` holds the requests as the run has left them.
    """

    findings: tuple[Finding, ...]
    workload: Workload
    trace: Trace

    @property
    def holds(self) -> bool:
        """Whether no law was broken."""
        return not self.findings

    def broke(self, law: str) -> Finding | None:
        """What was found of one law, or None."""
        return next((item for item in self.findings if item.law == law), None)


def judge(case: Case, patch: Callable[[Engine], None] = lambda engine: None) -> Verdict:
    """Run a fresh copy of a case and hold every law against it.

    A run that stops with an error is not looked at for ends and leaks: they follow from it.
    """
    workload = fresh(case.workload)
    device = cast(Device, SimDevice())
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    findings: list[Finding] = []
    engine, outputs = None, list[Output]()
    try:
        engine, outputs = play(
            workload, case.loop, case.relay, dict(case.options), device, model, case.cost, patch
        )
    except Exception as error:  # a broken scheduler may stop in any way
        law = next((name for kind, name in STOPPED_BY.items() if isinstance(error, kind)), "crash")
        findings.append(Finding(law, f"{type(error).__name__}: {error}"))
    trace = device.recorder.trace(case.loop, device.name, model.name, device.clock)
    laws: list[Callable[[], None]] = [lambda: check_races(trace)]
    if engine is not None:
        done = engine
        laws = [
            lambda: check_identity(workload),
            lambda: check_ends(workload, outputs),
            lambda: check_leaks(done),
            *laws,
        ]
    for law_holds in laws:
        try:
            law_holds()
        except Broken as error:
            law, _, sentence = str(error).partition(": ")
            findings.append(Finding(law, sentence))
    return Verdict(tuple(findings), workload, trace)


def same_on(case: Case, loop: str, relay: str = "") -> Case:
    """The case on another loop."""
    return replace(case, loop=loop, relay=relay, options={})
