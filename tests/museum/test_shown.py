"""A bug is put into functions of every kind, and is gone afterwards; how exhibits are shown.

That each exhibit is caught by its law, and that healthy code passes, is in ``test_museum.py``.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from minisched.checks.judge import Verdict
from minisched.checks.races import find_races
from minisched.checks.races import offence_of as races_offence
from minisched.cli import museum
from minisched.export.offence_text import MARK
from minisched.museum import Exhibit, exhibits, find, refuted
from minisched.museum.form import to_html
from minisched.museum.offence import offence_of
from minisched.museum.patch import Edit, StalePatch, diff, put_in
from minisched.museum.picture import draw, lines_of

SPECIMEN = '''
from contextlib import contextmanager
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

@contextmanager
def inside(log):
    log.append("in")
    try:
        yield log
    finally:
        log.append("out")

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
def specimen(tmp_path: Path) -> Iterator[Any]:
    """A module of the package, for as long as a test runs."""
    path = tmp_path / "specimen.py"
    path.write_text(SPECIMEN)
    spec = importlib.util.spec_from_file_location("minisched.specimen", path)
    assert spec and spec.loader
    module = sys.modules["minisched.specimen"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["minisched.specimen"]


def edit(name: str, healthy: str, bug: str) -> Edit:
    return Edit(f"specimen:{name}", healthy, bug)


def held(log: list[str], inside: Callable[[list[str]], Any]) -> list[str]:
    with inside(log):
        return list(log)


SAYS_NO = edit("plain", "said = word", "said = 'no'")
KINDS: list[tuple[Edit, Callable[[Any], object], object, object]] = [
    (SAYS_NO, lambda it: it.plain("yes"), "yes", "no"),
    (edit("wrapped", "return word", "return word * 2"), lambda it: it.wrapped("a"), "a!", "aa!"),
    (edit("with_default", "word + end", "end + word"), lambda it: it.with_default(), "one.",
     ".one"),
    (edit("with_default", 'end="."', 'end="?"'), lambda it: it.with_default("two"), "two.", "two?"),
    (edit("outer", "word + str(len(words))", "str(len(words)) + word"), lambda it: it.outer("ab"),
     ["a2", "b2"], ["2a", "2b"]),
    (edit("counted", "range(last)", "range(last + 1)"), lambda it: [*it.counted(2)], [0, 1],
     [0, 1, 2]),
    (edit("inside", '"in"', '"IN"'), lambda it: held([], it.inside), ["in"], ["IN"]),
    (edit("Derived.name", '"derived "', '"worse "'), lambda it: it.Derived().name(),
     "derived base", "worse base"),
    (edit("Derived.size", "1", "-1"), lambda it: it.Derived().size, 1, -1),
    (edit("Derived.weight", "2", "-2"), lambda it: it.Derived().weight, 2, -2),
    (edit("Derived.still", "3", "-3"), lambda it: it.Derived.still(), 3, -3),
    (edit("Derived.made", "cls.unit", "cls.unit * 2"), lambda it: it.Derived.made(), "cm", "cmcm"),
]  # fmt: skip


# -- bugs are put in, and are gone -------------------------------------------------------------


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=lambda kind: KINDS[kind][0].where)
def test_functions_of_every_kind_are_changed_and_come_back(kind: int, specimen: Any) -> None:
    change, call, healthy, bug = KINDS[kind]
    assert call(specimen) == healthy
    with put_in([change]):
        assert call(specimen) == bug
    assert call(specimen) == healthy


def test_who_imported_it_by_name_has_the_bug_too_and_several_edits_all_count(specimen: Any) -> None:
    plain = specimen.plain
    edits = [SAYS_NO, edit("plain", "return said", "return said * 2")]
    with put_in([*edits, edit("counted", "range(last)", "()")]):
        assert plain("yes") == "nono" and plain is specimen.plain and [*specimen.counted(2)] == []
    with put_in(edits[:1]):
        assert plain("yes") == "no"
    assert plain("yes") == "yes"


def test_it_comes_back_when_the_run_raises_and_after_a_bug_in_a_bug(specimen: Any) -> None:
    change = edit("plain", "return said", "raise KeyError(said)")
    with pytest.raises(KeyError), put_in([change]):
        specimen.plain("yes")
    with put_in([change]):
        with put_in([edit("plain", "return said", "return 1")]):
            assert specimen.plain("yes") == 1
        with pytest.raises(KeyError):
            specimen.plain("yes")
    assert specimen.plain("yes") == "yes"


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


def test_the_diff_goes_from_the_bug_to_the_healthy_code(specimen: Any) -> None:
    changes = [
        edit("plain", "said = word", "said = 'no'\n    said += word"),
        edit("Derived.size", "return 1", "return -1"),
        edit("inside", '"in"', '"IN"'), edit("inside", '"out"', '"OUT"'),
    ]  # fmt: skip
    lines = diff(changes, context=0).splitlines()
    assert lines == [
        "@@ minisched/specimen.py: plain @@",
        "-    said = 'no'", "-    said += word", "+    said = word",
        "@@ minisched/specimen.py: Derived.size @@",
        "-    return -1", "+    return 1",
        "@@ minisched/specimen.py: inside @@",
        '-    log.append("IN")', '+    log.append("in")',
        "@@ … @@",  # parts of a function that lie apart
        '-        log.append("OUT")', '+        log.append("out")',
    ]  # fmt: skip


# -- pictures and pages ------------------------------------------------------------------------

EXHIBITS, REFUTED = exhibits(), refuted()
EACH_BUG = pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda item: item.name)


@cache
def with_bug(name: str) -> Verdict:
    exhibit = find(name)
    assert isinstance(exhibit, Exhibit)
    return exhibit.with_bug()


@EACH_BUG
def test_the_picture_shows_what_did_it_in_red(exhibit: Exhibit) -> None:
    """And nothing is red in the healthy run below; the text marks it too, within its columns."""
    offence, drawn = offence_of(exhibit, with_bug(exhibit.name)), draw(exhibit)
    assert draw(exhibit) == drawn and drawn.count("http") == drawn.count("http://www.w3.org/")
    root = ElementTree.fromstring(drawn)
    marked = [item for item in root.iter() if "data-offence" in item.attrib]
    assert {int(item.attrib["data-offence"]) for item in marked} == set(offence.slices) != set()
    below = next(item for item in root.iter() if (item.text or "").startswith("without it"))
    assert all(float(item.attrib["y"]) < float(below.attrib["y"]) for item in marked)
    assert exhibit.title in (words := "".join(root.itertext()))
    assert f"{exhibit.law}: {offence.sentence[:20]}" in words
    lines = lines_of(exhibit, 80)
    first, second = "\n".join(lines).split("without it:")
    assert max(map(len, lines)) <= 80
    assert MARK in first and MARK not in second.split("\n\n")[0]


@EACH_BUG
def test_what_did_it_is_found_by_its_law_alone(exhibit: Exhibit) -> None:
    """Also where an exhibit can say it better; of a race it is the two, and the missing edge."""
    verdict = with_bug(exhibit.name)
    offence = offence_of(replace(exhibit, points_at=None), verdict)
    assert offence.sentence and offence.slices
    assert {item.id for item in verdict.trace.slices} >= set(offence.slices)
    if exhibit.law == "race":
        race = find_races(verdict.trace)[0]
        assert offence == races_offence(race, verdict.trace) and len(offence.slices) == 2


# -- the command -------------------------------------------------------------------------------


def test_all_are_tried_and_the_object_says_what_stands(cli: Any) -> None:
    code, out, _ = cli("museum run --all --json")
    told = json.loads(out)
    assert code == 0 and [bug["name"] for bug in told["bugs"]] == [item.name for item in EXHIBITS]
    for bug, item in zip(told["bugs"], EXHIBITS, strict=True):
        assert bug["caught_by"] == item.law and bug["healthy_passes"] is True
        assert bug["suspected_at"] == (item.suspected_at or None)
        assert bug["reference"] == ", ".join(item.references) and len(bug["links"]) > 0
        example, workload = bug["example"], item.case.workload
        assert [(it["prompt_len"], it["limit"]) for it in example["requests"]] == [
            (len(it.prompt), it.params.max_new_tokens) for it in workload.requests
        ]
        assert example["sizes"]["kv_tokens"] == workload.config.kv_tokens
        assert (example["loop"], example["relay"]) == (item.case.loop, item.case.relay)
        assert example["arrivals"] == workload.arrivals
    assert [(it["name"], it["nothing_broken"]) for it in told["refuted"]] == [
        (item.name, True) for item in REFUTED
    ]


def test_one_is_drawn_as_svg_and_as_a_page(cli: Any, tmp_path: Path) -> None:
    item = EXHIBITS[0]
    for file in ("new/a.svg", "a.html"):
        code, out, _ = cli(f"museum run {item.name} --out {file}")
        assert code == 0 and f"Drawn in {file}." in out
    shown = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert shown == to_html(item) and (tmp_path / "new/a.svg").read_text(encoding="utf-8") in shown
    code, _, err = cli(f"museum run {REFUTED[0].name} --out a.svg")
    assert code == 2 and "nothing went wrong that" in err


@pytest.mark.parametrize("wrong", ["not caught", "healthy code fails"])
def test_a_museum_that_is_wrong_ends_with_1(
    cli: Any, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    item, *others = EXHIBITS[:3]
    if wrong == "not caught":
        item = replace(item, edits=())
    else:
        item = replace(item, judge_by=lambda case, item=item: item.with_bug())
    monkeypatch.setattr(museum, "exhibits", lambda: (item, *others))
    monkeypatch.setattr(museum, "refuted", lambda: ())
    code, out, _ = cli("museum run --all --json")
    first, *rest = json.loads(out)["bugs"]
    assert code == 1 and [bug["caught_by"] for bug in rest] == [it.law for it in others]
    assert (first["caught_by"] is None) == (wrong == "not caught")
    assert first["healthy_passes"] == (wrong == "not caught")
    assert cli("museum run --all")[0] == 1
