"""A case, and its schedule: plain data that goes through a pipe as JSON.

This file imports only the standard library, because originals read it too.
"""

from __future__ import annotations

import random
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


# -- drawing cases ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """The common properties of a part's cases; all other properties are drawn."""

    loop: str = "serial"
    page: int = 1  # 0: drawn
    memory: str = "roomy"  # tight or exact: not enough for all together; short: retractions
    chunks: bool = True
    unified: bool = False  # drawn: a step's tokens; decodes count, and there is no other limit
    shared: bool = True  # prompts share segments
    turns: bool = False  # conversations: a prompt may continue an earlier request's
    priorities: bool = False
    queue: int = 0  # requests that come in the first turn; 0: a few, one after another
    ignore_eos: float = 0.3  # share of the requests
    more: Mapping[str, Any] | None = None  # settings as they are

    def draw(self, seed: str) -> FidelityCase:
        """Return the case of a seed."""
        rng = random.Random(seed)
        page = self.page or rng.choice((1, 4, 16))
        arrivals = self._arrivals(rng, page)
        pages = {a.rid: -(-(len(a.prompt) + a.max_new_tokens) // page) for a in arrivals}
        need = max(pages.values())
        num_pages = {
            "roomy": 2 * sum(count + 2 for count in pages.values()),
            "tight": need + 2 + rng.randrange(1, 4) * need // 2,
            "exact": need + rng.randrange(0, 3) * need // 2 + rng.randrange(3),
            "short": need + 2 + rng.randrange(0, 3) * need // 2,
        }[self.memory]
        running = rng.choice((2, 4, 16))
        settings: dict[str, Any] = {
            "kv_tokens": num_pages * page,
            "page_size": page,
            "max_running_requests": running,
            "chunked_prefill_size": rng.choice((2, 4, 8)) * 2 * page if self.chunks else -1,
            "max_prefill_tokens": rng.choice((16384, 16384, 24 * page)),
            "schedule_conservativeness": 0.05 if self.memory == "short" else 1.0,
            "random_seed": rng.randrange(1000),
        }
        if self.unified:
            settings["chunked_prefill_size"] = -1
            small = rng.randrange(running, running + 8)
            usual = max(running, rng.choice((16, 4 * page, 10 * page + 3, 200)))
            settings["max_prefill_tokens"] = rng.choice((small, usual, 4096))
        return FidelityCase(
            self.loop, SchedulerConfig(**{**settings, **(self.more or {})}), arrivals
        )

    def _arrivals(self, rng: random.Random, page: int) -> tuple[Arrival, ...]:
        is_short = self.memory == "short"
        arrivals: list[Arrival] = []
        segments = [tokens(rng, 8 * page) for _ in range(3)]
        turn, count = 0, rng.randrange(4, 10) if is_short else rng.randrange(2, 9)
        for number in range(self.queue + count if self.queue else count):
            turn += rng.choice((0, 0, 0, 1, 2, 5)) if number >= self.queue else 0
            prompt: tuple[int, ...] = ()
            for _ in range(rng.randrange(3) if self.shared else 0):
                prompt += rng.choice(segments)
            if self.turns and arrivals and rng.random() < 0.5:
                earlier = rng.choice(arrivals)
                prompt = earlier.prompt + earlier.outputs
            prompt += tokens(rng, 8 * page)
            length = rng.randrange(20, 60) if is_short else rng.randrange(1, 25)
            length = min(length, 3) if self.queue else length
            outputs = [rng.randrange(2, 50) for _ in range(length)]
            ignores = rng.random() < self.ignore_eos
            longest = length
            if not ignores and rng.random() < (0.2 if is_short else 0.7):
                longest, outputs[-1] = length + rng.randrange(30), EOS
            priority = rng.choice((0, 5, 20, 40)) if self.priorities else 0
            arrivals.append(
                Arrival(f"r{number}", turn, prompt, tuple(outputs), longest, ignores, priority)
            )
        return tuple(arrivals)


def tokens(rng: random.Random, most: int) -> tuple[int, ...]:
    """Return some tokens, at least one and fewer than ``most``, without ``EOS``."""
    return tuple(rng.randrange(2, 50) for _ in range(rng.randrange(1, max(2, most))))
