"""Small random workloads for learners' lines, and simpler ones, for counterexamples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND
from ..scheduler import SchedulerConfig
from .simulate import VOCAB, alone

STOPS = frozenset(range(0, VOCAB, 9))  # tokens that end a request which has stop tokens


@dataclass(frozen=True)
class Asked:
    """One request: so many prompt tokens, so many new ones, and when it comes."""

    rid: str
    prompt: tuple[int, ...]
    new_tokens: int
    arrives_ms: int = 0
    may_stop: bool = False  # whether a stop token ends it early

    @property
    def truth(self) -> list[int]:
        """Its tokens, alone."""
        return alone(self.prompt, self.new_tokens, STOPS if self.may_stop else frozenset())

    def fresh(self) -> Request:
        """A request for the scheduler."""
        stops = STOPS if self.may_stop else frozenset[int]()
        params = SamplingParams(max_new_tokens=self.new_tokens, stop_token_ids=stops)
        return Request(self.rid, self.prompt, params, self.arrives_ms * MILLISECOND)


@dataclass(frozen=True)
class ExerciseWorkload:
    """Requests, how many may run at a time, and how many prompt tokens a step may take."""

    asked: tuple[Asked, ...]
    max_running_requests: int = 4
    chunk: int = -1  # -1: a whole prompt in one step

    @property
    def config(self) -> SchedulerConfig:
        """The scheduler's settings."""
        return SchedulerConfig(
            kv_tokens=512,
            max_running_requests=self.max_running_requests,
            chunked_prefill_size=self.chunk,
            disable_radix_cache=True,
        )

    @property
    def about(self) -> str:
        """In words."""
        parts = [
            f"{one.rid} (prompt of {len(one.prompt)}, {one.new_tokens} new"
            + (f", comes after {one.arrives_ms} ms" if one.arrives_ms else "") + ")"
            for one in self.asked
        ]  # fmt: skip
        chunk = f"; prompts in chunks of {self.chunk}" if self.chunk > 0 else ""
        requests = "requests" if len(parts) > 1 else "request"
        return f"{len(parts)} {requests}: {', '.join(parts)}{chunk}"


@dataclass(frozen=True)
class WorkloadLimits:
    """What workloads of an exercise look like: the most of everything."""

    requests: int = 4
    prompt: int = 6
    new_tokens: int = 7
    arrives_ms: int = 60
    chunks: tuple[int, ...] = (-1,)
    may_stop: bool = True
    context: int = 1000  # of one request: its prompt and its new tokens

    def draw(self, seed: int) -> ExerciseWorkload:
        """The workload of a seed: the same one, always and everywhere."""
        random = Random(seed)
        count = random.randint(1, self.requests)
        asked = tuple(self._request(random, "abcdefgh"[at], at) for at in range(count))
        chunk = random.choice(self.chunks)
        return ExerciseWorkload(asked, random.randint(max(1, count), self.requests), chunk)

    def _request(self, random: Random, rid: str, at: int) -> Asked:
        prompt = tuple(random.randrange(VOCAB) for _ in range(random.randint(1, self.prompt)))
        arrives = random.choice([0, random.randint(1, self.arrives_ms)]) if at else 0
        may_stop = self.may_stop and random.random() < 0.5
        new_tokens = min(random.randint(1, self.new_tokens), self.context - len(prompt))
        return Asked(rid, prompt, new_tokens, arrives, may_stop)


def simpler(workload: ExerciseWorkload) -> Iterator[ExerciseWorkload]:
    """Workloads with one request less, or with less of one request, the boldest first."""
    asked = workload.asked
    for at in range(len(asked) if len(asked) > 1 else 0):
        rest = asked[:at] + asked[at + 1 :]
        yield replace(workload, asked=tuple(map(_renamed, rest, "abcdefgh")))
    for at, one in enumerate(asked):
        for less in _less(one):
            yield replace(workload, asked=(*asked[:at], less, *asked[at + 1 :]))


def _renamed(one: Asked, rid: str) -> Asked:
    """The same tokens under another name: they do not depend on it."""
    return replace(one, rid=rid)


def _less(one: Asked) -> Iterator[Asked]:
    if one.may_stop:
        yield replace(one, may_stop=False)
    if one.arrives_ms:
        yield replace(one, arrives_ms=0)
        yield replace(one, arrives_ms=one.arrives_ms // 2)
    if len(one.prompt) > 1:
        yield replace(one, prompt=one.prompt[: len(one.prompt) // 2])
        yield replace(one, prompt=one.prompt[:-1])
    if one.new_tokens > 1:
        yield replace(one, new_tokens=one.new_tokens // 2)
        yield replace(one, new_tokens=one.new_tokens - 1)
