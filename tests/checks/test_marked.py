"""Some law reads each attribute of a mark: a changed one is found, and a lost or a second mark.

The mark is changed as it is recorded, so the run itself stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from minisched.checks.case import Case
from minisched.checks.draw import draw
from minisched.checks.judge import judge
from minisched.record import Recorder
from minisched.trace import Trace
from tests.laws.mutations.mutation import design_called, places

LOST, TWICE = "lost", "twice"  # changes of a whole mark
PLAIN = ("insert", "match")
RARER = (
    "admit", "radix add", "refuse", "retraction", "block add", "block evict", "block forget",
    "block lock", "budget", "clip", "commit",
    "eager launch", "finish", "flush cache", "future map", "future slots", "grammar",
    "grammar accept", "host buffers", "kv pool", "kv transfer", "lazy tokens", "ledger",
    "new token ratio", "not mixed", "page alloc", "placeholder fill", "prev sampled",
    "queue order", "radix evict", "radix lock", "radix split", "refused", "request state",
    "row alloc", "row free", "row length", "stale output", "token pool", "tokens",
    "verified", "wait", "wasted row",
)  # fmt: skip
NOT_READ = {
    ("grammar accept", "terminated"), ("row length", "token pool"),
}  # fmt: skip
WORKLOADS, MOST_CASES = range(60), 8
RECORD = Recorder.mark
kept: list[tuple[int, Case, Trace]] = []  # seed of the workload, case, trace
left = places(WORKLOADS, "sim")


def runs() -> Iterator[tuple[int, Case, Trace]]:
    """Yield drawn cases that break no law, with their traces; each is judged once."""
    yield from kept
    for place in left:
        case = draw(place.seed).on(design_called(place.loop), "sim")
        verdict = judge(case)
        assert verdict.holds, (place, verdict.findings)
        kept.append((place.seed, case, verdict.trace))
        yield kept[-1]


def with_mark(name: str) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yield cases with a mark of a name, two of a workload, and the attributes of the last one."""
    of_seed = Counter[int]()
    for seed, case, trace in runs():
        marks = [mark for mark in trace.marks if mark.name == name]
        if marks and of_seed[seed] < 2:
            of_seed[seed] += 1
            yield case, marks[-1].attrs


def other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"other {value}"
    if isinstance(value, tuple):
        return (*value[:-1], other(value[-1])) if value else value
    return value + 1


def is_found(case: Case, name: str, attr: str, patch: pytest.MonkeyPatch) -> bool | None:
    """Judge a case with one attribute changed in each mark; return None if none has changed."""
    changes = 0

    def mark(recorder: Recorder, made: str, **attrs: Any) -> None:
        """Record a mark; of a name, with a change."""
        nonlocal changes
        before = dict(attrs)
        if made == name and attr in attrs:
            attrs[attr] = other(attrs[attr])
        if made != name or attr != LOST:
            RECORD(recorder, made, **attrs)
        if made == name and attr == TWICE:
            RECORD(recorder, made, **attrs)
        changes += made == name and (attr in (LOST, TWICE) or attrs != before)

    with patch.context() as context:
        context.setattr(Recorder, "mark", mark)
        verdict = judge(case)
    return not verdict.holds if changes else None


@pytest.mark.parametrize(
    "name", [*PLAIN, *(pytest.param(name, marks=pytest.mark.thorough) for name in RARER)]
)
def test_a_law_reads_each_attribute_of_a_mark(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, attrs = next(with_mark(name))
    for attr in [LOST, TWICE, *(it for it in attrs if it != "side")]:
        if (name, attr) in NOT_READ:
            continue
        tried = 0
        for case, _ in with_mark(name):
            found = is_found(case, name, attr, monkeypatch)
            if found:
                break
            tried += found is not None
            assert tried < MOST_CASES, f"no law sees a change of {name!r}: {attr}"
