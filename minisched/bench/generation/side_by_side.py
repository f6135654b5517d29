"""Ours and its rivals, each in a process of its own, on one load after another, in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..peers.environment import environment
from ..peers.peer import Peer, PeerError
from ..rows import Figure, Measure, figure, interleave, not_measured
from .load import Load

OURS = "minisched"


@dataclass(frozen=True)
class Rival:
    """Who ours is measured beside, and how many times its tokens a second ours should make.

    ``why_missed`` is the known reason, if there is one, where it makes fewer.
    """

    name: str
    environment: str  # in peers/environment.py
    script: str  # in peers/
    aim: float
    why_missed: str = ""


@dataclass(frozen=True)
class Contest:
    """Who takes part, and with what; ``own`` is our script in ``peers/``."""

    name: str  # each row's name begins with it
    own: str
    rivals: tuple[Rival, ...]
    settings: Mapping[str, Any]  # of every process
    env: Mapping[str, str]
    loads: tuple[Load, ...]

    def figures(self, repetitions: int, report: Callable[[str], None], home: Path) -> list[Figure]:
        """All figures. Who can't take part gets a reason, and without ours so do all rivals."""
        with ExitStack() as stack:
            processes, reasons = self._start(stack, report, home)
            return [
                row
                for load in self.loads
                for row in Match(self, load, processes, dict(reasons)).figures(repetitions, report)
            ]

    def missing(self, reason: str) -> list[Figure]:
        """The rows of a contest that can't take place."""
        return [
            row for load in self.loads for row in Match(self, load, {}, {OURS: reason}).ratios({})
        ]

    def _start(
        self, stack: ExitStack, report: Callable[[str], None], home: Path
    ) -> tuple[dict[str, Peer], dict[str, str]]:
        """The processes, which run until ``stack`` is closed, and why others don't."""
        processes, reasons = {}, {}
        scripts = {OURS: self.own, **{rival.name: rival.script for rival in self.rivals}}
        environments = {rival.name: rival.environment for rival in self.rivals}
        for name, script in scripts.items():
            try:
                wanted = environments.get(name)
                python = environment(wanted, home, report) if wanted else Path(sys.executable)
                report(f"{self.name}: starting {name}")
                started = Peer(python, script, self.settings, self.env)
                processes[name] = stack.enter_context(started)
            except PeerError as error:
                reasons[name] = str(error).rstrip(".")
        return processes, reasons


@dataclass(frozen=True)
class Match:
    """One load of a contest; ``reasons`` say who does not take part, or breaks off, and why."""

    contest: Contest
    load: Load
    processes: Mapping[str, Peer]
    reasons: dict[str, str]
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the rows' names begin with."""
        return f"{self.contest.name}, {self.load.name}"

    def figures(self, repetitions: int, report: Callable[[str], None]) -> list[Figure]:
        """Tokens a second and ratios, times to first token, and the tokens that are ours too.

        Each process answers a question for two tokens first, which is not timed: libraries
        allocate and compile on their first steps.
        """
        for name in self.processes:
            report(f"{self.name}: {name}, warming up")
            self._ask(name, {**self.load.question, "new_tokens": 2})
        self.answers.clear()
        measures: dict[str, Measure] = {
            f"{self.name}: {name}": partial(self._speed, name) for name in self.processes
        }
        interleave(measures, repetitions, report)
        if OURS in self.reasons:
            return self.ratios({})
        done = {name: taken for name, taken in self.answers.items() if name not in self.reasons}
        speeds = {name: [self._per_second(one) for one in taken] for name, taken in done.items()}
        return [
            *(figure(f"{self.name}: {name}", taken, "tokens/s") for name, taken in speeds.items()),
            *self.ratios(speeds),
            *(self._first_tokens(name, taken) for name, taken in done.items()),
            *(self._equal(name, taken) for name, taken in done.items() if name != OURS),
        ]

    def ratios(self, speeds: Mapping[str, Sequence[float]]) -> list[Figure]:
        """How many times each rival's tokens a second ours are, or why nobody knows."""
        rows = []
        for rival in self.contest.rivals:
            name = f"{self.name}: {OURS} / {rival.name}"
            reason = self.reasons.get(OURS) or self.reasons.get(rival.name)
            if reason:
                row = not_measured(name, "ratio", reason, rival.aim)
                rows.append(replace(row, at_most=False))
                continue
            both = zip(speeds[OURS], speeds[rival.name], strict=True)
            row = figure(name, [one / other for one, other in both], "ratio", rival.aim)
            rows.append(row.because(rival.why_missed))
        return rows

    def _speed(self, name: str) -> float:
        self._ask(name, self.load.question)
        taken = self.answers.get(name)
        return self._per_second(taken[-1]) if taken else 0.0

    def _ask(self, name: str, question: Mapping[str, Any]) -> None:
        """Keep the answer; who breaks off is asked no more, and without ours nobody is."""
        if name in self.reasons or OURS in self.reasons:
            return
        try:
            self.answers.setdefault(name, []).append(self.processes[name].ask(question))
        except PeerError as error:
            self.reasons[name] = str(error).rstrip(".")

    def _per_second(self, answer: Mapping[str, Any]) -> float:
        return self.load.tokens / float(answer["seconds"])

    def _first_tokens(self, name: str, answers: Sequence[Mapping[str, Any]]) -> Figure:
        times = [1000 * answer["ttft"] for answer in answers]
        return figure(f"{self.name}: {name}, TTFT", times, "ms")

    def _equal(self, name: str, answers: Sequence[Mapping[str, Any]]) -> Figure:
        """Greedy tokens at the same places: after a near tie that falls otherwise, none need be."""
        shares = [
            equal_share(one["tokens"], other["tokens"])
            for one, other in zip(self.answers[OURS], answers, strict=True)
        ]
        return figure(f"{self.name}: {name}, tokens equal to ours", shares, "share")


def equal_share(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Of all requests' tokens, those that are the same in both."""
    pairs = [
        one == other
        for mine, other_row in zip(ours, theirs, strict=True)
        for one, other in zip(mine, other_row, strict=True)
    ]
    return sum(pairs) / len(pairs)
