"""The figures that the README gives of the lockstep are those of the kept result."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from minisched import loops
from minisched.fidelity.lockstep import NO_PAGE
from minisched.loops.design import LOOPS
from minisched.policy.systems import DELIBERATE
from minisched.relay import RELAYS

ROOT = Path(__file__).resolve().parents[2]
KEPT = json.loads((ROOT / "lessons/site/docs/fidelity.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
@pytest.mark.parametrize("system", KEPT)
def test_equal_cases_are_counted_as_kept(name: str, system: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").partition("how_true_is_it.md")[0]
    result = KEPT[system]
    for count in {result["cases"], result["equal"], result["cases"] - result["equal"]} - {0}:
        assert re.search(rf"(?<![\d,]){count:,}(?![\d,])", text), count


@pytest.mark.parametrize("system", KEPT)
def test_cases_differ_only_by_the_rules_that_differ_on_purpose(system: str) -> None:
    result, known = KEPT[system], DELIBERATE.get(system, {})
    found = {rule for part in result["parts"].values() for rule in part["rules"]}
    words = {word for rule in found for word in rule.split(" + ")}
    assert words <= {NO_PAGE, *(f"{name}={item.answer}" for name, item in known.items())}
    assert not result["unexplained"] and bool(found) == bool(known)


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_speed_up_is_that_of_the_command(name: str, cli: Callable[[str], Any]) -> None:
    """The answer to "how much faster?" is what ``minisched compare`` prints."""
    text = (ROOT / name).read_text(encoding="utf-8")
    code, out, _ = cli("compare")
    (told,) = re.findall(r"overlap takes ([\d.]+) ms instead of ([\d.]+) ms \(([\d.]+) x", out)
    assert code == 0 and all(re.search(rf"(?<![\d.]){figure}(?![\d.])", text) for figure in told)


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_an_anchor_that_the_readme_names_is_a_heading(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"\]\(([\w/.-]+\.md)#([\w-]+)\)", text)
    assert len(found) >= 6
    for page, anchor in found:
        titles = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
        words = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert anchor in words, (page, anchor)


def test_the_numbers_of_loops_and_relays_are_those_of_the_registries() -> None:
    assert loops.__file__  # its import fills the registry
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(LOOPS)} loops, {len(RELAYS)} relays" in text


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_each_of_three_pictures_has_a_form_for_phones_with_words_of_12_pixels(name: str) -> None:
    """A page of GitHub has 358 pixels for it where the screen has 390."""
    text = (ROOT / name).read_text(encoding="utf-8")
    pictures = re.findall(r"<picture>(.*?)</picture>", text, re.S)
    assert len(pictures) == 3 and "![" not in text
    for picture in pictures:
        narrow, wide = re.findall(r'(?:srcset|src)="(.*?)"', picture)
        assert 'media="(max-width: 600px)"' in picture and (ROOT / wide).is_file()
        root = ElementTree.parse(ROOT / narrow).getroot()
        sizes = [float(item.attrib["font-size"]) for item in root.iter() if item.get("font-size")]
        assert root.attrib["width"] == "358" and min(sizes) >= 12
