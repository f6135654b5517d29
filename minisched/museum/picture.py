"""An exhibit as a picture: the run with the bug, what did it in red, and below it without.

Both runs have the same requests and one time axis; where they look alike, a table says what
differs. The picture stands alone and follows the reader's system from light to dark; the same code
gives the same bytes.
"""

from __future__ import annotations

from dataclasses import replace
from textwrap import wrap
from typing import Any
from xml.sax.saxutils import escape

from ..checks.history import Offence, Words
from ..checks.judge import Verdict
from ..checks.races import VERBS
from ..export.layout import View, make_view
from ..export.offence import (
    MARGIN,
    MARK,
    RED,
    OffenceView,
    about,
    axis,
    document,
    draw_culprits,
    draw_list,
    draw_missing,
    draw_missing_words,
    grid,
    lines_of,
    marked,
    red_legend,
    scene_of,
)
from ..export.svg import (
    FONT,
    RIGHT,
    WIDTH,
    Frame,
    draw_flags,
    draw_lanes,
    draw_legend,
    draw_run,
    left_of,
    variables,
    wait_style,
)
from ..export.text import draw_axis, letters_of, margin_of, row, wrong_tokens
from ..export.units import MILLISECOND, ms
from ..trace import Slice, Trace
from .blame import exhibit_offence
from .exhibit import Exhibit

# -- What stands above an exhibit's picture and above each of its two runs; its page's rules -------

LINE = 17  # pixels from line to line of what is said


def heading(title: str, sentence: str) -> tuple[list[str], float]:
    """The title and, in red, what law was broken how; and where they end."""
    lines = lines_of(sentence, 12)
    drawn = [f'<text class="title" x="{MARGIN}" y="31">{escape(title)}</text>']
    for number, line in enumerate(lines):
        y = 54 + number * LINE
        drawn.append(f'<text class="red-text" x="{MARGIN}" y="{y}">{escape(line)}</text>')
    return drawn, 54 + (len(lines) - 1) * LINE + 4


def title_of_run(frame: Frame, is_bug: bool, exhibit: Exhibit) -> str:
    """Which of the two it is, and what it runs on."""
    trace, y = frame.view.trace, frame.top - 9
    name = "with the bug" if is_bug else "without it, same requests: every law holds"
    loop = exhibit.case.loop + (f" with relay {exhibit.case.relay}" if exhibit.case.relay else "")
    about = f"{loop}, {trace.model} model on {trace.device}"
    if frame.view.end < trace.end:
        about += f", goes on to {ms(trace.end)} ms"
    return (
        f'<text class="run" x="{MARGIN}" y="{y}">{name}</text>'
        f'<text class="faint" x="{WIDTH - RIGHT}" y="{y}" text-anchor="end">{escape(about)}</text>'
    )


def html_style() -> str:
    """The rules of a page that stands alone, on the picture's paper."""
    return (
        f"<style>\n{variables()}\n:root {{ color-scheme: light dark; --red: {RED[0]} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --red: {RED[1]} }} }}\n"
        f"body {{ font: 16px/1.5 {FONT}; color: var(--ink); background: var(--paper); "
        "max-width: 900px; margin: 32px auto; padding: 0 16px }\n"
        "h1 { font-size: 26px } h2 { font-size: 17px; margin: 28px 0 6px }\n"
        "p { margin: 6px 0 } a { color: inherit }\n"
        "figure { margin: 0 } figure svg { max-width: 100%; height: auto }\n"
        ".bad, .minus { color: var(--red) }\n"
        "pre { background: var(--lane); padding: 10px; overflow-x: auto; font-size: 13px }\n"
        ".plus, .good { color: var(--copy) } .place { color: var(--faint) }\n</style>"
    )


# -- The difference, where both runs take the same times: what is touched, taken and heard --------

MOST_ROWS, MOST_LINES = 6, 2
CELLS = (50, 60)  # characters of a line of it: with the bug, which is bold, and without
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


def draw_difference(rows: list[Row], top: float) -> tuple[list[str], float]:
    """A table of it, and where it ends."""
    columns = (MARGIN, MARGIN + 110, MARGIN + 480)
    heads = ("", "with the bug", "without it")
    drawn = [f'<text class="faint" x="{x}" y="{top}">{head}</text>'
             for x, head in zip(columns, heads, strict=True)]  # fmt: skip
    y = top
    for row_ in rows:
        cells = [[row_[0]], *map(cut_to, row_[1:], CELLS)]
        for x, lines, kind in zip(columns, cells, ("", "red-text", ""), strict=True):
            for number, line in enumerate(map(escape, lines), 1):
                drawn.append(f'<text class="{kind}" x="{x}" y="{y + number * LINE}">{line}</text>')
        y += LINE * max(map(len, cells)) + 3
    return drawn, y


def cut_to(text: str, columns: int) -> list[str]:
    """At most two lines of a text."""
    return wrap(text, columns, max_lines=MOST_LINES, placeholder=" …")


# -- An exhibit's two runs as text, on one axis: ``!!`` where it was done --------------------------

NO_BREAK = "\N{NO-BREAK SPACE}"
LEAST = 36  # columns: the names of lanes, and some cells


def text_picture(
    scene: OffenceView, healthy: View, differs: list[Row], columns: int = 100
) -> list[str]:
    """The run with the bug, who did it, and the healthy run, ``columns`` characters wide.

    In the place of a healthy run that looks alike stands what ``differs``.

    Raises:
        ValueError: less than 36 columns.
    """
    if columns < LEAST:
        raise ValueError(f"a picture needs at least {LEAST} columns, but got {columns}.")
    views = [scene.view] if differs else [scene.view, healthy]
    margin, longest = margin_of(views), max(view.duration for view in views)
    lines = []
    for view, title in zip(views, ("with the bug", "without it"), strict=False):
        lines.append(f"{title}:")
        for lane in view.lanes:
            drawn = row(view, lane, longest, columns - margin)
            drawn = marked(drawn, scene, lane, longest) if view is scene.view else drawn
            lines.append(f"{lane.title:>{margin - 2}} │{drawn}".rstrip())
        lines += wrong_tokens(view, columns)
    lines += [*draw_axis(longest, columns - margin, margin, scene.view.start), ""]
    for box in scene.culprits:
        lines += wrap(f"{MARK * 2} {about(box)}", columns, subsequent_indent="   ")
    if scene.missing:
        lines += wrap(f"-> missing: {scene.missing_words}", columns, subsequent_indent="   ")
    lines += ["", "without it: the same times, but"] if differs else []
    for who, one, other in differs:
        lines += wrap(f"{who}: {other} (with the bug: {one})", columns, subsequent_indent="   ")
    return [*lines, "", *legend(views, columns)]


def legend(views: list[View], columns: int) -> list[str]:
    """What letters and marks mean."""
    names = [box.slice.name for view in views for box in view.boxes if box.slice.duration]
    entries = [letters_of(names), f"{MARK * 2}{NO_BREAK}what did it", f"numbers:{NO_BREAK}steps"]
    return [line.replace(NO_BREAK, " ") for line in wrap("   ".join(entries), columns)]


LONGEST = 110 * MILLISECOND  # what of a run can be read at this width
HEADING = 34  # above the lanes of each run


def draw(exhibit: Exhibit) -> str:
    """The picture of one bug.

    Raises:
        ValueError: the bug is not caught, so there is nothing to show in red.
    """
    scene, healthy, offence, differs = seen(exhibit)
    views = (scene.view,) if differs else (scene.view, healthy)
    longest, left = max(view.duration for view in views), left_of(views)
    scale = (WIDTH - left - RIGHT) / longest
    drawn, top = heading(exhibit.title, f"{exhibit.law}: {offence.sentence}")
    for view in views:
        frame = Frame(view, left, WIDTH - RIGHT, top + HEADING, scale)
        drawn += [*draw_lanes(frame), *grid(frame, longest), *draw_run(frame), *draw_flags(frame)]
        drawn.append(title_of_run(frame, view is scene.view, exhibit))
        top = frame.bottom + 12
        if view is scene.view:
            drawn += in_red(frame, scene)
            top += 14 if scene.missing else 0
    drawn.append(axis(frame, longest, top, "simulated time in ms"))
    if differs:
        says = "without it, same requests: the same times, and every law holds. What differs:"
        drawn.append(f'<text class="run" x="{MARGIN}" y="{top + 56}">{says}</text>')
        table, top = draw_difference(differs, top + 76)
        drawn += table
        top -= 18
    names, top = draw_list(scene, top + 50)
    red, top = red_legend(scene, top + 6)
    legend, top = draw_legend(list(views), top, WIDTH - RIGHT)
    return document([*drawn, *names, *red, *legend], top + 8, exhibit.title, wait_style())


def in_red(frame: Frame, scene: OffenceView) -> list[str]:
    """What did it."""
    words = draw_missing_words(frame, scene, frame.bottom + 12)
    return [*draw_missing(frame, scene), *draw_culprits(frame, scene), *words]


def exhibit_lines(exhibit: Exhibit, columns: int = 100) -> list[str]:
    """The same as text.

    Raises:
        ValueError: the bug is not caught, or there are less than 60 columns.
    """
    scene, healthy, _, differs = seen(exhibit)
    return text_picture(scene, healthy, differs, columns)


def seen(exhibit: Exhibit) -> tuple[OffenceView, View, Offence, list[Row]]:
    """What of the two runs is shown, and what did it: the whole runs if they are not too long.

    Of a long one it ends a little after the last slice that did it. Where the device idles is not
    what this picture is about.
    """
    bug, healthy = exhibit.with_bug(), exhibit.healthy()
    offence = exhibit_offence(exhibit, bug)
    ends = [item.end for item in bug.trace.slices if item.id in offence.slices]
    last = min(bug.trace.end, max(ends, default=0) + LONGEST // 8)
    start = max(0, last - LONGEST)
    end = start + LONGEST
    if bug.trace.end > end:
        end = min(end, max(last, healthy.trace.end))
    view = stretch(bug, start, end)
    scene = replace(scene_of(bug.trace, offence), view=view)
    if scene.missing:
        pair = {box.slice.id for box in scene.missing}
        arrows = (one for one in view.arrows if {one.src.slice.id, one.dst.slice.id} != pair)
        scene = replace(scene, view=replace(view, arrows=tuple(arrows)))
    differs = rows_that_differ(bug.trace, healthy.trace)
    return scene, stretch(healthy, start, end), offence, differs


def stretch(verdict: Verdict, start: int, latest: int) -> View:
    """A part of a run, as far as it goes."""
    end = max(start + 1, min(verdict.trace.end, latest))
    return replace(make_view(verdict.trace, start, end), bubbles=())
