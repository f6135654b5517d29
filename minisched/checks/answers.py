"""What one recorded run says to each question: yes, no, or that nothing can be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..trace import Trace
from ..trace.events import is_forward
from .evidence import lacking
from .leaks.leaks import find_leaks, not_checked
from .offence import Offence
from .overlap.report import report
from .races import Race, WaitsForEver, examine, race_offence
from .stopped import is_cut_short, without_cut_short
from .tokens.ends import find_ends, find_misreads

OVERLAPS = {"overlapped": "yes", "partly": "partly", "serial": "no", "unknown": "unknown"}


class Recorded(NamedTuple):
    """A run in a file, a sentence for each thing that it lacks, and one on what its steps are."""

    file: str
    trace: Trace
    lacks: tuple[str, ...] = ()
    steps: str = ""


@dataclass(frozen=True)
class Answer:
    """The answer to one question about one run.

    ``word`` is yes, no, partly or unknown, and ``holds`` False where a law is broken. ``details``
    are sentences, ``offences`` what a picture shows of each of them that it can show.
    """

    question: str
    word: str
    sentence: str
    details: tuple[str, ...] = ()
    offences: tuple[Offence, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    holds: bool = True

    def as_json(self) -> dict[str, Any]:
        """The answer, with its figures where it has any."""
        details = [line.strip() for line in self.details]
        said = {"answer": self.word, "sentence": self.sentence, "details": details}
        return {**said, **({"figures": self.figures} if self.figures else {})}


def leaks(recorded: Recorded) -> Answer:
    """Whether everybody gave back what they took."""
    found = without_cut_short(find_leaks(recorded.trace), recorded.trace)
    missing = tuple(not_checked(recorded.trace))
    if is_cut_short(recorded.trace):
        missing += ("It stopped too early to say what its last requests would have left behind.",)
    if found:
        said = tuple(map(str, found))
        offences = tuple(leak.offence for leak in found)
        return no("leaks", counted(len(said), "leak"), said + missing, offences)
    if lack := lacking("leak", recorded.trace):
        return nothing_to_judge("leaks", lack)
    return Answer("leaks", "no", "Nothing leaks: all that was taken was given back.", missing)


def told(recorded: Recorded) -> list[Answer]:
    """What nobody asks, if it is so: requests that ended twice, future slots read wrongly."""
    answers = []
    for question, what, found in (
        ("ends", "bad end", find_ends(recorded.trace)),
        ("relay", "wrong read", find_misreads(recorded.trace)),
    ):
        if found:
            offences = [breach.offence for breach in found]
            said = tuple(map(str, found))
            answers.append(no(question, counted(len(found), what), said, offences))
    return answers


def races(recorded: Recorded) -> Answer:
    """Whether two lanes touch the same memory in no order."""
    seen = examine(recorded.trace)
    waits = [] if is_cut_short(recorded.trace) else seen.waits
    found: list[Race | WaitsForEver] = [*seen.races, *waits]
    if not found:
        if lack := lacking("race", recorded.trace):
            return nothing_to_judge("races", lack)
        touches = sum(bool(act.resource) for act in recorded.trace.program)
        lanes = len({act.lane for act in recorded.trace.program if act.resource})
        sentence = (
            f"No race: all conflicting ones of {touches} accesses on {lanes} lanes are ordered."
        )
        return Answer("races", "no", sentence)
    words = []
    if seen.races:
        words.append(counted(len(seen.races), "race"))
    if waits:
        words.append(counted(len(waits), "wait that never ends", "waits that never end"))
    offences = tuple(race_offence(item, recorded.trace) for item in found)
    return no("races", " and ".join(words), tuple(map(str, found)), offences)


def overlaps(recorded: Recorded) -> Answer:
    """Whether the host works while the device computes; to run serially breaks no law."""
    if not any(is_forward(item.lane) for item in recorded.trace.slices):
        return nothing_to_judge("overlaps", "no device is recorded", recorded.lacks)
    found = report(recorded.trace, recorded.lacks, recorded.steps)
    said = tuple(item for item in found.sentences if item != found.verdict.sentence)
    word = OVERLAPS[found.verdict.word]
    return Answer("overlaps", word, found.verdict.sentence, said, figures=found.to_json())


def nothing_to_judge(question: str, lack: str, details: tuple[str, ...] = ()) -> Answer:
    """There is no evidence either way; ``lack`` is what is missing."""
    sentence = f"Nothing to judge: {lack} in this file."
    return Answer(question, "unknown", sentence, details)


def no(
    question: str, what: str, details: tuple[str, ...], offences: Sequence[Offence] = ()
) -> Answer:
    """A law is broken: the answer to this question is one that nobody wants."""
    return Answer(question, "yes", f"{what}.", details, tuple(offences), holds=False)


def counted(count: int, one: str, many: str = "") -> str:
    """``1 leak`` or ``3 leaks``."""
    return f"{count} {one if count == 1 else many or one + 's'}"
