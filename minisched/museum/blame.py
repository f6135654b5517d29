"""The slices of a run that a picture shows in red, for each law that it may break."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from ..checks.case import Workload
from ..checks.history import Offence
from ..checks.identity import Difference, differences, explain
from ..checks.judge import STOPPED_BY, Finding, Verdict
from ..checks.oracle import oracle_trace
from ..checks.overlap import forwards
from .exhibit import Exhibit

CULPRIT = re.compile(r"([a-z][a-z ]*?) (\d+)(?: (\d+))?: ([^;]+)(?:; |$)")


def exhibit_offence(exhibit: Exhibit, verdict: Verdict) -> Offence:
    """Return the offence in the picture of a bug, of the verdict with the bug.

    A slice in ``Exhibit.red`` is written as its name and its step, with a phrase after a colon. If
    several slices have both, it is the first. A third word is an index: ``"receive 0 2: frees it"``
    is the third without a step.

    Raises:
        ValueError: the law that should catch it does not, or the run has no such slice.
    """
    finding = verdict.broke(exhibit.law)
    if finding is None:
        raise ValueError(f"{exhibit.name} does not break the law {exhibit.law!r}, which is its.")
    offence = offence_of(verdict, finding)
    if not exhibit.red:
        return replace(offence, cell=exhibit.cell or offence.cell)
    found, phrases = [], []
    for name, step, nth, phrase in CULPRIT.findall(exhibit.red):
        alike = [it.id for it in verdict.trace.slices if (it.name, it.step) == (name, int(step))]
        if int(nth or 0) >= len(alike):
            raise ValueError(f"the run has no {name!r} of step {step} to point at.")
        found.append(alike[int(nth or 0)])
        phrases.append(phrase)
    said = exhibit.because or offence.sentence
    return Offence(said, tuple(found), cell=exhibit.cell, deeds=tuple(phrases))


def offence_of(verdict: Verdict, finding: Finding) -> Offence:
    """Return the slices of a finding that a picture shows in red."""
    offence = of_identity(verdict, finding) if finding.law == "identity" else finding.offence
    if offence is None or not offence.slices:
        offence = of_named(verdict, finding)
    ran = {item.id for item in verdict.trace.slices}
    return replace(offence, slices=tuple(one for one in offence.slices if one in ran))


def plainly(finding: Finding) -> str:
    """Return the sentence of a finding, without the name of an exception."""
    kind, _, rest = finding.sentence.partition(": ")
    return rest if kind in {error.__name__ for error in STOPPED_BY} else finding.sentence


def of_identity(verdict: Verdict, finding: Finding) -> Offence:
    """Return the source of the first wrong token, or the step that sampled it."""
    difference = wrong_token(verdict)
    if difference is None:
        return of_named(verdict, finding)
    story = explain(difference, verdict.trace, prompts_of(verdict.workload))
    slices = story.culprit.slices or next((it.slices for it in story.chain if it.slices), ())
    sentence = f"{plainly(finding)}; {story.culprit}"
    return Offence(sentence, slices, missing=story.culprit.missing)


def prompts_of(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Return the prompts by request, without those of an id that comes twice."""
    names = Counter(req.name for req in workload.requests)
    return {req.name: tuple(req.prompt) for req in workload.requests if names[req.name] == 1}


def wrong_token(verdict: Verdict) -> Difference | None:
    """Return the first token that the request would not get alone, up to its abort."""
    baseline = oracle_trace(verdict.workload, verdict.refused)
    return next(iter(differences(baseline, verdict.trace)), None)


def of_named(verdict: Verdict, finding: Finding) -> Offence:
    """Return the forward pass of the step or request in the sentence.

    Without one it is the host's last slice: the run stopped there, or was found wrong there.
    """
    said, passes = plainly(finding), forwards(verdict.trace)
    named = re.search(r"\bstep (\d+)", said)
    found = [it for it in passes if it.step == int(named[1])] if named else [
        it for it in passes if finding.sentence.split()[0] in it.rids
    ]  # fmt: skip
    if finding.law in ("crash", "ownership"):  # the wrong allocation was the last one
        found = []
    shown = found[:1] or verdict.trace.on("host")[-1:]
    return Offence(said, tuple(item.id for item in shown))
