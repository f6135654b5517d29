"""What a run did with its memory, read for every form in which it is shown."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ...trace import Trace
from ..state import Panel, Stay, memory, up_to
from ..state.leases import ZOMBIE
from ..state.side import side_words
from .marks import NothingToShow, named, number, word
from .page_blocks import number as id_of
from .stay_counts import count
from .steps import forwards_of, opening
from .wording import many

MOST_STEPS, MOST_PAGES = 60, 120
NAMES = {
    "admitted": "a request's",
    "wasted": f"a zombie's: its request {ZOMBIE}",
    "protected": "cached, and a request uses it (the name: who computed it)",
    "evictable": "cached, and nobody uses it: evictable",
}


def shown_part(trace: Trace) -> tuple[Trace, str]:
    """What is shown of a run, and which part of it that is.

    So many steps that every page can be told apart; of very many pages all, as bands of them are
    averaged over time anyhow.

    Raises:
        NothingToShow: no step ran, or no page was ever given to anybody.
    """
    if is_large(panels(trace)[0]):
        return trace, many(len(forwards_of(trace)), "step")
    return opening(trace, MOST_STEPS)


def is_large(pages: Panel) -> bool:
    """Whether there are more pages than can be told apart."""
    return highest(pages) > MOST_PAGES


def panels(trace: Trace) -> tuple[Panel, Panel]:
    """Pages and rows, up to the end of the run; of a pair of schedulers on the decode side.

    Raises:
        NothingToShow: no page was ever given to anybody.
    """
    pages = memory.pages(trace)
    if not pages.stays:
        raise NothingToShow("the trace has no page alloc mark, so no page was ever given away.")
    rows = memory.rows(trace)
    return (
        replace(pages, stays=tuple(up_to(pages.stays, trace.end))),
        replace(rows, stays=tuple(up_to(rows.stays, trace.end))),
    )


def highest(panel: Panel) -> int:
    """The highest id that was ever in use; the allocator hands out the lowest first."""
    return max((id_of(stay) for stay in panel.stays), default=0)


def pool_words(trace: Trace) -> str:
    """How much memory there is, as far as the trace says."""
    if (pool := memory.pool(trace)) is None:
        return "the size of the pool was not recorded"
    return (
        f"{many(pool.pages, 'page')} of {many(pool.page_size, 'token')}, "
        f"{many(pool.rows, 'row')} in the request table"
    )


def about_memory(trace: Trace) -> list[str]:
    """For the line under the title: whose memory it is of two, and how much there is."""
    return [*filter(None, [side_words(trace)]), pool_words(trace)]


def use_words(pages: Panel) -> str:
    """How full it was, and how much was used again."""
    owners: dict[str, list[Stay]] = defaultdict(list)
    for stay in pages.stays:
        if stay.kind == "admitted":
            owners[stay.place].append(stay)
    again = sum(len({stay.rid for stay in stays}) > 1 for stays in owners.values())
    full = max(value for _, value in count(pages.stays, *NAMES))
    return (
        f"At most {many(full, 'page')} in use at once; {again} of {len(pages.places)} went "
        f"from one request to another."
    )


def evictions(trace: Trace) -> dict[int, int]:
    """By moment, how many pages the prefix cache gave up."""
    found: dict[int, int] = defaultdict(int)
    for mark in named(trace, "radix evict", "block evict"):
        if mark.attrs.get("side") != "prefill":
            is_tree = mark.name == "radix evict"
            found[mark.time] += (
                number(mark, "pages") if is_tree else len(word(mark, "pages").split())
            )
    return dict(found)
