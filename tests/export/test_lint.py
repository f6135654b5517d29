"""What an eye would find in a picture, found by geometry: every SVG of the repository.

Some are kept as their hash alone (``traces/hashes.txt``); they are drawn here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from minisched.export import golden
from minisched.export.golden import SCENES
from minisched.export.svg_lanes import crosses
from minisched.export.svg_page import width_of
from minisched.museum.picture import museum_makers
from tests.support import SVG, Picture, check_picture, contrast, luminance

ROOT = Path(__file__).resolve().parents[2]
OWN = {"compare", "compare_phone", "compare_zh", "compare_zh_phone", *SCENES}
HASHED = {ROOT / name for name in golden.hashes(ROOT) if name.endswith(".svg")}
OF_TRACES = {*ROOT.glob("traces/**/*.svg"), *HASHED}
BUGS = {path for path in OF_TRACES if path.parent.name == "museum"}
KEPT = sorted([*OF_TRACES - BUGS, *(ROOT / f"diagrams/{name}.svg" for name in OWN)])
BY_PLANTUML = sorted({*ROOT.glob("diagrams/*.svg")} - {*KEPT})
EVERY = sorted({*OF_TRACES, *ROOT.glob("diagrams/*.svg")})
README, LEAST = 830, 10  # pixels: as wide as a README shows it, and the smallest text there
SIZES = {"title": 16.0, "run": 13.5, "small": 11.0}
Sides = tuple[float, float, float, float]  # left, top, right, bottom


@cache
def picture(path: Path) -> Picture:
    name = path.relative_to(ROOT).as_posix()
    return Picture(
        path.read_text("utf-8") if path not in HASHED else drawn(golden.maker_of(name))[name]
    )


@cache
def drawn(maker: str) -> golden.Files:
    return {**golden.makers(), **museum_makers()}[maker]()


def words_of(element: ElementTree.Element) -> tuple[str, Sides]:
    kinds, words = element.get("class", "").split(), "".join(element.itertext())
    size = max((SIZES[kind] for kind in kinds if kind in SIZES), default=12.0)
    x, y = (float(element.attrib[name]) for name in ("x", "y"))
    room = width_of(words, size)
    x -= {"middle": 0.5, "end": 1.0}.get(element.get("text-anchor", ""), 0.0) * room
    return words, (x + 1, y - 0.65 * size, x + room - 1, y - 1)


def arrows_of(element: ElementTree.Element) -> Iterator[Sides]:
    d = element.get("d", "")
    if re.fullmatch(r"M[\d.]+ [\d.]+(L[\d.]+ [\d.]+)+", d):
        points = [point.split() for point in d[1:].split("L")]
        for (x1, y1), (x2, y2) in pairwise(points):
            yield float(x1), float(y1), float(x2), float(y2)
    elif element.tag == f"{SVG}line":
        left, top, right, bottom = (float(element.attrib[n]) for n in ("x1", "y1", "x2", "y2"))
        yield left, top, right, bottom


@pytest.mark.parametrize("path", sorted([*KEPT, *BUGS]), ids=lambda path: path.stem)
def test_nothing_collides_and_nothing_is_empty(path: Path) -> None:
    check_picture(drawn := picture(path))
    is_slide = path.stem.endswith(
        "_slide"
    )  # no README shows one; test_small_forms.py has its sizes
    assert is_slide or 11 * README / drawn.width >= LEAST, "text would be too small in a README"
    said: list[tuple[str, Sides, bool]] = []
    lanes, boxes = list[Sides](), list[Sides]()
    for element in drawn.root.iter():
        kinds = element.get("class", "").split()
        if element.tag == f"{SVG}text":
            said.append((*words_of(element), any(kind.startswith("in-") for kind in kinds)))
        elif "arrow" in kinds:
            struck = [words for segment in arrows_of(element) for words, sides, _ in said
                      if crosses(segment, sides)]  # fmt: skip
            assert not struck, "an arrow is drawn over words"
        elif element.tag == f"{SVG}rect" and "x" in element.attrib:
            x, y, width, height = (float(element.attrib[n]) for n in ("x", "y", "width", "height"))
            (lanes if kinds == ["lane"] else boxes).append((x, y, x + width, y + height))
        elif found := re.match(r"M([\d.]+) ([\d.]+)m", element.get("d", "")):  # a sign
            x, y = map(float, found.groups())
            boxes.append((x, y, x, y))
    for left, top, _, bottom in lanes:
        on = [box for box in boxes if top - 1 <= (box[1] + box[3]) / 2 <= bottom + 1]
        assert [box for box in on if box[0] >= left - 1], f"the lane at {top} is empty"
    if lanes:
        begin, _, end, _ = lanes[0]
        last = max(box[2] for box in boxes if box[0] >= begin - 1)
        assert last >= end - 0.05 * (end - begin), "the axis goes on past the data"


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_who_points_at_a_shape_reads_no_raw_figures(path: Path) -> None:
    root = picture(path).root
    told = [title.text or "" for title in root.iterfind(f".//{SVG}*/{SVG}title")]
    internal = r"\d{6}|\b(start|end|ns|ready|column|source|place|stay) \d"
    assert [words for words in told if re.search(internal, words)] == []
    for bar in root.iter(f"{SVG}rect"):
        is_sample = bar.get("height") == "12.0"  # in the legend
        if {"left", "spent"} & {*bar.get("class", "").split()} and not is_sample:
            assert bar.find(f"{SVG}title") is not None, "its cell is below it"


def struck(root: ElementTree.Element) -> set[str]:
    """Words on idle time that an arrow runs through."""
    idle = [words_of(element) for element in root.iter(f"{SVG}text")
            if {"in-bubble", "in-waited"} & {*element.get("class", "").split()}]  # fmt: skip
    arrows = [e for e in root.iter() if "arrow" in e.get("class", "").split()]
    return {words for arrow in arrows for segment in arrows_of(arrow) for words, sides in idle
            if crosses(segment, sides)}  # fmt: skip


def test_no_arrow_runs_through_how_long_a_device_idles() -> None:
    found = {path.stem: struck(picture(path).root) for path in KEPT}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize("path", sorted(BUGS), ids=lambda path: path.stem)
def test_no_arrow_strikes_the_words_and_numbers_at_a_bug(path: Path) -> None:
    root = picture(path).root
    arrows = [segment for element in root.iter() if "arrow" in element.get("class", "").split()
              for segment in arrows_of(element)]  # fmt: skip
    for element in root.iter(f"{SVG}text"):
        words, sides = words_of(element)
        if {"said", "deed", "on-disc"} & {*element.get("class", "").split()}:
            assert not any(crosses(one, sides) for one in arrows), words


def shape(path: Path) -> Any:
    """Where everything lies, without words and what it is called."""
    found = []
    for element in picture(path).root.iter():
        if element.tag.removeprefix(SVG) in ("rect", "path", "line", "polygon", "ellipse"):
            names = ("x", "y", "width", "height", "d", "x1", "y1", "x2", "y2", "points", "cx", "cy")
            found.append((element.tag, *(element.get(name) for name in names)))
    return tuple(sorted(found, key=str))


def test_no_two_pictures_show_the_same() -> None:
    """Settled steps of mlx_async and overlap take equal times, but the whole runs differ."""
    alike: dict[Any, set[str]] = defaultdict(set)
    for path in EVERY:
        alike[shape(path)].add(str(path.relative_to(ROOT)).replace("mlx_async", "overlap"))
    assert [paths for paths in alike.values() if len(paths) > 1] == []


# -- what PlantUML draws, on light and on dark paper -----------------------------------------------

RULE = re.compile(r'\[(fill|stroke)="(#\w{6})"\]:not\(\.kept\)\{\1:(#\w{6})\}')
LEGIBLE = 4.5  # WCAG's AA


def sides_of(shape: ElementTree.Element) -> Sides | None:
    """Where a shape of one colour lies, roughly."""
    if shape.get("width") == "100%":
        return -9.0, -9.0, 9e9, 9e9
    if shape.tag == f"{SVG}rect":
        x, y, width, height = (float(shape.attrib[n]) for n in ("x", "y", "width", "height"))
        return x, y, x + width, y + height
    if shape.tag in (f"{SVG}path", f"{SVG}polygon"):
        d = re.sub(r"A\S+ \d \d \d ", " ", shape.get("d") or shape.get("points") or "")
        found = [float(word) for word in re.findall(r"-?[\d.]+", d)]
        return min(found[::2]), min(found[1::2]), max(found[::2]), max(found[1::2])
    return None


@pytest.mark.parametrize("path", BY_PLANTUML, ids=lambda path: path.stem)
def test_no_word_that_plantuml_writes_is_below_ten_pixels_in_a_readme(path: Path) -> None:
    text = path.read_text("utf-8")
    width = float(re.findall(r'viewBox="0 0 ([\d.]+) ', text)[0])
    sizes = {float(size) for size in re.findall(r'font-size="([\d.]+)"', text)}
    assert min(sizes) * min(1.0, README / width) >= LEAST, (width, sizes)


@pytest.mark.parametrize("path", BY_PLANTUML, ids=lambda path: path.stem)
def test_what_plantuml_draws_is_legible_on_light_and_on_dark_paper(path: Path) -> None:
    text = path.read_text("utf-8")
    dark = {(name, old): new for name, old, new in RULE.findall(text)}
    assert "@media (prefers-color-scheme:dark)" in text
    assert dark.keys() == set(re.findall(r'(fill|stroke)="(#\w{6})"', text))
    assert luminance(dark["fill", "#FFFFFF"]) < 0.02, "the paper is dark"
    filled: list[tuple[Sides, tuple[str, str]]] = []  # its colour on light and on dark paper
    for element in ElementTree.fromstring(text).iter():
        fill = element.get("fill", "")
        if not re.fullmatch(r"#\w{6}", fill):
            continue
        colours = (fill, fill if element.get("class") == "kept" else dark["fill", fill])
        if element.tag == f"{SVG}text":
            x, y = float(element.attrib["x"]) + 1, float(element.attrib["y"]) - 4
            under = [fill for (left, top, right, bottom), fill in filled
                     if left <= x <= right and top <= y <= bottom][-1]  # fmt: skip
            said = "".join(element.itertext())
            for colour, beneath in zip(colours, under, strict=True) if said.strip() else ():
                assert contrast(colour, beneath) >= LEGIBLE, (said, colour, beneath)
        elif sides := sides_of(element):
            filled.append((sides, colours))
