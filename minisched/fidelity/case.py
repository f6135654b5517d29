"""A case, and its schedule: plain data that goes through a pipe as JSON.

Originals read it too, in environments of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..scheduler import SchedulerConfig

EOS = 1
VOCAB_SIZE = 1000
LONGEST = 1 << 16  # tokens: more than any request here has
MOST_TURNS = 800
QUIET = 12  # turns without a step after the last arrival: no request will run again


@dataclass(frozen=True)
class Arrival:
    """A request, the turn of its arrival, and the tokens of its output."""

    rid: str
    turn: int
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]  # the last one is ``EOS`` if it stops before its length
    max_new_tokens: int
    ignore_eos: bool = False
    priority: int = 0

    def token(self, end: int) -> int:
        """Return the sample of a step that ends before position ``end``; a chunk's is discarded."""
        return self.outputs[max(0, min(end - len(self.prompt), len(self.outputs) - 1))]


@dataclass(frozen=True)
class FidelityCase:
    """Requests, the loop of ours that serves them, and the settings, under our names."""

    loop: str
    config: SchedulerConfig
    arrivals: tuple[Arrival, ...]

    @property
    def last_turn(self) -> int:
        """Return the turn of the last arrival."""
        return max(arrival.turn for arrival in self.arrivals)

    def as_json(self) -> dict[str, Any]:
        """Return the input of ``from_json``, with only the settings that are not the default."""
        usual = asdict(SchedulerConfig())
        told = {k: v for k, v in asdict(self.config).items() if v != usual[k]}
        return {"loop": self.loop, "config": told, "arrivals": [asdict(a) for a in self.arrivals]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FidelityCase:
        """Return a case that came through a pipe."""
        arrivals = tuple(
            Arrival(**{**each, "prompt": tuple(each["prompt"]), "outputs": tuple(each["outputs"])})
            for each in data["arrivals"]
        )
        return cls(data["loop"], SchedulerConfig(**data["config"]), arrivals)


class Rows(NamedTuple):
    """A request's part of a step: the positions from ``start`` to before ``end`` are computed."""

    rid: str
    start: int
    end: int


class ScheduledStep(NamedTuple):
    """The launch of one turn: prompts in the order of the batch, and decodes, by name.

    ``mode`` is none, extend, decode or mixed. If a system does not separate prompts from decodes,
    it is step, and all are in ``prompts``, by name. ``retracted`` lost their memory in this turn.
    """

    mode: str = "none"
    prompts: tuple[Rows, ...] = ()
    decodes: tuple[str, ...] = ()
    retracted: tuple[str, ...] = ()

    @property
    def rids(self) -> set[str]:
        """Return the requests of the step."""
        return {row.rid for row in self.prompts} | set(self.decodes)


Schedule = list[ScheduledStep]
NOTHING = ScheduledStep()


def trimmed(steps: Schedule) -> Schedule:
    """Return the schedule without the empty turns at its end."""
    last = max((at for at, step in enumerate(steps) if step != NOTHING), default=-1)
    return steps[: last + 1]


def read_schedule(data: list[Any]) -> Schedule:
    """Return a schedule that came through a pipe."""
    return [
        ScheduledStep(mode, tuple(Rows(*row) for row in prompts), tuple(decodes), tuple(retracted))
        for mode, prompts, decodes, retracted in data
    ]


def first_turn_apart(theirs: Schedule, ours: Schedule) -> int | None:
    """Return the first turn in which they differ, or None."""
    for at in range(max(len(theirs), len(ours))):
        if step_at(theirs, at) != step_at(ours, at):
            return at
    return None


def step_at(schedule: Schedule, turn: int) -> ScheduledStep:
    """Return a turn's step; after the end, an empty one."""
    return schedule[turn] if turn < len(schedule) else NOTHING
