"""Views of policy and memory: each form shows what the trace says, counted again from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import forwards
from minisched.devices.cost import SIM_COST
from minisched.engine.engine import Engine
from minisched.export.recipes import trace_of
from minisched.export.state import Stay, memory, up_to
from minisched.export.state.requests import stays_of
from minisched.export.views import draw
from minisched.export.views.page_bands import BANDS, KINDS
from minisched.export.views.page_forms import MOST_EVENTS, lanes_of
from minisched.export.views.page_story import MOST_PAGES, panels, shown_part
from minisched.export.views.radix_story import changes, choose
from minisched.export.views.radix_tree import Tree, tree_at
from minisched.export.views.set_story import lives, requests_of
from minisched.export.views.step_forms import step_rows
from minisched.export.views.steps import opening, requests_in, steps_of
from minisched.export.views.text_page import GLYPHS
from minisched.memory import RadixCache
from minisched.memory.page_allocator import PageAllocator
from minisched.memory.radix_node import TreeNode
from minisched.memory.req_to_token import ReqToTokenPool
from minisched.trace import Counter as Count
from minisched.trace import Mark, Recorder, Slice, Trace
from tests.support import (
    VIEW_COST,
    Forms,
    boxes_in,
    boxes_of,
    by_rid,
    forms_of,
    many,
    marks,
    runs_for,
    steps_shown,
    table_in,
)

FACTS: dict[str, Callable[[Trace, Forms, Engine], None]] = {}


# -- radix_cache: the tree before and after --------------------------------------------------------

Nodes = dict[int, tuple[int, int, int, str]]  # id -> parent's id, pages, locks, first tokens


def real_tree(cache: RadixCache) -> Nodes:
    found, stack = Nodes(), [cache.root_node]
    while stack:
        node = stack.pop()
        stack += node.children.values()
        if node.parent is not None:
            edge = node.edge
            found[node.id] = node.parent.id, edge.num_pages, node.lock_ref, edge.beginning
    return found


def told_tree(tree: Tree) -> Nodes:
    """The same, as the marks tell it."""
    return {
        node.id: (node.parent, node.pages, node.lock_ref, node.tokens)
        for node in tree.nodes.values()
        if not node.evicted
    }


def radix_cache(trace: Trace, forms: Forms, engine: Engine) -> None:
    part, moments, _ = changes(trace)
    if engine.scheduler.tree is not None:
        assert told_tree(tree_at(trace, trace.end + 1)) == real_tree(engine.scheduler.tree)
    shown_moments = choose(moments)
    sections = re.split(r"^\d+ at .* ms", forms.text, flags=re.M)[1:]
    assert len(sections) == len(shown_moments) and forms.puml.count("\npackage ") == 2 * len(
        sections
    )
    is_cut = "more nodes" in forms.picture.words + forms.text + forms.puml
    for at, moment in enumerate(shown_moments, 1):
        before, after = tree_at(part, moment.time - 1), tree_at(part, moment.time)
        before.bury()
        lists = sections[at - 1].split("\n\n")[0].split("\n  before ")[1].split("\n  after  ")
        for name, tree, text in (("before", before, lists[0]), ("after", after, lists[1])):
            if is_cut:
                continue
            boxes = forms.picture.shapes("rect", panel=f"{at} {name}", node="*")
            assert not boxes or {
                tuple(box[f"data-{key}"] for key in ("node", "parent", "pages", "lock", "state"))
                for box in boxes
            } == {
                (str(n.id), str(n.parent), str(n.pages), str(n.lock_ref), n.state)
                for n in tree.nodes.values()
            }
            states = Counter(GLYPHS[node.state] for node in tree.nodes.values())
            assert Counter(line.split("─ ")[1][0] for line in text.splitlines()[1:]) == states
            drawn = re.findall(rf" as {name[0]}{at}_(\d+) #", forms.puml)
            assert {*map(int, drawn)} == tree.nodes.keys()
    gone = sum(int(mark.attrs["pages"]) for mark in marks(part, "radix evict"))
    shapes = forms.picture.shapes("path", evicted="*")
    assert sum(int(shape["data-evicted"]) for shape in shapes) == gone
    if len(moments) <= 40:
        assert len(table_in(forms.text, "Every change")) == len(moments)


FACTS["radix_cache"] = radix_cache
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=10)
ACTIONS = ("insert", "insert", "match", "lock", "unlock", "evict")


@given(st.data(), st.sampled_from([1, 2, 3]))
def test_the_tree_that_marks_tell_is_the_real_one_at_every_moment(
    data: st.DataObject, size: int
) -> None:
    recorder, now, pages = Recorder(), 0, iter(range(1, 10_000))
    recorder.now = lambda: now
    cache, locked, truths = RadixCache(size, recorder=recorder), list[TreeNode](), list[Any]()
    for _ in range(data.draw(st.integers(1, 12))):
        now += 10
        action = data.draw(st.sampled_from(ACTIONS))
        if action == "insert":
            words = data.draw(tokens)
            cache.insert(words, [next(pages) for _ in range(len(words) // size)])
        elif action in ("match", "lock"):
            node = cache.match_prefix(data.draw(tokens)).node
            if action == "lock":
                cache.inc_lock_ref(node)
                locked.append(node)
        elif action == "unlock" and locked:
            cache.dec_lock_ref(locked.pop())
        elif action == "evict":
            cache.evict(data.draw(st.integers(1, 5)))
        truths.append((now, real_tree(cache), cache.protected_size, cache.evictable_size))
    trace = recorder.trace("serial", "sim", "hash", "virtual")
    for moment, truth, protected, evictable in truths:
        tree = tree_at(trace, moment)
        assert told_tree(tree) == truth
        assert (tree.size("protected"), tree.size("evictable")) == (protected, evictable)


# -- page_allocator: every page in every hand ------------------------------------------------------


def page_allocator(trace: Trace, forms: Forms, engine: Engine) -> None:
    part, _ = shown_part(trace)
    pages, rows = panels(part)
    for unit, panel, whole in (
        ("page", pages, memory.pages(part)),
        ("row", rows, memory.rows(part)),
    ):
        assert list(panel.stays) == up_to(whole.stays, part.end)
        drawn = Counter(
            (f"{unit} {at}", box["data-start"], box["data-end"], box["data-rid"])
            for box in forms.picture.shapes("rect", unit=unit)
            for at in range(int(box["data-first"]), int(box["data-last"]) + 1)
        )
        assert drawn == Counter((s.place, str(s.start), str(s.end), s.rid) for s in panel.stays)
    assert forms.picture.count("rid", kind="flag-head") == by_rid(marks(part, "retraction"))
    evicted = sum(int(s["data-evicted"]) for s in forms.picture.shapes("path", evicted="*"))
    assert evicted == sum(int(mark.attrs["pages"]) for mark in marks(part, "radix evict"))
    lanes = [*lanes_of(rows, "row"), *lanes_of(pages, "page")]
    ways = {place: way for title, way in lanes for place in places_in(title)}
    for panel in (pages, rows):
        for place in panel.places:
            mine = [stay for stay in panel.stays if stay.place == place]
            assert list(map(fate, ways[place])) == list(map(fate, mine))
    named = {line.partition("│")[0].strip() for line in forms.text.splitlines() if "│" in line}
    if "pages in bands of" not in forms.words:
        assert named >= {title for title, _ in lanes} and boxes_in(forms.puml) == boxes_of(lanes)
    events = marks(part, "page alloc", "page disown", "page free", "finish", "retraction")
    assert len(table_in(forms.text, "What happened")) == min(MOST_EVENTS, len(events))
    assert forms.puml.count("\nhighlight ") == len(marks(part, "retraction"))


def places_in(title: str) -> list[str]:
    """``page 3`` and ``page 4`` for ``page 3-4``."""
    unit, ids = title.split()
    first, _, last = ids.partition("-")
    return [f"{unit} {at}" for at in range(int(first), int(last or first) + 1)]


def fate(stay: Stay) -> tuple[str, str, int, int]:
    return stay.kind, stay.label, stay.start, stay.end


FACTS["page_allocator"] = page_allocator


def large(num_pages: int, requests: int) -> Trace:
    """A pool of which all is given out in turn, to one request after another."""
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


def test_more_pages_than_can_be_told_apart_are_shown_in_bands_by_their_share() -> None:
    for count in (MOST_PAGES, MOST_PAGES + 40):
        forms = forms_of("page_allocator", large(count, requests=count))
        assert forms and bool(forms.picture.shapes("rect", unit="page")) == (count == MOST_PAGES)
    trace = large(10_000, requests=80)
    forms = forms_of("page_allocator", trace)
    assert (
        forms
        and "10000 pages in bands of 313" in forms.words
        and "in bands of 313: a colour" in (forms.picture.words)
    )
    bands = forms.picture.shapes("path", band="*", whose="*")
    assert len({band["data-band"] for band in bands}) == BANDS
    time, drawn = Counter[str](), Counter[str]()
    for stay in panels(trace)[0].stays:
        time[stay.kind] += stay.end - stay.start
    for band in bands:
        places = min(313, 10_001 - int(band["data-band"]))
        drawn[band["data-whose"]] += float(band["data-share"]) * places * trace.end
    assert all(abs(drawn[kind] - time[kind]) <= 0.5 * trace.end + 1 for kind in KINDS)


# -- schedule_policy: the queue as it was sorted ---------------------------------------------------


def schedule_policy(trace: Trace, forms: Forms, _: Engine) -> None:
    picture = forms.picture
    story = [m for m in marks(trace, "queue order", "admit") if m.attrs.get("rids", "x")]
    starts = [at for at, mark in enumerate(story) if mark.name == "queue order"]
    orders = [str(story[at].attrs["rids"]).split() for at in starts]
    rounds = re.findall(r"^ +[\d.]+ ms  (.*)$", forms.text, re.M)
    if len(orders) <= 30:
        assert [re.sub(r"[\[\]]", "", line).split() for line in rounds] == orders
    for at, (start, end) in enumerate(pairwise([*starts, len(story)])):
        if len(orders) > 10:
            break
        column = picture.shapes("rect", round=str(at + 1), place="*")
        assert [shape["data-rid"] for shape in column] == orders[at]
        places = [float(shape["y"]) for shape in column]
        assert places == sorted(places)
        now = [shape["data-rid"] for shape in picture.shapes("rect", "admitted", round=str(at + 1))]
        admitted = {str(mark.attrs["rid"]) for mark in story[start + 1 : end]}
        assert {*now} == {*re.findall(r"\[(\S+)\]", rounds[at])} == admitted & {*orders[at]}
    admits = marks(trace, "admit")
    waits = [s for s in picture.shapes("rect", "queued", rid="*") if "data-round" not in s]
    assert {s["data-rid"] for s in waits} == {str(mark.attrs["rid"]) for mark in admits}
    tokens, computed = Counter[str](), Counter[str]()
    for shape in picture.shapes("rect", kind="left", rid="*", tokens="*"):
        tokens[shape["data-rid"]] += int(shape["data-tokens"])
    for mark in admits:
        computed[str(mark.attrs["rid"])] += int(mark.attrs["extend_len"])
    assert tokens == +computed
    rows = table_in(forms.text, "How long they waited")
    assert sum(int(row[-1]) for row in rows) == computed.total()


FACTS["schedule_policy"] = schedule_policy


# -- prefill: who is admitted and who is refused ---------------------------------------------------


def prefill(trace: Trace, forms: Forms, _: Engine) -> None:
    if "the first" in forms.picture.words + forms.text:
        return
    admits = marks(trace, "admit")
    drawn = forms.picture.shapes("rect", mark="admit", budget="rem_total", left="*")
    assert [(shape["data-rid"], shape["data-left"]) for shape in drawn] == [
        (mark.attrs["rid"], str(mark.attrs["rem_total"])) for mark in admits
    ]
    rounds: list[list[Mark]] = [[]]
    for mark in marks(trace, "budget", "admit", "refuse"):
        rounds[-1].append(mark) if mark.name != "budget" else rounds.append([])
    told = [key for key, _ in groupby(round_key(one) for one in rounds if one)]  # repeated: once
    refusals = [mark for _, _, marks in told for mark in marks]
    rids = [str(mark.attrs["rid"]) for mark in refusals]
    assert [s["data-rid"] for s in forms.picture.shapes("text", mark="refuse")] == rids
    assert re.findall(r"^  \+ (\w+):", forms.text, re.M) == [m.attrs["rid"] for m in admits]
    lines = re.findall(r"^  × (\w+): (\w+): (.*(?:\n    .*)*)", forms.text, re.M)
    assert [rid for rid, *_ in lines] == rids
    if forms.puml.count("\n== ") == len(told):
        assert forms.puml.count(": **admitted**: ") == len(admits)
        assert forms.puml.count("]->x ") == len(refusals)


class Refusals(tuple[Any, ...]):
    """Equal for rounds that are shown as one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and self[:2] == other[:2]


def round_key(events: list[Mark]) -> Refusals:
    refused = [mark for mark in events if mark.name == "refuse"]
    admits = id(events) if len(refused) < len(events) else 0
    outcome = [(mark.attrs["rid"], mark.attrs["result"]) for mark in refused]
    return Refusals((admits, outcome, refused))


FACTS["prefill"] = prefill


def test_the_golden_budget_falls_by_what_was_taken() -> None:
    forms = forms_of("prefill", trace_of("prefill"))
    assert forms and "KV memory: needs 25 tokens" in forms.picture.words
    for budget in ("rem_chunk", "rem_input", "cur_rem", "rem_total"):
        left = forms.picture.shapes("rect", kind="left", budget=budget)
        spent = forms.picture.shapes("rect", kind="spent", budget=budget)
        assert len(spent) == 7  # three chunks and the rest, and three more requests
        values = [int(shape["data-left"]) for shape in left]
        scale = max(float(shape["width"]) for shape in left) / max(values)
        after = [at for at, shape in enumerate(left) if shape["data-mark"] == "admit"]
        for at, shape in zip(after, spent, strict=True):
            taken = (values[at - 1] - values[at]) * scale
            assert abs(float(shape["width"]) - taken) < 0.11
            end = float(left[at]["x"]) + float(left[at]["width"])
            assert abs(float(shape["x"]) - end) < 0.11
    for part in forms.text.partition("\n\n░")[0].split("\n\n")[2:]:
        bars = [re.findall(r"[░█]+(?= \d)", line) for line in part.splitlines() if "×" not in line]
        for before, after in pairwise(bars):
            for was, now in zip(before, after, strict=True):
                assert len(now) - was.count("░") in (0, 1) and "█" in now


# -- decode: who joins, who leaves, who is a zombie ------------------------------------------------


def decode_facts(trace: Trace, forms: Forms, _: Engine) -> None:
    steps, part = steps_shown(trace, 100), opening(trace, 100)[0]
    rows = Counter(
        (str(item.step), rid) for item in forwards(trace) if item.step in steps for rid in item.rids
    )
    assert forms.picture.count("step", "rid", tag="rect") == rows
    wasted = [m for m in marks(trace, "wasted row") if m.attrs["step"] in steps]
    assert forms.picture.count("step", "rid", kind="wasted") == Counter(
        (str(mark.attrs["step"]), str(mark.attrs["rid"])) for mark in wasted
    )
    stays = up_to(stays_of(part), part.end)
    boxes = forms.picture.shapes("rect", stay="*")
    assert Counter(
        tuple(box[f"data-{key}"] for key in ("rid", "stay", "start", "end")) for box in boxes
    ) == Counter((s.rid, s.kind, str(s.start), str(s.end)) for s in stays)
    told = [(row[3], row[2], row[4] if row[2] == "leaves" else "") for row in
            table_in(forms.text, "Who joins")]  # fmt: skip
    assert told == joins_and_leaves(part)[:60]
    assert boxes_in(forms.puml) == boxes_of(lives(requests_of(stays, steps_of(part)), stays))
    let_go = {(str(m.attrs["rid"]), m.time) for m in marks(trace, "finish", "retraction")}
    back = {(rid, item.end) for item in trace.slices for rid in item.rids if item.name == "process"}
    zombies = [stay for stay in stays_of(trace) if stay.kind == "wasted"]
    assert {(stay.rid, stay.start) for stay in zombies} <= let_go
    assert {(stay.rid, stay.end) for stay in zombies} <= back
    for mark in marks(trace, "wasted row"):
        mine = [stay for stay in zombies if stay.rid == mark.attrs["rid"]]
        assert any(stay.start < mark.time <= stay.end for stay in mine)


def joins_and_leaves(trace: Trace) -> list[tuple[str, str, str]]:
    """Read off the marks by other means: (rid, joins or leaves, why)."""
    inside, found = set[str](), []
    for mark in marks(trace, "admit", "finish", "retraction"):
        rid = str(mark.attrs["rid"])
        if mark.name == "admit" and rid not in inside:
            inside.add(rid)
            found.append((rid, "joins", ""))
        elif mark.name != "admit" and rid in inside:
            inside.remove(rid)
            why = "retraction" if mark.name == "retraction" else str(mark.attrs["reason"])
            found.append((rid, "leaves", why))
    return found


FACTS["decode"] = decode_facts


# -- retraction: who loses its memory --------------------------------------------------------------


def retraction(trace: Trace, forms: Forms, _: Engine) -> None:
    found = [str(mark.attrs["rid"]) for mark in marks(trace, "retraction")]
    flags = forms.picture.shapes("path", kind="flag-head", rid="*")
    assert [flag["data-rid"] for flag in flags if "data-mark" not in flag] == found
    assert forms.picture.words.count("gives back") == min(8, len(found))
    assert re.findall(r"^(\w+) at [\d.]+ ms \(", forms.text, re.M) == found[:24]
    assert re.findall(r"^highlight .* : (\w+) is retracted$", forms.puml, re.M) == found


FACTS["retraction"] = retraction


def test_what_a_retraction_costs_is_in_kv_slots_and_was_computed_again() -> None:
    trace = trace_of("retraction")
    forms = forms_of("retraction", trace)
    assert forms and len(marks(trace, "retraction")) == 2
    again = forms.picture.shapes("rect", kind="again", rid="*")
    took = {str(item.step): item.duration - SIM_COST.forward_base for item in forwards(trace)}
    counts = [took[box["data-step"]] // SIM_COST.forward_per_token for box in again]
    assert len(counts) == 2
    assert all(f"computes {count} tokens again" in forms.picture.words for count in counts)
    for size in (1, 4):
        changed = tuple(
            replace(mark, attrs={**mark.attrs, "page_size": size}) if mark.name == "kv pool"
            else mark for mark in trace.marks
        )  # fmt: skip
        given = [str(int(mark.attrs["pages"]) * size) for mark in marks(trace, "retraction")]
        for form in ("svg", "text"):
            said = draw("retraction", replace(trace, marks=changed), form)
            assert re.findall(r"gives back (\d+) KV slots", said) == given


@pytest.mark.parametrize("values", [(90, 90, 90), (90, 80, 70), (70, 90, 85, 85), (5, 9)])
def test_the_new_token_ratio_s_heading_is_its_course(values: tuple[int, ...]) -> None:
    golden = trace_of("retraction")
    others = [item for item in golden.counters if item.name != "new token ratio"]
    ratio = [Count("new token ratio", at, value) for at, value in enumerate(values)]
    counters = sorted([*others, *ratio], key=lambda item: item.time)
    words, signs = draw("retraction", replace(golden, counters=tuple(counters))), pairwise(values)
    moves = [after - before for before, after in signs]
    for what, count in (("falls", sum(m < 0 for m in moves)), ("rises", sum(m > 0 for m in moves))):
        assert (f"{what} {count} time" in words) == bool(count)
    assert ("stays at 90" in words) == (not any(moves))


# -- mixed_chunk: what each step computes ----------------------------------------------------------


def bars(trace: Trace, forms: Forms, engine: Engine) -> None:
    """As high as the tokens that the device had: the time that a forward took tells how many."""
    table = {int(row[0]): row for row in table_in(forms.text, "Tokens a step") if row[0] != "▼"}
    steps = forwards(trace)[:60]
    assert {*table} == {item.step for item in steps}
    for item in steps:
        parts = forms.picture.shapes("rect", step=str(item.step), tokens="*")
        tokens = sum(int(part["data-tokens"]) for part in parts)
        assert sorted(part["data-rid"] for part in parts) == sorted(item.rids)
        assert table[item.step][1:3] == [item.mode[:1].upper(), str(tokens)]
        stages = [s for s in trace.slices if (s.name, s.step) == (item.name, item.step)]
        time = sum(stage.duration for stage in stages)
        if not engine.scheduler.config.speculative_algorithm:
            assert tokens == (time - VIEW_COST.forward_base) / VIEW_COST.forward_per_token, item
        heights = [float(part["height"]) / int(part["data-tokens"]) for part in parts]
        assert max(heights) - min(heights) < 0.11
        for below, above in pairwise(parts):
            assert abs(float(above["y"]) + float(above["height"]) - float(below["y"])) < 0.11
        looks = {GLYPHS[part["class"].split()[1]] for part in parts}
        assert {*table[item.step][3].replace("│", "")} == looks
    work = steps_of(opening(trace, 60)[0])
    assert boxes_in(forms.puml) == boxes_of(step_rows(work, requests_in(work)))


FACTS["mixed_chunk"] = bars

# -- unified: the same, under one budget -----------------------------------------------------------

FACTS["unified"] = bars


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", FACTS)
def test_each_form_of_a_view_shows_what_the_trace_says(topic: str) -> None:
    for line, trace, (engine, *_) in runs_for(topic, many(10, 60)):
        forms = forms_of(topic, trace)
        try:
            assert forms
            FACTS[topic](trace, forms, engine)
        except AssertionError as error:
            error.add_note(line)
            raise
