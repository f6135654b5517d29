"""The answer of one recorded run to each question on a law: yes, no, or unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..trace import Trace
from .details import find_misfits
from .findings import OverlapFindings
from .history import Offence, many
from .identity import (
    Difference,
    another_workload,
    differences,
    ended,
    explain,
    find_bad_ends,
    find_misreads,
    requests_of,
    tokens_heard,
)
from .laws import lacking, marks
from .leaks import AT_ONCE, find_leaks, not_checked
from .races import find_endless, find_races
from .recorded import find_bad_steps, find_lost, find_out_of_time, find_unwritten_reads, other_ends

ORACLE = "-oracle"  # the suffix of a baseline's file name


class Recorded(NamedTuple):
    """A run in a file, a sentence for each part that it lacks, and one on its steps."""

    file: str
    trace: Trace
    lacks: tuple[str, ...] = ()
    steps: str = ""


@dataclass(frozen=True)
class Answer:
    """The answer to one question about one run.

    ``word`` is yes, no, partly or unknown; ``holds`` is False if a law is broken. ``details`` are
    sentences, and ``offences`` are those of them that a picture can show. ``more`` are sentences
    for a reader who asks for them. The answer on overlap has its ``findings``.
    """

    question: str
    word: str
    sentence: str
    details: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    offences: tuple[Offence, ...] = ()
    holds: bool = True
    findings: OverlapFindings | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the answer as JSON, with its figures if it has any."""
        details = [line.strip() for line in (*self.details, *self.more)]
        said = {"answer": self.word, "sentence": self.sentence, "details": details}
        return {**said, **({"figures": asdict(self.findings)} if self.findings else {})}


def unknown(question: str, why: str, details: tuple[str, ...] = ()) -> Answer:
    """Return the answer that there is no evidence either way, with the reason."""
    return Answer(question, "unknown", f"Nothing to judge: {why}.", details)


def broken(question: str, what: str, found: Sequence[Offence], *more: str) -> Answer:
    """Return the answer that a law is broken."""
    said = (*map(str, found), *more)
    return Answer(question, "yes", f"{what}.", said, offences=tuple(found), holds=False)


# -- Identical: the same tokens for the clients as in another run ----------------------------------


def identical(baseline: Recorded, run: Recorded, count: int) -> Answer:
    """Return the answer for one of ``count`` runs, the first of which is the baseline.

    Raises:
        ValueError: the two are of different workloads.
    """
    if count < 2 and not marks(run.trace, "tokens"):
        return unknown("identical", "no tokens are recorded in this file")
    if count < 2:
        path = Path(run.file)
        saved = path.with_name(f"{path.stem}{ORACLE}{path.suffix}")
        name = f"name {saved} before it" if saved.exists() else "name a second one"
        return unknown("identical", f"this is one run alone; {name}")
    for item in (baseline, run):
        if not marks(item.trace, "tokens"):
            return unknown("identical", f"no tokens are recorded in {item.file}")
    lacks = [lacking("identity", item.trace) for item in (baseline, run)]
    if all(lacks):
        return unknown("identical", f"{lacks[0]} in {baseline.file} or in {run.file}")
    if run is baseline:
        return Answer("identical", "yes", "This is the baseline.")
    if problem := another_workload(baseline.trace, run.trace):
        raise ValueError(f"{run.file} can't be compared with {baseline.file}. {problem}")
    received, found = tokens_heard(run.trace), differences(baseline.trace, run.trace)
    if found:
        return _not_identical(found, baseline, run)
    if ends := tuple(other_ends(baseline.trace, run.trace)):
        requests = many(len(ends), "request")
        sentence = f"{requests} ended with another reason than in {baseline.file}."
        return Answer("identical", "no", sentence, ends, holds=False)
    tokens = many(sum(map(len, received.values())), "token")
    requests = many(len(received), "request")
    sentence = f"The same tokens as in {baseline.file}: {tokens} of {requests}."
    return Answer("identical", "yes", sentence)


def _not_identical(found: list[Difference], baseline: Recorded, run: Recorded) -> Answer:
    """Return the answer with the story of the first difference."""
    count = len({*tokens_heard(baseline.trace), *tokens_heard(run.trace)})
    details = tuple(map(str, found))
    if apart := max(run.trace.apart or 0, baseline.trace.apart or 0):
        why = f"the model's logits move by up to {apart:.2g} with the batch, and no trace contains "
        return unknown("identical", f"{why}how close the differing choices were", details)
    sentence = f"{len(found)} of {count} requests got other tokens than in {baseline.file}."
    dtypes = run.trace.dtype, baseline.trace.dtype
    if all(dtypes) and len(set(dtypes)) > 1:
        sentence += f" This run computed in {dtypes[0]}, that one in {dtypes[1]}."
    story, offences = story_of(found[0], run.trace)
    details = (details[0], *story, *details[1:])
    return Answer("identical", "no", sentence, details, offences=offences, holds=False)


def story_of(
    found: Difference, trace: Trace, prompts: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> tuple[list[str], tuple[Offence, ...]]:
    """Return the story of the first wrong token, the culprit first, and its slices for a picture.

    ``prompts`` are the prompts by request, where they are known.
    """
    if not trace.program:
        return ["This file records no accesses of memory, so the reason is not known."], ()
    story = explain(found, trace, prompts)
    if found.expected is None and not story.is_known:
        return [], ()  # the run has more tokens, maybe because its limit was higher
    return str(story).splitlines(), (story.culprit,)


# -- Leaks, races, and violations that are reported without a question -----------------------------


def stopped_with(trace: Trace) -> str:
    """Return the error of the mark ``stopped`` (``loops/run.py``), or nothing."""
    return next((str(attrs["error"]) for attrs in marks(trace, "stopped")), "")


def is_cut_short(trace: Trace) -> bool:
    """Return whether a run stopped while a request had not ended: its memory is no leak then."""
    return bool(stopped_with(trace)) and not requests_of(trace) <= ended(trace)


def leaks(recorded: Recorded) -> Answer:
    """Answer whether all memory was released; of a stopped run, only by ended requests."""
    trace, found = recorded.trace, find_leaks(recorded.trace)
    missing = tuple(not_checked(trace))
    if is_cut_short(trace):
        over = ended(trace)
        found = [leak for leak in found if leak.kind in AT_ONCE or leak.rid in over]
        missing += ("The run stopped before its last requests could release their memory.",)
    if found:
        return broken("leaks", many(len(found), "leak"), found, *missing)
    if lack := lacking("leak", trace):
        return unknown("leaks", f"{lack} in this file")
    return Answer("leaks", "no", "Nothing leaks: all allocated memory was released.", missing)


WHAT = {  # plurals
    "moment out of order": "moments out of order",
    "read of KV that was never written": "reads of KV that was never written",
}


def told(recorded: Recorded) -> list[Answer]:
    """Return answers on violations without a question: bad ends, steps and times, wrong reads."""
    trace = recorded.trace
    every = {
        "ends": ("bad end", [*find_bad_ends(trace), *find_lost(trace)]),
        "steps": ("bad step", [*find_bad_steps(trace), *find_misfits(trace)]),
        "unwritten": ("read of KV that was never written", list(find_unwritten_reads(trace))),
        "time": ("moment out of order", list(find_out_of_time(trace))),
        "relay": ("wrong read", find_misreads(trace)),
    }
    return [
        broken(name, many(len(found), what, WHAT.get(what, "")), found)
        for name, (what, found) in every.items()
        if found
    ]


def races(recorded: Recorded) -> Answer:
    """Answer whether two lanes touch the same memory in no order."""
    trace, found = recorded.trace, find_races(recorded.trace)
    waits = [] if is_cut_short(trace) else find_endless(trace)
    if found or waits:
        words = [many(len(found), "race")] if found else []
        endless = many(len(waits), "wait that never ends", "waits that never end")
        words += [endless] if waits else []
        return broken("races", " and ".join(words), [*found, *waits])
    if lack := lacking("race", trace):
        return unknown("races", f"{lack} in this file")
    touches = [act for act in trace.program if act.resource]
    lanes = len({act.lane for act in touches})
    said = f"No race: of {len(touches)} accesses on {lanes} lanes, all that conflict are ordered."
    return Answer("races", "no", said)


# -- The drafts of a run: the number proposed, and the number accepted -----------------------------


class DraftAnswers(NamedTuple):
    """Drafts over a run; ``verifies`` counts rows: the steps of each request that had drafts.

    As in vLLM's ``v1/spec_decode/metrics.py`` only steps that carried drafts count. Unlike there, a
    draft counts as accepted only if the request got it as a token: not after its last one.
    """

    verifies: int
    proposed: int
    accepted: int

    def __str__(self) -> str:
        per_step = 1 + self.accepted / self.verifies  # one of its own, and the accepted drafts
        accepted = f"{self.accepted} of {self.proposed} drafts accepted"
        return f"{accepted}, {per_step:.1f} tokens a step for each request"


def count_drafts(trace: Trace) -> DraftAnswers | None:
    """Return the sum of the ``verified`` marks (``scheduler/scheduler.py``); None: no drafts."""
    said = marks(trace, "verified")
    sums = [sum(int(attrs[name]) for attrs in said) for name in ("drafts", "accepted")]
    return DraftAnswers(len(said), *sums) if said else None
