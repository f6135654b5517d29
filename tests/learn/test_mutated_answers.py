"""Each solution with one small thing changed: it is refused, or named in ``AS_GOOD`` with a reason.

The operators are those of ``tests/laws/mutations/operators.py``, and some for slips of a learner.
"""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from textwrap import dedent, indent

import pytest

import minisched.learn.grade
from minisched.learn.exercise import Exercise, Function, exercises
from minisched.learn.grade import grade
from tests.laws.mutations import operators
from tests.laws.mutations.operators import Splice, code_of, functions_in, siblings_in
from tests.learn.as_good import AS_GOOD

EXERCISES = exercises()
TABLES = Path(minisched.learn.grade.__file__).with_name("exercises")
SIBLINGS = siblings_in([path.read_text("utf-8") for path in sorted(TABLES.glob("l*.py"))])

# -- Slips of a learner: operators on an expression ------------------------------------------------


def names_in(function: operators.Function) -> list[str]:
    """Return the parameters and variables of a function."""
    nodes = list(ast.walk(function.tree))
    stored = [it.id for it in nodes if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)]
    return list(dict.fromkeys([it.arg for it in nodes if isinstance(it, ast.arg)] + stored))


def is_read(function: operators.Function, node: ast.AST) -> bool:
    """Return whether a node is a value that is read, and not only called."""
    called = [it.func for it in ast.walk(function.tree) if isinstance(it, ast.Call)]
    kinds = ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.BinOp
    is_load = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    return isinstance(node, kinds) and is_load and not any(it is node for it in called)


def another_value(function: operators.Function, node: ast.AST) -> Iterator[Splice]:
    """Another variable, or a number that fits the first example."""
    if is_read(function, node) and not isinstance(node, ast.BinOp):
        others = names_in(function) if isinstance(node, ast.Name) else []
        others = [name for name in others if name != function.text(node)]
        for other in [*others, "0", "1", "2", "4"]:
            yield function.instead(node, other)


def wrong_number(function: operators.Function, node: ast.AST) -> Iterator[Splice]:
    """A value is off by one, bounded or rounded."""
    if not is_read(function, node):
        return
    forms = ["({} + 1)", "({} - 1)", "min(1, {})"]
    if isinstance(node, ast.BinOp):
        forms += ["max(0, {})", "abs({})"] * isinstance(node.op, ast.Sub)
        forms += ["int({})", "round({})"] * isinstance(node.op, ast.Div)
    for form in forms + ["({} // 2 * 2)"] * isinstance(node, ast.Name):
        yield function.instead(node, form.format(function.text(node)))


def wrong_items(function: operators.Function, node: ast.AST) -> Iterator[Splice]:
    """Items in another order, without doubles, or not all of them."""
    if is_read(function, node) and isinstance(node, ast.Name | ast.Attribute):
        for form in ("sorted({})", "{}[::-1]", "list(dict.fromkeys({}))", "{}[:1]", "{}[1:]",
                     "{}[:-1]"):  # fmt: skip
            yield function.instead(node, form.format(function.text(node)))
    if isinstance(node, ast.Slice):
        for name in names_in(function):
            for bounds in (f"-{name}:", f":{name}", f"{name}:", f":-{name}"):
                yield function.instead(node, bounds)


COMPARISONS = {
    ast.Eq: ("<=", ">=", "is"), ast.NotEq: ("<", ">", "is not"), ast.Lt: ("!=", ">"),
    ast.LtE: ("==", ">="), ast.Gt: ("!=", "<"), ast.GtE: ("==", "<="),
}  # fmt: skip
ALIKE = ("len({}) == len({})", "set({}) == set({})", "set({}) <= set({})", "bool({}) == bool({})")


def wrong_comparison(function: operators.Function, node: ast.AST) -> Iterator[Splice]:
    """Any other comparison; what is equal in part only; a false value is taken for None."""
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        return
    one, other = function.text(node.left), function.text(node.comparators[0])
    for sign in COMPARISONS.get(type(node.ops[0]), ()):
        yield function.instead(node, f"({one}) {sign} ({other})")
    if isinstance(node.ops[0], ast.Eq | ast.NotEq):
        no = "not " if isinstance(node.ops[0], ast.NotEq) else ""
        for same in ALIKE:
            yield function.instead(node, f"({no}{same.format(one, other)})")
    if other == "None":
        yield function.instead(node, f"(not {one})" if isinstance(node.ops[0], ast.Is) else one)


# -- Slips of a learner: operators on statements ---------------------------------------------------

SPECIAL = (  # what has no such number is refused by its error
    "{0} + 0 == 0", "{0} + 0 == 1", "{0} + 0 == 2", "{0} + 0 > 2",
    "len({0}) == 0", "len({0}) == 1", "len({0}) == 2", "len({0}) > 2", "len({0}) > len({{*{0}}})",
)  # fmt: skip


def left_out(function: operators.Function) -> Iterator[Splice]:
    """Arguments that were not thought of: no answer to these."""
    assert isinstance(function.tree, ast.FunctionDef)
    names = [it.arg for it in function.tree.args.args if it.arg != "self"]
    conditions = [it.format(name) for name in names for it in SPECIAL]
    conditions += [
        f"{one} + 0 {sign} {other} + 0"
        for one, other in combinations(names, 2)
        for sign in ("==", "<", ">")
    ]
    start = function.span(function.tree.body[0])[0]
    for condition in conditions:
        yield Splice(start, start, f"if {condition}: return ...\n    ")


def dropped(function: operators.Function, node: ast.stmt) -> Iterator[Splice]:
    """A line is missing, or the function ends with it."""
    assert isinstance(function.tree, ast.FunctionDef)
    yield function.instead(node, "pass")
    if isinstance(node, operators.SIMPLE) and node is not function.tree.body[-1]:
        end, gap = function.span(node)[1], "\n" + " " * node.col_offset
        yield Splice(end, end, f"{gap}return None")


ON_NODE = (*operators.ON_NODE, another_value, wrong_number, wrong_items, wrong_comparison)


def mutants(text: str) -> Iterator[str]:
    """Yield each mutant of a text: of its functions, and of the methods of its classes."""
    text = dedent(text).strip() + "\n"
    lines, had = text.splitlines(keepends=True), {code_of(text)}
    for name, source, first in functions_in(text):
        function = operators.Function(source, SIBLINGS, name.partition(".")[0])
        count, margin = len(source.splitlines()), lines[first - 1].partition("def")[0]
        splices = list(left_out(function))
        for body, at in operators.statements(function):
            nodes = list(operators.expressions(function, body[at]))
            splices += [it for on in ON_NODE for node in nodes for it in on(function, node)]
            splices += [it for on in operators.ON_BODY for it in on(function, body, at)]
            splices += dropped(function, body[at])
        for start, end, other in splices:
            mutant = indent(source[:start] + other + source[end:], margin)
            whole = "".join([*lines[: first - 1], mutant, *lines[first - 1 + count :]])
            with warnings.catch_warnings(action="ignore"):
                code = code_of(whole)
            if code and code not in had:
                had.add(code)
                yield whole


def change(text: str, mutant: str) -> str:
    """Return the lines that a mutant has instead; a line that is gone has a minus."""
    old, new = dedent(text).strip().splitlines(), mutant.strip().splitlines()
    lines = [line for line in difflib.ndiff(old, new) if line[0] in "+-"]
    more = [line[2:].strip() for line in lines if line[0] == "+" and line[2:].strip() != "pass"]
    return " / ".join(more or [f"- {line[2:].strip()}" for line in lines if line[0] == "-"])


def passes(one: Exercise, text: str) -> bool:
    """Return what the check of the lesson's cell says, sooner where drawn arguments are enough."""
    try:
        with warnings.catch_warnings(action="ignore"):
            lines = one.lines(text)
    except Exception:  # so does the cell
        return False
    if isinstance(one.hole, Function) and one.hole.difference(lines, one.lines(one.solution)):
        return False
    return grade(one, lines).passed


@pytest.mark.thorough
@pytest.mark.parametrize("name", AS_GOOD)
def test_each_mutant_is_refused_or_as_good(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whether each passes is looked at, so no smaller case is tried."""
    monkeypatch.setattr(minisched.learn.grade, "MOST_SHRINKS", 0)
    monkeypatch.setattr(minisched.learn.grade, "MOST_OF_ENDLESS", 0)
    one = EXERCISES[name]
    passed = {change(one.solution, it) for it in mutants(one.solution) if passes(one, it)}
    known = [line for lines in AS_GOOD[name].values() for line in lines]
    assert passed == {*known} and len(known) == len({*known})
