"""In which order waiting requests were admitted, against the order in which they came."""

from __future__ import annotations

from ...trace import Trace
from ..svg_style import char_width
from ..units import ms
from .axes import TimeAxis
from .page import EDGE, LEFT, Page, about_run
from .queue_story import QueueStory, Visit
from .schedule_forms import TITLE, arrivals_of, need_story, policy_words, puml, shown_orders, text
from .shapes import band, line, path, rect
from .shapes import text as write
from .wording import ordinal, short, short_end

__all__ = ["puml", "text", "view"]
MOST_ROUNDS, MOST_LANES = 10, 24
PITCH, BOX = 24, 17  # from row to row, and how high a box is
BEHIND, TOKENS, PLACE = 290, 130, 50  # pixels behind the time axis: for tokens, for a place
NAMES = {
    "queued": "waits",
    "admitted": "admitted now",
    "evictable": "tokens it finds in the cache",
    "left": "tokens it has to compute",
}


def view(trace: Trace) -> str:
    """The queue as it was sorted, round after round, and how long everybody waited.

    Raises:
        NothingToShow: nobody was ever admitted.
    """
    story = need_story(trace)
    page = Page(TITLE, about_run(trace, policy_words(story)))
    if story.orders:
        _draw_orders(page, story)
    _draw_waits(page, story)
    page.legend(NAMES)
    return page.finish()


def _draw_orders(page: Page, story: QueueStory) -> None:
    """A column for each time the queue was sorted; lines follow a request from one to the next."""
    orders = shown_orders(story.orders, MOST_ROUNDS)
    cut = f"; {len(orders)} of {len(story.orders)} rounds" * (orders != story.orders)
    page.heading("The queue, sorted", f"first on top; in the left column as they came{cut}")
    columns = [("arrival", arrivals_of(story, orders))]
    columns += [(f"{ms(order.time)} ms", order.rids) for order in orders]
    pitch = (EDGE - 20) / len(columns)
    width, top = min(72.0, 0.68 * pitch), page.top + 24
    for at, (name, rids) in enumerate(columns):
        x = 20 + at * pitch
        page.add(write(x, page.top + 12, name, "small faint"))
        admitted = orders[at - 1].admitted if at else []
        for place, rid in enumerate(rids):
            y = top + place * PITCH
            if at and rid in columns[at - 1][1]:
                before = top + columns[at - 1][1].index(rid) * PITCH
                page.add(_link(x - pitch + width, before, x, y))
            kind = "admitted" if rid in admitted else "queued"
            about = f"{rid}: place {place + 1}"
            page.add(rect(kind, x, y, width, BOX, about, rid=rid, round=at, place=place))
            words = short_end(rid, int((width - 6) / char_width(11)))
            page.add(write(x + width / 2, y + 12.5, words, f"small in-{kind}", "middle"))
    page.top = top + max(len(rids) for _, rids in columns) * PITCH + 26


def _link(x1: float, y1: float, x2: float, y2: float) -> str:
    y1, y2, middle = y1 + BOX / 2, y2 + BOX / 2, (x1 + x2) / 2
    return path("link", f"M{x1:.1f} {y1:.1f}C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} "
                        f"{x2:.1f} {y2:.1f}")  # fmt: skip


def _draw_waits(page: Page, story: QueueStory) -> None:
    """From arrival to admission; in a column of its own, what was cached and what to compute."""
    visits = story.visits[:MOST_LANES]
    cut = f"; the first {len(visits)} of {len(story.visits)}" * (visits != story.visits)
    page.heading("How long they waited", f"in the order in which they came{cut}")
    x, top = TimeAxis(max(visit.admitted for visit in visits), right=EDGE - BEHIND), page.top
    most = max(visit.hit_len + visit.extend_len for visit in visits)
    for at in range(len(visits)):
        page.add(band(x.left, top + at * PITCH + 1, EDGE - LEFT, BOX + 4))
    page.add(*x.grid(top, top + len(visits) * PITCH))
    page.add(write(x.right + PLACE, top - 4, "tokens: cached + to compute", "small faint"))
    for at, visit in enumerate(visits):
        _draw_visit(page, visit, x, top + at * PITCH + 3, TOKENS / max(1, most))
    bottom = top + len(visits) * PITCH
    page.add(*x.draw(bottom + 2))
    page.top = bottom + 26


def _draw_visit(page: Page, visit: Visit, x: TimeAxis, y: float, scale: float) -> None:
    page.add(write(20, y + 12.5, short(visit.rid, 12)))
    left, width = x.span(visit.arrived, visit.admitted)
    about = f"{visit.rid} waits {ms(visit.admitted - visit.arrived)} ms"
    page.add(rect("queued", left, y, width, BOX, about, rid=visit.rid))
    at = left + width
    page.add(line("flag", at, y - 3, at, y + BOX + 3))
    place = f"{ordinal(visit.place)}"
    page.add(write(at + 5, y + 12.5, place, "small bold"))
    at = x.right + PLACE
    for kind, tokens in (("evictable", visit.hit_len), ("left", visit.extend_len)):
        if tokens:
            about = f"{visit.rid}: {NAMES[kind]}: {tokens}"
            page.add(rect(kind, at, y + 2, tokens * scale, BOX - 4, about, rid=visit.rid,
                          tokens=tokens))  # fmt: skip
            at += tokens * scale
    words = f"{visit.hit_len} + {visit.extend_len} tokens"
    page.add(write(at + 5, y + 12.5, words, "small faint"))
