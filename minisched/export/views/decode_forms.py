"""The running set as text for a terminal, and as PlantUML."""

from __future__ import annotations

from dataclasses import replace

from ...trace import Trace
from ..state import Stay, up_to
from ..state.requests import changes_of, stays_of
from ..state.side import side_words
from ..units import ms
from .marks import named, word
from .page import about_run
from .puml_stays import stays_to_puml
from .set_lanes import NAMES, SAID
from .set_story import MOST_LANES, MOST_STEPS, TITLE, lives, requests_of, set_after
from .stay_counts import count
from .steps import opening, steps_of
from .text_page import TextPage
from .wording import short

MOST_CHANGES = 60
LEGEND = {kind: words.partition(";")[0] for kind, words in NAMES.items() if kind != "flag-head"}


def text(trace: Trace) -> str:
    """Where each request was over time, and every change of the set.

    Raises:
        NothingToShow: no step ran.
    """
    part, shown = opening(trace, MOST_STEPS)
    stays, changes = up_to(stays_of(part), part.end), changes_of(part)
    page = TextPage(TITLE, about_run(trace, shown, *filter(None, [side_words(trace)])), margin=14)
    rids = requests_of(stays, steps_of(part))
    page.heading("Who", f"the first {MOST_LANES} of {len(rids)}" * (len(rids) > MOST_LANES))
    for name, kind in (("in the set", "admitted"), ("zombies", "wasted"), ("waiting", "queued")):
        page.curve(name, count(stays, kind), part.end)
    page.lanes(
        [(short(rid, 12), [replace(stay, label="") for stay in mine])
         for rid, mine in lives(rids[:MOST_LANES], stays)], part.end,
    )  # fmt: skip
    page.legend(LEGEND)
    cut = f"the first {MOST_CHANGES} of {len(changes)}" * (len(changes) > MOST_CHANGES)
    page.heading("Who joins and who leaves", cut)
    page.table(
        ["ms", "", "request", "why", "size", "the set after it"],
        [
            (ms(change.time), "+ joins" if change.joins else "- leaves", short(change.rid, 16),
             change.why, len(after), " ".join(after))
            for change, after in zip(changes, set_after(changes), strict=True)
        ][:MOST_CHANGES],
    )  # fmt: skip
    return page.finish()


def puml(trace: Trace) -> str:
    """A lane a request: waits, is in the set, is a zombie.

    Raises:
        NothingToShow: no step ran.
    """
    part, _ = opening(trace, MOST_STEPS)
    stays = up_to(stays_of(part), part.end)
    rids = requests_of(stays, steps_of(part))[:MOST_LANES]
    rows = [(rid, list(map(_labelled, mine))) for rid, mine in lives(rids, stays)]
    flags = [
        (mark.time, f"{word(mark, 'rid')} is retracted")
        for mark in named(part, "retraction")
        if word(mark, "rid") in rids
    ]
    return stays_to_puml(TITLE, rows, part.end, LEGEND, flags)


def _labelled(stay: Stay) -> Stay:
    return replace(stay, label=({"admitted": "in the set"} | SAID)[stay.kind])
