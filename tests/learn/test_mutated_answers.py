"""Each solution with one small thing changed: it is refused, or named in ``AS_GOOD`` with a reason.

The operators are those of ``tests/laws/mutations/operators.py``, and some for slips of a learner.
"""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

import pytest

import minisched.learn.grade
from minisched.checks.case import Case
from minisched.checks.judge import Verdict
from minisched.learn.exercise import Exercise, Function, Loop, exercises
from minisched.learn.grade import grade, not_yet
from tests.laws.mutations import operators
from tests.laws.mutations.operators import Splice, code_of, functions_in, siblings_in
from tests.learn.as_good import AS_GOOD

EXERCISES = exercises()
IN_PART = ("batch_queue_loop", "waiting_loop", "capstone")
"""Solutions with slow runs or thousands of mutants: two of each line, and one of each operator."""
TABLES = Path(minisched.learn.grade.__file__).with_name("exercises")
SIBLINGS = siblings_in([path.read_text("utf-8") for path in sorted(TABLES.glob("l*.py"))])


def names_in(function: operators.Function) -> list[str]:
    """Return the parameters and variables of a function."""
    nodes = list(ast.walk(function.tree))
    stored = [it.id for it in nodes if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)]
    return list(dict.fromkeys([it.arg for it in nodes if isinstance(it, ast.arg)] + stored))


NUMBERS = ("({} + 1)", "({} - 1)", "min(1, {})")
CONSTANTS = ("0", "1", "2", "4")
ITEMS = ("sorted({})", "{}[::-1]", "list(dict.fromkeys({}))", "{}[:1]", "{}[1:]", "{}[:-1]")


def wrong_value(function: operators.Function, node: ast.AST) -> Iterator[Splice]:
    """Another variable, a constant, off by one, bounded, rounded, in another order, not all."""
    called = [it.func for it in ast.walk(function.tree) if isinstance(it, ast.Call)]
    is_load = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    forms = list[str]()
    match node:
        case ast.Slice():
            names = names_in(function)
            forms += [it.format(one) for one in names for it in ("-{}:", ":{}", "{}:", ":-{}")]
        case ast.BinOp():
            forms += NUMBERS
            forms += ("max(0, {})", "abs({})") if isinstance(node.op, ast.Sub) else ()
            forms += ("int({})", "round({})") if isinstance(node.op, ast.Div) else ()
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call() if is_load:
            forms += (*NUMBERS, *CONSTANTS)
            forms += ITEMS if isinstance(node, ast.Name | ast.Attribute) else ()
            forms += ("({} // 2 * 2)", *names_in(function)) if isinstance(node, ast.Name) else ()
    for form in forms if not any(it is node for it in called) else ():
        yield function.instead(node, form.format(function.text(node)))


SIGNS = ("<", "<=", "==", "!=", ">", ">=", "is")
ALIKE = ("len({}) == len({})", "set({}) == set({})", "set({}) <= set({})", "bool({}) == bool({})")


def wrong_comparison(function: operators.Function, node: ast.AST) -> Iterator[Splice]:
    """Another comparison; what is equal in part only; a false value is taken for None."""
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        return
    one, other = function.text(node.left), function.text(node.comparators[0])
    if other == "None":
        yield function.instead(node, f"(not {one})" if isinstance(node.ops[0], ast.Is) else one)
    elif not isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot):
        forms = ALIKE if isinstance(node.ops[0], ast.Eq | ast.NotEq) else ()
        for form in (*forms, *(f"({{}}) {sign} ({{}})" for sign in SIGNS)):
            yield function.instead(node, form.format(one, other))


SPECIAL = (  # what has no such number is refused by its error
    "{0} + 0 == 0", "{0} + 0 == 1", "{0} + 0 == 2", "{0} + 0 > 2",
    "len({0}) == 0", "len({0}) == 1", "len({0}) == 2", "len({0}) > 2", "len({0}) > len({{*{0}}})",
)  # fmt: skip


def left_out(function: operators.Function) -> Iterator[Splice]:
    """No answer to arguments that were not thought of; a line is missing, or it is the last."""
    assert isinstance(function.tree, ast.FunctionDef)
    names = [it.arg for it in function.tree.args.args if it.arg != "self"]
    special = [it.format(name) for name in names for it in SPECIAL]
    pairs = product(combinations(names, 2), ("==", "<", ">"))
    special += [f"{one} + 0 {sign} {other} + 0" for (one, other), sign in pairs]
    start = function.span(function.tree.body[0])[0]
    for condition in special:
        yield Splice(start, start, f"if {condition}: return ...\n    ")
    for body, at in operators.statements(function):
        end = function.span(body[at])[1]
        yield function.instead(body[at], "pass")
        if isinstance(body[at], operators.SIMPLE) and body[at] is not function.tree.body[-1]:
            yield Splice(end, end, "\n" + " " * body[at].col_offset + "return None")


ON_NODE = (*operators.ON_NODE, wrong_value, wrong_comparison)


class Mutant(NamedTuple):
    """A changed text, the operator that made it, and the first line that it changes."""

    text: str
    operator: str
    line: int


def mutants(text: str) -> Iterator[Mutant]:
    """Yield each mutant of a text: of its functions, and of the methods of its classes."""
    text = dedent(text).strip() + "\n"
    lines, had = text.splitlines(keepends=True), {code_of(text)}
    for name, source, first in functions_in(text):
        function = operators.Function(source, SIBLINGS, name.partition(".")[0])
        count, margin = len(source.splitlines()), lines[first - 1].partition("def")[0]
        splices = [("left_out", it) for it in left_out(function)]
        for body, at in operators.statements(function):
            nodes = list(operators.expressions(function, body[at]))
            splices += [
                (on.__name__, it) for on in ON_NODE for node in nodes for it in on(function, node)
            ]
            splices += [
                (on.__name__, it) for on in operators.ON_BODY for it in on(function, body, at)
            ]
        for operator, (start, end, other) in splices:
            mutant = indent(source[:start] + other + source[end:], margin)
            whole = "".join([*lines[: first - 1], mutant, *lines[first - 1 + count :]])
            if (code := code_of(whole)) and code not in had:
                had.add(code)
                yield Mutant(whole, operator, first + source.count("\n", 0, start))


def some_of(every: list[Mutant]) -> list[Mutant]:
    """Return two mutants of each line and one of each operator, rare operators first."""
    found, used = list[Mutant](), Counter[str]()
    for line in sorted({it.line for it in every}):
        for _ in range(2):
            left = [it for it in every if it.line == line and it not in found]
            if left:
                found.append(min(left, key=lambda it: used[it.operator]))
                used[found[-1].operator] += 1
    rest = {it.operator: it for it in every if not used[it.operator]}
    return [*found, *rest.values()]


def change(text: str, mutant: str) -> str:
    """Return the lines that a mutant has instead; a line that is gone has a minus."""
    old, new = dedent(text).strip().splitlines(), mutant.strip().splitlines()
    lines = [line for line in difflib.ndiff(old, new) if line[0] in "+-"]
    more = [line[2:].strip() for line in lines if line[0] == "+" and line[2:].strip() != "pass"]
    return " / ".join(more or [f"- {line[2:].strip()}" for line in lines if line[0] == "-"])


def passes(one: Exercise, text: str) -> bool:
    """Return what the check of the lesson's cell says, sooner where drawn arguments are enough."""
    lines = one.lines(text)
    if isinstance(one.hole, Function) and one.hole.difference(lines, one.lines(one.solution)):
        return False
    return grade(one, lines).passed


@pytest.fixture
def package_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge a case with the package's own lines once; all mutants of an exercise have the same."""
    kept = dict[str, Verdict]()

    def once(hole: Loop | Function, case: Case) -> Verdict:
        return kept[key] if (key := repr(case)) in kept else kept.setdefault(key, own(hole, case))

    own = minisched.learn.grade.package_verdict
    monkeypatch.setattr(minisched.learn.grade, "package_verdict", once)


def test_the_table_has_each_exercise() -> None:
    assert AS_GOOD.keys() == EXERCISES.keys()


@pytest.mark.thorough
@pytest.mark.usefixtures("package_runs_are_kept")
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("name", AS_GOOD)
def test_each_mutant_is_refused_or_as_good(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whether each passes is looked at, so no smaller case is tried and none is drawn."""
    monkeypatch.setattr(minisched.learn.grade, "MOST_SHRINKS", 0)
    monkeypatch.setattr(minisched.learn.grade, "MOST_OF_ENDLESS", 0)
    monkeypatch.setattr(minisched.learn.grade, "told", lambda *given: not_yet(""))
    one = EXERCISES[name]
    every = list(mutants(one.solution))
    if name in IN_PART:
        some = some_of(every)
        assert {it.line for it in some} == {it.line for it in every}
        assert {it.operator for it in some} == {it.operator for it in every}
        every = some
    passed = {change(one.solution, it.text) for it in every if passes(one, it.text)}
    known = [line for lines in AS_GOOD[name].values() for line in lines]
    assert passed == {*known} and len(known) == len({*known})
