"""Views of topics: what each form shows is counted again from the trace of a random run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from minisched.checks.causes import lost_ns
from minisched.checks.draw import Drawn, all_designs
from minisched.checks.draw import draw as draw_workload
from minisched.checks.overlap import forwards
from minisched.devices.cost import CostModel
from minisched.engine.engine import Engine
from minisched.export.looks import flat, glyph
from minisched.export.scene import Curve, LaneRow, Lanes, Scene, axis_of
from minisched.export.scene_puml import creole
from minisched.export.state import Stay, panels_of, up_to
from minisched.export.units import ms
from minisched.export.views import draw as draw_view
from minisched.export.views.decode import scene as decode_scene
from minisched.export.views.grammar_manager import scene as grammar_manager_scene
from minisched.export.views.mindie_placeholder import MOST_ENTRIES
from minisched.export.views.mixed_chunk import scene as mixed_chunk_scene
from minisched.export.views.page_allocator import scene as page_allocator_scene
from minisched.export.views.radix_cache import box_of, changes_of, choose
from minisched.export.views.steps import forwards_of, opening
from minisched.memory import PageAllocator, ReqToTokenPool
from minisched.recipes import RECIPES, recipe, run_of
from minisched.trace import Counter as Count
from minisched.trace import Mark, Recorder, Slice, Trace
from minisched.trace.sides import shown_side
from tests.support import Forms, drawn_run, forms_of, many, read_timing

VIEW_COST = CostModel(
    {"receive": 3_000, "schedule": 7_000, "prepare": 2_000, "launch": 4_000, "process": 5_000,
     "output": 1_000, "mask": 6_000, "launch sample": 2_000},
    forward_base=60_000, forward_per_token=12_000, sample=9_000, copy=3_000,
)  # fmt: skip

ABOUT = {  # relays or loops, where a topic is not about all of them
    "future_map": ("ring", "pool"), "token_pool": ("token_pool",), "lazy_chain": ("chain",),
    "placeholder_fill": ("fill_host", "fill_device"), "prev_sampled": ("prev_sampled",),
    "request_state": ("request_state",),
    "mindie_placeholder": ("mindie_placeholder", "mindie_dual", "mindie_single"),
}  # fmt: skip

WANTED: dict[str, Callable[[Drawn], bool]] = {
    "retraction": lambda drawn: drawn.theme == "crowded",
    "grammar_manager": lambda drawn: any(r.params.regex for r in drawn.workload.requests),
}


def runs_for(topic: str, count: int) -> Iterator[tuple[Trace, Forms, Engine]]:
    """So many runs in which there is something to show, of designs that the topic is about."""
    designs = [
        design.name
        for design in all_designs()
        if design.loop != "pd"
        and (topic not in ABOUT or {design.loop, design.relay} & {*ABOUT[topic]})
    ]
    for seed in range(1000):
        if topic in WANTED and not WANTED[topic](draw_workload(seed, odd=False)):
            continue
        name = designs[seed * 7 % len(designs)]
        trace, (engine, *_) = drawn_run(seed, name, VIEW_COST, odd=False)
        if forms := forms_of(topic, trace):
            print(f"minisched check --seed {seed} --loop {name}")  # pytest shows it if it fails
            yield trace, forms, engine
            if (count := count - 1) == 0:
                return


def boxes_in(puml: str) -> dict[str, list[Any]]:
    """(fill, start, end) of its boxes by the title of their lane, in order of time."""
    titles = re.findall(r'^rectangle "(.*)" as (lane[\d_]+)$', puml, re.M)
    assert len(titles) == len({title for title, _ in titles})
    boxes = sorted(read_timing(puml)[0].elements(), key=lambda box: box[2])
    return {title: [box[1:] for box in boxes if box[0] == name] for title, name in titles}


def boxes_of(scene: Scene) -> dict[str, list[Any]]:
    """The same, as the scene's lanes say it; lanes of one picture have different titles."""
    lanes = [one for part in scene.parts for one in part.shows if isinstance(one, Lanes)]
    lanes = [one for one in lanes if axis_of(one) == axis_of(lanes[0])]
    return {creole(row.title): drawn(row) for one in lanes for row in one.rows}


def lanes_in(scene: Scene) -> list[LaneRow]:
    shows = [one for part in scene.parts for one in part.shows]
    return [row for one in shows if isinstance(one, Lanes) for row in one.rows]


def drawn(row: LaneRow) -> list[Any]:
    boxes = [(flat(i.kind), i.start, i.end) for i in row.spans if i.end > i.start]
    return sorted(boxes, key=lambda box: box[1])


def marks(trace: Trace, *names: str) -> list[Mark]:
    return [mark for mark in trace.marks if mark.name in names]


def words(mark: Mark, *names: str) -> tuple[str, ...]:
    return tuple(str(mark.attrs[name]) for name in names)


def numbers(mark: Mark, name: str) -> list[int]:
    return list(mark.attrs[name])


# -- memory ----------------------------------------------------------------------------------------


def radix_cache(trace: Trace, forms: Forms, _: Engine) -> None:
    tree, changes = panels_of(trace)["tree"], changes_of(trace)
    chosen = choose(changes, tree.stays)
    sections = re.split(r"^After \d+, at .*$", forms.text, flags=re.M)[1:]
    assert len(sections) == len(chosen) == forms.puml.count("\npackage ")
    is_cut = re.search(r"the first \d+ of \d+ nodes", forms.words)
    for at, time in enumerate([] if is_cut else chosen, 1):
        boxes = forms.picture.shapes("rect", tree=str(at), node="*")
        told = {(place, str(s.size), s.kind) for place, s in tree.at(time).items()}
        drawn = {(f"node {b['data-node']}", b["data-pages"], b["data-state"]) for b in boxes}
        gone = {f"node {m.attrs['node']}" for m in changes[time] if m.name == "radix evict"}
        assert drawn - {box for box in drawn if box[0] in gone} == told
        states = Counter(glyph(box[2]) for box in drawn)
        lines = sections[at - 1].split("\n\n")[0].splitlines()
        assert Counter(line.split("─ ")[1][0] for line in lines if "─ " in line) == states
        named = re.findall(rf" as t{at - 1}_([1-9]\d*) #", forms.puml)
        assert {f"node {one}" for one in named} == {box[0] for box in drawn}


def test_who_points_at_a_locked_node_reads_all_its_holders() -> None:
    stay = Stay("node 2", "protected", label="1 2", parent="root", size=3)
    box = box_of(stay, "protected", {*"dbca"}, False, 1)
    assert box.lines == ("1 2", "3 pages, locked by a, b +2")
    assert box.about == "1 2; 3 pages: a, b, c, d"


def page_allocator(trace: Trace, forms: Forms, _: Engine) -> None:
    part, _ = opening(trace, 60)
    for unit in ("page", "row"):
        stays = up_to(panels_of(part)[f"{unit}s"].stays, part.end)
        shown = Counter(
            (f"{unit} {at}", box["data-start"], box["data-end"], box["data-rid"])
            for box in forms.picture.shapes("rect", unit=unit)
            for at in range(int(box["data-first"]), int(box["data-last"]) + 1)
        )
        told = Counter((s.place, str(s.start), str(s.end), s.rid) for s in stays)
        assert shown == told or (unit == "page" and "too many" in forms.words)
    assert boxes_in(forms.puml) == boxes_of(page_allocator_scene(trace))


def test_of_pages_too_many_to_be_told_apart_the_rows_are_shown() -> None:
    recorder, now = Recorder(), 0
    recorder.now = lambda: now
    recorder.mark("kv pool", pages=10_000, page_size=1, rows=80)
    allocator, table = PageAllocator(10_000, 1, recorder), ReqToTokenPool(80, recorder)
    for at in range(80):
        now = 1_000_000 * at
        allocator.alloc(lease := table.alloc(f"r{at}"), 10_000 // 80)
        recorder.slice(Slice(at + 1, "forward", "forward", now, now + 900_000, at + 1, "extend"))
        now += 500_000
        recorder.mark("finish", rid=lease.rid, reason="length", outputs=1)
    trace = Trace.of(recorder, "serial", "sim", "hash", "virtual")
    forms = forms_of("page_allocator", trace)
    assert forms and "60 lanes of pages are too many" in forms.words
    assert len({box["data-rid"] for box in forms.picture.shapes("rect", unit="row")}) == 48
    assert not forms.picture.shapes("rect", unit="page")


# -- policy ----------------------------------------------------------------------------------------


def schedule_policy(trace: Trace, forms: Forms, _: Engine) -> None:
    story = [m for m in marks(trace, "queue order", "admit") if m.attrs.get("rids", "x")]
    starts = [at for at, mark in enumerate(story) if mark.name == "queue order"]
    orders = [list(story[at].attrs["rids"]) for at in starts]
    if len(orders) > 10:
        return
    for at, (start, end) in enumerate(pairwise([*starts, len(story)])):
        shapes = forms.picture.shapes("rect", round=str(at + 1), place="*")
        column = sorted(shapes, key=lambda shape: float(shape["y"]))
        assert [shape["data-rid"] for shape in column] == orders[at]
        admitted = {str(mark.attrs["rid"]) for mark in story[start + 1 : end]}
        now = [box["data-rid"] for box in column if "admitted" in box["class"]]
        assert {*now} == admitted & {*orders[at]}
    boxes = forms.picture.shapes("rect", "admitted", tokens="*")
    admits, told = marks(trace, "admit"), sum(int(box["data-tokens"]) for box in boxes)
    assert told == sum(int(mark.attrs["extend_len"]) for mark in admits)


def prefill(trace: Trace, forms: Forms, _: Engine) -> None:
    if "the first" in forms.picture.words + forms.text:
        return
    admits = marks(trace, "admit")
    drawn = forms.picture.shapes("rect", mark="admit", budget="rem_total", left="*")
    shown = [(shape["data-rid"], shape["data-left"]) for shape in drawn]
    assert shown == [words(mark, "rid", "rem_total") for mark in admits]
    grid = forms.text.split("\n\n")[
        1
    ]  # where it is wide, its last columns follow, rows named again
    assert re.findall(r"^  \+ (\w+):", grid, re.M) == [m.attrs["rid"] for m in admits]
    refused = [shape["data-rid"] for shape in forms.picture.shapes("rect", mark="refuse")]
    assert {*refused} == {mark.attrs["rid"] for mark in marks(trace, "refuse")}  # repeated: once
    assert re.findall(r"^  × (\w+): ", grid, re.M) == refused


def decode(trace: Trace, forms: Forms, _: Engine) -> None:
    steps, part = {item.step for item in forwards(trace)[:100]}, opening(trace, 100)[0]
    ran = [item for item in forwards(trace) if item.step in steps]
    rows = Counter((str(item.step), rid) for item in ran for rid in item.rids)
    assert forms.picture.count("step", "rid", tag="rect") == rows
    wasted = [mark for mark in marks(trace, "wasted row") if mark.attrs["step"] in steps]
    told = Counter(words(mark, "step", "rid") for mark in wasted)
    assert forms.picture.count("step", "rid", kind="wasted") == told
    both = [*panels_of(part)["queue"].stays, *panels_of(part)["set"].stays]
    stays = up_to(both, part.end)
    boxes = forms.picture.count("rid", "stay", "start", "end", tag="rect")
    assert boxes == Counter((s.rid, s.kind, str(s.start), str(s.end)) for s in stays)
    assert boxes_in(forms.puml) == boxes_of(decode_scene(trace))


def test_of_a_policy_that_records_no_order_the_admissions_are_shown() -> None:
    trace = run_of("overlap")
    assert not marks(trace, "queue order")
    heads, _, first = draw_view("schedule_policy", trace, "text").partition("1st")
    rid = marks(trace, "admit")[0].attrs["rid"]
    assert "admitted" in heads and first.split()[3] == rid


def retraction(trace: Trace, forms: Forms, _: Engine) -> None:
    found = [str(mark.attrs["rid"]) for mark in marks(trace, "retraction")]
    flags = forms.picture.shapes("path", kind="flag-head", rid="*")
    assert [flag["data-rid"] for flag in flags] == found * (len(flags) // max(1, len(found)))
    assert re.findall(r"^(\w+) at [\d.]+ ms \(", forms.text, re.M) == found[:12]
    assert re.findall(r"^highlight .* : (\w+) is retracted$", forms.puml, re.M) == found


def mixed_chunk(trace: Trace, forms: Forms, engine: Engine) -> None:  # mixed_chunk and unified
    """As high as the tokens that the device had: the time that a forward took tells how many."""
    scene = mixed_chunk_scene(trace)
    (curve, _) = scene.parts[0].shows
    assert isinstance(curve, Curve)
    for item in forwards(trace)[:60]:
        parts = forms.picture.shapes("rect", step=str(item.step), tokens="*")
        tokens = sum(int(part["data-tokens"]) for part in parts)
        assert sorted(part["data-rid"] for part in parts) == sorted(item.rids)
        areas = [dict(one.values) for one in curve.series if one.kind != "line limit"]
        assert sum(area[item.start] for area in areas) == tokens
        time = sum(s.duration for s in trace.slices if (s.name, s.step) == (item.name, item.step))
        if not engine.scheduler.config.speculative_algorithm:
            assert tokens == (time - VIEW_COST.forward_base) / VIEW_COST.forward_per_token, item
    assert boxes_in(forms.puml) == boxes_of(scene)


# -- relays, and the way of a result ---------------------------------------------------------------


def future_map(trace: Trace, forms: Forms, engine: Engine) -> None:
    rids = {item.step: item.rids for item in forwards(trace)[:16]}
    stored, reads, seen, reused = Counter[Any](), Counter[Any](), set[int](), 0
    newest: dict[int, tuple[int, str]] = {}  # by slot, the step and request of its token
    over = Counter[Any]()  # reads whose cell the same step stores into
    for mark in marks(trace, "future slots"):
        slots, step = numbers(mark, "slots"), int(mark.attrs["step"])
        if step not in rids:
            continue
        for slot in numbers(mark, "reads"):
            source, rid = newest[slot]
            (over if slot in slots else reads)[str(slot), rid, str(source)] += 1
        for slot, rid in zip(slots, rids[step], strict=True):
            stored[str(step), str(slot), rid] += 1
            newest[slot] = step, rid
        reused += len(seen & {*slots})
        seen |= {*slots}
    shown = forms.picture.count("step", "slot", "rid", tag="rect", kind="stored")
    assert shown == Counter({cell: n for cell, n in stored.items() if int(cell[1]) <= 12})
    shown = forms.picture.count("slot", "rid", "source", kind="resolved")
    assert shown == Counter({cell: n for cell, n in reads.items() if int(cell[0]) <= 12})
    if engine.worker.relay.name == "ring":
        total = reads.total() + over.total()
        assert f"resolved {total}, reused {reused}" in forms.words
        assert not forms.picture.shapes("rect", kind="lacking"), "reused before it is read"


@pytest.mark.parametrize(("reader", "lost"), [("a", 1), ("b", 0)])
def test_a_token_whose_slot_was_reused_too_early_is_seen(reader: str, lost: int) -> None:
    """A ring of one slot: a's token, then b's in its place, then somebody reads it."""
    slices = tuple(
        Slice(2 * step + at, "forward", name, 10 * step + 5 * at, 10 * step + 5 * at + 5, step,
              "decode", (rid,))
        for step, rid in enumerate(("a", "b", reader), 1)
        for at, name in enumerate(("forward", "sample"))
    )  # fmt: skip
    told = [Mark("future map", 0, {"limit": 1, "size": 2})]
    none: tuple[int, ...] = ()
    for step, reads in enumerate((none, none, (1,)), 1):
        told.append(Mark("future slots", 10 * step, {"step": step, "slots": (1,), "reads": reads}))
    counters = (Count("future slots", 10, 0),)
    trace = Trace("overlap", "sim", "hash", "virtual", slices, (), counters, tuple(told))
    forms = forms_of("future_map", trace)
    assert forms and len(forms.picture.shapes("rect", kind="lacking", slot="1")) == lost
    assert ("too early 1" in forms.text) == ("too early 1" in forms.picture.words) == bool(lost)


def token_pool(trace: Trace, forms: Forms, _: Engine) -> None:
    if "left out" in forms.picture.words or len(forwards(trace)) > 24:
        return
    writes, reads = Counter[Any](), Counter[Any]()
    for mark in marks(trace, "token pool"):
        columns = [numbers(mark, key) for key in ("rows", "uploads", "starts", "ends", "writes")]
        for row, upload, start, end, write in zip(*columns, strict=True):
            copied = range(upload, end) if upload >= 0 else range(0)
            at = str(mark.attrs["step"]), str(row)
            written = [*copied, *([write] if write >= 0 else [])]
            writes.update((*at, str(position)) for position in written)
            reads.update((*at, str(position)) for position in range(start, end))
    assert forms.picture.count("step", "slot", "position", tag="rect") == writes
    assert forms.picture.count("gathered", "slot", "position", tag="rect") == reads
    signs = "".join(map(glyph, ("upload", "stale", "sample", "unread", "wasted", "lacking")))
    table = forms.text.partition("Token pool, row by position (")[2]
    assert len(re.findall(rf"(?<=\s)[{signs}] \d+(?=\s)", table)) == writes.total()


def lazy_chain(trace: Trace, forms: Forms, _: Engine) -> None:
    told = [(int(m.attrs["step"]), int(m.attrs["source"])) for m in marks(trace, "lazy tokens")]
    drawn = {int(step) for (step,) in forms.picture.count("step", tag="rect")}
    assert drawn <= {item.step for item in forwards_of(trace)} and drawn
    told = [(step, source) for step, source in told if step in drawn]
    assert {step for step, _ in told} == drawn
    sources = {(str(source), str(step)) for step, source in told if source in drawn}
    assert {*forms.picture.count("source", "step", tag="line")} == sources
    fresh = {(str(step),) for step, source in told if source not in drawn}
    assert {*forms.picture.count("step", kind="stored")} == fresh
    early = len(forms.picture.shapes("rect", kind="promised", step="*"))
    assert f"{early} of {len(told)} steps" in forms.words


def placeholder_fill(trace: Trace, forms: Forms, _: Engine) -> None:
    ran = {item.step: item for item in forwards(trace)}
    rows = forms.picture.shapes("rect", source="*", rid="*")
    steps = {int(row["data-step"]) for row in rows}
    boxes = Counter((str(step), rid) for step in steps for rid in ran[step].rids)
    assert forms.picture.count("step", "rid", tag="rect") == boxes
    joined = forms.picture.shapes("line", "arrow", step="*", row="*", source="*")
    for shape in joined:
        is_moved = shape["data-row"] != shape["data-source"]
        assert shape["class"].split()[1] == ("token" if is_moved else "stay")
        step, row, source = (int(shape[f"data-{name}"]) for name in ("step", "row", "source"))
        assert ran[step].rids[row] == ran[step - 1].rids[source]
    relayed = {item.id for item in trace.slices if item.name in ("sample", "copy")}
    edges = {e.dst for e in trace.edges if e.kind == "token" and e.src in relayed}
    filled = {step for step in steps if ran[step].id in edges}
    assert {int(shape["data-step"]) for shape in joined} == filled
    assert f"{len(joined)} of {len(rows)} rows" in forms.words


def prev_sampled(trace: Trace, forms: Forms, _: Engine) -> None:
    table = forms.text.partition("Rows of input_ids")[2].partition("\n")[2]
    table = table.partition("full H2D: ")[0]
    steps = {int(shape["data-step"]) for shape in forms.picture.shapes("rect", step="*")}
    told = [mark for mark in marks(trace, "prev sampled") if mark.attrs["step"] in steps]
    sources = Counter(str(place) for mark in told for place in mark.attrs["sources"])
    assert Counter(re.findall(r"from row\s+(\d+)", table)) == sources
    assert len(forms.picture.shapes("line", kind="arrow", step="*")) == sources.total()


def request_state(trace: Trace, forms: Forms, _: Engine) -> None:
    """A request has one cell in each of its steps, in one slot until its slot is released."""
    trace, cells = shown_side(trace), forms.picture.shapes("rect", slot="*", step="*")
    steps = {int(cell["data-step"]) for cell in cells}
    ran = {item.step: item.rids for item in forwards(trace) if item.step in steps}
    if "the first" not in forms.picture.words:
        assert {(int(cell["data-step"]), cell["data-rid"]) for cell in cells} == {
            (step, rid) for step, rids in ran.items() for rid in rids
        }
    for cell in cells:
        assert ran[int(cell["data-step"])][int(cell["data-place"])] == cell["data-rid"]
    told = [mark for mark in marks(trace, "request state") if mark.attrs["step"] in steps]
    sent = [count for mark in told for count in mark.attrs["sent"]]
    assert re.search(rf"keeps its slot: {sent.count(0)} tokens? stay", forms.words)
    rows = {(rid, at) for rids in ran.values() for at, rid in enumerate(rids)}
    has_moved = len(rows) > len({rid for rid, _ in rows})
    assert ("changes its row" in forms.words) == has_moved


def generation_batch_result(trace: Trace, forms: Forms, _: Engine) -> None:
    steps = {int(shape["data-step"]) for shape in forms.picture.shapes("rect", op="forward")}
    assert steps == {item.step for item in forwards(trace)[: len(steps)]}
    drawn = {name: Counter[int]() for name in ("ns", "ready")}
    for name, found in drawn.items():
        only = {"op": "wait"} if name == "ns" else {}
        for shape in forms.picture.shapes("rect", **{name: "*", **only}):
            found[int(shape["data-step"])] += int(shape[f"data-{name}"])
    waits = Counter[int]()
    for item in trace.slices:
        if item.name == "wait" and item.step in steps:
            waits[item.step] += item.duration
    assert +drawn["ns"] == +waits
    slices = {item.id: item for item in trace.slices}
    pairs = [(slices[e.src], slices[e.dst]) for e in trace.edges if e.kind == "result"]
    ready = Counter({dst.step: dst.start - src.end for src, dst in pairs if dst.step in steps})
    assert +drawn["ready"] == +ready


# -- grammars, and what one loop alone has ---------------------------------------------------------


def grammar_manager(trace: Trace, forms: Forms, _: Engine) -> None:
    if "the first" in forms.picture.words:
        return
    masks = [
        (*words(mark, "rid", "step"), " ".join(map(str, mark.attrs["allowed"])))
        for mark in marks(trace, "grammar mask")
    ]
    assert forms.picture.count("rid", "step", "allowed", tag="rect") == Counter(masks)
    ended = [mark for mark in marks(trace, "grammar accept") if mark.attrs["terminated"]]
    ends = Counter(words(mark, "rid", "step") for mark in ended)
    assert forms.picture.count("rid", "step", kind="end", tag="path") == ends
    lost = sum(
        item.duration
        for row in lanes_in(grammar_manager_scene(trace))
        for item in row.spans
        if item.kind == "waited" and item.label.startswith("grammar ")
    )
    assert lost == lost_ns(trace).get("grammar", 0)


def mindie_placeholder(trace: Trace, forms: Forms, _: Engine) -> None:
    """A box for each token of each list, at its place; the newest are never left out."""
    drawn = forms.picture.count("entry", "rid", "place", "token", tag="rect")
    columns, wanted = {rid for _, rid, *_ in drawn}, Counter[Any]()
    for at, mark in enumerate(marks(trace, "ledger")):
        lists, begin = zip(mark.attrs["rids"], mark.attrs["lengths"], strict=True), 0
        for rid, length in lists:
            tokens, begin = mark.attrs["tokens"][begin : begin + length], begin + length
            boxes = [(ms(mark.time), rid, str(n), str(one)) for n, one in enumerate(tokens)]
            wanted.update(boxes)
            assert at >= MOST_ENTRIES or rid not in columns or all(drawn[box] for box in boxes[-1:])
    assert drawn <= wanted


def searches() -> Iterator[Trace]:
    """Searches of several widths and page sizes, and one that is retracted and begins again."""
    asked = RECIPES["beam_search"]
    for width, page_size in product((2, 3), (1, 4)):
        config = replace(asked.config, beam_width=width, page_size=page_size)
        yield replace(asked, config=config).run()
    trace = recipe(
        "overlap", "a: 0-3 -> up to 6; b: 20-23 -> up to 6",
        beam_width=2, max_running_requests=2, kv_tokens=16, schedule_conservativeness=0.0,
    ).run()  # fmt: skip
    assert marks(trace, "retraction")
    yield trace


def key_of(shape: dict[str, str]) -> tuple[str, str, str]:
    """The step, row and token of a drawn beam, or of the beam at the end of an arrow."""
    return shape["data-step"], shape["data-place"], shape["data-token"]


def start_of(arrow: dict[str, str], beams: Mapping[Any, dict[str, str]]) -> Any:
    """The beam at the start of an arrow, by its place in the picture."""
    (found,) = (
        key for key, box in beams.items()
        if abs(float(box["x"]) + float(box["width"]) - float(arrow["x1"])) < 2
        and float(box["y"]) + 9 == float(arrow["y1"])
    )  # fmt: skip
    return found


def test_beams_are_drawn_as_they_were_chosen_and_lead_to_the_outputs() -> None:
    for trace in searches():
        forms = forms_of("beam_search", trace)
        assert forms is not None
        looks, links = dict[Any, str](), list[Any]()
        newest = dict[str, tuple[list[Any], list[list[int]]]]()  # by request: cells and outputs
        for mark in marks(trace, "beams"):
            step, rid = words(mark, "step", "rid")
            rows, parents, tokens = (numbers(mark, it) for it in ("rows", "parents", "tokens"))
            is_first, (before, outputs) = mark.attrs["length"] == 1, newest.get(rid, ([], []))
            for beam, cell in enumerate(before):
                children = 0 if is_first else parents.count(beam)
                looks[cell] = ("wasted", "resolved", "stored")[min(2, children)]
            boxes = [(step, str(row), str(token)) for row, token in zip(rows, tokens, strict=True)]
            looks |= dict.fromkeys(boxes, "ready")
            starts = [[]] * len(rows) if is_first else [outputs[parent] for parent in parents]
            longer = [[*start, token] for start, token in zip(starts, tokens, strict=True)]
            newest[rid] = boxes, longer
            if not is_first:
                links += zip((before[parent] for parent in parents), boxes, strict=True)
        shapes = forms.picture.shapes("rect", step="*", place="*", token="*")
        drawn = {key_of(it): it for it in shapes}
        assert len(shapes) == len(drawn)
        assert {cell: it["class"].split()[1] for cell, it in drawn.items()} == looks
        lines = forms.picture.shapes("line", step="*", place="*", token="*")
        assert Counter((start_of(it, drawn), key_of(it)) for it in lines) == Counter(links)
        for mark in (it for it in marks(trace, "tokens") if it.attrs["tokens"]):
            (rid,) = {*mark.attrs["rids"]}
            assert numbers(mark, "tokens") in newest[rid][1]


# -- all of them -----------------------------------------------------------------------------------

FACTS: dict[str, Callable[[Trace, Forms, Engine], None]] = {
    "radix_cache": radix_cache, "page_allocator": page_allocator,
    "schedule_policy": schedule_policy, "prefill": prefill, "decode": decode,
    "retraction": retraction, "mixed_chunk": mixed_chunk, "unified": mixed_chunk,
    "future_map": future_map,
    "token_pool": token_pool, "lazy_chain": lazy_chain, "placeholder_fill": placeholder_fill,
    "prev_sampled": prev_sampled, "request_state": request_state,
    "generation_batch_result": generation_batch_result,
    "grammar_manager": grammar_manager, "mindie_placeholder": mindie_placeholder,
}  # fmt: skip


@pytest.mark.parametrize("topic", FACTS)
def test_each_form_of_a_view_shows_what_the_trace_says(topic: str) -> None:
    for trace, forms, engine in runs_for(topic, many(6, 15)):
        FACTS[topic](trace, forms, engine)
