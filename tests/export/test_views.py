"""What holds of every topic's view, in each form; a loop's pictures; and ``minisched view``."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minisched.checks.draw import all_designs
from minisched.checks.overlap import forwards, measure
from minisched.export.layout import in_turns, shown
from minisched.export.looks import DARK, LIGHT, LOOKS, ON_DARK, OWNERS, PHASES, flat, glyph
from minisched.export.runs import finding
from minisched.export.units import ms
from minisched.export.views import FORMS, NothingToShow, draw, parts_of
from minisched.loops.design import LOOPS
from minisched.recipes import trace_of
from minisched.topics import TOPICS
from minisched.trace import Mark, Trace
from tests.support import Picture, contrast, drawn_run, every, forms_of, many

ROOT = Path(__file__).resolve().parents[2]
EMPTY = Trace("serial", "sim", "hash", "virtual", (), (), (), ())
NO_LOOPS = [topic for topic in TOPICS if not TOPICS[topic].startswith("loops/")]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_golden_run_is_drawn_whole_and_a_damaged_one_gets_a_sentence(topic: str) -> None:
    trace, dice = trace_of(topic), random.Random(topic)
    for part in parts_of(topic) or ("",):
        forms = forms_of(topic, trace, part)
        assert forms and "time" in forms.picture.words + forms.text
        assert forms_of(topic, EMPTY, part) is None
    for _ in range(many(4, 12)):
        kept = [damaged(mark, dice) for mark in trace.marks if dice.random() > 0.05]
        part = (parts_of(topic) or ("",))[0]
        forms_of(topic, replace(trace, marks=tuple(kept)), part, is_damaged=True)


def damaged(mark: Mark, dice: random.Random) -> Mark:
    """The mark, now and then without one of its attributes or with one of the wrong type."""
    if not mark.attrs or dice.random() > 0.02:
        return mark
    name = dice.choice(sorted(mark.attrs))
    attrs = {key: value for key, value in mark.attrs.items() if key != name}
    return replace(mark, attrs=attrs if dice.random() < 0.5 else {**attrs, name: 0.5})


def test_what_is_not_there_is_said_in_one_sentence() -> None:
    for arguments, known in (
        (("nope",), "the topics are radix_cache, "),
        (("serial", "png"), "the forms are svg, puml, text."),
        (("serial", "svg", "nope"), "its parts are by_step, timing."),
    ):
        with pytest.raises(ValueError, match=re.escape(known)) as error:
            draw(arguments[0], EMPTY, *arguments[1:])
        assert not isinstance(error.value, NothingToShow)


# -- looks -----------------------------------------------------------------------------------------


def test_words_stand_out_from_what_they_stand_on() -> None:
    pairs = [(flat(k), look.text if look.fill else LIGHT["ink"]) for k, look in LOOKS.items()]
    pairs += [(fill, DARK["ink"]) for fill in ON_DARK.values()]
    pairs += [*OWNERS, *((paper["paper"], paper["bubble"]) for paper in (LIGHT, DARK))]
    for pair in pairs:
        assert contrast(*pair) >= 4.5, pair


@pytest.mark.parametrize("topic", TOPICS)
def test_looks_on_a_page_are_told_apart_without_colour(topic: str) -> None:
    for part in parts_of(topic) or ("",):
        picture = Picture(draw(topic, trace_of(topic), part=part))
        boxes = {kind for box in picture.shapes("rect", "box") for kind in box["class"].split()}
        kinds = [kind for kind in LOOKS if kind in boxes and kind not in PHASES]
        assert len({glyph(kind) for kind in kinds}) == len(kinds), kinds
        filled = [LOOKS[kind] for kind in kinds if LOOKS[kind].fill]
        assert len({(look.fill, look.texture) for look in filled}) == len(filled)


# -- a loop's pictures, in three forms with the same steps and slices -----------------------------


@pytest.mark.parametrize("loop", every(4, LOOPS))
def test_any_run_is_drawn_with_all_its_slices_and_edges_or_a_sentence_says_why_not(
    loop: str,
) -> None:
    designs = [design.name for design in all_designs() if design.loop == loop]
    for seed in range(many(3, 8)):
        trace, _ = drawn_run(seed, designs[seed % len(designs)])
        for topic in [] if seed % 3 else [*NO_LOOPS, "mindie_placeholder"]:
            forms_of(topic, trace)
        if forwards(trace):
            timing(trace)


def ids(picture: Picture) -> list[int]:
    return sorted(int(box["data-id"]) for box in picture.shapes("rect", id="*"))


def timing(trace: Trace) -> None:
    view, forms = shown(trace, 3), forms_of("serial", trace, "timing")
    assert forms
    inside = [s for s in trace.slices if s.end > view.start and s.start < view.end and s.duration]
    assert ids(forms.picture) == sorted(item.id for item in inside)
    whole = (view.start, view.end) == (0, trace.end)
    said = f"steps {view.first_step} to {view.last_step} of {measure(trace).steps}"
    assert whole or f"{said}: {ms(view.duration)} ms" in forms.words
    assert finding(view) in forms.words and finding(view) in forms.picture.words
    lanes = [line for line in forms.text.splitlines() if " │" in line]
    for lane, drawn in zip(view.lanes, lanes, strict=True):
        seen = set(drawn.partition("│")[2])
        assert seen & {glyph(item.name) for item in view.on(lane)} or not any(
            item.duration for item in view.on(lane)
        )


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if TOPICS[topic].startswith("loops/")])
def test_what_is_said_of_a_golden_run_is_its_design_s(topic: str) -> None:
    trace = trace_of(topic)
    for form in FORMS:
        assert ("mean of " in draw(topic, trace, form, "timing")) == (topic in ("pd", "vllm_pp"))
    views = [shown(trace, count) for count in (2, 3, 4)]
    for small, large in pairwise(views):  # the same stretch of settled steps
        assert large.first_step <= small.first_step <= small.last_step <= large.last_step
    modes = {i.mode for i in forwards(trace) if views[2].first_step <= i.step <= views[2].last_step}
    assert modes == {"decode"}


# -- vllm_pp: batches that take turns are settled too ----------------------------------------------


def test_batches_that_take_turns_are_settled_too() -> None:
    trace = trace_of("vllm_pp")
    turns, rids = in_turns(trace), {item.step: item.rids for item in forwards(trace)}
    assert len(turns) >= 8 and shown(trace, 4).first_step in turns
    assert all(rids[step] == rids[step - 4] for step in turns[4:])


# -- pd: two sides, and the way between ------------------------------------------------------------


def test_pd_shows_both_sides_and_a_kv_transfer_is_called_so_in_every_form() -> None:
    trace = trace_of("pd")
    for form in FORMS:
        assert "KV transfer" in draw("pd", trace, form, "timing")
    svg = draw("pd", trace, part="timing")
    assert "KV to the decode side" in Picture(svg).words and 'class="arrow transfer' in svg


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "name", "form", "part"), [
    ((), "overlap.svg", "svg", ""),
    (("--form", "puml", "--part", "timing"), "overlap_timing.puml", "puml", "timing"),
    (("--form", "text", "--out", "a.txt"), "a.txt", "text", ""),
])  # fmt: skip
def test_each_form_and_part_goes_where_it_belongs(
    view: Any, tmp_path: Path, arguments: tuple[str, ...], name: str, form: str, part: str
) -> None:
    source = str(ROOT / "traces" / "overlap.json")
    assert view("overlap", source, *arguments) == (0, f"{name}\n", "")
    assert (tmp_path / name).read_text("utf-8") == draw("overlap", trace_of("overlap"), form, part)
