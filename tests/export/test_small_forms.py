"""The forms for slides and phones, whose words are high enough and inside; and those in Chinese."""

from __future__ import annotations

import re
from functools import cache
from xml.etree import ElementTree

import pytest

from minisched.export.chinese import in_chinese
from minisched.export.golden import FILES, SMALL
from minisched.export.svg_page import width_of
from minisched.export.svg_style import PHONE, SLIDE, Sheet
from tests.support import SVG

NAMES = r"[a-z]+(_[a-z0-9]+)+|hash|sim|prompt|prefill|decode|token|tokens|last|serial|overlap|root"


@cache
def root_of(path: str) -> ElementTree.Element:
    return ElementTree.fromstring(FILES[path]())


IN_THE_HALL = 20 * SLIDE.width / 1280  # a slide as wide as a projector's 1,280 pixels


@pytest.mark.parametrize(
    ("form", "sheet", "least"), [("slide", SLIDE, IN_THE_HALL), ("phone", PHONE, 12)]
)
@pytest.mark.parametrize("name", SMALL)
def test_all_words_are_high_enough_and_inside_the_page(
    name: str, form: str, sheet: Sheet, least: int
) -> None:
    root = root_of(f"traces/{name}_{form}.svg")
    assert root.attrib["width"] == str(sheet.width)
    size = float(root.attrib["font-size"])
    for text in root.iter(f"{SVG}text"):
        words, high = "".join(text.itertext()), float(text.get("font-size", size))
        assert high >= least, words
        room, x = width_of(words, high), float(text.attrib["x"])
        x -= {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor", ""), 0.0) * room
        assert x >= 0 and x + room <= sheet.width, words


@pytest.mark.parametrize("form", ["slide", "phone", "zh"])
@pytest.mark.parametrize("name", SMALL)
def test_no_words_stand_on_other_words(name: str, form: str) -> None:
    root, found = root_of(f"traces/{name}_{form}.svg"), list[tuple[str, float, float, float]]()
    size = float(root.attrib["font-size"])
    for text in root.iter(f"{SVG}text"):
        words, high = "".join(text.itertext()), float(text.get("font-size", size))
        room, x, y = width_of(words, high), float(text.attrib["x"]), float(text.attrib["y"])
        x -= {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor", ""), 0.0) * room
        for other, left, right, line in found:
            is_apart = abs(y - line) > 0.7 * high or x + room < left or right < x
            assert is_apart, f"{words} stands on {other}"
        found.append((words, x, x + room, y))


def test_a_phone_of_390_pixels_has_room_for_the_margins_of_a_page() -> None:
    assert PHONE.width == 390 - 2 * 16


@pytest.mark.parametrize("name", SMALL)
def test_in_chinese_no_english_sentence_is_left(name: str) -> None:
    root = root_of(f"traces/{name}_zh.svg")
    assert root.get("lang") == "zh"
    said = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    for words in said:
        left = [word for word in re.findall(r"[A-Za-z_]\w+", words)
                if not re.fullmatch(NAMES, word)]  # fmt: skip
        assert len(left) <= 2, words
    assert sum(bool(re.search("[\u4e00-\u9fff]", words)) for words in said) >= 10


def test_a_text_is_translated_whole_or_part_by_part() -> None:
    assert in_chinese("forward 21") == "前向 21" and in_chinese("vllm_async") == "vllm_async"
    assert in_chinese("overlap on sim, hash model, simulated time; 36 steps") == (
        "overlap 在 sim 上，hash 模型，模拟时间；36 步"
    )
