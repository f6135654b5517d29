"""What the stepper shows, without a browser: at every moment it is what the engine's books say.

The books are looked into while the run goes on, beside its trace; the page is made of the trace.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest

from minisched.checks.case import fresh
from minisched.checks.draw import Variant, designs_for, draw
from minisched.checks.judge import hash_model
from minisched.checks.judge import run as run_case
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.state import Panel, Stay, panels
from minisched.export.views.future_map import stays_of
from minisched.scheduler import Scheduler
from minisched.trace import Trace
from minisched.trace.sides import one_side
from tests.support import blocks_of, many, nodes_of

# -- the books of a run ----------------------------------------------------------------------------


class Truth(NamedTuple):
    """One moment, in the engine's own terms."""

    waiting: set[str]  # who has no memory yet: SGLang's waiting queue, and who is on the way there
    holding: set[str]  # who has
    zombies: list[str]  # whose leases are closed, and a launched step still names them
    rows: dict[int, tuple[str, str]]
    pages: dict[int, tuple[str, str]]  # page -> kind, whose
    nodes: dict[int, tuple[int, int, int, str]]  # node -> parent, pages, lock_ref, first tokens


def look(scheduler: Scheduler) -> Truth:
    """Everything that the panels show, and the counters."""
    leases, table = scheduler.leases, scheduler.table
    nodes = nodes_of(scheduler)  # type: ignore[arg-type]
    zombies = [lease for lease in leases.returning if not leases.is_held(lease)]
    pages = {
        page: ("wasted" if lease in zombies else "admitted", lease.rid)
        for page, lease in scheduler.allocator.owner.items()
        if lease in zombies or not lease.is_released
    }
    for node in nodes:
        kind = "protected" if node.lock_ref else "evictable"
        pages |= dict.fromkeys(node.pages, (kind, ""))
    for page, block in blocks_of(scheduler).items():  # type: ignore[arg-type]
        pages[page] = ("protected" if block.ref_cnt else "evictable", "")
    rows = {*range(1, table.size + 1)} - {*table.free_rows}
    taken = {row: table.req_to_token[row] for row in rows}
    live = scheduler.live
    holding = {rid for rid, req in live.items() if req.lease is not None}
    assert {req.rid for req in scheduler.waiting_queue} <= live.keys() - holding
    return Truth(
        live.keys() - holding,
        holding,
        sorted(lease.rid for lease in zombies),
        {row: ("wasted" if at in zombies else "admitted", at.rid) for row, at in taken.items()},
        pages,
        {
            node.id: (node.parent.id, node.num_pages, node.lock_ref, node.beginning)
            for node in nodes
            if node.parent
        },
    )


Seen = tuple[dict[str, Panel], Trace, dict[int, Truth]]
"""One engine's run: its panels, its trace, and its own books after each moment."""


def seen(design: Variant, seed: int) -> tuple[Trace, list[Seen]]:
    """A drawn run, and what each engine's books said meanwhile; a pair has two."""
    case = draw(seed, odd=False).on(design, "sim")
    books, device = list[tuple[Engine, dict[int, Truth]]](), SimDevice()
    workload = fresh(case.workload)

    def note(engine: Engine, book: dict[int, Truth], call: Any, *arguments: int) -> None:
        book[engine.device.now()] = look(engine.scheduler)
        call(*arguments)

    def patch(engine: Engine) -> None:
        """Look whenever time is about to pass: nothing is missed, and nothing half done seen."""
        books.append((engine, {}))
        for name in ("idle_until", "_run_next"):
            setattr(engine.device, name, partial(note, *books[-1], getattr(engine.device, name)))

    run_case(case, workload, device, hash_model("sim", workload), patch, lambda engine: None)
    trace = Trace.of(device.recorder, design.loop, "sim", "hash", device.clock)
    found, runs = panels(trace), list[Seen]()
    sides = ["prefill", "decode"] if len(books) == 2 else [""]
    for side, (engine, book) in zip(sides, books, strict=True):
        if engine.device.now() <= trace.end:  # else a pair's other side went on
            book[engine.device.now()] = look(engine.scheduler)
        own = {time: truth for time, truth in book.items() if time <= trace.end}
        own[trace.end] = own[max(own)]
        mine = {panel.name: panel for panel in found if panel.side == side}
        runs.append((mine, one_side(trace, side), own))
    return trace, runs


# -- the state at every moment ---------------------------------------------------------------------


def whose(panel: Panel, time: int) -> dict[int, tuple[str, str]]:
    """Kind and request of each page or row."""
    return {number_of(s.place): (s.kind, s.rid) for s in panel.at(time).values()}


def number_of(place: str) -> int:
    return int(place.split()[1])


def locks_of(stay: Stay) -> int:
    return int(stay.about.split("lock_ref ")[1].split(":")[0])


def check_state(run: Seen) -> None:
    of, trace, truths = run
    assert max(truths) == trace.end
    for time, truth in truths.items():
        there = of["set"].at(time).values()
        assert {stay.rid for stay in of["queue"].at(time).values()} == truth.waiting, time
        alive = {stay.rid for stay in there if stay.kind != "wasted"}
        sending = {stay.rid for stay in there if stay.kind == "sending"}  # maybe after its end
        assert truth.holding <= alive <= truth.holding | sending, time
        assert sorted(s.rid for s in there if s.kind == "wasted") == truth.zombies, time
        assert whose(of["rows"], time) == truth.rows, time
        assert whose(of["pages"], time) == truth.pages, time
        assert {
            place: (s.parent, s.size, locks_of(s)) for place, s in of["tree"].at(time).items()
        } == {
            f"node {at}": (f"node {parent}" if parent else "root", pages, locks)
            for at, (parent, pages, locks, _) in truth.nodes.items()
        }
        for place, stay in of["tree"].at(time).items():
            assert stay.label.endswith(truth.nodes[number_of(place)][3])


def check_ring(panel: Panel, trace: Trace) -> None:
    """Every token is in its slot, from the promise of it until the slot is another's."""
    tokens = stays_of(trace)
    for token in tokens:
        for kind, start, end in token.phases:
            for time in (start, end - 1):
                stay = panel.at(time)[f"slot {token.slot}"]
                assert (stay.kind, stay.rid) == (kind, token.rid)
                assert stay.end == end or (stay.end == trace.end + 1 and end == trace.end)
    last = {f"slot {token.slot}": token for token in tokens}
    at_the_end = panel.at(trace.end)
    assert at_the_end.keys() == last.keys()
    for place, stay in at_the_end.items():
        kind = "stale" if last[place].sampled else "promised"
        assert (stay.rid, stay.kind) == (last[place].rid, kind)


@pytest.mark.parametrize("part", range(4))
def test_every_panel_is_what_the_engine_s_books_say(part: int) -> None:
    seeds = range(many(2, 60))
    drawn = [(seed, design) for seed in seeds for design in designs_for(draw(seed, False))]
    for seed, design in drawn[part::4]:
        trace, runs = seen(design, seed)
        for run in runs:
            check_state(run)
            config = draw(seed, False).workload.config
            if run[0]["ring"].stays and len(runs) == 1 and not config.speculative_algorithm:
                check_ring(run[0]["ring"], trace)
