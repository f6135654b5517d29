"""The relays' views: what each form shows is what the relay's own books say, over random runs."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import forwards
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.recipes import recipes, trace_of
from minisched.export.render_puml import render
from minisched.export.views import (
    NothingToShow,
    future_map,
    generation_batch_result,
    grammar_manager,
    lazy_chain,
    placeholder_fill,
    prev_sampled,
    token_pool,
)
from minisched.export.views.future_map import MOST_PUML_STEPS, MOST_STEPS
from minisched.export.views.future_slots import ring_of, stays_of
from minisched.export.views.puml_stays import fill
from minisched.export.views.text_page import COLUMNS
from minisched.export.views.token_table import MOST_POSITIONS
from minisched.models.hash import HashModel
from minisched.relay import FutureMapRing
from minisched.trace import Counter as CounterEvent
from minisched.trace import Mark, Slice, Trace
from tests.support import LOOP_OPTIONS, VOCAB, Picture, check_picture, play, workloads
from tests.test_views import damaged
from tests.test_views import runs as random_runs


def name_of(view: Any) -> str:
    """The topic of a view."""
    return str(view.__name__.rpartition(".")[2])


VIEWS = (future_map, token_pool, lazy_chain, placeholder_fill, prev_sampled)
COST = CostModel(
    dict.fromkeys(("receive", "schedule", "prepare", "launch", "process", "output"), 7_000),
    forward_base=50_000, forward_per_token=1_000, sample=9_000, copy=3_000,
)  # fmt: skip
law = settings(max_examples=30, deadline=None)


@dataclass(frozen=True)
class Bound:
    """What the ring's own counter and a batch say when the batch is bound."""

    step: int
    rids: tuple[str, ...]
    dests: tuple[int, ...]
    reads: tuple[int, ...]
    counter: int  # before it


@st.composite
def runs(draw: st.DrawFn, *relays: str) -> tuple[Trace, Engine, list[Bound]]:
    """A small random run with one of these relays, and the relay's books."""
    options = [item for item in LOOP_OPTIONS if item[1] in relays]
    loop, relay, more = draw(st.sampled_from(options))
    workload = draw(workloads(max_requests=5))
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    books: list[Bound] = []

    def keep(engine: Engine) -> None:
        bind = engine.worker.relay.bind

        def bound(batch: Any, previous: Any) -> Any:
            counter = getattr(engine.worker.relay, "future_ct", 0)
            ids, dests = bind(batch, previous)
            reads = tuple(-token for token in ids if token < 0)
            books.append(Bound(batch.step, batch.rids, tuple(dests), reads, counter))
            return ids, dests

        engine.worker.relay.bind = bound  # type: ignore[method-assign]

    engine, _ = play(workload, loop, relay, more, device, model, COST, keep)
    return device.recorder.trace(loop, "sim", "hash", "virtual"), engine, books


def shown(view: Any, trace: Trace) -> tuple[Picture, str]:
    """The SVG, read back and checked, and the text; the example is dropped if no step ran."""
    try:
        picture, text = Picture(view.view(trace)), view.text(trace)
    except NothingToShow:
        assume(False)
        raise
    check_picture(picture)
    check_text(text)
    return picture, text


def check_text(text: str) -> None:
    """It fits into a terminal, and has nothing to be hidden at the ends of lines."""
    lines = text.splitlines()
    assert max(map(len, lines)) <= COLUMNS and all(line == line.rstrip() for line in lines)


def boxes(puml: str, kind: str) -> int:
    """How many boxes of a kind a timing diagram has."""
    return sum(bool(re.match(r'lane\d+ is "', line)) and line.endswith(f'" {fill(kind)}')
               for line in puml.splitlines())  # fmt: skip


# -- all of them -------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS, ids=name_of)
def test_every_form_of_the_golden_run(view: Any) -> None:
    """One summary in the SVG and in the text, and PlantUML that is whole where it fits."""
    trace = trace_of(name_of(view))
    picture, text = shown(view, trace)
    words = " ".join(text.split())
    assert view.TITLE in picture.words and view.TITLE in text
    summary = " ".join(text.rstrip().rpartition("\n\n")[2].split())
    assert summary in " ".join(picture.words.split()) and re.search(r"\d", summary)
    if hasattr(view, "puml"):
        puml = view.puml(trace)
        assert puml.startswith("@startuml\n") and puml.endswith("@enduml\n")
    assert "time" in words or "step" in words


@settings(max_examples=50, deadline=None)
@given(random_runs(), st.sampled_from([*VIEWS, generation_batch_result, grammar_manager]))
def test_forms_agree_on_whether_there_is_anything_to_show(run: Any, view: Any) -> None:
    verdicts = set()
    for draw in (view.view, view.text, getattr(view, "puml", view.text)):
        try:
            drawn = draw(run[0])
            verdicts.add("")
        except NothingToShow as error:
            verdicts.add(str(error))
            continue
        assert drawn.endswith("\n") and not drawn.endswith("\n\n")
    assert len(verdicts) == 1 and all(words.count(".") <= 1 for words in verdicts)


@pytest.mark.parametrize("view", [*VIEWS, grammar_manager], ids=name_of)
def test_a_damaged_trace_gets_a_sentence_in_every_form(view: Any) -> None:
    dice, whole, refused = random.Random(name_of(view)), trace_of(name_of(view)), 0
    for _ in range(40):
        kept = tuple(damaged(mark, dice) for mark in whole.marks if dice.random() > 0.05)
        for draw in (view.text, getattr(view, "puml", view.text)):
            try:
                draw(replace(whole, marks=kept))
            except NothingToShow as error:
                assert str(error).endswith(".")
                refused += 1
    assert refused


@pytest.mark.usefixtures("plantuml")
def test_every_golden_run_renders_as_plantuml(tmp_path: Path) -> None:
    """With names that PlantUML would read as markup, shown as they are; all in one call."""
    paths = []
    for view in (future_map, lazy_chain, generation_batch_result, grammar_manager):
        recipe = recipes()[name_of(view)]
        odd = [replace(req, rid=f'"<{req.rid}') for req in recipe.requests]
        paths.append(tmp_path / f"{name_of(view)}.puml")
        paths[-1].write_text(view.puml(replace(recipe, requests=odd).run()))
    for picture in render(paths):
        words = " ".join(ElementTree.fromstring(picture.read_text()).itertext())
        assert "rror" not in words and "not supported" not in words, picture.stem
        assert '"<' in words or picture.stem == "generation_batch_result", picture.stem


# -- the ring ----------------------------------------------------------------------------------


@law
@given(runs("ring"))
def test_every_slot_of_the_ring_is_in_each_form(run: tuple[Trace, Engine, list[Bound]]) -> None:
    trace, engine, books = run
    relay = engine.worker.relay
    assert isinstance(relay, FutureMapRing)
    picture, text = shown(future_map, trace)
    steps = [item.step for item in forwards(trace)[:MOST_STEPS]]
    mine = [one for one in books if one.step in steps]
    allocated = Counter(
        (str(one.step), str(slot), rid)
        for one in mine
        for slot, rid in zip(one.dests, one.rids, strict=True)
    )
    for kind in ("promised", "stored"):
        assert picture.count("step", "slot", "rid", tag="rect", kind=kind) == allocated
    resolved = Counter((str(slot),) for one in mine for slot in one.reads)
    assert picture.count("slot", kind="read", tag="path") == resolved
    seen: set[int] = set()
    laps = 0
    for one in mine:
        laps += len(seen & {*one.dests})
        seen |= {*one.dests}
    assert len(picture.shapes("path", kind="lapped", slot="*")) == laps
    wraps = sum(one.counter + len(one.dests) >= relay.future_limit for one in mine)
    assert len(picture.shapes("line", kind="limit", lap="*")) == wraps
    assert not picture.shapes("path", kind="flag-head")
    assert f"allocated {allocated.total()}, stored {allocated.total()}, " in text
    assert f"resolved {resolved.total()}, lapped {laps}\n" in text
    assert f"future_limit = {relay.future_limit}, {wraps} times here" in " ".join(text.split())
    assert len(re.findall(r"\d:r\d", text)) == allocated.total()
    assert text.count("┃") >= min(1, wraps)
    first = {item.step for item in forwards(trace)[:MOST_PUML_STEPS]}
    puml = future_map.puml(trace)
    assert boxes(puml, "promised") == sum(len(one.dests) for one in books if one.step in first)
    assert puml.count("highlight ") == sum(
        one.counter + len(one.dests) >= relay.future_limit for one in books if one.step in first
    )


@law
@given(runs("ring"))
def test_no_token_is_lapped_before_it_is_read(run: tuple[Trace, Engine, list[Bound]]) -> None:
    """And the trace says how large the ring is."""
    trace, engine, _ = run
    relay, ring = engine.worker.relay, ring_of(trace)
    assert isinstance(relay, FutureMapRing) and ring is not None
    assert ring == (relay.future_limit, len(relay.token_ids_map.values) - 1)
    for stay in stays_of(trace):
        assert not stay.lost and stay.promised <= stay.stored <= stay.last_read <= stay.gone


@law
@given(runs("pool"))
def test_the_pool_has_no_laps(run: tuple[Trace, Engine, list[Bound]]) -> None:
    picture, text = shown(future_map, run[0])
    assert not picture.shapes("path", kind="lapped") and not picture.shapes("line", kind="limit")
    assert not picture.shapes("text", ring="*")
    assert "nothing to lap" in picture.words and "nothing to lap" in text


def three_steps(reader: str) -> Trace:
    """A ring of one slot: a's token, then b's in its place, then somebody reads it."""
    slices = [
        Slice(2 * step + at, "forward", name, 10 * step + 5 * at, 10 * step + 5 * at + 5, step,
              "decode", (rid,))
        for step, rid in enumerate(("a", "b", reader), 1)
        for at, name in enumerate(("forward", "sample"))
    ]  # fmt: skip
    marks = [Mark("future map", 0, {"limit": 1, "size": 2})]
    for step, reads in enumerate(("", "", "1"), 1):
        marks.append(Mark("future slots", 10 * step, {"step": step, "slots": "1", "reads": reads}))
    counters = (CounterEvent("future slots", 10, 0),)
    return Trace("overlap", "sim", "hash", "virtual", tuple(slices), (), counters, tuple(marks))


def test_a_token_that_was_lapped_too_early_is_seen() -> None:
    """Its slot holds somebody else's by the time at which it is looked up."""
    for reader, lost in (("a", 1), ("b", 0)):
        trace = three_steps(reader)
        picture, text = shown(future_map, trace)
        assert len(picture.shapes("path", kind="flag-head", slot="1")) == lost
        assert len(picture.shapes("path", kind="read", slot="1")) == 1 - lost
        assert ("too early 1" in text) == ("too early 1" in picture.words) == bool(lost)


def test_the_golden_ring_is_drawn_at_its_first_laps() -> None:
    picture = Picture(future_map.view(trace_of("future_map")))
    rings = [(item["data-ring"]) for item in picture.shapes("text", ring="*")]
    assert rings == ["1", "2", "3", "4", "5"]
    assert picture.words.count(": lapped") == 2
    assert len(picture.shapes("path", kind="box")) == 5 * 6
    large = replace(trace_of("future_map"), marks=tuple(
        replace(mark, attrs={"limit": 60, "size": 100}) if mark.name == "future map" else mark
        for mark in trace_of("future_map").marks
    ))  # fmt: skip
    assert not Picture(future_map.view(large)).shapes("text", ring="*")


# -- tables of what goes where -----------------------------------------------------------------


@law
@given(runs("token_pool"))
def test_the_cells_of_the_pool_are_the_same_in_both_forms(run: Any) -> None:
    picture, text = shown(token_pool, run[0])
    assume("left out" not in picture.words)
    table = text.partition("Token pool (")[2].partition("\n\nu: ")[0]
    signs = Counter(re.findall(r"(?<=\s)([ucsw!])\d+(?=\s)", table + "\n"))
    looks = {"u": "upload", "c": "stale", "s": "sample", "w": "wasted", "!": "bubble"}
    for sign, look in looks.items():
        assert signs[sign] == len(picture.shapes("rect", kind=look, position="*")), look
    gathered = [line for line in table.splitlines() if line.startswith("  gathered by")]
    numbers = sum(len(line.split()) - 2 for line in gathered)
    assert numbers == len(picture.shapes("text", gathered="*"))
    assert f"{signs['u'] + signs['c']} tokens uploaded, {signs['s']} sampled" in text
    assert MOST_POSITIONS > 32  # the context of these runs


@law
@given(runs("chain"))
def test_the_arrays_of_the_chain_are_the_same_in_every_form(run: Any) -> None:
    picture, text = shown(lazy_chain, run[0])
    lazy = picture.shapes("rect", kind="promised", step="*")
    table = text.partition("Step by step")[2].partition("\n\n")[0].splitlines()[2:]
    assert [line.split()[0] for line in table] == [shape["data-step"] for shape in lazy]
    on = {
        (shape["data-step"], shape["data-source"]) for shape in picture.shapes("path", source="*")
    }
    assert {found[0] for line in table if (found := re.findall(r"(\d+) .* step (\d+)", line))} == on
    assert text.startswith(lazy_chain.TITLE) and f"\n{len(on)} steps built on arrays" in text
    assert boxes(lazy_chain.puml(run[0]), "promised") == len(lazy)
    computed = [shape["data-step"] for shape in picture.shapes("rect", kind="stored", step="*")]
    assert boxes(lazy_chain.puml(run[0]), "stored") == len(computed)
    if "the first" not in picture.words:
        ends = {item.step: item.end for item in run[0].slices if item.name == "sample"}
        reads = [item for item in run[0].slices if item.name == "process"]
        assert computed == [str(s.step) for s in reads if s.start > ends[s.step]]


@law
@given(runs("fill_host", "fill_device"))
def test_rows_are_filled_from_the_same_rows_in_both_forms(run: Any) -> None:
    picture, text = shown(placeholder_fill, run[0])
    filled = Counter(
        (shape["data-rid"], shape["data-source"])
        for shape in picture.shapes("rect", source="*")
        if shape["data-source"] != "-1"
    )
    table = text.partition("Rows of each step")[2].partition("\n\n▒")[0].partition("\n")[2]
    assert Counter(re.findall(r"(r\d)<(\d+)", table)) == filled
    assert len(re.findall(r"r\d", table)) == len(picture.shapes("rect", source="*"))
    assert f"{filled.total()} of {len(picture.shapes('rect', source='*'))} rows" in text


@law
@given(runs("prev_sampled"))
def test_tokens_go_on_from_the_same_rows_in_both_forms(run: Any) -> None:
    trace = run[0]
    picture, text = shown(prev_sampled, trace)
    table = text.partition("Rows of input_ids")[2].partition("\n\nfrom the CPU")[0]
    table = table.partition("\n")[2]
    steps = {int(shape["data-step"]) for shape in picture.shapes("rect", step="*")}
    marks = [mark for mark in trace.marks if mark.name == "prev sampled"]
    told = [mark for mark in marks if mark.attrs["step"] in steps]
    sources = Counter(place for mark in told for place in str(mark.attrs["sources"]).split())
    assert Counter(re.findall(r"r\d<(\d+)", table)) == sources
    assert len(picture.shapes("line", kind="link", rid="*")) == sources.total()
    paths = Counter(str(mark.attrs["path"]) for mark in told)
    for path in ("full", "slice", "scatter"):
        assert table.count(path) == paths[path]
    new = [int(number) for line in table.splitlines() if line.startswith("from the CPU")
           for number in line.split()[3:]]  # fmt: skip
    assert sum(new) == sum(int(mark.attrs["new"]) for mark in told)
