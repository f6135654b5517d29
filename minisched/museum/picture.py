"""An exhibit as a picture: the run with the bug, what did it in red, and below it without.

Both runs have the same requests and one time axis; where they look alike, lines say what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from ..checks.history import Words
from ..checks.judge import Verdict
from ..checks.races import VERBS
from ..export.layout import View, make_view
from ..export.offence import LEGEND, in_red, told
from ..export.runs import lanes_of, wrong_tokens
from ..export.scene import Part, Scene
from ..export.scene_svg import to_svg
from ..export.units import MILLISECOND, ms
from ..trace import Trace
from .blame import exhibit_offence
from .exhibit import Exhibit, exhibits

LONGEST = 110 * MILLISECOND  # what of a run can be read at this width


def exhibit_scene(exhibit: Exhibit) -> Scene:
    """Both runs, whole if they are not too long.

    Of a long one it ends a little after the last slice that did it. Where the device idles is not
    what this picture is about.

    Raises:
        ValueError: the bug is not caught, so there is nothing to show in red.
    """
    bug, healthy = exhibit.with_bug(), exhibit.healthy()
    offence = exhibit_offence(exhibit, bug)
    ends = [item.end for item in bug.trace.slices if item.id in offence.slices]
    last = min(bug.trace.end, max(ends, default=0) + LONGEST // 8)
    start = max(0, last - LONGEST)
    end = start + LONGEST
    if bug.trace.end > end:
        end = min(end, max(last, healthy.trace.end))
    view, other = stretch(bug, start, end), stretch(healthy, start, end)
    differs = rows_that_differ(bug.trace, healthy.trace)
    longest = view.duration if differs else max(view.duration, other.duration)
    parts = [Part("with the bug", what_ran(exhibit, view), [in_red(view, offence, longest)])]
    notes = [*told(view, offence), *wrong_tokens(view)]
    same = "without it, same requests:"
    if differs:
        notes.append(f"{same} the same times, and every law holds. What differs:")
        notes += differs
    else:
        lanes = lanes_of(other, longest)
        parts.append(Part(f"{same} every law holds", what_ran(exhibit, other), [lanes]))
    return Scene(exhibit.title, f"{exhibit.law}: {offence.sentence}", parts, LEGEND, notes)


def stretch(verdict: Verdict, start: int, latest: int) -> View:
    """A part of a run, as far as it goes, in the run's own time."""
    end = max(start + 1, min(verdict.trace.end, latest))
    return replace(make_view(verdict.trace, start, end), bubbles=(), zero=0)


def what_ran(exhibit: Exhibit, view: View) -> str:
    """Which loop on what, and how long it goes on."""
    loop = exhibit.case.loop + (f" with relay {exhibit.case.relay}" if exhibit.case.relay else "")
    about = f"{loop}, {view.trace.model} model on {view.trace.device}"
    return about + f", goes on to {ms(view.trace.end)} ms" * (view.end < view.trace.end)


# -- The difference, where both runs take the same times: what is touched, and what is heard --

MOST_ROWS = 6
Deed = tuple[int, str, str]  # when, in which slice, and what


def rows_that_differ(bug: Trace, healthy: Trace) -> list[str]:
    """The first ops and phases that do something else; none where the times differ as well."""
    times = [[(s.lane, s.name, s.step, s.start, s.end) for s in it.slices] for it in (bug, healthy)]
    if times[0] != times[1]:
        return []
    wrong, right = dict.fromkeys(deeds(bug)), dict.fromkeys(deeds(healthy))
    rows = []
    for start, who in sorted({deed[:2] for deed in wrong.keys() ^ right.keys()}):
        here, there = (
            ", ".join(did for at, name, did in one if (at, name) == (start, who)
                      and (at, name, did) not in other)
            for one, other in ((wrong, right), (right, wrong))
        )  # fmt: skip
        nothing = "nothing of that"
        rows.append(f"{who}: {there or nothing} (with the bug: {here or nothing})")
    return rows[:MOST_ROWS]


def deeds(trace: Trace) -> Iterator[Deed]:
    """Which memory each slice touched, for whom, and what clients heard in it."""
    words = Words(trace)
    for act in trace.program:
        if act.resource and (ran := words.slices.get(act.op)):
            whom = f" for {act.rid}" if act.rid else ""
            cells = words.cells(act.resource, act.at)
            yield ran.start, ran.label, f"{VERBS[act.kind]} {cells}{whom}"
    ends = {item.step: item for item in trace.slices if item.name == "process"}
    for mark in trace.marks:
        if mark.name == "tokens" and (ran := ends.get(int(mark.attrs["step"]))):
            heard = (str(mark.attrs[name]).split() for name in ("rids", "tokens"))
            for rid, token in zip(*heard, strict=True):
                yield ran.start, ran.label, f"{rid} hears {token}"


# -- Among the files that the repository keeps of its own output -----------------------------------


def path_of(exhibit: Exhibit) -> str:
    """Where a bug's picture is, in the repository."""
    return f"traces/museum/{exhibit.name}.svg"


def museum_makers() -> dict[str, Callable[[], dict[str, str]]]:
    """What makes the picture of each bug, by its name; each gives a text by path."""
    return {f"museum/{item.name}": partial(picture_file, item) for item in exhibits()}


def picture_file(exhibit: Exhibit) -> dict[str, str]:
    """One picture."""
    return {path_of(exhibit): to_svg(exhibit_scene(exhibit))}
