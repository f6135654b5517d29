"""Did every schedule give the same tokens? If not: where first, and how close was the call?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple
from urllib.parse import unquote

from ...trace import Trace


@dataclass(frozen=True)
class Difference:
    """The first place where a run departs from the baseline.

    A token is None where that run had already ended. ``margin`` is the distance between the two
    largest logits there, when it was measured: a tiny one speaks for rounding, a large one for a
    scheduling bug. ``total``, where one of them had ended: the tokens of the other one.
    """

    loop: str
    rid: str
    position: int  # index into the request's output
    expected: int | None
    got: int | None
    margin: float | None = None
    total: int | None = None

    def __str__(self) -> str:
        who, at = f"{self.loop}: request {self.rid}", self.position
        if self.got is None:
            return f"{who} ended earlier: after {at} tokens, the baseline after {self.total}"
        if self.expected is None:
            return f"{who} ended later: after {self.total} tokens, the baseline after {at}"
        text = f"{who} differs first at output {at}: expected {self.expected}, got {self.got}"
        return text if self.margin is None else f"{text} (top-2 logit margin {self.margin:.3g})"


def first_difference(
    loop: str, baseline: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]
) -> Difference | None:
    """The earliest position at which any request differs, by position and then by request."""
    found = [
        Difference(loop, rid, at, expected, got, total=total if None in (expected, got) else None)
        for rid, tokens in baseline.items()
        for total in [max(len(tokens), len(outputs.get(rid, ())))]
        for at, (expected, got) in enumerate(zip_longest(tokens, outputs.get(rid, ())))
        if expected != got
    ]
    return min(found, key=lambda item: item.position, default=None)


# -- from traces alone ---------------------------------------------------------------------------


class Heard(NamedTuple):
    """A token that a client heard, and the step that brought it (0: another scheduler's)."""

    token: int
    step: int


def tokens_heard(trace: Trace) -> dict[str, list[Heard]]:
    """What the client of each request heard, from the marks ``tokens``.

    Raises:
        ValueError: the trace does not say which tokens were delivered.
    """
    marks = [mark for mark in trace.marks if mark.name == "tokens"]
    if not marks and any(item.step for item in trace.slices):
        raise ValueError(
            f"The trace of {trace.loop} has no mark 'tokens', so it does not say which tokens were "
            "delivered."
        )
    heard: dict[str, list[Heard]] = {}
    for mark in marks:
        if mark.attrs.get("side") == "prefill":
            continue  # no client hears that one
        rids, tokens = str(mark.attrs["rids"]).split(), str(mark.attrs["tokens"]).split()
        for rid, token in zip(rids, tokens, strict=True):
            step = int(mark.attrs["step"])
            heard.setdefault(unquote(rid), []).append(Heard(int(token), step))
    return heard


def differences(baseline: Trace, trace: Trace) -> list[Difference]:
    """The first difference of each request of two runs of one workload, by position.

    Of somebody who gave up in either run, only what both heard is compared.

    Raises:
        ValueError: a trace does not say which tokens were delivered.
    """
    expected, got = tokens_heard(baseline), tokens_heard(trace)
    cut = {*gave_up(baseline), *gave_up(trace)}
    found = []
    for rid in dict.fromkeys([*expected, *got]):
        one, other = ([item.token for item in side.get(rid, [])] for side in (expected, got))
        size = min(len(one), len(other)) if rid in cut else None
        difference = first_difference(trace.loop, {rid: one[:size]}, {rid: other[:size]})
        found += [difference] if difference else []
    return sorted(found, key=lambda item: item.position)


def gave_up(trace: Trace) -> Iterator[str]:
    """Whose client did not want to hear more, or whose id somebody else was refused for.

    When that one ended is a question of time, and so is whether the other one came in.
    """
    for mark in trace.marks:
        is_abort = mark.name == "finish" and mark.attrs.get("reason") == "abort"
        if is_abort or mark.name == "refused":
            yield str(mark.attrs.get("rid", ""))
