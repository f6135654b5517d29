"""The pictures and pages of the museum: what did it is red, and the healthy run is quiet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree

import pytest

from minisched.checks.judge import Verdict
from minisched.checks.races import find_races
from minisched.checks.races import offence_of as races_offence
from minisched.export.offence_text import MARK
from minisched.museum import Exhibit, Refuted, exhibits, find, refuted
from minisched.museum.offence import offence_of
from minisched.museum.page import page, refuted_page
from minisched.museum.picture import draw, lines_of
from minisched.museum.points import at

EXHIBITS = exhibits()
RECEIVE = ("receive", 0)
each_bug = pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda item: item.name)
each_item = pytest.mark.parametrize("item", [*EXHIBITS, *refuted()], ids=lambda item: item.name)


@cache
def with_bug(name: str) -> Verdict:
    exhibit = find(name)
    assert isinstance(exhibit, Exhibit)
    return exhibit.with_bug()


@each_bug
def test_the_picture_shows_what_did_it_in_red(exhibit: Exhibit) -> None:
    offence = offence_of(exhibit, with_bug(exhibit.name))
    drawn = draw(exhibit)
    assert draw(exhibit) == drawn and "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    marked = [int(item.attrib["data-offence"]) for item in elements(drawn, "data-offence")]
    assert marked and set(marked) == set(offence.slices)
    texts = ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")
    below = next(item for item in texts if (item.text or "").startswith("without it"))
    for item in elements(drawn, "data-offence"):
        assert float(item.attrib["y"]) < float(below.attrib["y"]), "the healthy run is quiet"
    words = "".join(ElementTree.fromstring(drawn).itertext())
    assert exhibit.title in words and f"{exhibit.law}: {offence.sentence[:20]}" in words
    assert "prefers-color-scheme: dark" in drawn


@each_bug
def test_what_did_it_is_found_by_its_law_alone(exhibit: Exhibit) -> None:
    """Also where an exhibit can say it better; of a race it is the two, and the missing edge."""
    verdict = with_bug(exhibit.name)
    offence = offence_of(replace(exhibit, points_at=None), verdict)
    assert offence.sentence and offence.slices
    assert {item.id for item in verdict.trace.slices} >= set(offence.slices)
    if exhibit.law == "race":
        race = find_races(verdict.trace)[0]
        assert offence == races_offence(race, verdict.trace) and len(offence.slices) == 2


def elements(drawn: str, attribute: str) -> Iterator[ElementTree.Element]:
    return (item for item in ElementTree.fromstring(drawn).iter() if attribute in item.attrib)


@each_bug
def test_the_text_marks_it_too_and_fits_in_its_columns(exhibit: Exhibit) -> None:
    lines = lines_of(exhibit, 80)
    assert max(map(len, lines)) <= 80
    first, second = "\n".join(lines).split("without it:")
    assert MARK in first and MARK not in second.split("\n\n")[0]


@each_item
def test_a_page_has_every_part(item: Exhibit | Refuted) -> None:
    parts = page(item, "draw") if isinstance(item, Exhibit) else refuted_page(item)
    assert all(part.body for part in parts if part.kind != "picture")
    verdicts = [part.kind for part in parts if part.kind in ("good", "bad")]
    cured = ["good"] if isinstance(item, Exhibit) and item.original_cure else []
    assert verdicts == (["bad", "good", *cured] if isinstance(item, Exhibit) else ["good"])
    assert len({part.heading for part in parts}) == len(parts)


def test_a_bug_that_is_not_caught_cannot_be_drawn() -> None:
    healthy = replace(EXHIBITS[0], edits=())
    assert not healthy.is_caught
    with pytest.raises(ValueError, match="does not break the law"):
        draw(healthy)


def test_points_count_what_has_one_name_and_step() -> None:
    verdict = with_bug("abort_in_flight")
    receives = [item.id for item in verdict.trace.slices if (item.name, item.step) == RECEIVE]
    assert len(receives) == 2
    offence = at(RECEIVE, (*RECEIVE, 1), says="it")(verdict)
    assert offence.slices == tuple(receives) and offence.sentence == "it"
    with pytest.raises(ValueError, match="no 'receive' of step 0 to point at"):
        at((*RECEIVE, 2), says="it")(verdict)
