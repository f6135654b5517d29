"""What diagrams/class_structure.puml draws is so in the code: classes, members, who has whom."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
DRAWN = (ROOT / "diagrams" / "class_structure.puml").read_text(encoding="utf-8")
CLASS = re.compile(r'^  (class|interface) "\[\[\.\./(\S+)#(\w+) (\w+)\]\]" as (\w+)', re.M)
BODY = re.compile(r"as (\w+) \{\n(.*?)\n  \}", re.S)
ARROW = re.compile(r"^(\w+) (<\|--|--\|>|<\|\.\.|[*o]-\w*-) (\w+)(?: : (\w+))?$", re.M)


class Members(NamedTuple):
    """A class's own: its bases, its methods, and what its fields may be."""

    bases: tuple[str, ...]
    methods: frozenset[str]
    fields: dict[str, set[str]]


@cache
def classes() -> dict[str, Members]:
    """Every class drawn, from the file it is said to be in; and whatever they inherit from."""
    found: dict[str, Members] = {}
    for path in (ROOT / "minisched").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, members(node))
    for _, file, name, _, _ in CLASS.findall(DRAWN):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        own = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
        assert own, f"{file} has no class {name}"
        found[name] = members(own[0])
    return found


def members(node: ast.ClassDef) -> Members:
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    fields: dict[str, set[str]] = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign):
            fields.setdefault(ast.unparse(item.target), set()).update(words(item.annotation))
    for method in methods:
        given = {arg.arg: arg.annotation for arg in [*method.args.args, *method.args.kwonlyargs]}
        for step in ast.walk(method):
            if isinstance(step, ast.Assign | ast.AnnAssign) and step.value is not None:
                targets = step.targets if isinstance(step, ast.Assign) else [step.target]
                kinds = words(step.value).union(
                    *(words(note) for name, note in given.items()
                      if note is not None and name in words(step.value))
                )  # fmt: skip
                if isinstance(step, ast.AnnAssign):
                    kinds |= words(step.annotation)
                for target in targets:
                    if ast.unparse(target).startswith("self."):
                        fields.setdefault(ast.unparse(target)[5:], set()).update(kinds)
    bases = tuple(ast.unparse(base) for base in node.bases)
    return Members(bases, frozenset(method.name for method in methods), fields)


def words(node: ast.AST) -> set[str]:
    return set(re.findall(r"\w+", ast.unparse(node)))


def family(name: str) -> list[Members]:
    """A class and those it inherits from."""
    own = classes().get(name)
    if own is None:
        return []
    return [own, *(one for base in own.bases for one in family(base))]


def has_method(name: str, method: str) -> bool:
    return any(method in one.methods for one in family(name))


def kinds_of(name: str, field: str) -> set[str]:
    return set().union(*(one.fields.get(field, set()) for one in family(name)))


def arrows() -> list[tuple[str, str, str, str]]:
    """What is drawn between two classes: (from, arrow, to, label)."""
    return ARROW.findall(DRAWN)


def test_everything_in_the_drawing_is_read() -> None:
    """No line escapes the laws below."""
    body = re.sub(r"<style>.*?</style>|^legend.*?^end legend", "", DRAWN, flags=re.S | re.M)
    body = BODY.sub(r"as \1", body)
    plain = r"@|skinparam|title|hide|package|\}|\w+ -\[hidden\]- \w+|$"
    for line in body.splitlines():
        assert CLASS.match(line) or ARROW.match(line) or re.match(plain, line), line
    assert len(CLASS.findall(DRAWN)) >= 25 and len(arrows()) >= 25
    names = {name for *_, name in CLASS.findall(DRAWN)}
    assert {end for a, _, b, _ in arrows() for end in (a, b)} <= names


def test_each_class_is_called_what_it_is_called() -> None:
    for kind, _, symbol, label, name in CLASS.findall(DRAWN):
        assert symbol == label == name
        assert (kind == "interface") == ("Protocol" in classes()[name].bases), name


def test_its_members_are_there() -> None:
    for name, body in BODY.findall(DRAWN):
        for member in re.findall(r"[\w]+(?:\(\))?", body):
            if member.endswith("()"):
                assert has_method(name, member[:-2]), f"{name} has no method {member}"
            else:
                assert kinds_of(name, member), f"{name} has no field {member}"


@pytest.mark.parametrize("one, arrow, other, field", arrows(), ids="".join)
def test_every_arrow_is_true(one: str, arrow: str, other: str, field: str) -> None:
    """Inheritance, fulfilling an interface's methods, or a field that holds one."""
    if arrow == "--|>":
        assert other in classes()[one].bases
    elif arrow == "<|--":
        assert one in classes()[other].bases
    elif arrow == "<|..":
        lacking = [name for name in classes()[one].methods if not has_method(other, name)]
        assert not lacking, f"{other} lacks {lacking}"
    else:
        assert other in kinds_of(one, field), f"{one}.{field} is no {other}"
