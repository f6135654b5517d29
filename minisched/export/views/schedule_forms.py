"""The order of admission as text for a terminal, and as PlantUML."""

from __future__ import annotations

from dataclasses import replace

from ...trace import Trace
from ..state import Stay
from ..state.requests import stays_of
from ..units import ms
from .marks import NothingToShow
from .page import about_run
from .puml_stays import stays_to_puml
from .queue_story import Order, QueueStory, story_of
from .text_page import TextPage
from .wording import ordinal, short

TITLE = "schedule_policy: who is admitted first"
MOST_ROUNDS, MOST_LANES = 30, 24
NAMES = {"queued": "waits", "admitted": "has memory"}


def text(trace: Trace) -> str:
    """The queue as it was sorted, round by round, and how long everybody waited for what.

    Raises:
        NothingToShow: nobody was ever admitted.
    """
    story = need_story(trace)
    page = TextPage(TITLE, about_run(trace, policy_words(story)))
    if story.orders:
        orders = shown_orders(story.orders, MOST_ROUNDS)
        cut = f"; {len(orders)} of {len(story.orders)} rounds" * (orders != story.orders)
        page.heading("The queue, sorted", f"[in brackets]: admitted now{cut}")
        came = " ".join(arrivals_of(story, orders))
        page.write(f"{'as they came':>12}  {came}")
        for order in orders:
            queue = " ".join(f"[{rid}]" if rid in order.admitted else rid for rid in order.rids)
            page.write(f"{ms(order.time):>9} ms  {queue}")
    visits = story.visits[:MOST_LANES]
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
    page.legend(NAMES)
    return page.finish()


def puml(trace: Trace) -> str:
    """A lane a request, in the order in which they came: how long it waits, and its place.

    Raises:
        NothingToShow: nobody was ever admitted.
    """
    story = need_story(trace)
    places = {visit.rid: ordinal(visit.place) for visit in story.visits}
    rids = [visit.rid for visit in story.visits[:MOST_LANES]]
    rows = [
        (rid, [replace(stay, label=places[rid] if stay.kind == "admitted" else "waits")
               for stay in stays])
        for rid, stays in _waits(trace, rids, trace.end)
    ]  # fmt: skip
    return stays_to_puml(f"{TITLE} ({policy_words(story)})", rows, trace.end, NAMES)


def _waits(trace: Trace, rids: list[str], end: int) -> list[tuple[str, list[Stay]]]:
    """Waiting, and having memory, up to a moment."""
    rows: dict[str, list[Stay]] = {rid: [] for rid in rids}
    for stay in stays_of(trace):
        if stay.rid in rows and stay.kind in NAMES and stay.start < end:
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
