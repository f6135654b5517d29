"""The views of policy and memory in all their forms: SVG, text and PlantUML say the same."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import forwards
from minisched.engine.engine import Engine
from minisched.export.puml_style import creole
from minisched.export.recipes import recipes
from minisched.export.render_puml import render
from minisched.export.state import Stay, up_to
from minisched.export.state.requests import changes_of, stays_of
from minisched.export.views import NothingToShow
from minisched.export.views.look import LOOKS
from minisched.export.views.puml_stays import fill, stays_to_puml
from minisched.export.views.radix_story import MOST_MOMENTS, changes, lockers
from minisched.export.views.radix_tree import tree_at
from minisched.export.views.rounds import merged, rounds_of
from minisched.export.views.set_story import lives, requests_of
from minisched.export.views.stay_counts import count
from minisched.export.views.step_bars import token_limit
from minisched.export.views.step_forms import BAR, step_rows
from minisched.export.views.steps import opening, requests_in, steps_of
from minisched.export.views.text_page import COLUMNS, GLYPHS, HEIGHTS, TextPage
from minisched.trace import Mark, Trace
from tests.stay_reader import boxes_of, lanes_in, read_timing_boxes, table_in
from tests.test_views import crowds, damaged, picture_of
from tests.test_views import runs as random_runs

TOPICS = ("decode", "prefill", "radix_cache", "page_allocator", "schedule_policy", "retraction",
          "mixed_chunk", "unified")  # fmt: skip
law = settings(max_examples=50, deadline=None)
any_run = st.one_of(random_runs(), crowds())


def module(topic: str) -> ModuleType:
    return import_module(f"minisched.export.views.{topic}")


def golden(topic: str) -> Trace:
    return recipes()[topic].run()


def marks(trace: Trace, *names: str) -> list[Mark]:
    return [mark for mark in trace.marks if mark.name in names]


def shown_by(draw: Callable[[Trace], str], trace: Trace) -> str:
    """A form; Hypothesis drops the example where there is nothing to show."""
    try:
        return draw(trace)
    except NothingToShow:
        assume(False)
        raise


# -- every topic, every form -------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(any_run, st.sampled_from(TOPICS))
def test_forms_agree_on_whether_there_is_anything_to_show(run: Any, topic: str) -> None:
    """And a text is never wider than a terminal, and ends in one line break."""
    verdicts = set()
    for form in ("view", "text", "puml"):
        try:
            drawn = getattr(module(topic), form)(run[0])
            verdicts.add("")
        except NothingToShow as error:
            verdicts.add(str(error))
            continue
        assert drawn.endswith("\n") and not drawn.endswith("\n\n")
        if form == "text":
            assert max(map(len, drawn.splitlines())) <= COLUMNS
            assert not any(line != line.rstrip() for line in drawn.splitlines())
    assert len(verdicts) == 1


@pytest.mark.parametrize("topic", TOPICS)
def test_damaged_traces_get_a_sentence_in_every_form(topic: str) -> None:
    dice, whole, refused = random.Random(topic), golden(topic), 0
    for _ in range(25):
        kept = tuple(damaged(mark, dice) for mark in whole.marks if dice.random() > 0.05)
        for form in ("text", "puml"):
            try:
                getattr(module(topic), form)(replace(whole, marks=kept))
            except NothingToShow as error:
                assert str(error).endswith(".")
                refused += 1
    assert refused


@pytest.mark.usefixtures("plantuml")
def test_every_golden_run_renders_as_plantuml(tmp_path: Path) -> None:
    """With names that PlantUML would read as markup, shown as they are; all in one call."""
    paths = []
    for topic in TOPICS:
        recipe = recipes()[topic]
        odd = [replace(req, rid=f'"<b>\\n{req.rid}') for req in recipe.requests]
        paths.append(tmp_path / f"{topic}.puml")
        paths[-1].write_text(module(topic).puml(replace(recipe, requests=odd).run()))
    for picture in render(paths):
        words = " ".join(ElementTree.fromstring(picture.read_text()).itertext())
        assert "rror" not in words and "not supported" not in words, picture.stem
        assert '"<b>\\n' in words.replace("\N{NO-BREAK SPACE}", " "), picture.stem


# -- decode ------------------------------------------------------------------------------------


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


@law
@given(any_run)
def test_decode_shows_who_joins_who_leaves_and_who_is_a_zombie(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    picture, part = picture_of("decode", trace), opening(trace, 100)[0]
    stays = up_to(stays_of(part), part.end)
    truth = joins_and_leaves(part)
    boxes = picture.shapes("rect", stay="*")
    assert Counter((box["data-rid"], box["data-stay"], box["data-start"], box["data-end"])
                   for box in boxes) == Counter((stay.rid, stay.kind, str(stay.start),
                                                 str(stay.end)) for stay in stays)  # fmt: skip
    leaves = Counter((box["data-rid"], box["data-why"]) for box in boxes if box["data-why"])
    held = {(stay.rid, stay.end) for stay in stays if stay.kind == "admitted"}
    moves = changes_of(part)
    assert leaves == Counter(
        (c.rid, c.why) for c in moves if not c.joins and (c.rid, c.time) in held
    )
    assert truth == [(c.rid, "joins" if c.joins else "leaves", c.why) for c in moves]
    rows = [line.split() for line in table_in(module("decode").text(trace), "Who joins")]
    told = [(row[3], row[2], row[4] if row[2] == "leaves" else "") for row in rows]
    assert told == truth[:60]
    puml = module("decode").puml(trace)
    rids = requests_of(stays, steps_of(part))
    assert read_timing_boxes(puml) == boxes_of(lives(rids, stays))


@law
@given(any_run)
def test_a_zombie_is_one_whose_last_step_is_not_back(run: tuple[Trace, Engine]) -> None:
    """From its end, or from when it was retracted, up to a result that names it: its last one."""
    trace = run[0]
    let_go = {(str(mark.attrs["rid"]), mark.time) for mark in marks(trace, "finish", "retraction")}
    back = {(rid, item.end) for item in trace.slices for rid in item.rids
            if item.name == "process" and item.lane.endswith(("host", "thread"))}  # fmt: skip
    zombies = {(s.rid, s.start, s.end) for s in stays_of(trace) if s.kind == "wasted"}
    assert {(rid, start) for rid, start, _ in zombies} <= let_go
    assert {(rid, end) for rid, _, end in zombies} <= back
    for mark in marks(trace, "wasted row"):
        rid = mark.attrs["rid"]
        assert any(rid == whose and start < mark.time <= end for whose, start, end in zombies)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=8))
def test_counted_stays_are_as_many_as_hold_the_moment(spans: list[tuple[int, int]]) -> None:
    stays = [Stay("x", "admitted", start, start + length) for start, length in spans]
    series = dict(count(stays, "admitted"))
    now = 0
    for time in range(20):
        now = series.get(time, now)
        assert now == sum(stay.holds(time) for stay in stays)


def test_the_golden_set_has_one_of_each() -> None:
    picture = picture_of("decode", golden("decode"))
    assert [box["data-rid"] for box in picture.shapes("rect", stay="wasted")] == [
        "a",
        "b",
        "c",
        "c",
    ]
    for words in ("leaves: length", "leaves: retraction", "joins", "waits", "zombie: it has ended"):
        assert words in picture.words
    assert [change.joins for change in changes_of(golden("decode"))].count(True) == 4


# -- prefill -----------------------------------------------------------------------------------


@law
@given(any_run)
def test_prefill_tells_every_admission_and_every_refusal_in_each_form(run: Any) -> None:
    trace = run[0]
    picture = picture_of("prefill", trace)
    assume("the first" not in picture.words)
    events = [event for one in merged(rounds_of(trace)) for event in one.events]
    admits = [str(event.attrs["rid"]) for event in events if event.name == "admit"]
    refusals = [event for event in events if event.name == "refuse"]
    text, puml = module("prefill").text(trace), module("prefill").puml(trace)
    assume("the first" not in text)
    assert re.findall(r"^  \+ (\w+):", text, re.M) == admits
    told = re.findall(r"^  × (\w+): (\w+): (.*(?:\n    .*)*)", text, re.M)
    assert [(rid, result, " ".join(why.split())) for rid, result, why in told] == [
        (e.attrs["rid"], e.attrs["result"], e.attrs["reason"]) for e in refusals
    ]
    lacking = picture.shapes("rect", kind="lacking", rid="*")
    about = [e for e in refusals if e.attrs["need"] and "max_running" not in str(e.attrs["reason"])]
    assert [(s["data-rid"], s["data-need"]) for s in lacking] == [
        (e.attrs["rid"], str(e.attrs["need"])) for e in about
    ]
    if puml.count("\n== ") == len(merged(rounds_of(trace))):
        assert puml.count(": **admitted**: ") == len(admits)
        assert puml.count("]->x ") == len(refusals)


def test_the_golden_waterfall_falls_in_text_too() -> None:
    """A bar is as long as what was left before, by a cell at most more; what was taken is seen."""
    text = module("prefill").text(golden("prefill"))
    for part in text.partition("\n\n░")[0].split("\n\n")[2:]:
        bars = [re.findall(r"[░█]+(?= \d)", line) for line in part.splitlines() if "×" not in line]
        for before, after in pairwise(bars):
            for was, now in zip(before, after, strict=True):
                assert len(now) - was.count("░") in (0, 1) and "█" in now


# -- radix cache -------------------------------------------------------------------------------


@law
@given(any_run)
def test_the_tree_before_and_after_in_each_form(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    picture = picture_of("radix_cache", trace)
    part, moments, _ = changes(trace)
    text, puml = module("radix_cache").text(trace), module("radix_cache").puml(trace)
    titles = re.findall(r"^\d+ at .* ms", text, re.M)
    assert {box["data-panel"].split()[0] for box in picture.shapes("rect", panel="*")} <= {
        title.split()[0] for title in titles
    }
    assert puml.count("\npackage ") == 2 * len(titles)
    times = [moment.time for moment in module("radix_story").choose(moments)]
    for at, time in enumerate(times, 1):
        after = tree_at(part, time)
        before = tree_at(part, time - 1)
        before.bury()
        for name, tree in (("before", before), ("after", after)):
            boxes = picture.shapes("rect", panel=f"{at} {name}")
            if boxes and "more nodes" not in picture.words:
                assert {box["data-node"]: (box["data-pages"], box["data-lock"], box["data-state"])
                        for box in boxes} == {str(n.id): (str(n.pages), str(n.lock_ref), n.state)
                                              for n in tree.nodes.values()}  # fmt: skip
            listed = section(text, at, name)
            if "more nodes" not in text:
                assert len(listed) == len(tree.nodes)
                assert Counter(sign(line) for line in listed) == Counter(
                    GLYPHS[node.state] for node in tree.nodes.values()
                )
            frame = re.findall(rf" as {name[0]}{at}_(\d+) #", puml)
            if "more nodes" not in puml:
                assert {*map(int, frame)} == tree.nodes.keys()
    gone = sum(int(mark.attrs["pages"]) for mark in marks(part, "radix evict"))
    assert sum(int(shape["data-evicted"]) for shape in picture.shapes("path", evicted="*")) == gone
    rows = table_in(text, "Every change") if "Every change" in text else []
    assert len(rows) == (len(moments) if len(moments) <= 40 else 0)
    assert len(moments) <= MOST_MOMENTS


def section(text: str, at: int, name: str) -> list[str]:
    """The lines of one tree in the text form."""
    part = re.split(rf"^{at} at .* ms", text, flags=re.M)[1].split("\n\n")[0]
    trees = part.split("\n  before ")[1].split("\n  after  ")
    return trees[name == "after"].splitlines()[1:]


def sign(line: str) -> str:
    return line.split("─ ")[1][0]


def test_a_lock_is_told_on_the_whole_path() -> None:
    assert lockers({"node 1": ("root", ("a",)), "node 2": ("node 1", ("b",)),
                    "node 3": ("node 1", ())}) == {1: ["a", "b"], 2: ["b"]}  # fmt: skip
    text = module("radix_cache").text(golden("radix_cache"))
    assert "locked by abc, afg" in text and "1 node evicted for x" in text


@law
@given(any_run)
def test_who_locks_a_node_are_as_many_as_its_locks(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    try:
        part, moments, _ = changes(trace)
    except NothingToShow:
        assume(False)
    for picture in module("radix_story").pictures(part, moments):
        if picture.moment.time < part.end:
            for node in picture.after.nodes.values():
                if not node.evicted:
                    assert len(picture.lockers.get(node.id, [])) == node.lock_ref


# -- the queue, and steps ----------------------------------------------------------------------


@law
@given(any_run)
def test_the_queue_round_by_round_in_text(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    text = shown_by(module("schedule_policy").text, trace)
    orders = [str(mark.attrs["rids"]).split() for mark in marks(trace, "queue order")]
    orders = [order for order in orders if order]
    rounds = re.findall(r"^ +[\d.]+ ms  (.*)$", text, re.M)
    if len(orders) <= 30:
        assert [line.replace("[", "").replace("]", "").split() for line in rounds] == orders
    picture = picture_of("schedule_policy", trace)
    if len(orders) <= 10:
        admitted = [s["data-rid"] for s in picture.shapes("rect", kind="admitted", round="*")]
        assert re.findall(r"\[(\w+)\]", " ".join(rounds)) == admitted
    rows = [line.split() for line in table_in(text, "How long they waited")]
    assert {row[0] for row in rows} == {str(mark.attrs["rid"]) for mark in marks(trace, "admit")}
    assert sum(int(row[-1]) for row in rows) == sum(
        int(mark.attrs["extend_len"]) for mark in marks(trace, "admit")
    )


def test_the_golden_queue_tells_who_is_admitted_now() -> None:
    text = module("schedule_policy").text(golden("schedule_policy"))
    assert "20.95 ms  [doc-q1] doc-q2 other new\n     29.7 ms  doc-q2 other new\n" in text


@law
@given(any_run, st.sampled_from(["mixed_chunk", "unified"]))
def test_bars_of_text_are_those_of_the_picture(run: Any, topic: str) -> None:
    """Step by step: mode, tokens, whose; and PlantUML has a box for each of them."""
    trace = run[0]
    picture = picture_of(topic, trace)
    rows = [line.split() for line in table_in(module(topic).text(trace), "Tokens a step")]
    table = {int(row[0]): row for row in rows if row[0] != "▼"}
    steps = forwards(trace)[:60]
    assert {*table} == {item.step for item in steps}
    is_small = max([token_limit(trace), *(int(row[2]) for row in table.values())]) <= BAR
    for item in steps:
        parts = picture.shapes("rect", step=str(item.step), tokens="*")
        assert int(table[item.step][2]) == sum(int(part["data-tokens"]) for part in parts)
        assert table[item.step][1] == item.mode[:1].upper()
        bar = table[item.step][3].replace("│", "")
        glyphs: Counter[str] = Counter()
        for part in parts:
            glyphs[GLYPHS[part["class"].split()[1]]] += int(part["data-tokens"])
        assert {*bar} == {*glyphs}
        assert not is_small or Counter(bar) == glyphs  # then one sign is one token
    part = opening(trace, 60)[0]
    work = steps_of(part)
    assert read_timing_boxes(module(topic).puml(trace)) == boxes_of(
        step_rows(work, requests_in(work))
    )


@law
@given(crowds())
def test_retractions_are_told_in_each_form(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    picture = picture_of("retraction", trace)
    found = [str(mark.attrs["rid"]) for mark in marks(trace, "retraction")]
    text, puml = module("retraction").text(trace), module("retraction").puml(trace)
    assert re.findall(r"^(\w+) at [\d.]+ ms \(", text, re.M) == found[:24]
    assert re.findall(r"^highlight .* : (\w+) is retracted$", puml, re.M) == found
    flags = [s["data-rid"] for s in picture.shapes("path", kind="flag-head", rid="*", mark="*")]
    assert Counter(flags) == Counter(found)
    assert {"a lane", *lanes_in(text)} >= set(found)


# -- the pages they are written on -------------------------------------------------------------


def test_looks_without_a_fill_differ_in_plantuml() -> None:
    """What waits, what is wasted and what nobody reads any more are seen to be three things."""
    assert len({fill(kind) for kind in ("queued", "wasted", "stale")}) == 3
    assert fill("wasted") == "#FCE9DF"
    assert {*GLYPHS} >= {kind for kind in LOOKS if kind != "lacking"}


def test_flags_and_titles_are_escaped() -> None:
    puml = stays_to_puml('a "b"', [], 10, {}, [(5, "<b>")])
    title = creole('a "b"')
    assert f"title {title}" in puml and "<b>" not in puml


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 50)), max_size=9), st.integers(1, 99))
def test_a_curve_shows_the_most_of_each_cell(series: list[tuple[int, int]], end: int) -> None:
    series = sorted(dict(series).items())
    page = TextPage("t", "a")
    page.curve("n", series, end)
    title, _, drawn = page.lines[0].partition(" │")
    most = max((value for _, value in series), default=0)
    assert title.strip() == f"n ≤ {most}"
    cells = COLUMNS - len(title) - 2
    for cell, glyph in enumerate(drawn.ljust(cells)):
        inside = [v for t, v in series if min(t * cells // end, cells - 1) == cell]
        before = [v for t, v in series if min(t * cells // end, cells - 1) < cell]
        high = max([*inside, *before[-1:]], default=0)
        assert glyph == HEIGHTS[-(-high * 8 // max(1, most))]
