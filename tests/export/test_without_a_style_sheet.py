"""A picture is right in programs that read no style sheet, and its sheet is right in the dark.

resvg renders every picture of a scene without its style sheet, as slide programs and LaTeX do, and
once more with the rules for dark paper alone.
"""

from __future__ import annotations

import re
from collections import Counter
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
import resvg_py
from PIL import Image

from minisched.export.looks import DARK, LIGHT
from minisched.export.svg_page import width_of
from tests.export.test_lint import BUGS, KEPT, SIZES, picture
from tests.support import SVG, contrast, every

DARK_RULES = re.compile(r"@media \(prefers-color-scheme: dark\) \{\n(.*?)\n\}\n", re.DOTALL)
RULE = re.compile(r"(\S+) \{ (.*?) \}")


def hexed(pixel: tuple[int, int, int]) -> str:
    return "#{:02X}{:02X}{:02X}".format(*pixel)


def ink(text: ElementTree.Element, rules: list[tuple[set[str], dict[str, str]]], ink: str) -> str:
    """The colour of a text: of its most special rule, else of its attribute."""
    found, special = text.get("fill", ink), 0
    for words, paints in rules:
        if words <= {*text.get("class", "").split()} and len(words) >= special and "fill" in paints:
            found, special = paints["fill"], len(words)
    return found


def check(svg: str, is_dark: bool) -> None:
    sheet = "\n".join(DARK_RULES.findall(svg)) if is_dark else ""
    rules = [
        ({*name.strip(".").split(".")}, dict(paint.split(": ") for paint in paints.split("; ")))
        for name, paints in RULE.findall(sheet)
    ]
    paper = DARK if is_dark else LIGHT
    plain = re.sub(r"<style>.*?</style>", "", svg, flags=re.DOTALL)
    mute = re.sub(r"<text.*?</text>", "", plain)
    drawn = Image.open(BytesIO(resvg_py.svg_to_bytes(svg_string=mute, style_sheet=sheet or None)))
    pixels = drawn.convert("RGB")
    assert hexed(pixels.getpixel((pixels.width // 2, 4))) == paper["paper"]
    for text in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        words, kinds = "".join(text.itertext()), text.get("class", "").split()
        size = max((SIZES[kind] for kind in kinds if kind in SIZES), default=12.0)
        room = width_of(words, size)
        shift = {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor", ""), 0.0)
        left, low = float(text.attrib["x"]) - shift * room, float(text.attrib["y"])
        box = (max(0, int(left)), int(low - 0.7 * size), int(left + room), int(low))
        ground = hexed(Counter(pixels.crop(box).get_flattened_data()).most_common(1)[0][0])
        of_words = ink(text, rules, paper["ink"])
        assert contrast(of_words, ground) >= 4.5, (words, of_words, ground)


@pytest.mark.parametrize("path", every(5, [*KEPT, *sorted(BUGS)]), ids=lambda path: path.stem)
def test_words_are_legible_without_a_style_sheet_and_in_the_dark(path: Path) -> None:
    for is_dark in (False, True):
        check(picture(path).svg, is_dark)
