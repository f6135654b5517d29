"""Pictures of broken laws: what did it in red, the missing edge, and everything in its place."""

from __future__ import annotations

import subprocess
import sys
from textwrap import wrap
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.offence import Offence
from minisched.checks.races import find_races, offence_of
from minisched.export.offence import draw
from minisched.export.offence_paper import MARGIN, lines_of
from minisched.export.offence_text import to_text
from minisched.export.svg import WIDTH
from minisched.export.svg_style import char_width
from minisched.trace import Mark, Slice, Trace
from tests.test_races import FREE_AT_ONCE, NO_WAIT, ONE_SLOT, traced

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def raced() -> tuple[Trace, Offence]:
    trace = traced("overlap", "ring", NO_WAIT)
    return trace, offence_of(find_races(trace)[0], trace)


def with_class(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [item for item in root.iter() if kind in item.get("class", "").split()]


def text_of(root: ElementTree.Element) -> list[str]:
    return ["".join(item.itertext()) for item in root.iter(f"{SVG}text")]


def test_the_two_are_red_and_the_edge_between_them_is_missing(raced: tuple[Trace, Offence]) -> None:
    trace, offence = raced
    root = ElementTree.fromstring(draw(trace, offence))
    marked = [item.get("data-offence") for item in root.iter() if item.get("data-offence")]
    assert sorted(map(int, filter(None, marked))) == sorted(offence.slices)
    assert offence.missing
    [missing] = [item for item in root.iter() if item.get("data-missing")]
    assert missing.get("data-missing") == "{} {}".format(*offence.missing)
    assert "missing: copy 1 does not wait for sample 1" in text_of(root)
    assert " ".join(text_of(root)).startswith("device output buffer 1 (cells 0-1): copy of step 1")
    drawn = {(item.get("data-src"), item.get("data-dst")) for item in root.iter()}
    assert tuple(map(str, offence.missing)) not in drawn, "the edge that is said to be missing"


def test_each_red_frame_lies_on_the_box_of_its_slice(raced: tuple[Trace, Offence]) -> None:
    trace, offence = raced
    root = ElementTree.fromstring(draw(trace, offence))
    boxes = {item.get("data-id"): item for item in root.iter() if item.get("data-id")}
    for frame in (item for item in root.iter() if item.get("data-offence")):
        box = boxes[frame.get("data-offence")]
        for name in ("x", "y"):
            assert float(frame.get(name, 0)) == pytest.approx(float(box.get(name, 0)) - 1, abs=0.2)


def test_everything_stays_on_the_paper(raced: tuple[Trace, Offence]) -> None:
    trace, offence = raced
    for around in (None, 0, 1_000_000, 10**12):
        root = ElementTree.fromstring(draw(trace, offence, around))
        height = float(root.get("height", 0))
        for box in root.iter(f"{SVG}rect"):
            if box.get("x") and box.get("class"):
                assert float(box.get("x", 0)) + float(box.get("width", 0)) <= WIDTH
                assert float(box.get("y", 0)) + float(box.get("height", 0)) <= height


def test_around_says_how_much_is_shown(raced: tuple[Trace, Offence]) -> None:
    trace, offence = raced
    shown = [draw(trace, offence, around).count("data-id=") for around in (0, 10**7, 10**12)]
    assert shown == sorted(shown) and len(set(shown)) == 3
    visible = sum(item.duration > 0 for item in trace.slices)
    assert shown[2] == visible + len(offence.slices), "all of them, and the red ones once more"


def test_a_slice_of_the_host_may_have_done_it() -> None:
    trace = traced("overlap", "pool", ONE_SLOT)
    offence = offence_of(find_races(trace)[0], trace)
    told = to_text(trace, offence)
    assert "!! prepare 2 on Scheduler (host), 6.2 to 7.2 ms, for r1 r2 r3" in told
    assert "-> missing: the free in prepare 2 must wait for sample 1" in told
    assert 'data-offence="' in draw(trace, offence)


def test_the_edge_that_a_free_lacks_goes_from_the_use_to_the_free() -> None:
    trace = traced("overlap", "ring", FREE_AT_ONCE)
    offence = offence_of(find_races(trace)[0], trace)
    root = ElementTree.fromstring(draw(trace, offence))
    boxes = {item.id: item for item in trace.slices}
    [missing] = [item for item in root.iter() if item.get("data-missing")]
    use, free = (boxes[int(one)] for one in str(missing.get("data-missing")).split())
    assert (use.name, free.name) == ("forward", "process")
    says = f"missing: the free in process {free.step} must wait for forward {use.step}"
    assert says in text_of(root) and f"-> {says}" in to_text(trace, offence)


def test_any_law_can_be_drawn() -> None:
    """A wrong token or a leak: one slice and no edge; and what never ran has none."""
    trace = traced("serial", "host")
    third = next(item for item in trace.slices if item.name == "forward" and item.step == 3)
    picture = draw(trace, Offence((third.id,), "identity: r0 gave 7, alone it gives 9"))
    assert "identity: r0 gave 7, alone it gives 9" in picture
    assert picture.count("data-offence") == 1 and "data-missing" not in picture
    whole = draw(trace, Offence((), "the copy stream waits for op 99 for ever"))
    assert whole.count("data-id=") == sum(item.duration > 0 for item in trace.slices)


def test_the_words_are_escaped_and_an_empty_trace_can_be_drawn() -> None:
    nothing = Trace("l", "sim", "hash", "virtual", (), (), (), ())
    ElementTree.fromstring(draw(nothing, Offence((4,), "a < b & c")))
    assert to_text(nothing, Offence((4,), "a < b & c")).startswith("a < b & c")


def test_a_slice_of_no_length_is_seen() -> None:
    moments = (Slice(1, "host", "process", 5, 5, 1), Slice(2, "forward", "forward", 0, 9, 1))
    trace = Trace("l", "sim", "hash", "virtual", moments, (), (), (Mark("x", 1),))
    assert "!!" in to_text(trace, Offence((1,), "it was here")).split("time in ms")[0]
    assert 'data-offence="1"' in draw(trace, Offence((1,), "it was here"))


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_the_text_keeps_to_its_width(raced: tuple[Trace, Offence], columns: int) -> None:
    told = to_text(*raced, columns=columns)
    assert max(map(len, told.splitlines())) <= columns
    lanes = [line for line in told.splitlines() if "│" in line]
    assert [line for line in lanes if "!!" in line] == [
        line for line in lanes if line.lstrip().startswith(("Forward stream", "Copy stream"))
    ]


def test_bad_input_gets_a_sentence(raced: tuple[Trace, Offence]) -> None:
    with pytest.raises(ValueError, match=r"^around_ns is -1, but it must be at least 0 nanosec"):
        draw(*raced, around_ns=-1)
    with pytest.raises(ValueError, match=r"^a picture needs at least 60 columns, but got 59\.$"):
        to_text(*raced, columns=59)


def test_the_same_trace_gives_the_same_bytes(raced: tuple[Trace, Offence]) -> None:
    assert draw(*raced) == draw(*raced)


def test_light_and_dark(raced: tuple[Trace, Offence]) -> None:
    root = ElementTree.fromstring(draw(*raced))
    styles = "".join("".join(item.itertext()) for item in root.iter(f"{SVG}style"))
    assert styles.count("--red:") == 2 and "prefers-color-scheme: dark" in styles
    assert with_class(root, "quiet") and with_class(root, "red-missing")


@given(st.lists(st.text("abc", min_size=1, max_size=12), min_size=1, max_size=60))
def test_a_sentence_takes_as_few_lines_as_it_needs_and_leaves_no_word_alone(
    words: list[str],
) -> None:
    sentence, room = " ".join(words), int((WIDTH - 2 * MARGIN) / char_width(12, bold=True))
    lines = lines_of(sentence, 12)
    assert " ".join(lines) == sentence
    longest = max(map(len, lines))
    assert longest <= room and len(lines) == len(wrap(sentence, room))
    assert longest == 1 or len(wrap(sentence, longest - 1)) > len(lines)


def test_it_needs_only_the_standard_library() -> None:
    code = (
        "import sys; from minisched.export.offence import draw; "
        "from minisched.export.offence_text import to_text; "
        "from minisched.checks import races; "
        "roots = {name.partition('.')[0] for name in sys.modules} - {'minisched', '__main__'}; "
        "print(sorted(roots - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "mlx", "numpy", "rich", "typer"} & set(eval(done.stdout))
