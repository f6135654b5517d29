"""What views say in words is true and explained: names, numbers, letters and legends."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.export import native
from minisched.export.layout import make_view
from minisched.export.letters import LETTERS
from minisched.export.palette import PAINTS, SHARES
from minisched.export.pictures import pictures
from minisched.export.recipes import trace_of
from minisched.export.text import to_text, views_to_text
from minisched.export.text_axis import draw_axis
from minisched.export.units import ms, tick_step
from minisched.export.views import FORMS, draw, parts_of
from minisched.export.views.look import LOOKS
from minisched.export.views.names import NEAR
from minisched.export.views.page import Page
from minisched.export.views.round_words import RESERVE
from minisched.export.views.rounds import rounds_of
from minisched.export.views.shown_steps import shown
from minisched.export.views.steps_rows import rows_of
from minisched.export.views.text_page import GLYPHS, TextPage
from minisched.loops.registry import LOOPS
from minisched.topics import TOPICS
from minisched.trace import Counter as Count
from tests.support import Picture, check_picture
from tests.test_export import loop_traces
from tests.test_views import runs

LOOP_TOPICS = [topic for topic in TOPICS if TOPICS[topic] == "loops"]
KV = "KV to the decode side"


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", LOOP_TOPICS)
def test_the_rhythm_says_the_least_and_the_most(topic: str) -> None:
    """Every step's lead is inside the range that is told, and both its ends are some step's.

    A step's lead is over the step before it on the same device; how many have one is told, too.
    """
    trace = trace_of(topic)
    rows = rows_of(trace, 6 if topic == "multi_step" else 4)
    pairs = [
        ([a for a in rows[:at] if a.side == b.side][-1], b)
        for at, b in enumerate(rows) if any(a.side == b.side for a in rows[:at])
    ]  # fmt: skip
    leads = [a.device_span[1] - b.start for a, b in pairs]
    leads = sorted(lead for lead in leads if lead > 0)
    for form in FORMS:
        said = re.search(r"begins .* (?:steps?) ([\d.]+)(?: to ([\d.]+))? ms before",
                         draw(topic, trace, form, "steps"))  # fmt: skip
        assert bool(said) == bool(leads)
        if said:
            assert [said[1], said[2] or said[1]] == [ms(leads[0]), ms(leads[-1])]
            assert (said[2] is None) == (ms(leads[0]) == ms(leads[-1]))
            some = f"begins {len(leads)} of these {len(pairs)} steps"
            assert (some in said[0]) == (len(leads) < len(pairs))
            is_alone = len({row.side for row in rows}) == 1
            text = draw(topic, trace, form, "steps")
            assert ("the device is done with the one above" in text) == is_alone


def test_pd_s_rhythm_is_a_range() -> None:
    """Of its two hosts, each against its own device."""
    words = "a host begins 3 of these 4 steps 5.55 to 8.45 ms before its own device is done with"
    assert words in draw("pd", trace_of("pd"), "text", "steps")


@pytest.mark.parametrize("topic", ["pd", "vllm_pp", "overlap"])
def test_how_busy_devices_are_is_the_whole_run_s_and_of_several_the_mean(topic: str) -> None:
    trace, count = trace_of(topic), {"pd": 2, "vllm_pp": 4, "overlap": 1}[topic]
    text, svg = draw(topic, trace, "text", "timing"), draw(topic, trace, part="timing")
    line = next(line for line in text.splitlines() if "device busy" in line)
    assert re.search(r"whole run: [\d.]+ ms, device busy \d+ %", line)
    for words in (line, Picture(svg).words):
        assert (f"(mean of {count} devices)" in words) == (count > 1) == ("mean of" in words)
    for part in ("timing", "sequence"):
        puml = draw(topic, trace, "puml", part)
        assert (f"of the run, the mean of {count} devices" in puml) == (count > 1)
        assert re.search(r"device busy \d+ % of the run", puml)
    clock = f"{trace.loop} on sim, hash model, simulated time"
    assert text.splitlines()[1] == clock


# -- KV is no token ----------------------------------------------------------------------------


def test_a_kv_transfer_is_called_so_in_every_form() -> None:
    """As many arrows bring KV as transfers end in one, in words, colour and legend."""
    trace = trace_of("pd")
    count = sum(arrow.brings == "transfer" for arrow in shown(trace, 2).arrows)
    slices = {item.id: item.name for item in trace.slices}
    assert count > 0 == [edge.kind for edge in trace.edges].count("transfer")
    assert {slices[edge.src] for edge in trace.edges if edge.kind == "token"} > {"transfer"}
    puml, text = draw("pd", trace, "puml", "sequence"), draw("pd", trace, "text", "sequence")
    lines = [line for line in puml.splitlines() if line.startswith("stream_kv_transfer -")]
    assert len(lines) == count == text.count(": KV for ")
    assert all(re.search(r" : KV for \d+$", line) for line in lines)
    picture = Picture(draw("pd", trace, part="sequence"))
    assert sum("KV for" in (shape.get("about") or "") for shape in picture.shapes("path")) in (
        0, count)  # fmt: skip
    for part in ("timing", "sequence", "steps"):
        svg = draw("pd", trace, part=part)
        assert KV in Picture(svg).words and 'class="arrow transfer' in svg
        assert KV not in draw("overlap", trace_of("overlap"), part=part)
    assert KV in draw("pd", trace, "puml", "timing")


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", [*LOOPS, "vllm_async:pool", "overlap-token_pool"])
def test_every_loop_s_own_name_shows_its_parts(loop: str) -> None:
    trace = loop_traces()[loop] if loop in loop_traces() else trace_of("overlap")
    assert {"timing", "sequence", "steps"} <= set(parts_of(loop))
    for part in parts_of(loop):
        if part != "ledger":
            assert trace.loop in Picture(draw(loop, trace, part=part)).words


@pytest.mark.parametrize("topic", LOOP_TOPICS)
def test_on_another_loop_s_trace_the_title_is_that_loop_s(topic: str) -> None:
    trace = trace_of("overlap")
    for part in parts_of(topic):
        if part != "ledger":  # it needs its own loop's marks
            assert draw(topic, trace, "text", part).startswith("overlap: ")
            svg = draw(topic, trace, part=part)
            assert "<title>overlap: " in svg
            assert topic == "overlap" or f"{topic}:" not in svg


def test_a_loop_and_its_relay_go_into_one_file_name(view: Any, tmp_path: Path) -> None:
    Path("a.json").write_text(native.to_json(trace_of("overlap")))
    assert view("overlap:pool", "a.json") == (0, "overlap-pool.svg\n", "")
    assert (tmp_path / "overlap-pool.svg").is_file()


def test_an_unknown_topic_names_the_nearest(view: Any) -> None:
    assert set(NEAR.values()) <= set(TOPICS) and not set(NEAR) & {*TOPICS, *LOOPS}
    asked = {**NEAR, "decod": "decode", "vllm_asinc": "vllm_async"}
    for word, topic in asked.items():
        code, out, err = view(word, "missing.json")
        assert (code, out, err.count("\n"), err.count(". ")) == (2, "", 1, 0)
        assert f"unknown topic {word!r}; perhaps {topic} is meant; the topics are radix" in err
    assert "'nope'; the topics are radix_cache, " in view("nope", "missing.json")[2]


def test_the_help_names_every_topic_and_every_part(view: Any) -> None:
    code, out, _ = view("--help")
    words = set(re.findall(r"\w+", out))
    assert code == 0 and set(TOPICS) <= words
    assert {part for topic in TOPICS for part in parts_of(topic)} <= words


# -- signs -------------------------------------------------------------------------------------


def test_every_letter_is_one_thing_s() -> None:
    """Small ones are the host's, large ones the device's, and a wait is no letter."""
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert all(len(sign) == 1 and not sign.isdigit() for sign in LETTERS.values())
    for trace in loop_traces().values():
        for box in make_view(trace).boxes:
            sign = LETTERS[box.slice.name]
            assert sign == "·" or sign.islower() == (box.lane.side == "host")


@pytest.mark.parametrize("topic", LOOP_TOPICS)
def test_the_legend_of_a_timing_text_has_what_is_drawn(topic: str) -> None:
    text = draw(topic, trace_of(topic), "text", "timing")
    drawn = "".join(line.partition("│")[2] for line in text.splitlines())
    drawn = re.sub(r"[\d ]", "", drawn)
    legend = text.rpartition("\n\n")[2]
    signs = set(re.findall(r"(?:^| {2}|\n)(\S) \S", legend))
    assert set(drawn) <= signs and ("╱" in drawn) == ("╱" in signs)


def test_a_run_without_bubbles_has_none_in_its_legend() -> None:
    trace = trace_of("overlap")
    assert "bubble" not in views_to_text([shown(trace, 3)])
    assert "╱ bubble: the device idles" in to_text([trace_of("serial")])


@pytest.mark.parametrize("topic", TOPICS)
def test_no_sign_means_two_things_on_a_page(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown_names: list[str] = []
    monkeypatch.setattr(TextPage, "legend", lambda page, names: shown_names.extend(names))
    for part in parts_of(topic) or ("",):
        shown_names.clear()
        draw(topic, trace_of(topic), "text", part)
        signs = Counter(GLYPHS[name] for name in shown_names)
        assert [sign for sign, count in signs.items() if count > 1] == []


def test_a_look_of_views_takes_no_name_from_a_phase_or_an_op() -> None:
    """Both are classes of boxes on the same page."""
    shares = set(SHARES)  # what a step did for one request has the same names in both
    assert set(LOOKS) & set(PAINTS) - shares == set()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**10), st.integers(0, 10**10), st.integers(20, 90), st.integers(6, 40))
def test_an_axis_has_its_marks_at_its_times(
    start: int, longest: int, cells: int, wide: int
) -> None:
    line, numbers = draw_axis(longest, cells, wide, start)
    assert len(line) == wide + cells and len(numbers) <= wide + cells
    assert numbers[: wide - 2].strip() == ("time in ms" if wide >= 12 else "ms")
    step, long = tick_step(max(1, longest)), max(1, longest)
    ticks = [time for time in (start // step * step + step * n for n in range(13))
             if start <= time <= start + long]  # fmt: skip
    marked = {at for at, sign in enumerate(line[wide:]) if sign == "┴"}
    assert marked == {min((time - start) * cells // long, cells - 1) for time in ticks}
    for found in re.finditer(r"[\d.]+", numbers[wide:]):
        time = round(Decimal(found[0]) * 1_000_000)
        assert line[wide + found.start()] == "┴"
        assert found.start() == min((time - start) * cells // max(1, longest), cells - 1)
        assert start <= time <= start + max(1, longest)


@pytest.mark.parametrize("top", [100, 100.4, 100.5, 101.5, 101.6])
def test_the_paper_ends_on_the_page(top: float) -> None:
    check_picture(Picture(Page("a title", "about", top=top).finish()))


# -- prefill, the ring, the copy path ----------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(runs())
def test_the_reserve_is_what_it_is_said_to_be(run: Any) -> None:
    """With SGLang's budget memory falls by tokens, a page and the locked prefix; else not.

    In a round that preempts somebody memory also comes back.
    """
    trace, engine = run
    size = engine.scheduler.config.page_size
    try:
        rounds = rounds_of(trace)
    except ValueError:
        return
    text = draw("prefill", trace, "text")
    if RESERVE[0][:40] not in text:
        return
    came_back = {mark.time for mark in trace.marks if mark.name == "retraction"}
    for one in rounds:
        before = one.budget
        for mark in one.admits if one.budget.time not in came_back else ():
            now, tokens = int(mark.attrs["cur_rem"]), int(mark.attrs["extend_len"])
            least = -(-tokens // size) * size + size
            fell = int(before.attrs["cur_rem"]) - now
            assert least <= fell <= least + int(mark.attrs["hit_len"])
            before = mark


def test_prefill_explains_its_numbers_and_results() -> None:
    trace = trace_of("prefill")
    svg = Picture(draw("prefill", trace)).words
    text = " ".join(draw("prefill", trace, "text").split())
    for words in (svg, text, draw("prefill", trace, "puml")):
        for line in RESERVE:
            assert line in words
        assert "NO_TOKEN (SGLang's AddReqResult): " in words
        assert "OTHER (SGLang's AddReqResult): " in words
        assert "needs 1 token, 0 left" in words and "1 tokens" not in words
    assert "in reserve" not in draw("prefill", trace_of("unified"), "text")


def test_the_ring_s_empty_slots_and_thin_bars_are_explained() -> None:
    svg = draw("future_map", trace_of("future_map"))
    words = Picture(svg).words
    assert "never used yet" in words and "a thin stored: " in words
    assert "never used" not in Picture(draw("token_pool", trace_of("token_pool"))).words


def test_what_locks_is_a_path() -> None:
    text = draw("radix_cache", trace_of("radix_cache"), "text")
    assert "(1 path unlocked)" in text and not re.search(r"node[^;\n]*locked", text)
    assert "; 1 node added; 1 path locked, 1 unlocked\n" in text
    assert "…" not in text.partition("Every change")[2]


def test_the_copy_path_is_called_so() -> None:
    for form in FORMS:
        drawn = draw("generation_batch_result", trace_of("generation_batch_result"), form)
        assert "generation_batch_result: the copy path" in drawn


# -- headlines are read off their trace ------------------------------------------------------------


@pytest.mark.parametrize("values", [(90, 90, 90), (90, 80, 70), (70, 90, 85, 85), (5, 9)])
def test_the_new_token_ratio_s_heading_is_its_course(values: tuple[int, ...]) -> None:
    golden = trace_of("retraction")
    others = [item for item in golden.counters if item.name != "new token ratio"]
    ratio = [Count("new token ratio", at, value) for at, value in enumerate(values)]
    trace = replace(golden, counters=tuple(sorted([*others, *ratio], key=lambda item: item.time)))
    words, signs = draw("retraction", trace), [b - a for a, b in pairwise(values)]
    for what, count in (("falls", sum(x < 0 for x in signs)), ("rises", sum(x > 0 for x in signs))):
        assert (f"{what} {count} time" in words) == bool(count)
    assert ("stays at 90" in words) == (not any(signs))
    assert "decays" not in words


def test_tokens_are_drawn_on_no_time_axis() -> None:
    """They begin in one column, behind all that is drawn by time."""
    picture = Picture(draw("schedule_policy", trace_of("schedule_policy")))
    bars = picture.shapes("rect", tokens="*")
    waits = [rect for rect in picture.shapes("rect", "queued", rid="*") if "data-round" not in rect]
    ends = [float(rect["x"]) + float(rect["width"]) for rect in waits]
    firsts = {bar["data-rid"]: float(bar["x"]) for bar in reversed(bars)}
    assert bars and waits and len(set(firsts.values())) == 1
    assert min(firsts.values()) > max(ends)
    scales = {round(float(bar["width"]) / int(bar["data-tokens"]), 2) for bar in bars}
    assert max(scales) - min(scales) < 0.06, "one scale for all"


# -- and so are titles -------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_what_a_retraction_gives_back_is_said_in_kv_slots(form: str) -> None:
    """As the axis of memory is: pages times their size, whatever that is."""
    golden = trace_of("retraction")
    for size in (1, 4):
        marks = tuple(
            replace(mark, attrs={**mark.attrs, "page_size": size}) if mark.name == "kv pool"
            else mark for mark in golden.marks
        )  # fmt: skip
        words = draw("retraction", replace(golden, marks=marks), form)
        given = [int(mark.attrs["pages"]) * size for mark in marks if mark.name == "retraction"]
        said = re.findall(r"gives back (\d+) KV slots", words)
        assert said == ([] if form == "puml" else list(map(str, given)))
        assert not re.search(r"\bpages?\b", words.partition("</style>")[2] or words)
    assert "preemption" not in draw("unified", trace_of("unified"), form)


@pytest.mark.parametrize("topic", ["lazy_chain", "mlx_async"])
def test_not_every_step_is_said_to_be_chained_where_some_are_not(topic: str) -> None:
    for form in FORMS:
        words = draw("lazy_chain", trace_of(topic), form)
        assert "each step is built on" not in words and "array of tokens is built on" in words


@pytest.mark.parametrize("topic", ["serial", "overlap", "vllm_pp", "generation_batch_result"])
def test_how_host_buffers_are_shared_is_read_off_their_times(topic: str) -> None:
    """Whether steps take turns, and whether a copy writes what the host has not read."""
    trace = trace_of(topic)
    words = Picture(draw("generation_batch_result", trace)).words
    count = next(int(mark.attrs["count"]) for mark in trace.marks if mark.name == "host buffers")
    assert ("steps take turns" in words) == (count > 1) == ("one for all steps" not in words)
    assert "none writes what is not read yet" in words
    late = replace(
        trace,
        slices=tuple(
            replace(item, start=trace.end, end=trace.end)
            if (item.name, item.step) == ("process", 2) else item for item in trace.slices
        ),
    )  # fmt: skip
    words = Picture(draw("generation_batch_result", late)).words
    assert "none writes" not in words and "1 step wrote what was not read yet" in words


def test_titles_of_two_steps_do_not_tell_of_others() -> None:
    """A burst and a pipeline's filling are told where all their steps are shown."""
    for loop, words in (("multi_step", "decoded four times"), ("vllm_pp", "one for each")):
        assert words in pictures()[loop]() and words not in pictures()[f"{loop}_sequence"]()
        shown = re.search(r"steps (\d+) to (\d+) of", pictures()[f"{loop}_sequence"]())
        assert shown and int(shown[2]) - int(shown[1]) == 1


def test_a_title_that_names_an_original_says_what_it_does_there() -> None:
    """SGLang's penalties wait for nobody, and where the device drafts the device does not wait."""
    penalties = pictures()["wait_penalties"]()
    assert re.search(r"one token late, as in SGLang: .* the device never waits", penalties)
    assert "title SGLang: " not in penalties
    drafts = pictures()["wait_speculation_drafts"]()
    assert "title Speculation: the device waits only where the host drafts\\n" in drafts
    assert re.search(r"the host drafts .* the device waits [\d.]+ ms for the host", drafts)
    assert re.search(r"the device drafts .* the device never waits", drafts)
    points = pictures()["vllm_cpu_gpu_overlap_dependency_points"]()
    chapter = points.partition("== Drafts: ")[2]
    assert "nothing waits" not in points and "block on" in chapter
    launched = chapter.index("execute_model]](11)")
    assert launched < chapter.index("block on 10"), "launched first, and only then waited for"
