"""A bug is put into functions of every kind, and is gone afterwards; how exhibits are shown.

That each exhibit is caught by its law, and that healthy code passes, is in ``tests/laws/``.
"""

import importlib
import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import minisched
from minisched.checks.races import find_races
from minisched.cli import museum
from minisched.export.contested import Contested
from minisched.export.looks import MARK
from minisched.export.scene import Lanes
from minisched.export.scene_svg import to_svg
from minisched.export.scene_text import to_text
from minisched.museum import Exhibit, exhibits
from minisched.museum.blame import exhibit_offence
from minisched.museum.exhibit import OWN_LAWS
from minisched.museum.patch import Edit, StalePatch, put_in
from minisched.museum.picture import exhibit_scene

SPECIMEN = '''
from functools import cached_property, wraps

def loud(function):
    @wraps(function)
    def shouted(*args):
        return function(*args) + "!"
    return shouted

def plain(word):
    """Says it."""
    said = word
    return said

@loud
def wrapped(word):
    return word

def with_default(word="one", *, end="."):
    return word + end

def outer(words):
    def inner(word):
        return word + str(len(words))
    return [inner(word) for word in words]

def counted(last):
    for number in range(last):
        yield number

class Base:
    def name(self):
        return "base"

class Derived(Base):
    unit = "cm"

    def name(self):
        return "derived " + super().name()

    @property
    def size(self):
        return 1

    @cached_property
    def weight(self):
        return 2

    @staticmethod
    def still():
        return 3

    @classmethod
    def made(cls):
        return cls.unit
'''


@pytest.fixture
def specimen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the package, anew for each test."""
    (tmp_path / "specimen.py").write_text(SPECIMEN, "utf-8")
    monkeypatch.setattr(minisched, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "minisched.specimen", raising=False)
    return importlib.import_module("minisched.specimen")


def edit(name: str, healthy: str, bug: str) -> Edit:
    return Edit(f"specimen:{name}", healthy, bug)


SAYS_NO = edit("plain", "said = word", "said = 'no'")
KINDS: list[tuple[Edit, str, object, object]] = [
    (SAYS_NO, 'plain("yes")', "yes", "no"),
    (edit("wrapped", "return word", "return word * 2"), 'wrapped("a")', "a!", "aa!"),
    (edit("with_default", "word + end", "end + word"), "with_default()", "one.", ".one"),
    (edit("with_default", 'end="."', 'end="?"'), 'with_default("two")', "two.", "two?"),
    (edit("outer", "word + str", "'b' + str"), 'outer("a")', ["a1"], ["b1"]),
    (edit("counted", "range(last)", "range(last + 1)"), "[*counted(2)]", [0, 1], [0, 1, 2]),
    (edit("Derived.name", '"derived "', '"a "'), "Derived().name()", "derived base", "a base"),
    (edit("Derived.size", "1", "-1"), "Derived().size", 1, -1),
    (edit("Derived.weight", "2", "-2"), "Derived().weight", 2, -2),
    (edit("Derived.still", "3", "-3"), "Derived.still()", 3, -3),
    (edit("Derived.made", "cls.unit", "cls.unit * 2"), "Derived.made()", "cm", "cmcm"),
]


@pytest.mark.parametrize(("change", "call", "healthy", "bug"), KINDS)
def test_functions_of_every_kind_are_changed_and_come_back(
    change: Edit, call: str, healthy: object, bug: object, specimen: Any
) -> None:
    assert eval(call, vars(specimen)) == healthy
    with put_in([change]):
        assert eval(call, vars(specimen)) == bug
    assert eval(call, vars(specimen)) == healthy


def test_edits_add_up_for_all_who_have_the_function_and_end(specimen: Any) -> None:
    plain = specimen.plain
    edits = [SAYS_NO, edit("plain", "return said", "return said * 2")]
    with put_in([*edits, edit("counted", "range(last)", "()")]):
        assert plain("yes") == "nono" and plain is specimen.plain and [*specimen.counted(2)] == []
    with pytest.raises(KeyError), put_in([edit("plain", "return said", "raise KeyError(said)")]):
        with put_in(edits[1:]):  # a bug in a bug
            assert plain("yes") == "yesyes"
        plain("yes")
    assert plain("yes") == "yes"


@pytest.mark.parametrize(("change", "said"), [
    (edit("plain", "said = other", ""), "0 times"),
    (edit("plain", "said", ""), "2 times"),
    (edit("plain", "", "x"), "0 times"),
    (edit("wrapped", "@loud", ""), "0 times"),  # a decorator ran long ago
    (edit("gone", "said", ""), "specimen:gone is no function of this patch's"),
    (Edit("gone:plain", "said", ""), "gone:plain is no function of this patch's"),
    (edit("Derived.unit", "cm", ""), r"specimen:Derived\.unit is no function but a str"),
])  # fmt: skip
def test_a_patch_of_other_code_is_stale(specimen: Any, change: Edit, said: str) -> None:
    with pytest.raises(StalePatch, match=said), put_in([KINDS[5][0], change]):
        raise AssertionError("the block must not run")
    assert [*specimen.counted(2)] == [0, 1]
    with pytest.raises(StalePatch, match="0 times"), put_in([SAYS_NO, SAYS_NO]):
        pass


EXHIBITS = exhibits()


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda item: item.name)
def test_what_did_it_is_found_and_shown_in_red(exhibit: Exhibit) -> None:
    """And nothing is red in the healthy run below; the text marks it too, within its columns."""
    verdict = exhibit.with_bug()
    by_law_alone = exhibit_offence(replace(exhibit, red=""), verdict)
    assert by_law_alone.sentence and by_law_alone.slices
    if exhibit.law == "race":
        race = find_races(verdict.trace)[0]
        assert by_law_alone == race
        assert len(by_law_alone.slices) == 2
    offence, scene = exhibit_offence(exhibit, verdict), exhibit_scene(exhibit)
    drawn = to_svg(scene)
    assert drawn.count("http") == drawn.count("http://www.w3.org/")
    root = ElementTree.fromstring(drawn)
    marked = [item for item in root.iter() if "data-offence" in item.attrib]
    assert {int(item.attrib["data-offence"]) for item in marked} == set(offence.slices) != set()
    below = next(item for item in root.iter() if (item.text or "").startswith("without it"))
    assert all(float(item.attrib["y"]) < float(below.attrib["y"]) for item in marked)
    assert exhibit.title in "".join(root.itertext())
    said = scene.about.removeprefix(f'It breaks the law "{exhibit.law}": ')
    assert said == offence.sentence or (offence.missing and offence.deeds and "wait for" in said)
    lines = to_text(scene, 80).splitlines()
    first, second = "\n".join(lines).split("\nwithout it, same requests")
    assert max(map(len, lines)) <= 80
    assert MARK in first and MARK not in second.split("\n\n")[0]


WITHOUT_A_CELL = {"finalized_first", "ranks_disagree"}  # an order of steps, and of rows


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda item: item.name)
def test_the_contested_memory_is_a_lane_and_each_number_has_its_phrase(exhibit: Exhibit) -> None:
    verdict = exhibit.with_bug()
    offence, scene = exhibit_offence(exhibit, verdict), exhibit_scene(exhibit)
    assert bool(offence.cell) == (exhibit.name not in WITHOUT_A_CELL)
    assert len(offence.deeds) == len(offence.slices) and all(offence.deeds)
    lanes = scene.parts[0].shows[0]
    assert isinstance(lanes, Lanes)
    own, said = lanes.rows[-1], to_text(scene, 80)
    deeds = [item for item in own.spans if item.kind == "deed"]
    assert [item.brief for item in deeds] == [str(at + 1) for at in range(len(offence.slices))]
    assert all(f"{item.brief}: {item.label[:20]}" in said for item in deeds)
    if not offence.cell:
        return
    cell, boxes = Contested(verdict.trace, offence.cell), own.boxes
    assert own.name == cell.name and boxes
    for one, other in pairwise(boxes):
        assert one.end <= other.start, "one owner at a time"
    if cell.kind != "answer":
        signs = [item for item in own.spans if item.kind in ("written", "read", "evict")]
        assert signs, "its accesses are drawn"
        moments = {access.time for access in cell.accesses()} | {one.start for one in cell.owned()}
        culprits = [item for item in verdict.trace.slices if item.id in offence.slices]
        assert any(item.start <= at <= item.end for item in culprits for at in moments)


def test_one_is_drawn_into_a_folder_that_is_made(cli: Any, tmp_path: Path) -> None:
    assert cli(f"museum run {EXHIBITS[0].name} --out new/a.svg")[0] == 0
    assert (tmp_path / "new/a.svg").read_text(encoding="utf-8") == to_svg(
        exhibit_scene(EXHIBITS[0])
    )


@pytest.mark.parametrize("is_caught", [False, True])
def test_a_museum_that_is_wrong_ends_with_1(
    cli: Any, monkeypatch: pytest.MonkeyPatch, is_caught: bool
) -> None:
    """An exhibit that nothing catches, and one whose law healthy code breaks."""
    item, verdict = EXHIBITS[0], EXHIBITS[0].with_bug()
    wrong = item if is_caught else replace(item, edits=())
    if is_caught:
        monkeypatch.setitem(OWN_LAWS, item.law, lambda case: verdict)
    monkeypatch.setattr(museum, "exhibits", lambda: (wrong,))
    monkeypatch.setattr(museum, "refuted", lambda: ())
    code, out, _ = cli("museum run --all --json")
    (told,) = json.loads(out)["bugs"]
    assert code == 1 and told["healthy_passes"] is not is_caught
    assert told["caught_by"] == (item.law if is_caught else None)
