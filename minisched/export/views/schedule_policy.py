"""In which order waiting requests were admitted, against the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...checks.overlap import forwards
from ...trace import Mark, Trace
from ...trace.events import is_host
from .. import state
from ..state import Stay
from ..state.requests import request_stays
from ..svg import char_width
from ..units import ms
from .axes import TimeAxis
from .marks import NothingToShow, named, number, ordinal, short, short_end, word
from .page import EDGE, LEFT, Page, about_run, band, line, path, rect
from .page import svg_text as write
from .puml_stays import stays_to_puml
from .text_page import TextPage

# -- Which step was in which place of the batch queue when, read from a trace ----------------------


@dataclass(frozen=True)
class QueueStay:
    """One step in flight. Times are nanoseconds."""

    step: int
    rids: tuple[str, ...]
    place: int  # 0: the first that was free
    put: int  # when its last launch had ended
    taken: int  # when the host turned to its result
    processed: int  # when that was done


def queue_stays(trace: Trace) -> list[QueueStay]:
    """Every step that was launched and processed, in order."""
    launches = {s.step: s for s in trace.slices if is_host(s.lane) and s.name == "launch"}
    waits = {s.step: s.start for s in trace.slices if is_host(s.lane) and s.name == "wait"}
    processes = {s.step: s for s in trace.slices if is_host(s.lane) and s.name == "process"}
    found: list[QueueStay] = []
    for step in sorted(launches.keys() & processes.keys()):
        put, process = launches[step], processes[step]
        busy = {stay.place for stay in found if stay.processed > put.end}
        place = min(set(range(len(busy) + 1)) - busy)
        taken = waits.get(step, process.start)
        found.append(QueueStay(step, put.rids, place, put.end, taken, process.end))
    return found


def rows_of(trace: Trace) -> list[tuple[str, list[state.Stay]]]:
    """A row for each place and one for the device, for the forms that draw rows.

    Kinds: ``queued``, then ``admitted`` (the host has turned to it); ``prompt`` and ``decode``.
    """
    stays = queue_stays(trace)
    rows: dict[int, list[state.Stay]] = {}
    for stay in sorted(stays, key=lambda stay: stay.place):
        row, label = rows.setdefault(stay.place, []), f"{stay.step} ({', '.join(stay.rids)})"
        for kind, start, end in (
            ("queued", stay.put, stay.taken),
            ("admitted", stay.taken, stay.processed),
        ):
            if end > start:
                row.append(state.Stay(f"place {stay.place + 1}", kind, start, end, label))
    samples = {item.step: item.end for item in trace.slices if item.name == "sample"}
    device = [
        state.Stay(
            "step", "decode" if item.mode == "decode" else "prompt", item.start,
            samples.get(item.step, item.end), f"{item.step} ({', '.join(item.rids)})",
        )
        for item in forwards(trace)
    ]  # fmt: skip
    return [*((f"place {place + 1}", row) for place, row in rows.items()), ("step", device)]


# -- The waiting queue's story, read from a trace: who came when, how it was sorted, who left it


@dataclass(frozen=True)
class Order:
    """The queue as a cache-aware policy sorted it, and who of it was admitted then."""

    policy: str
    time: int
    rids: list[str]  # the first 20
    admitted: list[str]


@dataclass(frozen=True)
class Visit:
    """One stay in the queue that ended in an admission."""

    rid: str
    arrived: int  # or retracted
    admitted: int
    place: int  # in the order of admissions, from 1
    hit_len: int
    extend_len: int  # the rest of the prompt, in chunks or not


@dataclass(frozen=True)
class QueueStory:
    """All of it; ``arrived`` and ``visits`` in order of arrival."""

    arrived: list[str]
    orders: list[Order]
    visits: list[Visit]


def story_of(trace: Trace) -> QueueStory:
    """What marks and receive slices tell. Whoever was never received has waited since time 0."""
    came = {rid: item.end for item in trace.slices if item.name == "receive" for rid in item.rids}
    orders, visits = list[Order](), dict[str, Visit]()
    admits = 0
    for mark in named(trace, "queue order", "admit"):
        if mark.name == "queue order":
            rids = word(mark, "rids").split()
            orders.append(Order(word(mark, "policy"), mark.time, rids, []))
            continue
        rid = word(mark, "rid")
        if orders and rid in orders[-1].rids:  # who only gets one more chunk is in no queue
            orders[-1].admitted.append(rid)
        if rid in visits:  # one more chunk, or after a retraction
            grown = visits[rid].extend_len + number(mark, "extend_len")
            visits[rid] = replace(visits[rid], extend_len=grown)
        else:
            admits += 1
            visits[rid] = _visit(mark, came.get(rid, 0), admits)
    seen = dict.fromkeys([*came, *visits, *(rid for order in orders for rid in order.rids)])
    arrived = sorted(seen, key=lambda rid: came.get(rid, 0))
    in_order = [visits[rid] for rid in arrived if rid in visits]
    return QueueStory(arrived, [order for order in orders if order.rids], in_order)


def _visit(mark: Mark, arrived: int, place: int) -> Visit:
    hit_len, extend_len = number(mark, "hit_len"), number(mark, "extend_len")
    return Visit(word(mark, "rid"), arrived, mark.time, place, hit_len, extend_len)


# -- The order of admission as text for a terminal, and as PlantUML --------------------------------

TITLE = "schedule_policy: who is admitted first"
MOST_TOLD, MOST_PUML_LANES = 30, 24
LINE_NAMES = {"queued": "waits", "admitted": "has memory"}


def text(trace: Trace) -> str:
    """The queue as it was sorted, round by round, and how long everybody waited for what.

    Raises:
        NothingToShow: nobody was ever admitted.
    """
    story = need_story(trace)
    page = TextPage(TITLE, about_run(trace, policy_words(story)))
    if story.orders:
        orders = shown_orders(story.orders, MOST_TOLD)
        cut = f"; {len(orders)} of {len(story.orders)} rounds" * (orders != story.orders)
        page.heading("The queue, sorted", f"[in brackets]: admitted now{cut}")
        came = " ".join(arrivals_of(story, orders))
        page.write(f"{'as they came':>12}  {came}")
        for order in orders:
            queue = " ".join(f"[{rid}]" if rid in order.admitted else rid for rid in order.rids)
            page.write(f"{ms(order.time):>9} ms  {queue}")
    visits = story.visits[:MOST_PUML_LANES]
    cut = f"; the first {len(visits)} of {len(story.visits)}" * (visits != story.visits)
    page.heading("How long they waited", f"in the order in which they came{cut}")
    page.table(
        ("request", "came, ms", "admitted, ms", "waited, ms", "place", "cached", "to compute"),
        [
            (short(visit.rid, 20), ms(visit.arrived), ms(visit.admitted),
             ms(visit.admitted - visit.arrived), ordinal(visit.place), visit.hit_len,
             visit.extend_len)
            for visit in visits
        ],
    )  # fmt: skip
    end = max(visit.admitted for visit in visits)
    page.lines.append("")
    page.lanes(_waits(trace, [visit.rid for visit in visits], end), end)
    page.legend(LINE_NAMES)
    return page.finish()


def puml(trace: Trace) -> str:
    """A lane a request, in the order in which they came: how long it waits, and its place.

    Raises:
        NothingToShow: nobody was ever admitted.
    """
    story = need_story(trace)
    places = {visit.rid: ordinal(visit.place) for visit in story.visits}
    rids = [visit.rid for visit in story.visits[:MOST_PUML_LANES]]
    rows = [
        (rid, [replace(stay, label=places[rid] if stay.kind == "admitted" else "waits")
               for stay in stays])
        for rid, stays in _waits(trace, rids, trace.end)
    ]  # fmt: skip
    return stays_to_puml(f"{TITLE} ({policy_words(story)})", rows, trace.end, LINE_NAMES)


def _waits(trace: Trace, rids: list[str], end: int) -> list[tuple[str, list[Stay]]]:
    """Waiting, and having memory, up to a moment."""
    rows: dict[str, list[Stay]] = {rid: [] for rid in rids}
    for stay in request_stays(trace):
        if stay.rid in rows and stay.kind in LINE_NAMES and stay.start < end:
            rows[stay.rid].append(replace(stay, label="", end=min(stay.end, end)))
    return list(rows.items())


def need_story(trace: Trace) -> QueueStory:
    """The queue's story.

    Raises:
        NothingToShow: nobody was ever admitted.
    """
    story = story_of(trace)
    if not story.visits:
        raise NothingToShow("the trace has no admit mark, so nobody ever left the queue.")
    return story


def policy_words(story: QueueStory) -> str:
    """By which policy the queue was sorted, as far as the trace says."""
    policy = story.orders[0].policy if story.orders else "the order of the queue was not recorded"
    return f"policy: {policy}"


def arrivals_of(story: QueueStory, orders: list[Order]) -> list[str]:
    """Who is in any of these rounds, in the order in which they came."""
    there = {rid for order in orders for rid in order.rids}
    return [rid for rid in story.arrived if rid in there]


def shown_orders(orders: list[Order], most: int) -> list[Order]:
    """All rounds; of many the first in which there was something to sort."""
    if len(orders) <= most:
        return orders
    return [order for order in orders if len(order.rids) > 1][:most] or orders[:1]


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
