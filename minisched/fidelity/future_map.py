"""SGLang's FutureMap and ours in lockstep: the same steps, compared input by input.

A ``RelayCase`` says which rows each step has, which of their tokens the host knows, and what is
sampled. ``sglang_future_map.py`` plays it with the original's two classes, in the original's
environment. Both sides return for each step the future slots and the resolved inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ..bench.peers.peer import start_peer
from ..core import ForwardMode, Lease, Request, ScheduleBatch
from ..devices.sim import SimDevice
from ..relay.base import RelayShape
from ..relay.future_map import FutureMap, FutureMapRing
from ..relay.future_map_pool import FutureMapPool

FORMS = ("ring", "pool")
KNOWN = 7  # a token that the host knows
PROMPT_ROW = 1  # of a mixed step's prompt, whose tokens are all known
Answer = list[dict[str, Any]]  # of each step


@dataclass(frozen=True)
class RelayStep:
    """The rows of one step, and its sampled tokens."""

    rows: list[int]  # [num_reqs] rows of the request table, from 1; these rows decode
    unknown: list[bool]  # [num_reqs] whether the host does not know the input token
    prompt: list[int]  # tokens of a prompt that runs in the same step; pool only
    stored: list[int]  # [num_stored] rows that sample a token
    tokens: list[int]  # [num_stored]


@dataclass(frozen=True)
class RelayCase:
    """Steps that use one FutureMap."""

    form: str  # one of ``FORMS``
    max_running_requests: int
    steps: list[RelayStep]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RelayCase:
        """Return a case that came through a pipe."""
        steps = [RelayStep(**step) for step in data["steps"]]
        return cls(data["form"], data["max_running_requests"], steps)


def draw(form: str, seed: str) -> RelayCase:
    """Return the case of a seed. No row is read before a token is stored for it."""
    rng = random.Random(seed)
    most = rng.randrange(1, 9)
    steps, written = list[RelayStep](), set[int]()
    for _ in range(rng.randrange(5, 60)):
        drawn = rng.sample(range(1, most + 1), rng.randrange(1, most + 1))
        if form == "ring":
            rows = stored = drawn
            unknown = [row in written and rng.random() < 0.9 for row in rows]
            prompt = list[int]()
        else:
            rows = [row for row in drawn if row in written]
            unknown = [True] * len(rows)
            prompt = [rng.randrange(2, 50) for _ in range(rng.choice((0, 0, 3)) if rows else 0)]
            stored = rng.sample(range(1, most + 1), rng.randrange(1, most + 1))
        tokens = [rng.randrange(1, 10**6) for _ in stored]
        steps.append(RelayStep(rows, unknown, prompt, stored, tokens))
        written |= set(stored)
    return RelayCase(form, most, steps)


def ours(case: RelayCase) -> Answer:
    """Play a case with our FutureMap, on the simulator's memory."""
    device = SimDevice()
    kind: type[FutureMap] = FutureMapRing if case.form == "ring" else FutureMapPool
    relay = kind(device, RelayShape(case.max_running_requests))
    return [played(relay, device, step, number) for number, step in enumerate(case.steps)]


def played(relay: FutureMap, device: SimDevice, step: RelayStep, number: int) -> dict[str, Any]:
    """Return the slots and resolved inputs of a step, and store its tokens."""
    found: dict[str, Any] = {}
    if step.rows:
        ids: list[tuple[int | None, ...]] = [(None if it else KNOWN,) for it in step.unknown]
        rows = step.rows
        if step.prompt:
            ids, rows = [tuple(step.prompt), *ids], [PROMPT_ROW, *rows]
        batch = ScheduleBatch(
            number, ForwardMode.DECODE, int(bool(step.prompt)),
            [Request(f"r{row}", [KNOWN]) for row in rows], [Lease(row) for row in rows],
            [0] * len(rows), ids,
        )  # fmt: skip
        bound, slots = relay.bind(batch, None)
        found["inputs"] = relay.resolve_future(device.xp.asarray(bound)).tolist()
    if isinstance(relay, FutureMapRing):
        found |= {"ids": bound, "slots": slots, "counter": relay.future_ct}
    else:
        slots = step.stored  # the future slot of a row is the row
    relay.store_to_map(device.xp.asarray(slots), device.xp.asarray(step.tokens))
    return found


class RelayReport(NamedTuple):
    """The comparison of one form."""

    form: str
    version: str  # of SGLang, which has that form
    cases: int
    differences: list[str]  # one sentence for each case in which both sides differ

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and the differences."""
        equal = self.cases - len(self.differences)
        return {**self._asdict(), "equal": equal}


Play = Callable[[dict[str, Any]], Answer]


def compare(play: Play, form: str, version: str, cases: int, seed: int) -> RelayReport:
    """Play cases of a form on both sides; ``play`` returns the original's answer to a case."""
    found = []
    for number in range(cases):
        name = f"{form} {seed} {number}"
        case = draw(form, name)
        for at, (theirs, mine) in enumerate(zip(play(asdict(case)), ours(case), strict=True)):
            if theirs != mine:
                found.append(f"seed {name!r}, step {at}: SGLang {theirs}, minisched {mine}")
                break
    return RelayReport(form, version, cases, found)


def in_lockstep(
    original: str, cases: int, seed: int, say: Callable[[str], None]
) -> list[RelayReport]:
    """Start the original's FutureMap, and compare both forms, in ``cases`` cases each.

    Raises:
        PeerError: it can't be started, or the wheel with the ring can't be installed.
    """
    script, packages = f"{__package__}.sglang_future_map", f"{__package__}.{original}"
    with start_peer(script, {}, say, packages_of=packages) as peer:
        versions = peer.ask({})
        return [
            compare(
                lambda case: list(peer.ask({"case": case})["steps"]),
                form,
                versions[form],
                cases,
                seed,
            )
            for form in FORMS
        ]
