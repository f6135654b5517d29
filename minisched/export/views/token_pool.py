"""The token pool as a table, rows by positions: who wrote each cell, and who gathered it."""

from __future__ import annotations

from collections import Counter

from ...trace import Trace
from ..state import Stay
from .marks import NothingToShow
from .page import Page, about_run
from .step_grid import write_grid
from .steps import opening
from .text_page import TextPage
from .token_cells import Tenancy, tenancies_of
from .token_table import (
    MOST_POSITIONS,
    NAMES,
    draw_pool,
    draw_streams,
    lanes_of,
    num_positions,
    ops_of,
)
from .wording import short

MOST_STEPS, MOST_TENANCIES = 24, 10
TITLE = "token_pool: every token by row and position"
SIGN_OF = {"prompt": "u", "cached": "c", "decode": "s", "wasted": "w", "late": "!"}
SIGNS = (
    "u: a prompt's token, uploaded   c: uploaded, but its KV is cached   s: sampled   "
    "w: sampled by a wasted row   !: the same, in the prompt of the row's next owner"
)


def view(trace: Trace) -> str:
    """The steps on a time axis, and what each of them did to the pool.

    Raises:
        NothingToShow: no step ran, or no token pool was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    tenancies = need_tenancies(part)
    page = Page(TITLE, about_run(trace, shown))
    page.heading("Streams", "numbers: steps")
    draw_streams(page, part)
    page.top += 30
    note = "in a cell: the step that wrote it; below it: the step that gathered it"
    page.heading("Token pool", note)
    draw_pool(page, tenancies[:MOST_TENANCIES])
    page.legend(NAMES)
    page.notes(summary(tenancies))
    if len(tenancies) > MOST_TENANCIES:
        page.notes(f"{len(tenancies) - MOST_TENANCIES} later owners of rows are left out.")
    return page.finish()


def text(trace: Trace) -> str:
    """The streams and the table for a terminal.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    tenancies = need_tenancies(part)
    page = TextPage(TITLE, about_run(trace, shown))
    page.heading("Streams", "numbers: steps")
    lanes: dict[str, list[Stay]] = {lane: [] for lane in lanes_of(part)}
    for item in ops_of(part):
        words = str(item.step) if item.name == "forward" else ""
        lanes[item.lane].append(Stay("", item.name, item.start, item.end, words))
    page.lanes(list(lanes.items()), part.end)
    page.legend({name: NAMES[name] for name in ("upload", "forward", "sample")})
    page.heading("Token pool", "in a cell: the step that wrote it; below it: who gathered it")
    write_cells(page, tenancies[:MOST_TENANCIES])
    page.write("", SIGNS, "", summary(tenancies))
    return page.finish()


def need_tenancies(trace: Trace) -> list[Tenancy]:
    """Every owner of a row.

    Raises:
        NothingToShow: there is none.
    """
    if not (tenancies := tenancies_of(trace)):
        raise NothingToShow("the trace has no token pool mark: no token pool was used.")
    return tenancies


def summary(tenancies: list[Tenancy]) -> str:
    """How many cells were written how; the same in every form."""
    kinds = Counter(cell.kind for tenancy in tenancies for cell in tenancy.cells.values())
    gathered = sum(cell.gathered_by > 0 for t in tenancies for cell in t.cells.values())
    uploaded = kinds["prompt"] + kinds["cached"]
    return (
        f"{uploaded} tokens uploaded, {kinds['decode']} sampled, {kinds['wasted']} sampled by "
        f"wasted rows, {kinds['late']} too late; {gathered} gathered"
    )


def write_cells(page: TextPage, tenancies: list[Tenancy]) -> None:
    """The table, with two lines for each owner of a row."""
    names = [f"row {tenancy.row}: {short(tenancy.rid, 8)}" for tenancy in tenancies]
    titles = ["position", *(title for name in names for title in (name, "  gathered by"))]
    columns = []
    for position in range(min(MOST_POSITIONS, num_positions(tenancies))):
        column = [str(position)]
        for cell in (tenancy.cells.get(position) for tenancy in tenancies):
            column.append(f"{SIGN_OF[cell.kind]}{cell.step}" if cell else "")
            column.append(str(cell.gathered_by or "") if cell else "")
        columns.append(column)
    write_grid(page, titles, columns)
