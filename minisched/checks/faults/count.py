"""How often each fault was tried and survived, on each loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..tally import base_of
from .matrix import Cell


class Count(NamedTuple):
    """Of some of the trials: those in which the fault hit somebody, and those of them that held.

    ``ended`` are the requests that ended early in them, ``whole`` those that got all their tokens.
    ``hit_nobody`` are trials in which it was hit when nobody was left to be hit but those whom the
    workload itself gives up; they are not among the tried.
    """

    places: int
    tried: int
    survived: int
    ended: int
    whole: int
    hit_nobody: int = 0


@dataclass(frozen=True)
class Counted:
    """All the trials of a run of the command."""

    device: str
    seed: int
    cells: Sequence[Cell]

    def of(self, fault: str | None = None, loop: str | None = None) -> Count:
        """Those of one fault, of one loop, or both; all without either."""
        found = [
            cell.trial
            for cell in self.cells
            if fault in (None, cell.place.fault) and loop in (None, base_of(cell.place.loop))
        ]
        tried = [trial for trial in found if trial.is_hit and not trial.hit_nobody]
        return Count(
            len(found),
            len(tried),
            sum(trial.survived for trial in tried),
            sum(trial.whom.ended for trial in tried),
            sum(trial.whom.whole for trial in tried),
            sum(trial.hit_nobody for trial in found),
        )

    @property
    def faults(self) -> list[str]:
        """Which there are, in their order."""
        return list(dict.fromkeys(cell.place.fault for cell in self.cells))

    @property
    def loops(self) -> list[str]:
        """Which there are, in their order."""
        return list(dict.fromkeys(base_of(cell.place.loop) for cell in self.cells))

    @property
    def failures(self) -> list[Cell]:
        """The trials in which something did not hold, hit or not."""
        return [cell for cell in self.cells if cell.trial.findings]

    def as_json(self) -> dict[str, Any]:
        """What ``minisched check --faults --json`` prints; all the numbers are counts.

        ``tried``: trials in which the fault hit somebody; ``survived``: those of them in which
        every affected request ended with a reason, no other one changed a token, nothing leaked
        and nothing hung. ``hit_nobody``: trials in which only requests were hit that the workload
        itself gives up. ``faults`` and ``cells`` have the same by fault, and by fault and loop.
        """
        total = self.of()
        return {
            "device": self.device,
            "seed": self.seed,
            **total._asdict(),
            "faults": {fault: self.of(fault)._asdict() for fault in self.faults},
            "cells": [
                {"fault": fault, "loop": loop, **count._asdict()}
                for fault in self.faults
                for loop in self.loops
                if (count := self.of(fault, loop)).places
            ],
            "failures": [
                {
                    "fault": cell.place.fault,
                    "loop": cell.loop,
                    "seed": cell.place.seed,
                    "at": cell.at,
                    "findings": [asdict(item) for item in cell.trial.findings],
                }
                for cell in self.failures
            ],
        }  # fmt: skip
