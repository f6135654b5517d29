"""What the stepper shows, without a browser: at every moment it is what the engine's books say.

The books are looked into while the run goes on, beside its trace; the page is made of the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from minisched.checks.draw.designs import Design
from minisched.checks.draw.draw import designs_for, draw
from minisched.checks.judge import hash_model
from minisched.checks.judge import run as run_case
from minisched.checks.leaks.books import nodes_of
from minisched.checks.workload import fresh
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.state import Panel, panels
from minisched.export.state.side import one_side
from minisched.export.views.future_slots import stays_of
from minisched.scheduler.state import SchedulerState
from minisched.trace import Trace
from tests.support import many

# -- the books of a run ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """One moment, in the engine's own terms."""

    waiting: set[str]  # who has no memory yet: SGLang's waiting queue, and who is on the way there
    holding: set[str]  # who has
    zombies: list[str]  # whose leases are closed, and a launched step still names them
    rows: dict[int, tuple[str, str]]
    pages: dict[int, tuple[str, str]]  # page -> kind, whose
    locks: dict[int, int]  # node -> lock_ref


def look(scheduler: SchedulerState) -> Truth:
    """Everything that the panels show, and the counters."""
    leases, table = scheduler.leases, scheduler.table
    nodes = nodes_of(scheduler)  # type: ignore[arg-type]
    zombies = [lease for lease in leases.returning if not lease.num_transfers]
    pages = {
        page: ("wasted" if lease in zombies else "admitted", lease.rid)
        for page, lease in scheduler.allocator._owner.items()
        if lease in zombies or not lease.is_released
    }
    for node in nodes:
        kind = "protected" if node.lock_ref else "evictable"
        pages |= dict.fromkeys(node.edge.page_ids, (kind, ""))
    taken = {row: table._owner[row] for row in {*range(1, table.size + 1)} - {*table.free_rows}}
    live = scheduler.live
    holding = {rid for rid, req in live.items() if req.lease is not None}
    assert {req.rid for req in scheduler.waiting_queue} <= live.keys() - holding
    return Truth(
        live.keys() - holding,
        holding,
        sorted(lease.rid for lease in zombies),
        {row: ("wasted" if at in zombies else "admitted", at.rid) for row, at in taken.items()},
        pages,
        {node.id: node.lock_ref for node in nodes},
    )


@dataclass
class Books:
    """The truth after each moment of one engine; the last of one time counts."""

    engine: Engine
    at: dict[int, Truth] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look whenever time is about to pass: nothing is missed, and nothing half done seen."""
        device: Any = self.engine.device
        assert isinstance(device, SimDevice)
        for name in ("idle_until", "_run_next"):
            setattr(device, name, self.first(getattr(device, name)))

    def first(self, call: Callable[..., None]) -> Callable[..., None]:
        def both(*arguments: int) -> None:
            self.note()
            call(*arguments)

        return both

    def note(self) -> None:
        self.at[self.engine.device.now()] = look(self.engine.scheduler)

    def up_to(self, end: int) -> dict[int, Truth]:
        """All of it up to the run's last slice, and what is there then."""
        if self.engine.device.now() <= end:
            self.note()  # a pair's other side may go on
        found = {time: truth for time, truth in self.at.items() if time <= end}
        return found | {end: found[max(found)]}


@dataclass(frozen=True)
class Seen:
    """One engine's run, its panels, and its own books."""

    panels: dict[str, Panel]
    trace: Trace
    truths: dict[int, Truth]


def seen(design: Design, seed: int) -> tuple[Trace, list[Seen]]:
    """A drawn run, and what each engine's books said meanwhile; a pair has two."""
    case = draw(seed, odd=False).on(design, "sim")
    books, device = list[Books](), SimDevice()
    workload = fresh(case.workload)
    patch = lambda engine: books.append(Books(engine))  # noqa: E731
    run_case(case, workload, device, hash_model("sim", workload), patch, lambda engine: None)
    trace = device.recorder.trace(design.loop, "sim", "hash", device.clock)
    found = panels(trace)
    sides = ["prefill", "decode"] if len(books) == 2 else [""]
    return trace, [
        Seen(
            {panel.name: panel for panel in found if panel.side == side},
            one_side(trace, side) if side else trace,
            book.up_to(trace.end),
        )
        for side, book in zip(sides, books, strict=True)
    ]


# -- the state at every moment ---------------------------------------------------------------------


def whose(panel: Panel, time: int) -> dict[int, tuple[str, str]]:
    """Kind and request of each page or row."""
    return {int(s.place.split()[1]): (s.kind, s.rid) for s in panel.at(time).values()}


def check_state(run: Seen) -> None:
    """Every panel, at every moment up to the last: what the engine's own books say."""
    of = run.panels
    assert max(run.truths) == run.trace.end
    for time, truth in run.truths.items():
        there = of["set"].at(time).values()
        assert {stay.rid for stay in of["queue"].at(time).values()} == truth.waiting, time
        alive = {stay.rid for stay in there if stay.kind != "wasted"}
        sending = {stay.rid for stay in there if stay.kind == "sending"}  # maybe after its end
        assert truth.holding <= alive <= truth.holding | sending, time
        assert sorted(s.rid for s in there if s.kind == "wasted") == truth.zombies, time
        assert whose(of["rows"], time) == truth.rows, time
        assert whose(of["pages"], time) == truth.pages, time
        nodes = {int(s.place.split()[1]): s.about for s in of["tree"].at(time).values()}
        assert nodes.keys() == truth.locks.keys()
        assert all(f"lock_ref {locks}:" in nodes[at] for at, locks in truth.locks.items())


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
    """On every loop in turn; ``pd`` has two engines."""
    seeds = range(many(8, 200))
    drawn = [(seed, design) for seed in seeds for design in designs_for(draw(seed, False))]
    for seed, design in drawn[part::4]:
        trace, runs = seen(design, seed)
        for run in runs:
            check_state(run)
            config = draw(seed, False).workload.config
            if run.panels["ring"].stays and len(runs) == 1 and not config.speculative_algorithm:
                check_ring(run.panels["ring"], trace)
