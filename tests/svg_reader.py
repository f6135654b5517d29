"""Reads a view back: its shapes by what they belong to, and the rules that every view keeps."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

from minisched.export.svg_style import char_width

SVG = "{http://www.w3.org/2000/svg}"


class Picture:
    """A parsed SVG."""

    def __init__(self, svg: str) -> None:
        self.svg = svg
        self.root = ElementTree.fromstring(svg)
        self.width, self.height = (float(self.root.attrib[name]) for name in ("width", "height"))

    def shapes(self, tag: str = "", kind: str = "", **data: str) -> list[dict[str, str]]:
        """The attributes of elements with a class and with these ``data-`` attributes.

        A datum of "*" only has to be there.
        """
        found = []
        for element in self.root.iter(f"{SVG}{tag}" if tag else None):
            classes = element.get("class", "").split()
            if kind and not set(kind.split()) <= set(classes):
                continue
            values = {name: element.get(f"data-{name}") for name in data}
            if all(v is not None and data[n] in ("*", v) for n, v in values.items()):
                found.append(element.attrib)
        return found

    def count(self, *names: str, tag: str = "", kind: str = "") -> Counter[tuple[str, ...]]:
        """How many shapes there are for each combination of these data."""
        shapes = self.shapes(tag, kind, **dict.fromkeys(names, "*"))
        return Counter(tuple(shape[f"data-{name}"] for name in names) for shape in shapes)

    @property
    def words(self) -> str:
        """All text."""
        return " ".join(self.root.itertext())


def check_picture(picture: Picture) -> None:
    """Nothing has a negative size or lies off the page, and it has light and dark colours."""
    style = "".join(element.text or "" for element in picture.root.iter(f"{SVG}style"))
    in_dark = re.compile(r"@media \(prefers-color-scheme: dark\) \{(.*?\})\s*\}", re.DOTALL)
    light, dark = in_dark.sub("", style), " ".join(in_dark.findall(style))  # with waits two of each
    assert "--paper: #FFFFFF" in light and "--paper: #0D1117" in dark
    used = set(re.findall(r"var\((--\w+)\)", picture.svg))
    assert all(f"{name}:" in light and f"{name}:" in dark for name in used), used
    for pattern in re.findall(r"url\(#([\w-]+)\)", picture.svg):
        assert f'id="{pattern}"' in picture.svg, pattern
    for rect in picture.root.iter(f"{SVG}rect"):
        if "%" in rect.attrib["width"]:
            continue
        x, y = (float(rect.get(name, "0")) for name in ("x", "y"))
        width, height = (float(rect.attrib[name]) for name in ("width", "height"))
        assert width >= 0 and height >= 0, rect.attrib
        assert x >= 0 and x + width <= picture.width + 0.1, rect.attrib
        assert y >= 0 and y + height <= picture.height + 0.1, rect.attrib
    for text in picture.root.iter(f"{SVG}text"):
        check_text(text, picture)


def check_text(text: ElementTree.Element, picture: Picture) -> None:
    """A line of text lies on the page, whatever the font: measured as widely as layouts do."""
    words = "".join(text.itertext())
    size = {"title": 16.0, "run": 13.5, "small": 11.0}
    kinds = text.get("class", "").split()
    widest = max((size[kind] for kind in kinds if kind in size), default=12.0)
    room = len(words) * char_width(widest) * 0.95
    x = float(text.attrib["x"])
    left = x - room * {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor", ""), 0.0)
    assert left >= -0.1 and left + room <= picture.width, (words, left, room)
