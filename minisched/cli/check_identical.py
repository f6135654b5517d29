"""Whether a recorded run gave its clients the same tokens as another one of the same workload."""

from __future__ import annotations

from ..checks.identity import Difference, differences, tokens_heard
from ..checks.offence import Offence
from ..checks.wrong_token import explain, offence_of
from ..trace import Trace
from .check_answers import Answer
from .check_reader import Recorded

QUESTION = "identical"


def identical(baseline: Recorded, run: Recorded, count: int) -> Answer:
    """The answer for one of ``count`` runs, the first of which is the baseline."""
    if count < 2:
        return unknown("One run alone: nothing can be said about identity; name a second one.")
    heard = []
    for item in (baseline, run):
        try:
            heard.append(tokens_heard(item.trace))
        except ValueError:
            return unknown(
                f"No tokens are recorded in {item.file}: nothing can be said about them."
            )
    if run is baseline:
        return Answer(QUESTION, "yes", "This is the baseline.")
    if heard[0].keys() != heard[1].keys():
        others = sorted(heard[0].keys() ^ heard[1].keys())
        return unknown(f"Another workload: only one of the two runs has the request {others[0]}.")
    found = differences(baseline.trace, run.trace)
    if not found:
        tokens = sum(map(len, heard[1].values()))
        sentence = f"All {tokens} tokens of {len(heard[1])} requests are those of {baseline.file}."
        return Answer(QUESTION, "yes", sentence)
    sentence = f"{len(found)} of {len(heard[1])} requests got other tokens than in {baseline.file}."
    story, offences = story_of(found[0], run.trace)
    details = (str(found[0]), *story, *map(str, found[1:]))
    return Answer(QUESTION, "no", sentence, details, offences, holds=False)


def story_of(found: Difference, trace: Trace) -> tuple[list[str], tuple[Offence, ...]]:
    """How the first wrong token came about, the culprit first; and what a picture shows of it."""
    if not trace.program:
        return ["No accesses are recorded in this file: nothing can be said about why."], ()
    story = explain(found, trace)
    return str(story).splitlines(), (offence_of(story),)


def unknown(sentence: str) -> Answer:
    """Nothing can be said, and why."""
    return Answer(QUESTION, "unknown", sentence)
