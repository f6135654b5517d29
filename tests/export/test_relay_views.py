"""Views of relays, of the copy path and of grammars: each form shows what the trace says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minisched.checks.overlap.overlap import forwards
from minisched.checks.overlap.waits import lost_ns
from minisched.engine.engine import Engine
from minisched.export.recipes import trace_of
from minisched.export.units import ms
from minisched.export.views import draw
from minisched.export.views.steps import forwards_of
from minisched.trace import Counter as Count
from minisched.trace import Mark, Slice, Trace
from tests.support import (
    Forms,
    Picture,
    forms_of,
    many,
    marks,
    numbers,
    of_kind,
    runs_for,
    steps_shown,
    table_in,
)

FACTS: dict[str, Callable[[Trace, Forms, Engine], None]] = {}


# -- future_map: a ring's promises and look-ups ----------------------------------------------------


def future_map(trace: Trace, forms: Forms, engine: Engine) -> None:
    told = [m for m in marks(trace, "future slots") if m.attrs["step"] in steps_shown(trace, 36)]
    rids = {item.step: item.rids for item in forwards(trace)}
    promised, reads, seen, laps = Counter[Any](), Counter[Any](), set[int](), 0
    for mark in told:
        slots, step = numbers(mark, "slots"), int(mark.attrs["step"])
        promised.update((str(step), str(s), r) for s, r in zip(slots, rids[step], strict=True))
        reads.update((str(slot),) for slot in numbers(mark, "reads"))
        laps += len(seen & {*slots})
        seen |= {*slots}
    for kind in ("promised", "stored"):
        assert forms.picture.count("step", "slot", "rid", tag="rect", kind=kind) == promised
    assert forms.picture.count("slot", kind="read", tag="path") == reads
    assert f"allocated {promised.total()}, stored {promised.total()}, " in forms.words
    if engine.worker.relay.name == "ring":
        assert len(forms.picture.shapes("path", kind="lapped", slot="*")) == laps
        assert f"resolved {reads.total()}, lapped {laps}" in forms.words
        assert not forms.picture.shapes("path", kind="flag-head"), "lapped before it is read"
    else:
        assert "nothing to lap" in forms.picture.words and "nothing to lap" in forms.words
    assert of_kind(forms.puml, "promised") <= promised.total()


FACTS["future_map"] = future_map


def test_a_token_that_was_lapped_too_early_is_seen() -> None:
    """A ring of one slot: a's token, then b's in its place, then somebody reads it."""
    for reader, lost in (("a", 1), ("b", 0)):
        slices = tuple(
            Slice(2 * step + at, "forward", name, 10 * step + 5 * at, 10 * step + 5 * at + 5, step,
                  "decode", (rid,))
            for step, rid in enumerate(("a", "b", reader), 1)
            for at, name in enumerate(("forward", "sample"))
        )  # fmt: skip
        told = [Mark("future map", 0, {"limit": 1, "size": 2})]
        for step, reads in enumerate(("", "", "1"), 1):
            attrs = {"step": step, "slots": "1", "reads": reads}
            told.append(Mark("future slots", 10 * step, attrs))
        counters = (Count("future slots", 10, 0),)
        trace = Trace("overlap", "sim", "hash", "virtual", slices, (), counters, tuple(told))
        forms = forms_of("future_map", trace)
        assert forms and len(forms.picture.shapes("path", kind="flag-head", slot="1")) == lost
        assert len(forms.picture.shapes("path", kind="read", slot="1")) == 1 - lost
        assert ("too early 1" in forms.text) == ("too early 1" in forms.picture.words) == bool(lost)


# -- token_pool: every cell, who wrote it and who gathers it ---------------------------------------


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
    assert forms.picture.count("step", "row", "position", tag="rect") == writes
    assert forms.picture.count("gathered", "row", "position", tag="text") == reads
    ops = [s for s in trace.slices if s.name in ("upload", "forward", "sample")]
    assert forms.picture.count("op", "step") == Counter((s.name, str(s.step)) for s in ops)
    table = forms.text.partition("Token pool (")[2].partition("\n\nu: ")[0]
    signs = Counter(re.findall(r"(?<=\s)([ucsw!])\d+(?=\s)", table + "\n"))
    looks = {"u": "upload", "c": "stale", "s": "sample", "w": "wasted", "!": "bubble"}
    for sign, look in looks.items():
        assert signs[sign] == len(forms.picture.shapes("rect", kind=look, position="*")), look
    gathered = [line.split() for line in table.splitlines() if line.startswith("  gathered by")]
    assert sum(len(line) - 2 for line in gathered) == reads.total()


FACTS["token_pool"] = token_pool

# -- lazy_chain: arrays that are built on arrays ---------------------------------------------------


def lazy_chain(trace: Trace, forms: Forms, _: Engine) -> None:
    ran = {item.step: item for item in forwards_of(trace)}
    told = [(int(m.attrs["step"]), int(m.attrs["source"])) for m in marks(trace, "lazy tokens")]
    drawn = {step for (step,) in forms.picture.count("step", kind="promised")}
    told = [(step, source) for step, source in told if str(step) in drawn]
    assert [str(step) for step, _ in told] == sorted(drawn, key=int)
    sources = {(str(source), str(step)) for step, source in told if source}
    assert {*forms.picture.count("source", "step", kind="read")} == sources
    fresh = {(str(step),) for step, source in told if not source and ran[step].mode == "decode"}
    assert {*forms.picture.count("step", kind="flag-head")} == fresh
    table = table_in(forms.text, "Step by step")
    assert [row[0] for row in table] == [str(step) for step, _ in told]
    assert f"{len(sources)} steps built on arrays" in forms.words
    for kind in ("promised", "stored"):
        steps = forms.picture.shapes("rect", kind=kind, step="*")
        assert of_kind(forms.puml, kind) == len(steps)


FACTS["lazy_chain"] = lazy_chain

# -- placeholder_fill: which row a placeholder is filled from --------------------------------------


def placeholder_fill(trace: Trace, forms: Forms, _: Engine) -> None:
    ran = {item.step: item for item in forwards(trace)}
    rows = forms.picture.shapes("rect", source="*", rid="*")
    steps = {int(row["data-step"]) for row in forms.picture.shapes("rect", step="*", rid="*")}
    assert steps == {*sorted(ran)[: len(steps)]}
    boxes = Counter((str(step), rid) for step in steps for rid in ran[step].rids)
    assert forms.picture.count("step", "rid", tag="rect") == boxes
    joined = forms.picture.shapes("line", "line", step="*", row="*", source="*")
    for shape in joined:
        step, row, source = (int(shape[f"data-{name}"]) for name in ("step", "row", "source"))
        assert ran[step].rids[row] == ran[step - 1].rids[source]
    relayed = {item.id: item.step for item in trace.slices if item.name in ("sample", "copy")}
    edges = {e.dst for e in trace.edges if e.kind == "token" and e.src in relayed}
    assert {int(shape["data-step"]) for shape in joined} == {
        step for step in steps if ran[step].id in edges
    }
    filled = Counter((r["data-rid"], r["data-source"]) for r in rows if r["data-source"] != "-1")
    table = forms.text.partition("Rows of each step")[2].partition("\n")[2].partition("\n\n▒")[0]
    assert Counter(re.findall(r"(\w+)<(\d+)", table)) == filled
    assert f"{filled.total()} of {len(rows)} rows" in forms.words and filled.total() == len(joined)


FACTS["placeholder_fill"] = placeholder_fill

# -- prev_sampled: rows that go on from the last step's --------------------------------------------


def prev_sampled(trace: Trace, forms: Forms, _: Engine) -> None:
    table = forms.text.partition("Rows of input_ids")[2].partition("\n")[2]
    table = table.partition("\n\nfrom the CPU")[0]
    steps = {int(shape["data-step"]) for shape in forms.picture.shapes("rect", step="*")}
    told = [mark for mark in marks(trace, "prev sampled") if mark.attrs["step"] in steps]
    sources = Counter(place for mark in told for place in str(mark.attrs["sources"]).split())
    assert Counter(re.findall(r"<(\d+)", table)) == sources
    assert len(forms.picture.shapes("line", kind="link", rid="*")) == sources.total()
    paths = Counter(str(mark.attrs["path"]) for mark in told)
    assert all(table.count(path) == paths[path]
               for path in ("full", "slice", "scatter"))  # fmt: skip
    new = [int(word) for line in table.splitlines() if line.startswith("from the CPU")
           for word in line.split()[3:]]  # fmt: skip
    assert sum(new) == sum(int(mark.attrs["new"]) for mark in told)


FACTS["prev_sampled"] = prev_sampled

# -- generation_batch_result: the copy path --------------------------------------------------------


def generation_batch_result(trace: Trace, forms: Forms, _: Engine) -> None:
    rows = forms.text.partition("taken\n")[2].partition("\n\n")[0].splitlines()
    table = [re.split(r" {2,}", row.strip()) for row in rows]
    steps = [int(row[0]) for row in table]
    assert steps == [item.step for item in forwards(trace)[: len(steps)]]
    waits, slices = Counter[int](), {item.id: item for item in trace.slices}
    for item in trace.slices:
        if item.name == "wait" and item.step in steps:
            waits[item.step] += item.duration
    drawn = Counter[int]()
    for shape in forms.picture.shapes("rect", op="wait"):
        drawn[int(shape["data-step"])] += int(shape["data-ns"])
    assert +drawn == +waits
    pairs = [(slices[e.src], slices[e.dst]) for e in trace.edges if e.kind == "result"]
    ready = Counter({dst.step: dst.start - src.end for src, dst in pairs if dst.step in steps})
    assert [row[6] for row in table] == [ms(ready[step]) for step in steps]
    assert [row[7] for row in table] == [ms(waits[step]) for step in steps]
    shapes = forms.picture.shapes("rect", ready="*")
    assert {int(shape["data-ready"]) for shape in shapes} == {*+ready}
    uploads = [s for s in trace.slices if s.name == "upload" and s.step in steps]
    assert len(forms.picture.shapes("rect", op="upload")) == len(uploads)
    taken = [int(step) for step in re.findall(r"result\(\) of step (\d+)", forms.puml)]
    assert taken == steps[: len(taken)]
    for step in re.findall(r" ms for step (\d+)", forms.puml):
        assert waits[int(step)]


FACTS["generation_batch_result"] = generation_batch_result


@pytest.mark.parametrize("topic", ["serial", "overlap", "vllm_pp", "generation_batch_result"])
def test_how_host_buffers_are_shared_is_read_off_their_times(topic: str) -> None:
    trace = trace_of(topic)
    words = Picture(draw("generation_batch_result", trace)).words
    count = next(int(mark.attrs["count"]) for mark in trace.marks if mark.name == "host buffers")
    assert ("steps take turns" in words) == (count > 1) == ("one for all steps" not in words)
    assert "none writes what is not read yet" in words
    late = tuple(
        replace(item, start=trace.end, end=trace.end)
        if (item.name, item.step) == ("process", 2) else item for item in trace.slices
    )  # fmt: skip
    words = Picture(draw("generation_batch_result", replace(trace, slices=late))).words
    assert "1 step wrote what was not read yet" in words


# -- grammar_manager: every mask, and where a rule ends --------------------------------------------


def grammar_manager(trace: Trace, forms: Forms, _: Engine) -> None:
    if "the first" in forms.picture.words:
        return
    masks = [tuple(str(m.attrs[key]) for key in ("rid", "step", "allowed"))
             for m in marks(trace, "grammar mask")]  # fmt: skip
    assert forms.picture.count("rid", "step", "allowed", tag="text") == Counter(masks)
    ends = Counter(
        (str(mark.attrs["rid"]), str(mark.attrs["step"]))
        for mark in marks(trace, "grammar accept") if mark.attrs["terminated"]
    )  # fmt: skip
    assert forms.picture.count("rid", "step", kind="end", tag="line") == ends
    assert forms.words.count(" terminated") >= ends.total()
    waits = [mark for mark in marks(trace, "wait") if mark.attrs["reason"] == "grammar"]
    assert len(forms.picture.shapes("path", kind="flag-head", wait="*")) == len(waits)
    rows = table_in(forms.text, "Mask by mask")
    assert sorted((row[1], row[0]) for row in rows) == sorted((rid, step) for rid, step, _ in masks)
    told = f"{len(masks)} mask{'s' * (len(masks) != 1)}, "
    assert told in forms.picture.words and told in forms.words
    lost = sum(int(shape["data-lost"]) for shape in forms.picture.shapes("rect", lost="*"))
    assert lost == lost_ns(trace).get("grammar", 0)


FACTS["grammar_manager"] = grammar_manager


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
