"""What the stepper shows, without a browser: at every moment it is what the engine's books say.

The books are looked into while the run goes on, beside its trace; the page is made of the trace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html import unescape
from itertools import pairwise
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
from minisched.export.html import to_html
from minisched.export.notebook import show
from minisched.export.recipes import recipes
from minisched.export.state import Panel, panels
from minisched.export.state.side import one_side
from minisched.export.views.future_slots import stays_of
from minisched.export.views.radix_tree import moments_of, tree_at
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
    used: int  # tokens
    cached: int


def look(scheduler: SchedulerState) -> Truth:
    """Everything that the panels show, and the counters."""
    leases, tree, table = scheduler.leases, scheduler.tree, scheduler.table
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
        scheduler.num_used_tokens,
        (tree.evictable_size if tree else 0) * scheduler.config.page_size,
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
    page_size: int


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
            book.engine.scheduler.config.page_size,
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
        pages = whose(of["pages"], time)
        assert pages == truth.pages, time
        kinds = Counter(kind for kind, _ in pages.values())
        assert kinds["evictable"] * run.page_size == truth.cached
        assert (kinds.total() - kinds["evictable"]) * run.page_size == truth.used
        nodes = {int(s.place.split()[1]): s.about for s in of["tree"].at(time).values()}
        assert nodes.keys() == truth.locks.keys()
        assert all(f"lock_ref {locks}:" in nodes[at] for at, locks in truth.locks.items())


def check_places(found: list[Panel], end: int) -> None:
    """No two stays of a place overlap, and each takes time."""
    for panel in found:
        at: dict[str, list[Any]] = {place: [] for place in panel.places}
        for stay in panel.stays:
            assert 0 <= stay.start < stay.end <= end + 1
            at[stay.place].append(stay)
        for stays in at.values():
            assert all(before.end <= after.start for before, after in pairwise(stays))


def check_tree(panel: Panel, trace: Trace) -> None:
    """The tree rebuilt from the marks; each node stands after the one that it hangs on."""
    number = {place: at for at, place in enumerate(panel.places)}
    for moment in moments_of(trace):
        now = panel.at(moment.time)
        rebuilt = [node for node in tree_at(trace, moment.time).nodes.values() if not node.evicted]
        assert {s.place: (s.parent, s.kind, s.label, s.about) for s in now.values()} == {
            f"node {node.id}": (
                f"node {node.parent}" if node.parent else "root",
                node.state,
                node.tokens,
                f"{node.pages} page{'s' * (node.pages != 1)}, lock_ref {node.lock_ref}: "
                f"{node.state}",
            )
            for node in rebuilt
        }
        path = list[str]()
        for place in sorted(now, key=number.__getitem__):  # depth first
            while path and path[-1] != now[place].parent:
                path.pop()
            assert path or now[place].parent == "root"
            path.append(place)


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


def drawn_designs(count: int) -> list[tuple[int, Design]]:
    """Loops in turn, some for each workload."""
    return [(seed, design) for seed in range(count) for design in designs_for(draw(seed, False))]


@pytest.mark.parametrize("part", range(4))
def test_every_panel_is_what_the_engine_s_books_say(part: int) -> None:
    """On every loop in turn; ``pd`` has two engines."""
    for seed, design in drawn_designs(many(8, 200))[part::4]:
        trace, runs = seen(design, seed)
        check_places(panels(trace), trace.end)
        for run in runs:
            check_state(run)
            check_tree(run.panels["tree"], run.trace)
            config = draw(seed, False).workload.config
            if run.panels["ring"].stays and len(runs) == 1 and not config.speculative_algorithm:
                check_ring(run.panels["ring"], trace)


# -- the page --------------------------------------------------------------------------------------


def golden(topic: str) -> Trace:
    return recipes()[topic].run()


def column(html: str, head: str) -> list[str]:
    """A column of the table of metrics."""
    table = html[html.index('<div class="scroll">') :].split("</div>")[0]
    heads, cells = (
        re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", table, re.S) for tag in ("th", "td")
    )
    plain = [unescape(re.sub("<.*?>", "", text)) for text in cells]
    return plain[heads.index(head) :: len(heads)]


def test_a_speedup_is_only_told_of_the_same_work_on_the_same_clock() -> None:
    serial, overlap = golden("serial"), golden("overlap")
    finish = next(mark for mark in overlap.marks if mark.name == "finish")
    one_more = replace(finish, attrs={**finish.attrs, "rid": "z"})  # request that ended
    for other, why in (
        (replace(overlap, clock="wall"), "measured"),
        (replace(overlap, marks=(*overlap.marks, one_more)), "requests"),
    ):
        html = to_html([serial, other])
        assert column(html, "speed-up") == ["–", "–"] and "Ideal speed-up" not in html
        assert re.search(rf"No speed-up[^<]*{why}", html)
        told = column(to_html([serial, overlap, other]), "speed-up")
        assert told == ["1.00×", f"{serial.end / overlap.end:.2f}×", "–"]


def test_the_frame_in_a_notebook_holds_the_very_page() -> None:
    one = golden("overlap")
    html = show([one], title='<b> & "so"')._repr_html_()
    found = re.search("srcdoc='([^']*)'", html)
    assert found and unescape(found[1]) == to_html([one], title='<b> & "so"')
    with pytest.raises(ValueError, match="at least 1 pixel high, but height is 0"):
        show(one, height=0)
