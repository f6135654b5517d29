"""The allocator's marks replay to its own books at every moment, and the map shows just that."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import Lease
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.recipes import recipes
from minisched.export.state import Panel, Stay, memory, up_to
from minisched.export.views import page_allocator
from minisched.export.views.page_bands import BANDS, KINDS, shares_of
from minisched.export.views.page_blocks import blocks_of, number, runs
from minisched.export.views.page_forms import MOST_EVENTS, lanes_of
from minisched.export.views.page_story import MOST_PAGES, panels, shown_part
from minisched.memory.page_allocator import PageAllocator
from minisched.memory.req_to_token import OwnershipError, ReqToTokenPool
from minisched.models.hash import HashModel
from minisched.trace import Mark, Recorder, Slice, Trace
from tests.stay_reader import boxes_of, lanes_in, read_timing_boxes, table_in
from tests.support import LOOP_OPTIONS, VOCAB, Picture, check_picture, play, workloads
from tests.test_views import COST, crowds, picture_of
from tests.test_views import runs as random_runs

law = settings(max_examples=60, deadline=None)
Owners = dict[str, tuple[str, str]]  # place -> kind, whose


# -- the allocator -----------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 200))
def test_pages_for_is_the_least_that_holds_them(pages: int, size: int, tokens: int) -> None:
    allocator = PageAllocator(pages, size)
    need = allocator.pages_for(tokens)
    assert need * size >= tokens > (need - 1) * size


def test_a_page_is_never_handed_out_while_its_lease_is_in_use() -> None:
    allocator, lease = PageAllocator(2), Lease(1, "a")
    allocator.alloc(lease, 1)
    assert lease.pages == [1]  # never page 0
    allocator.free(lease.pages)
    with pytest.raises(OwnershipError, match=r"^page 1 was handed out while its last lease is in"):
        allocator.alloc(Lease(2, "b"), 1)
    table = ReqToTokenPool(1)
    table.free(table.alloc("a"))
    with pytest.raises(OwnershipError, match=r"^row 1 was handed out while its last lease is in"):
        table.alloc("b")


class Books:
    """Random use of an allocator and a table, with what is true after each moment."""

    def __init__(self, num_pages: int, num_rows: int, dice: random.Random) -> None:
        self.recorder, self.now, self.dice = Recorder(), 0, dice
        self.recorder.now = lambda: self.now
        self.pages = PageAllocator(num_pages, recorder=self.recorder)
        self.table = ReqToTokenPool(num_rows, self.recorder)
        self.open: list[Lease] = []
        self.ended: list[Lease] = []
        self.cached: dict[int, str] = {}  # page -> who computed it
        self.truths: list[tuple[int, list[int], Owners, Owners]] = []

    def act(self) -> None:
        """One operation, if it is possible now; and what is true then."""
        self.now += 10
        getattr(
            self, self.dice.choice(["start", "grow", "grow", "share", "end", "release", "evict"])
        )()
        pages, rows = Owners(), Owners()
        for kind, leases in (("admitted", self.open), ("wasted", self.ended)):
            for lease in leases:
                rows[f"row {lease.row}"] = (kind, lease.rid)
                own = lease.pages[lease.shared_pages :]
                pages |= {f"page {page}": (kind, lease.rid) for page in own}
        pages |= {f"page {page}": ("evictable", "") for page in self.cached}
        self.truths.append((self.now, [*self.pages.free_pages], pages, rows))

    def start(self) -> None:
        if self.table.available_size:
            self.open.append(self.table.alloc(f"r{self.now}"))

    def grow(self) -> None:
        if self.open and self.pages.available_pages:
            most = min(3, self.pages.available_pages)
            self.pages.alloc(self.dice.choice(self.open), self.dice.randint(1, most))

    def share(self) -> None:
        """The prefix cache takes a request's next pages."""
        for lease in self.open:
            if own := lease.pages[lease.shared_pages :][:2]:
                self.pages.disown(own)
                self.cached |= dict.fromkeys(own, lease.rid)
                lease.shared_pages += len(own)
                return

    def end(self) -> None:
        if self.open:
            lease = self.open.pop(self.dice.randrange(len(self.open)))
            self.recorder.mark("finish", rid=lease.rid, reason="length", outputs=1)
            self.ended.append(lease)

    def release(self) -> None:
        if self.ended:
            lease = self.ended.pop(0)
            lease.is_released = True
            self.pages.free(lease.pages[lease.shared_pages :])
            self.table.free(lease)

    def evict(self) -> None:
        gone = [*self.cached][: self.dice.randint(0, 3)]
        self.pages.free(gone)
        for page in gone:
            del self.cached[page]

    def trace(self) -> Trace:
        """What was recorded, with a slice in it, so that it has an end."""
        self.recorder.slice(Slice(1, "forward", "forward", 0, self.now + 10, 1, "decode"))
        return self.recorder.trace("serial", "sim", "hash", "virtual")


def told(panel: Panel, time: int) -> Owners:
    return {place: (stay.kind, stay.rid) for place, stay in panel.at(time).items()}


def replayed_free_list(trace: Trace, num_pages: int, time: int) -> list[int]:
    """The free list, in order, as the marks alone tell it."""
    free = list(range(num_pages, 0, -1))
    for mark in trace.marks:
        if mark.time > time or mark.name not in ("page alloc", "page free"):
            continue
        pages = [int(page) for page in str(mark.attrs["pages"]).split()]
        if mark.name == "page free":
            free += pages
        else:
            assert [free.pop() for _ in pages] == pages
    return free


@law
@given(st.integers(1, 12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_marks_replay_to_the_books_at_every_moment(
    num_pages: int, num_rows: int, dice: random.Random
) -> None:
    books = Books(num_pages, num_rows, dice)
    for _ in range(dice.randint(1, 40)):
        books.act()
    trace = books.trace()
    pages, rows = memory.pages(trace), memory.rows(trace)
    for time, free, owners, rows_then in books.truths:
        assert replayed_free_list(trace, num_pages, time) == free
        assert told(pages, time) == owners
        assert told(rows, time) == rows_then
        ids = {int(place.split()[1]) for place in owners}
        assert sorted(ids | {*free}) == list(range(1, num_pages + 1)), "each page is somewhere"


def watch(device: SimDevice, truths: dict[int, Any]) -> Callable[[Engine], None]:
    """Look into the real books after every call that changes them."""

    def patch(engine: Engine) -> None:
        scheduler = engine.scheduler
        allocator, table = scheduler.allocator, scheduler.table

        def look() -> None:
            used = set(range(1, allocator.num_pages + 1)) - {*allocator.free_pages}
            owners = {page: allocator._owner[page].rid for page in used if page in allocator._owner}
            rows = set(range(1, table.size + 1)) - {*table.free_rows}
            now = device.recorder.now()
            truths[now] = ([*allocator.free_pages], owners, used,
                           {row: table._owner[row].rid for row in rows})  # fmt: skip

        for thing, names in ((allocator, ("alloc", "disown", "free")), (table, ("alloc", "free"))):
            for name in names:
                setattr(thing, name, followed(getattr(thing, name), look))

    return patch


def followed(call: Callable[..., Any], look: Callable[[], None]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        look()
        return result

    return both


@law
@given(workloads(max_requests=5), st.sampled_from(LOOP_OPTIONS))
def test_whole_runs_replay_to_the_scheduler_s_books(workload: Any, options: Any) -> None:
    """Any policy, any loop: whose each page and row is, and the free list in its order."""
    device, truths = SimDevice(), dict[int, Any]()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, *options, device, model, COST, watch(device, truths))
    trace = device.recorder.trace(options[0], "sim", "hash", "virtual")
    pages, rows = memory.pages(trace), memory.rows(trace)
    for time, (free, owners, used, rows_then) in truths.items():
        assert replayed_free_list(trace, workload.config.num_pages, time) == free
        now = {number(stay): stay for stay in pages.at(time).values()}
        assert {*now} == used
        assert {page: stay.rid for page, stay in now.items() if stay.rid} == owners
        assert {number(stay): stay.rid for stay in rows.at(time).values()} == rows_then


# -- the map -----------------------------------------------------------------------------------


def cut(trace: Trace) -> Trace:
    """What the views show of it."""
    return shown_part(trace)[0]


@law
@given(st.one_of(random_runs(), crowds()))
def test_the_forms_show_every_page_in_every_hand(run: tuple[Trace, Engine]) -> None:
    """SVG, text and PlantUML, each held against the same stays; the boxes of a run are exact."""
    trace = run[0]
    picture = picture_of("page_allocator", trace)
    part = cut(trace)
    pages, rows = panels(part)
    for shown, whole in ((pages, memory.pages(part)), (rows, memory.rows(part))):
        assert list(shown.stays) == up_to(whole.stays, part.end)
    for unit, panel in (("page", pages), ("row", rows)):
        shown = Counter(
            (f"{unit} {at}", box["data-start"], box["data-end"], box["data-rid"])
            for box in picture.shapes("rect", unit=unit)
            for at in range(int(box["data-first"]), int(box["data-last"]) + 1)
        )
        assert shown == Counter(
            (stay.place, str(stay.start), str(stay.end), stay.rid) for stay in panel.stays
        )
    retracted = Counter((str(mark.attrs["rid"]),) for mark in named(part, "retraction"))
    assert picture.count("rid", kind="flag-head") == retracted
    evicted = sum(int(shape["data-evicted"]) for shape in picture.shapes("path", evicted="*"))
    assert evicted == sum(int(mark.attrs["pages"]) for mark in named(part, "radix evict"))
    lanes = [*lanes_of(rows, "row"), *lanes_of(pages, "page")]
    together = {place: way for title, way in lanes for place in places_in(title)}
    assert {place: list(map(fate, way)) for place, way in together.items()} == {
        place: [fate(stay) for stay in panel.stays if stay.place == place]
        for panel in (pages, rows)
        for place in panel.places
    }
    text = page_allocator.text(trace)
    assert {*lanes_in(text)} >= {title for title, _ in lanes}
    assert max(map(len, text.splitlines())) <= 100
    events = named(part, "page alloc", "page disown", "page free", "finish", "retraction")
    assert len(table_in(text, "What happened")) == min(MOST_EVENTS, len(events))
    puml = page_allocator.puml(trace)
    assert read_timing_boxes(puml) == boxes_of(lanes)
    assert puml.count("\nhighlight ") == len(named(part, "retraction"))


def places_in(title: str) -> list[str]:
    """``page 3`` and ``page 4`` for ``page 3-4``."""
    unit, ids = title.split()
    first, _, last = ids.partition("-")
    return [f"{unit} {at}" for at in range(int(first), int(last or first) + 1)]


def fate(stay: Stay) -> tuple[str, str, int, int]:
    return stay.kind, stay.label, stay.start, stay.end


def named(trace: Trace, *names: str) -> list[Mark]:
    return [mark for mark in trace.marks if mark.name in names]


@given(st.sets(st.integers(1, 30)))
def test_runs_of_ids_can_be_read_back(ids: set[int]) -> None:
    read: list[int] = []
    for word in runs(ids).split():
        first, _, last = word.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert read == sorted(ids)


stays = st.builds(
    lambda page, kind, start, length: Stay(f"page {page}", kind, start, start + length, "a", "a"),
    st.integers(1, 60), st.sampled_from(KINDS), st.integers(0, 900), st.integers(1, 100),
)  # fmt: skip


@given(st.lists(stays, max_size=20), st.integers(1, 7), st.integers(1, 50))
def test_no_page_s_time_is_lost_in_bands(some: list[Stay], size: int, columns: int) -> None:
    """Share by share, a band has exactly the page-time of its stays, kind by kind."""
    shares, end = shares_of(tuple(some), 60, size, columns, 1000), 1000
    told, shown = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for stay in some:
        told[(number(stay) - 1) // size, stay.kind] += stay.end - stay.start
    for at, kinds in enumerate(shares):
        places = min(size, 60 - at * size)
        for kind in KINDS:
            shown[at, kind] = round(sum(kinds[kind]) * places * end / columns)
    assert +told == +shown
    blocks = blocks_of(some)
    assert sum(block.size for block in blocks) == len(some)


def large(num_pages: int, requests: int = 40) -> Trace:
    """A pool of which all is given out in turn, a hundred requests' worth of it at a time."""
    recorder, now = Recorder(), 0
    recorder.now = lambda: now
    recorder.mark("kv pool", pages=num_pages, page_size=1, rows=requests)
    allocator, table = PageAllocator(num_pages, 1, recorder), ReqToTokenPool(requests, recorder)
    for at in range(requests):
        now = 1_000_000 * at
        allocator.alloc(lease := table.alloc(f"r{at}"), num_pages // requests)
        recorder.slice(Slice(at + 1, "forward", "forward", now, now + 900_000, at + 1, "extend"))
        now += 500_000
        recorder.mark("finish", rid=lease.rid, reason="length", outputs=1)
        if at % 2:
            allocator.disown(lease.pages)
    return recorder.trace("serial", "sim", "hash", "virtual")


def test_ten_thousand_pages_are_shown_in_bands_and_it_says_so() -> None:
    trace = large(10_000, requests=80)
    svg = page_allocator.view(trace)
    picture = Picture(svg)
    check_picture(picture)
    assert "10000 pages in bands of 313: a colour's height is its share" in picture.words
    assert len(svg) < 200_000 and picture.height < 1400
    bands = picture.shapes("path", band="*", whose="*")
    assert len({band["data-band"] for band in bands}) == BANDS
    size = 313
    time: Counter[str] = Counter()
    for stay in panels(trace)[0].stays:
        time[stay.kind] += stay.end - stay.start
    for kind in KINDS:
        shown = sum(
            float(band["data-share"]) * min(size, 10_001 - int(band["data-band"])) * trace.end
            for band in bands
            if band["data-whose"] == kind
        )
        assert abs(shown - time[kind]) <= 0.00005 * 10_000 * trace.end + 1
    text = page_allocator.text(trace)
    words = " ".join(text.split())
    assert "10000 pages in bands of 313; a cell shows in whose hands most of them were" in words
    assert max(map(len, text.splitlines())) <= 100


def test_as_many_pages_as_can_be_told_apart_are_told_apart() -> None:
    for pages in (MOST_PAGES, MOST_PAGES + 40):
        picture = Picture(page_allocator.view(large(pages, requests=pages)))
        check_picture(picture)
        assert bool(picture.shapes("rect", unit="page")) == (pages == MOST_PAGES)
        assert ("in bands of" in picture.words) == (pages > MOST_PAGES)


def test_the_golden_run_reuses_evicts_and_retracts() -> None:
    trace = recipes()["page_allocator"].run()
    names = Counter(mark.name for mark in trace.marks)
    assert names["retraction"] == 1 and names["radix evict"] == 3
    picture = picture_of("page_allocator", trace)
    assert "At most 16 pages in use at once; 10 of 16 went from one request" in picture.words
    fourth = [b["data-rid"] for b in picture.shapes("rect", unit="page", first="4", rid="*")]
    assert [rid for rid in fourth if rid] == ["a", "c"]
