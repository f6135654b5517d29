"""Whether a recorded run gave its clients the same tokens as another one; and all that is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..trace import Trace
from .answers import Answer, Recorded, counted, leaks, overlaps, races, told
from .evidence import lacking
from .offence import Offence
from .stopped import stopped_with
from .tokens.identity import Difference, differences, tokens_heard
from .tokens.same_workload import another_workload, only_lengths_differ
from .tokens.wrong_token import explain, token_offence

QUESTION = "identical"
ORACLE = "-oracle"  # what the file of a baseline is called after its run's


def answer_all(runs: Sequence[Recorded]) -> dict[str, list[Answer]]:
    """What can be asked of each run, by its file; the first of several is the baseline.

    Raises:
        ValueError: two runs are of different workloads.
    """
    return {
        run.file: [
            identical(runs[0], run, len(runs)), *told(run), leaks(run), races(run), overlaps(run)
        ]
        for run in runs
    }  # fmt: skip


def verdict_on(runs: Sequence[Recorded], answers: Mapping[str, Sequence[Answer]]) -> bool | None:
    """Whether every law held that could be looked at; None if none of them could be.

    A run that stopped with an error broke one.
    """
    if any(stopped_with(run.trace) for run in runs):
        return False
    laws = [item for every in answers.values() for item in every if item.question != "overlaps"]
    if all(item.word == "unknown" for item in laws):
        return None
    return all(item.holds for item in laws)


def identical(baseline: Recorded, run: Recorded, count: int) -> Answer:
    """The answer for one of ``count`` runs, the first of which is the baseline.

    Raises:
        ValueError: the two are of different workloads.
    """
    if count < 2 and not has_tokens(run.trace):
        return unknown("no tokens are recorded in this file.")
    if count < 2:
        return unknown(f"this is one run alone; {whom_to_name(run.file)}.")
    for item in (baseline, run):
        if not has_tokens(item.trace):
            return unknown(f"no tokens are recorded in {item.file}.")
    lacks = [lacking("identity", item.trace) for item in (baseline, run)]
    if all(lacks):
        return unknown(f"{lacks[0]} in {baseline.file} or in {run.file}.")
    if run is baseline:
        return Answer(QUESTION, "yes", "This is the baseline.")
    if problem := another_workload(baseline.trace, run.trace):
        raise ValueError(f"{run.file} can't be compared with {baseline.file}. {problem}")
    heard, found = tokens_heard(run.trace), differences(baseline.trace, run.trace)
    if not found:
        tokens = counted(sum(map(len, heard.values())), "token")
        who = counted(len(heard), "request")
        sentence = f"The same tokens as in {baseline.file}: {tokens} of {who}."
        return Answer(QUESTION, "yes", sentence)
    return not_identical(found, baseline, run)


def not_identical(found: list[Difference], baseline: Recorded, run: Recorded) -> Answer:
    """The answer with the story of the first difference."""
    count = len({*tokens_heard(baseline.trace), *tokens_heard(run.trace)})
    if only_lengths_differ(found, baseline.trace, run.trace):
        sentence = (
            f"{len(found)} of {count} requests got another number of tokens than in "
            f"{baseline.file}, and the same ones so far; were both asked for as many?"
        )
        return Answer(QUESTION, "no", sentence, tuple(map(str, found)), holds=False)
    sentence = f"{len(found)} of {count} requests got other tokens than in {baseline.file}."
    dtypes = run.trace.dtype, baseline.trace.dtype
    if all(dtypes) and len(set(dtypes)) > 1:
        sentence += f" This run computed in {dtypes[0]}, that one in {dtypes[1]}."
    story, offences = story_of(found[0], run.trace)
    details = (str(found[0]), *story, *map(str, found[1:]))
    return Answer(QUESTION, "no", sentence, details, offences, holds=False)


def story_of(found: Difference, trace: Trace) -> tuple[list[str], tuple[Offence, ...]]:
    """How the first wrong token came about, the culprit first; and what a picture shows of it."""
    if not trace.program:
        return ["No accesses are recorded in this file: nothing can be said about why."], ()
    story = explain(found, trace)
    return str(story).splitlines(), (token_offence(story),)


def has_tokens(trace: Trace) -> bool:
    """Whether a trace says which tokens clients heard."""
    return any(mark.name == "tokens" for mark in trace.marks)


def whom_to_name(file: str) -> str:
    """What to name beside a run: its baseline, where that was saved with it."""
    path = Path(file)
    baseline = path.with_name(f"{path.stem}{ORACLE}{path.suffix}")
    return f"name {baseline} before it" if baseline.exists() else "name a second one"


def unknown(why: str) -> Answer:
    """Nothing can be said, and why."""
    return Answer(QUESTION, "unknown", f"Nothing to judge: {why}")
