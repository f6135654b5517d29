"""A bug is put into functions of every kind, where everybody sees it, and is gone afterwards."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minisched.museum.patch import Edit, StalePatch, diff, put_in

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


KINDS: dict[str, tuple[Edit, Callable[[Any], object], object, object]] = {
    "function": (edit("plain", "said = word", "said = 'no'"), lambda it: it.plain("yes"), "yes",
                 "no"),
    "decorated": (edit("wrapped", "return word", "return word * 2"), lambda it: it.wrapped("a"),
                  "a!", "aa!"),
    "default": (edit("with_default", "word + end", "end + word"), lambda it: it.with_default(),
                "one.", ".one"),
    "another default": (edit("with_default", 'end="."', 'end="?"'),
                        lambda it: it.with_default("two"), "two.", "two?"),
    "nested": (edit("outer", "word + str(len(words))", "str(len(words)) + word"),
               lambda it: it.outer("ab"), ["a2", "b2"], ["2a", "2b"]),
    "generator": (edit("counted", "range(last)", "range(last + 1)"), lambda it: [*it.counted(2)],
                  [0, 1], [0, 1, 2]),
    "context manager": (edit("inside", '"in"', '"IN"'), lambda it: held([], it.inside), ["in"],
                        ["IN"]),
    "super": (edit("Derived.name", '"derived "', '"worse "'), lambda it: it.Derived().name(),
              "derived base", "worse base"),
    "property": (edit("Derived.size", "1", "-1"), lambda it: it.Derived().size, 1, -1),
    "cached property": (edit("Derived.weight", "2", "-2"), lambda it: it.Derived().weight, 2, -2),
    "static method": (edit("Derived.still", "3", "-3"), lambda it: it.Derived.still(), 3, -3),
    "class method": (edit("Derived.made", "cls.unit", "cls.unit * 2"),
                     lambda it: it.Derived.made(), "cm", "cmcm"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_every_kind_are_changed_and_come_back(kind: str, specimen: Any) -> None:
    change, call, healthy, bug = KINDS[kind]
    assert call(specimen) == healthy
    with put_in([change]):
        assert call(specimen) == bug
    assert call(specimen) == healthy


def test_who_imported_it_by_name_has_the_bug_too(specimen: Any) -> None:
    plain = specimen.plain
    with put_in([edit("plain", "said = word", "said = 'no'")]):
        assert plain("yes") == "no" and plain is specimen.plain
    assert plain("yes") == "yes"


def test_several_edits_of_one_function_all_count(specimen: Any) -> None:
    edits = [edit("plain", "said = word", "said = 'no'"), edit("plain", "return said", "return 2")]
    with put_in([*edits, edit("counted", "range(last)", "()")]):
        assert specimen.plain("yes") == 2 and [*specimen.counted(2)] == []
    with put_in(edits[:1]):
        assert specimen.plain("yes") == "no"


def test_it_comes_back_when_the_run_raises_and_after_a_bug_in_a_bug(specimen: Any) -> None:
    change = edit("plain", "return said", "raise KeyError(said)")
    with pytest.raises(KeyError), put_in([change]):
        specimen.plain("yes")
    assert specimen.plain("yes") == "yes"
    with put_in([change]):
        with put_in([edit("plain", "return said", "return 1")]):
            assert specimen.plain("yes") == 1
        with pytest.raises(KeyError):
            specimen.plain("yes")
    assert specimen.plain("yes") == "yes"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (edit("plain", "said = other", ""), r"has the lines of this patch 0 times, and not once: "),
        (edit("plain", "said", ""), r"has the lines of this patch 2 times, and not once: 'said'\."),
        (edit("plain", "", "x"), r"has the lines of this patch 0 times, and not once: ''\."),
        (edit("wrapped", "@loud", ""), r"0 times"),  # a decorator ran long ago
        (edit("gone", "said", ""), r"^specimen:gone is no function of this patch's: "),
        (Edit("gone:plain", "said", ""), r"^gone:plain is no function of this patch's: "),
        (edit("Derived.unit", "cm", ""), r"^specimen:Derived\.unit is no function but a str\.$"),
    ],
)
def test_a_patch_of_other_code_is_stale(specimen: Any, change: Edit, sentence: str) -> None:
    good = edit("counted", "range(last)", "()")
    with pytest.raises(StalePatch, match=sentence), put_in([good, change]):
        raise AssertionError("the block must not run")
    assert [*specimen.counted(2)] == [0, 1]


def test_a_patch_that_another_one_has_overtaken_is_stale(specimen: Any) -> None:
    change = edit("plain", "said = word", "said = 'no'")
    with pytest.raises(StalePatch, match="0 times"), put_in([change, change]):
        pass


def test_the_diff_goes_from_the_bug_to_the_healthy_code(specimen: Any) -> None:
    changes = [
        edit("plain", "said = word", "said = 'no'\nsaid += word".replace("\n", "\n    ")),
        edit("Derived.size", "return 1", "return -1"),
    ]
    assert diff(changes, context=1).splitlines() == [
        "@@ minisched/specimen.py: plain @@",
        '     """Says it."""',
        "-    said = 'no'",
        "-    said += word",
        "+    said = word",
        "     return said",
        "@@ minisched/specimen.py: Derived.size @@",
        " def size(self):",
        "-    return -1",
        "+    return 1",
    ]


def test_parts_of_a_function_that_lie_apart_are_apart_in_the_diff(specimen: Any) -> None:
    changes = [edit("inside", '"in"', '"IN"'), edit("inside", '"out"', '"OUT"')]
    headings = [line for line in diff(changes, context=0).splitlines() if line.startswith("@@")]
    assert headings == ["@@ minisched/specimen.py: inside @@", "@@ … @@"]
