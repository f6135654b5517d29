"""Did every schedule give the same tokens? If not: where first, and how close was the call?

And of one run alone: did each request hear its own tokens, up to its end and no further?
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple
from urllib.parse import unquote

from ..core import Request, SamplingParams
from ..devices.base import Array
from ..devices.registry import open_device
from ..loops.run import Run, run_loop
from ..models.base import ForwardBatch, Model
from ..scheduler import SchedulerConfig
from ..trace import Trace
from ..trace.events import is_host
from .history import MarkMoment, Offence, heard
from .leaks import ledgers

# -- Whether two recorded runs are of one workload, as far as their traces can tell ----------------


def another_workload(baseline: Trace, run: Trace) -> str:
    """Why two runs can't be compared, in a sentence; nothing where nothing speaks against it.

    A run that has ended all that it knows of and never heard of a request was not asked for it.
    How many tokens a request may have is in no trace.
    """
    for one, other in ((baseline, run), (run, baseline)):
        absent = sorted(requests_of(one) - requests_of(other))
        if absent and requests_of(other) <= ended(other):
            return f"Another workload: only one of the two runs has the request {absent[0]}."
    theirs = prompt_lens(baseline)
    for rid, size in prompt_lens(run).items():
        if theirs.get(rid, size) != size:
            return (
                f"Another workload: the prompt of {rid} has {size} tokens, and {theirs[rid]} in "
                "the baseline."
            )
    return ""


def requests_of(trace: Trace) -> set[str]:
    """Every request that a trace names."""
    named = {str(mark.attrs["rid"]) for mark in trace.marks if mark.attrs.get("rid")}
    says_tokens = any(mark.name == "tokens" for mark in trace.marks)
    return named | set(tokens_heard(trace) if says_tokens else ())


def ended(trace: Trace) -> set[str]:
    """The requests whose end a trace has."""
    return {str(mark.attrs["rid"]) for mark in trace.marks if mark.name == "finish"}


def prompt_lens(trace: Trace) -> dict[str, int]:
    """Tokens of each request's prompt, from the first time it was looked up in the cache."""
    sizes: dict[str, int] = {}
    for mark in trace.marks:
        if mark.name == "match" and "prompt_len" in mark.attrs:
            sizes.setdefault(str(mark.attrs["rid"]), int(mark.attrs["prompt_len"]))
    return sizes


# -- How close the call was where two runs differ: the two largest logits at that place ------------


def with_margin(
    found: Difference,
    device: str,
    model: Model,
    config: SchedulerConfig,
    requests: Sequence[Request],
    serial: Run,
) -> Difference:
    """The difference with the top-2 logit margin at its place, from one request run alone."""
    request = next(item for item in requests if item.rid == found.rid)
    agreed = serial.outputs[found.rid][: found.position]
    params = SamplingParams(max_new_tokens=1)  # logits as they are before any wish
    margins: list[float] = []
    sample = model.sample

    def spy(logits: Array, batch: ForwardBatch) -> Array:
        top = sorted(map(float, logits[0]))[-2:]
        margins.append(top[1] - top[0])
        return sample(logits, batch)

    model.sample = spy  # type: ignore[method-assign]
    try:
        alone = Request(request.rid, [*request.prompt, *agreed], params)
        run_loop("serial", open_device(device), model, [alone], config)
    finally:
        model.sample = sample  # type: ignore[method-assign]
    return replace(found, margin=margins[-1]) if margins else found


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


# -- What clients heard, from a trace alone; and where two runs of one workload differ -------------


class HeardToken(NamedTuple):
    """A token that a client heard, and the step that brought it (0: another scheduler's)."""

    token: int
    step: int


def tokens_heard(trace: Trace) -> dict[str, list[HeardToken]]:
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
    told: dict[str, list[HeardToken]] = {}
    for mark in marks:
        if mark.attrs.get("side") == "prefill":
            continue  # no client hears that one
        rids, tokens = str(mark.attrs["rids"]).split(), str(mark.attrs["tokens"]).split()
        for rid, token in zip(rids, tokens, strict=True):
            step = int(mark.attrs["step"])
            told.setdefault(unquote(rid), []).append(HeardToken(int(token), step))
    return told


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


# -- Read from a trace alone: who ended twice, who heard a token behind the end, who read wrongly
#


@dataclass(frozen=True)
class Breach:
    """A law that a trace by itself shows to be broken: ``ends``, or ``identity`` for a wrong read.

    ``time`` is in nanoseconds; ``slices`` are those in which it happened, as far as is known.
    """

    law: str
    rid: str
    sentence: str
    time: int = 0
    slices: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.sentence

    @property
    def offence(self) -> Offence:
        """What a picture of it shows in red."""
        return Offence(self.slices, self.sentence)


class Lives:
    """Each request's ends so far; one that comes once more under the same name lives again."""

    def __init__(self, trace: Trace, side: str) -> None:
        self.ends: defaultdict[str, list[tuple[str, MarkMoment]]] = defaultdict(list)
        self.fresh: set[str] = set()  # ended since a step came back: it may carry the last token
        self.came: defaultdict[str, list[int]] = defaultdict(list)
        self.refused: Counter[str] = Counter()  # those of them who came while another one lived
        for item in trace.slices:
            is_mine = is_host(item.lane) and item.lane.startswith(f"{side} " if side else "")
            if is_mine and item.name == "receive":
                for rid in item.rids:
                    self.came[rid].append(item.end if trace.clock == "virtual" else item.start)

    def is_over(self, rid: str, time: int) -> bool:
        """Whether it has ended as often as it has come."""
        came = bisect_right(self.came[rid], time) - self.refused[rid]
        return len(self.ends[rid]) >= max(1, came)

    def end(self, rid: str, reason: str, now: MarkMoment) -> Breach | None:
        """It ends; a breach if it had ended before."""
        is_over = self.is_over(rid, now.time)
        self.ends[rid].append((reason, now))
        if not is_over:
            if reason != "abort":
                self.fresh.add(rid)
            return None
        first, before = self.ends[rid][-2]
        story = f"{rid} ended twice: ({first}) {before}, and again ({reason}) {now}"
        slices = tuple(dict.fromkeys([*before.slices, *now.slices]))
        return Breach("ends", rid, story, now.time, slices)

    def hear(self, rid: str, step: int, now: MarkMoment) -> Breach | None:
        """It hears a token; a breach if that comes behind its end."""
        if rid in self.fresh or not self.is_over(rid, now.time):
            return None
        reason, before = self.ends[rid][-1]
        story = f"{rid} heard a token of step {step} {now}, although it had ended ({reason})"
        return Breach("ends", rid, f"{story} {before}", now.time, (*before.slices, *now.slices))


def find_bad_ends(trace: Trace) -> list[Breach]:
    """Requests that ended twice, and tokens that came behind an end, in order of time."""
    found: list[Breach | None] = []
    for side, marks in heard(trace).items():
        lives = Lives(trace, side)
        for mark, now in marks:
            if mark.name == "finish":
                found.append(lives.end(str(mark.attrs["rid"]), str(mark.attrs["reason"]), now))
            elif mark.name == "refused":
                lives.refused[str(mark.attrs["rid"])] += 1
            elif mark.name == "tokens":
                rids = dict.fromkeys(map(unquote, str(mark.attrs["rids"]).split()))
                found += [lives.hear(rid, int(mark.attrs["step"]), now) for rid in rids]
                lives.fresh.clear()
    return sorted(filter(None, found), key=lambda item: item.time)


def find_misreads(trace: Trace) -> list[Breach]:
    """Steps that read another one's future slot, in order of time, also where nobody saw it."""
    found = [
        Breach("identity", item.lease.rid if item.lease else "", item.sentence,
               item.moment.time, item.moment.slices)
        for ledger in ledgers(trace).values()
        for item in ledger.slots.misread
    ]  # fmt: skip
    return sorted(found, key=lambda item: item.time)
