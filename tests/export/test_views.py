"""What holds of every topic's view, in each form; how it looks; and ``minisched view``."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.draw.designs import all_designs
from minisched.core import Request
from minisched.export import native
from minisched.export.palette import PAINTS, SHARES, Paint
from minisched.export.puml_style import BUBBLE
from minisched.export.recipes import recipes, trace_of
from minisched.export.views import NothingToShow, decode, draw, parts_of
from minisched.export.views.look import LOOKS
from minisched.export.views.puml_stays import fill
from minisched.export.views.text_page import COLUMNS, GLYPHS, HEIGHTS, TextPage
from minisched.loops.registry import LOOPS
from minisched.topics import TOPICS
from minisched.trace import Mark, Trace
from tests.support import (
    drawn_run,
    forms_of,
    many,
)

ROOT = Path(__file__).resolve().parents[2]
EMPTY = Trace("serial", "sim", "hash", "virtual", (), (), (), ())
NO_LOOPS = [topic for topic in TOPICS if TOPICS[topic] != "loops"]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_golden_run_is_drawn_whole_and_a_damaged_one_gets_a_sentence(topic: str) -> None:
    trace, dice = trace_of(topic), random.Random(topic)
    for part in parts_of(topic) or ("",):
        assert (
            forms := forms_of(topic, trace, part)
        ) and "time" in forms.picture.words + forms.text
        assert forms_of(topic, EMPTY, part) is None
        assert draw(topic, trace, part=part) == forms.picture.svg
    part = (parts_of(topic) or ("",))[0]
    for _ in range(many(8, 60)):
        kept = [damaged(mark, dice) for mark in trace.marks if dice.random() > 0.05]
        forms_of(topic, replace(trace, marks=tuple(kept)), part, is_damaged=True)


def damaged(mark: Mark, dice: random.Random) -> Mark:
    """The mark, now and then without one of its attributes or with one of the wrong type."""
    if not mark.attrs or dice.random() > 0.02:
        return mark
    name = dice.choice(sorted(mark.attrs))
    attrs = {key: value for key, value in mark.attrs.items() if key != name}
    return replace(mark, attrs=attrs if dice.random() < 0.5 else {**attrs, name: 0.5})


@pytest.mark.parametrize("loop", LOOPS)
def test_any_run_is_drawn_or_one_sentence_says_why_not(loop: str) -> None:
    designs = [design.name for design in all_designs() if design.loop == loop]
    for seed in range(many(1, 8)):
        trace, _ = drawn_run(seed, designs[(seed + 3) * 5 % len(designs)])
        for topic in [*NO_LOOPS, "vllm_batch_queue", "mindie_placeholder"]:
            forms_of(topic, trace)


@pytest.mark.thorough
@pytest.mark.parametrize("topic", NO_LOOPS)
def test_of_a_long_run_the_beginning_is_shown_and_it_says_so(topic: str) -> None:
    recipe = recipes()[topic]
    copies = [
        Request(
            f"{req.rid}{n}", [token + n % 90 for token in req.prompt], req.params,
            arrival_time=req.arrival_time + 90_000_000 * n,
        )
        for n in range(60 // len(recipe.requests) + 12)
        for req in recipe.requests
    ]  # fmt: skip
    forms = forms_of(topic, replace(recipe, requests=copies).run())
    assert forms and re.search(r"the first \d+ of \d+", forms.picture.words)
    assert len(forms.picture.svg) < 400_000


def test_what_is_not_there_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, known in (
        (("nope",), "the topics are radix_cache, "),
        (("serial", "png"), "the forms are svg, puml, text."),
        (("serial", "svg", "nope"), "its parts are timing, sequence, steps."),
        (("decode", "svg", "steps"), "it has one picture only."),
        (("mindie_placeholder", "puml"), "its parts that have one are timing, sequence, steps."),
    ):
        with pytest.raises(ValueError, match=re.escape(known)) as error:
            draw(arguments[0], EMPTY, *arguments[1:])
        assert not isinstance(error.value, NothingToShow)
    monkeypatch.delattr(decode, "puml")
    with pytest.raises(ValueError, match="'decode' has no PlantUML form") as error:
        draw("decode", EMPTY, "puml")
    named = str(error.value).rpartition(" are ")[2].rstrip(".").split(", ")
    assert "overlap" in named and "decode" not in named


def test_views_need_only_the_standard_library() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from minisched.export.recipes import trace_of\n"
        "from minisched.export.views import draw\n"
        "assert all(draw(topic, trace_of(topic)) for topic in ('decode', 'unified', 'pd'))\n"
        "roots = {name.partition('.')[0] for name in sys.modules} - {'minisched', '__main__'}\n"
        "print(sorted(roots - sys.stdlib_module_names))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True)
    assert (done.stdout.decode().strip(), done.stderr.decode()) == ("[]", "")


# -- looks, and the pages they are on --------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_words_stand_out_and_looks_are_told_apart_without_colour() -> None:
    """WCAG's contrast of 4.5; and in one legend no two have the same fill and texture, or sign."""
    looks = [Paint(look.fill, look.text) for look in LOOKS.values() if look.fill]
    for paint in [*PAINTS.values(), *SHARES.values(), BUBBLE, *looks]:
        bright, dark = sorted(map(luminance, (paint.fill, paint.text)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, paint
    for names in (
        {"prompt", "decode", "again", "wasted"},
        {"protected", "evictable", "evicted"},
        {"promised", "stored", "stale"},
        {"left", "spent"},
        {"queued", "admitted", "evictable", "left"},
        {"stored", "evictable", "prompt", "again", "decode", "wasted"},
    ):
        assert len({(LOOKS[name].fill, LOOKS[name].texture) for name in names}) == len(names)
    assert len({fill(kind) for kind in ("queued", "wasted", "stale")}) == 3, "in PlantUML"
    assert set(LOOKS) & set(PAINTS) <= set(SHARES), "both are classes of boxes on one page"


@pytest.mark.parametrize("topic", TOPICS)
def test_no_sign_means_two_things_on_a_page(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(TextPage, "legend", lambda page, shown: names.extend(shown))
    for part in parts_of(topic) or ("",):
        names.clear()
        draw(topic, trace_of(topic), "text", part)
        signs = Counter(GLYPHS[name] for name in names)
        assert [sign for sign, count in signs.items() if count > 1] == []


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
        at = [(min(time * cells // end, cells - 1), value) for time, value in series]
        inside, before = ([v for c, v in at if c == cell], [v for c, v in at if c < cell])
        assert glyph == HEIGHTS[-(-max([*inside, *before[-1:]], default=0) * 8 // max(1, most))]


# -- the command -----------------------------------------------------------------------------------


def test_each_form_and_part_goes_where_it_belongs(view: Any, tmp_path: Path) -> None:
    for topic, arguments, name, form, part in (
        ("overlap", (), "overlap.svg", "svg", ""),
        ("overlap", ("--part", "steps"), "overlap_steps.svg", "svg", "steps"),
        ("overlap", ("--form", "puml", "--part", "sequence"), "overlap_sequence.puml", "puml",
         "sequence"),
        ("overlap", ("--form", "text", "--out", "a.txt"), "a.txt", "text", ""),
        ("vllm_batch_queue", ("--part", "queue"), "vllm_batch_queue.svg", "svg", "queue"),
    ):  # fmt: skip
        source = str(ROOT / "traces" / f"{topic}.json")
        drawn = draw(topic, trace_of(topic), form, part)
        assert view(topic, source, *arguments) == (0, f"{name}\n", "")
        assert (tmp_path / name).read_text() == drawn
        (tmp_path / name).unlink()
        if "--out" not in arguments:
            assert view(topic, source, *arguments, "--out", "-") == (0, drawn, "")
    source = str(ROOT / "traces" / "overlap.json")
    assert view("overlap:pool", source) == (0, "overlap-pool.svg\n", "")
    code, out, _ = view("--help")
    words = {*re.findall(r"\w+", out), *TOPICS}
    assert code == 0 and {part for topic in TOPICS for part in parts_of(topic)} <= words


def test_bad_input_to_the_command_is_one_sentence(view: Any, tmp_path: Path) -> None:
    good = str(ROOT / "traces" / "decode.json")
    Path("text.json").write_text("hello")
    Path("bytes.json").write_bytes(b"\xff\xfe")
    Path("empty.json").write_text(native.to_json(EMPTY))
    for arguments, words in (
        (("nope", good), "unknown topic 'nope'"),
        (("decod", good), "perhaps decode is meant"),
        (("decode", "missing.json"), "missing.json can't be read: No such file"),
        (("decode", str(tmp_path)), "can't be read: Is a directory"),
        (("decode", "text.json"), "text.json is not a minisched trace"),
        (("decode", "bytes.json"), "bytes.json is not a minisched trace: it is not text"),
        (("decode", good, "--form", "png"), "--form is 'png', but it must be one of svg,"),
        (("unified", good, "--out", "no/such/folder.svg"), "can't be written: No such file"),
        (("radix_cache", "empty.json"), "empty.json can't be shown as radix_cache: the trace has"),
    ):
        code, out, err = view(*arguments)
        assert (code, out) == (2, "") and words in err, err
        assert err.count("\n") == 1 and "Traceback" not in err
