"""One moment of a run for a terminal: what happens, the lanes, the source, and the state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median_low
from textwrap import TextWrapper

from ..checks.overlap.overlap import step_intervals
from ..trace import Mark, Trace
from .layout import View, make_view
from .state import Panel, panels
from .text import margin_of, row
from .text_axis import draw_axis
from .units import exact, ms
from .watch_moments import Moments, moments_of
from .watch_signs import lane_signs, state_signs
from .watch_source import listings
from .watch_state import state_lines

CURSOR = "┃"
STEPS = 4  # so many steps lie in the stretch of time that is shown
MOST_SAID = 4  # things that happen at one moment
SAID = ("admit", "refuse", "retraction", "finish", "wasted row", "stale output", "wait")  # marks


@dataclass(frozen=True)
class Frame:
    """The parts of the screen, each as lines of plain text."""

    title: str
    now: str
    lanes: list[str]
    source: list[str]
    state: list[str]
    signs: list[str]  # what those of lanes and state mean: a line each, however long

    def plain(self, columns: int = 100) -> str:
        """One part below the other; source that is too long ends in a mark."""
        source = [
            line if len(line) <= columns else f"{line[: columns - 1]}›" for line in self.source
        ]
        wrap = TextWrapper(columns, subsequent_indent="    ").wrap
        return "\n".join([self.title, self.now, "", *self.lanes, "", *source, "",
                          *self.state, "", *(part for line in self.signs for part in wrap(line)),
                          ""])  # fmt: skip


@dataclass(frozen=True)
class Watched:
    """A run, read once, to be looked at from moment to moment."""

    trace: Trace
    moments: Moments
    panels: tuple[Panel, ...]
    whole: View
    asked: tuple[int, int] = (0, 0)  # the first event shown, and the moment that was asked for

    def frame(self, time: int, columns: int = 100, source: int = 12, state: int = 100) -> Frame:
        """What is to be seen at a moment.

        ``columns`` is the width of the lanes, ``state`` that of the state, ``source`` how many
        lines the source has.
        """
        trace = self.trace
        count = f"event {self.moments.number(time)} of {len(self.moments.times)}"
        return Frame(
            f"{trace.loop} on {trace.device}, {self.when(time)}, {count}"[:columns],
            self.happens(time)[:columns],
            self.lanes(time, columns),
            listings(trace, time, source),
            state_lines(trace, self.panels, time, state),
            [lane_signs(self.whole), state_signs(self.panels)],
        )

    def when(self, time: int) -> str:
        """``119.55 of 300 ms``; of the first frame also that nothing happened since."""
        event, asked = self.asked
        since = f" (the last event before {exact(asked)})" * (time == event < asked)
        return f"{ms(time)}{since} of {ms(self.trace.end)} ms"

    def happens(self, time: int) -> str:
        """What ends and what begins at a moment, and what is marked."""
        boxes = [box for box in self.whole.boxes if box.slice.duration]
        said = [f"{box.label} ends" for box in boxes if box.slice.end == time]
        said += [f"{box.label} begins" for box in boxes if box.slice.start == time]
        said += [_said(mark) for mark in self.trace.marks if mark.time == time]
        said = list(dict.fromkeys(filter(None, said)))
        more = [f"and {len(said) - MOST_SAID} more"] if len(said) > MOST_SAID else []
        return "now: " + ("; ".join([*said[:MOST_SAID], *more]) or "nothing begins or ends")

    def lanes(self, time: int, columns: int) -> list[str]:
        """The stretch of time around the cursor, which stands in its middle half."""
        view = self.around(time)
        margin = margin_of([view])
        cells = max(10, columns - margin)
        at = min((time - view.start) * cells // max(1, view.duration), cells - 1)
        lines = []
        for lane in view.lanes:
            drawn = f"{row(view, lane, max(1, view.duration), cells):<{cells}}"
            drawn = drawn[:at] + CURSOR + drawn[at + 1 :]
            lines.append(f"{lane.title:>{margin - 2}} │{drawn}".rstrip())
        return [*lines, *draw_axis(view.duration, cells, margin, view.start)]

    def around(self, time: int) -> View:
        """A few steps of the run; the stretch moves on by halves, so that the eye can follow."""
        intervals = step_intervals(self.trace)
        long = min(self.trace.end, STEPS * median_low(intervals) if intervals else self.trace.end)
        half = max(1, long // 2)
        start = max(0, min(time // half * half - half // 2, self.trace.end - long))
        boxes = (
            b for b in self.whole.boxes if b.slice.end > start and b.slice.start < start + long
        )
        return replace(self.whole, start=start, end=start + long, boxes=tuple(boxes))


def watched(trace: Trace) -> Watched:
    """Read a run.

    Raises:
        ValueError: nothing ran, or a mark does not say what it should.
    """
    moments = moments_of(trace)
    return Watched(trace, moments, panels(trace), make_view(trace))


def _said(mark: Mark) -> str:
    """``admit a``; empty for what the state shows."""
    if mark.name not in SAID:
        return ""
    return f"{mark.name} {mark.attrs.get('rid', mark.attrs.get('reason', ''))}".strip()
