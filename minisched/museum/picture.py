"""An exhibit as a picture: the run with the bug, what did it in red, and below it without.

Both runs have the same requests and one time axis; where they look alike, lines say what differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..checks.history import Words
from ..checks.judge import Verdict
from ..checks.races import VERBS
from ..export.layout import View, make_view
from ..export.offence import LEGEND, in_red, told
from ..export.runs import lanes_of, wrong_tokens
from ..export.scene import Part, Scene
from ..export.scene_svg import to_svg
from ..export.scene_text import LEAST, to_text
from ..export.units import MILLISECOND, ms
from ..trace import Slice, Trace
from .blame import exhibit_offence
from .exhibit import Exhibit

LONGEST = 110 * MILLISECOND  # what of a run can be read at this width


def draw(exhibit: Exhibit) -> str:
    """The picture of one bug.

    Raises:
        ValueError: the bug is not caught, so there is nothing to show in red.
    """
    return to_svg(exhibit_scene(exhibit))


def exhibit_lines(exhibit: Exhibit, columns: int = 100) -> list[str]:
    """The same as text, at least 40 columns wide.

    Raises:
        ValueError: the bug is not caught.
    """
    return to_text(exhibit_scene(exhibit), max(LEAST, columns)).splitlines()


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
        notes += [f"{who}: {right} (with the bug: {wrong})" for who, wrong, right in differs]
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


# -- The difference, where both runs take the same times: what is touched, taken and heard --------

MOST_ROWS = 6
Row = tuple[str, str, str]  # who, what it does with the bug, and what without it


def rows_that_differ(bug: Trace, healthy: Trace) -> list[Row]:
    """The first ops and phases that do something else; none where the times differ as well."""
    times = [[(s.lane, s.name, s.step, s.start, s.end) for s in it.slices] for it in (bug, healthy)]
    if times[0] != times[1]:
        return []
    wrong = wrong_takes(bug)
    done = what_was_done(bug), what_was_done(healthy)
    found = []
    for key in sorted(done[0].keys() | done[1].keys() | wrong.keys()):
        taken = wrong.get(key, [])
        with_bug = [*(got for got, _ in taken), *done[0].get(key, [])]
        without = [*(needed for _, needed in taken), *done[1].get(key, [])]
        one = ", ".join(item for item in with_bug if item not in without)
        other = ", ".join(item for item in without if item not in with_bug)
        if one or other:
            found.append((key[1], one or "nothing of that", other or "nothing of that"))
    return found[:MOST_ROWS]


def wrong_takes(trace: Trace) -> dict[tuple[int, str], list[tuple[str, str]]]:
    """By forward pass: the tokens that it took, and from where, and those that it needed."""
    slices, found = {item.id: item for item in trace.slices}, dict[tuple[int, str], Any]()
    for mark in trace.marks:
        attrs = mark.attrs
        reader, source = (slices.get(int(attrs.get(at, 0))) for at in ("reader", "source"))
        if mark.name == "wrong token" and reader is not None and "got" in attrs:
            origin = f", of {named(source)}" if source else ""
            both = f"takes {attrs['got']} for {attrs['rid']}{origin}", f"takes {attrs['needs']}"
            found.setdefault((reader.start, named(reader)), []).append(both)
    return found


def named(item: Slice) -> str:
    """What a slice is called: ``forward 3``."""
    return f"{item.name} {item.step}" if item.step else item.name


def what_was_done(trace: Trace) -> dict[tuple[int, str], list[str]]:
    """By begin and name of a slice: which memory it touched for whom, and what clients heard."""
    words, found = Words(trace), dict[tuple[int, str], list[str]]()
    for act in trace.program:
        if act.resource and (ran := words.slices.get(act.op)):
            whom = f" for {act.rid}" if act.rid else ""
            said = f"{VERBS[act.kind]} {words.cells(act.resource, act.at)}{whom}"
            found.setdefault((ran.start, named(ran)), []).append(said)
    ends = {item.step: item for item in trace.slices if item.name == "process"}
    for mark in trace.marks:
        if mark.name == "tokens" and (ran := ends.get(int(mark.attrs["step"]))):
            heard = (str(mark.attrs[name]).split() for name in ("rids", "tokens"))
            told = [f"{rid} hears {token}" for rid, token in zip(*heard, strict=True)]
            found.setdefault((ran.start, named(ran)), []).extend(told)
    return found
