"""Small changes of a function's source, made by operators: swap, drop, negate, off by one, ...

An operator is a function: from a node of the function's syntax tree to the texts that may stand
there instead. Docstrings, texts, ``raise``, ``assert`` and type hints never change, and no code
that only records (``records.py``).
"""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tests.laws.mutations.records import Recorded, is_text

# by class, then by attribute: the others of the same type
Siblings = Mapping[str, Mapping[str, Sequence[str]]]


class Splice(NamedTuple):
    """Another text in the place of the characters from ``start`` to ``end``."""

    start: int
    end: int
    text: str


class Change(NamedTuple):
    """A function's source with one change, and the statement that has it."""

    operator: str
    at: int  # the line of the statement in the function; its ``def`` is line 1
    source: str


@dataclass
class Function:
    """A function's source from its ``def`` on, without indentation, and its tree."""

    source: str
    siblings: Siblings = field(default_factory=dict)
    owner: str = ""  # the class of a method
    recorded: Recorded = field(default_factory=Recorded)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source).body[0]
        assert isinstance(self.tree, ast.FunctionDef)
        self.params, self.names = self.tree.args, self.recorded.names_of(self.tree)
        lines = self.source.splitlines(keepends=True)
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line))
        self.lines = lines

    def place(self, line: int, column: int) -> int:
        """Return the character at a line and a column, which ``ast`` counts in bytes."""
        before = self.lines[line - 1].encode()[:column].decode()
        return self.starts[line - 1] + len(before)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where the text of a node starts and ends."""
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.arg)
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.place(node.lineno, node.col_offset)
        return start, self.place(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.source[start:end]

    def instead(self, node: ast.AST, text: str) -> Splice:
        """Put a text in the place of a node."""
        return Splice(*self.span(node), text)

    def without(self, nodes: Sequence[ast.AST], at: int) -> Splice:
        """Remove one of several nodes that are separated by commas or operators."""
        if at + 1 < len(nodes):
            return Splice(self.span(nodes[at])[0], self.span(nodes[at + 1])[0], "")
        return Splice(self.span(nodes[at - 1])[1] if at else self.span(nodes[at])[0],
                      self.span(nodes[at])[1], "")  # fmt: skip


# -- Operators on an expression --------------------------------------------------------------------

BORDERS: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in",
    ast.NotIn: "in",
}  # fmt: skip
PAIRS = {
    **{"min": "max", "max": "min", "any": "all", "all": "any", "popleft": "pop"},
    **{"append": "appendleft", "first": "last", "last": "first", "start": "end", "end": "start"},
}


def parts(node: ast.expr) -> str:
    """Return whether the text of a node needs parentheses next to an operator."""
    return "()" if not isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Call) else ""


def wrapped(function: Function, node: ast.expr) -> str:
    """Return the text of a node, in parentheses if it needs them."""
    text = function.text(node)
    return f"({text})" if parts(node) else text


def other_comparison(
    function: Function, node: ast.AST, others: Mapping[type[ast.cmpop], str]
) -> Iterator[Splice]:
    """Replace the operator of a comparison of two values.

    A parenthesis next to the operator is not in the tree, so such a comparison stays.
    """
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        start, end = function.span(node.left)[1], function.span(node.comparators[0])[0]
        other = others.get(type(node.ops[0]))
        if other and not set("()").intersection(function.source[start:end]):
            yield Splice(start, end, f" {other} ")


def border(function: Function, node: ast.AST) -> Iterator[Splice]:
    """``<`` becomes ``<=``, and so on."""
    yield from other_comparison(function, node, BORDERS)


def negate(function: Function, node: ast.AST) -> Iterator[Splice]:
    """A condition becomes its opposite."""
    yield from other_comparison(function, node, OPPOSITES)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield function.instead(node, function.text(node.operand))
    tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
    for test in tests + (node.ifs if isinstance(node, ast.comprehension) else []):
        if not isinstance(test, ast.UnaryOp | ast.Compare | ast.NamedExpr):
            yield function.instead(test, f"not {wrapped(function, test)}")


def and_or(function: Function, node: ast.AST) -> Iterator[Splice]:
    """``and`` becomes ``or``, or one of the operands is gone."""
    if not isinstance(node, ast.BoolOp):
        return
    other = "or" if isinstance(node.op, ast.And) else "and"
    if len(node.values) == 2:
        left, right = function.span(node.values[0])[1], function.span(node.values[1])[0]
        word = "and" if other == "or" else "or"
        between = function.source[left:right]
        if between.count(word) == 1:
            yield Splice(left, right, between.replace(word, other))
    for at in range(len(node.values)):
        kept = [wrapped(function, it) for it in node.values[:at] + node.values[at + 1 :]]
        yield function.instead(node, f"({f' {word_of(node)} '.join(kept)})")


def word_of(node: ast.BoolOp) -> str:
    """Return ``and`` or ``or``."""
    return "and" if isinstance(node.op, ast.And) else "or"


def one_branch(function: Function, node: ast.AST) -> Iterator[Splice]:
    """A conditional expression always has the same value; a filter keeps everything."""
    if isinstance(node, ast.IfExp):
        for branch in (node.body, node.orelse):
            yield function.instead(node, wrapped(function, branch))
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield function.instead(test, "True")


def off_by_one(function: Function, node: ast.AST) -> Iterator[Splice]:
    """``x + 1`` becomes ``x``; a length, a border or a bound moves by one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        if isinstance(node.right, ast.Constant) and node.right.value == 1:
            yield function.instead(node, wrapped(function, node.left))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        if type(node.ops[0]) in BORDERS:
            right = node.comparators[0]
            for sign in "+-":
                yield function.instead(right, f"{wrapped(function, right)} {sign} 1")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        if node.func.id in ("len", "range", "min", "max") and not node.keywords:
            last = node.args[-1]
            if node.func.id == "len":
                yield function.instead(node, f"({function.text(node)} - 1)")
            elif not isinstance(last, ast.Starred | ast.GeneratorExp):
                yield function.instead(last, f"{wrapped(function, last)} - 1")
    elif isinstance(node, ast.Slice):
        for bound in filter(None, (node.lower, node.upper)):
            yield function.instead(bound, f"{wrapped(function, bound)} + 1")


def wrong_constant(function: Function, node: ast.AST) -> Iterator[Splice]:
    """A number is one more, or 0; ``True`` becomes ``False``."""
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield function.instead(node, str(not node.value))
    elif isinstance(node.value, int):
        yield function.instead(node, str(node.value + 1))
        if node.value:
            yield function.instead(node, "0")


SIGNS: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Mod: "//"}


def arithmetic(function: Function, node: ast.AST) -> Iterator[Splice]:
    """``+`` becomes ``-``; a division rounds up; an operand is gone."""
    if not isinstance(node, ast.BinOp):
        return
    left, right = function.span(node.left)[1], function.span(node.right)[0]
    between = function.source[left:right]
    if "(" not in between and ")" not in between and type(node.op) in SIGNS:
        yield Splice(left, right, f" {SIGNS[type(node.op)]} ")
    if isinstance(node.op, ast.FloorDiv):
        a, b = wrapped(function, node.left), wrapped(function, node.right)
        yield function.instead(node, f"-(-{a} // {b})")
    yield function.instead(node, wrapped(function, node.left))


def min_max(function: Function, node: ast.AST) -> Iterator[Splice]:
    """``min`` becomes ``max``, ``any`` becomes ``all``; or a limit is gone."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("min", "max", "any", "all"):
            yield function.instead(node.func, PAIRS[node.func.id])
        if node.func.id in ("min", "max") and len(node.args) == 2 and not node.keywords:
            for arg in node.args:
                if not isinstance(arg, ast.Starred):
                    yield function.instead(node, wrapped(function, arg))


def other_order(function: Function, node: ast.AST) -> Iterator[Splice]:
    """The last comes first: in a loop, at an index, at the ends of a list."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        if node.func.id in ("sorted", "reversed"):
            yield function.instead(node, f"list({function.text(node.args[0])})")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("popleft", "append"):
            name, args = PAIRS[node.func.attr], ", ".join(map(function.text, node.args))
            name, args = ("insert", f"0, {args}") if name == "appendleft" else (name, args)
            yield function.instead(node, f"{function.text(node.func.value)}.{name}({args})")
    elif isinstance(node, ast.Subscript):
        index = function.text(node.slice)
        if index in ("0", "-1"):
            yield function.instead(node.slice, "-1" if index == "0" else "0")
    elif isinstance(node, ast.For | ast.comprehension):
        yield function.instead(node.iter, f"reversed(list({function.text(node.iter)}))")


def fewer(function: Function, node: ast.AST) -> Iterator[Splice]:
    """A loop misses its first or last item, or sees only the first."""
    if isinstance(node, ast.For | ast.comprehension):
        for part in ("[1:]", "[:-1]", "[:1]"):
            yield function.instead(node.iter, f"list({function.text(node.iter)}){part}")
    elif isinstance(node, ast.Slice):
        for bound in filter(None, (node.lower, node.upper)):
            yield function.instead(bound, "")


NOT_PASSED_ON = ("strict", "label", "mode")  # ``zip`` only checks; the rest is for the trace


def lost_field(function: Function, node: ast.AST) -> Iterator[Splice]:
    """A keyword argument is not passed."""
    if isinstance(node, ast.Call):
        arguments, recorded = [*node.args, *node.keywords], [*function.recorded.passed(node)]
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in NOT_PASSED_ON and keyword not in recorded:
                yield function.without(arguments, arguments.index(keyword))


def swapped_arguments(function: Function, node: ast.AST) -> Iterator[Splice]:
    """Two neighbouring arguments are in the wrong order."""
    is_symmetric = isinstance(node, ast.Call) and ast.unparse(node.func) in ("min", "max")
    if (
        isinstance(node, ast.Call)
        and not is_symmetric
        and not any(isinstance(it, ast.Starred) for it in node.args)
    ):
        recorded = [*function.recorded.passed(node)]
        for one, other in zip(node.args, node.args[1:], strict=False):
            if one in recorded and other in recorded:
                continue
            start, end = function.span(one)[0], function.span(other)[1]
            between = function.source[function.span(one)[1] : function.span(other)[0]]
            yield Splice(start, end, function.text(other) + between + function.text(one))


def sibling(function: Function, node: ast.AST) -> Iterator[Splice]:
    """Another attribute of the same class and type, or another parameter of the same type."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        for other in siblings_of(function, node):
            yield function.instead(node, f"{function.text(node.value)}.{other}")
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        params = [*function.params.args, *function.params.kwonlyargs]
        types = {it.arg: ast.unparse(it.annotation) for it in params if it.annotation}
        for other, its_type in types.items():
            if other != node.id and its_type == types.get(node.id):
                yield function.instead(node, other)


def siblings_of(function: Function, node: ast.Attribute) -> Sequence[str]:
    """Return the attributes that could stand there: of the class that the value's name suggests."""
    owners = [name for name, found in function.siblings.items() if node.attr in found]
    word = function.text(node.value).rpartition(".")[2].replace("_", "").lower()
    for named in ([function.owner] if word == "self" else [],
                  [name for name in owners if word in name.lower()]):  # fmt: skip
        if likely := [name for name in owners if name in named]:
            owners = likely
    others = (other for name in owners for other in function.siblings[name][node.attr])
    return list(dict.fromkeys(others))


# -- Operators on a statement ----------------------------------------------------------------------

SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)


def drop_call(function: Function, node: ast.AST) -> Iterator[Splice]:
    """A call for its effect, a wait for example, is gone."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield function.instead(node, "pass")


def drop_update(function: Function, node: ast.AST) -> Iterator[Splice]:
    """State keeps its value: no assignment, no ``del``, no count."""
    if isinstance(node, ast.Delete | ast.AugAssign):
        yield function.instead(node, "pass")
    targets = node.targets if isinstance(node, ast.Assign) else []
    if targets and all(isinstance(it, ast.Attribute | ast.Subscript) for it in targets):
        yield function.instead(node, "pass")
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        target, value = function.text(node.target), function.text(node.value)
        yield function.instead(node, f"{target} {sign}= {value}")
        yield function.instead(node, f"{target} = {value}")


def guard(function: Function, node: ast.AST) -> Iterator[Splice]:
    """A condition is always, or never, true."""
    if isinstance(node, ast.If):
        if not any(isinstance(it, ast.NamedExpr) for it in ast.walk(node.test)):
            yield function.instead(node.test, "True")
        yield function.instead(node.test, "False")


def other_jump(function: Function, node: ast.AST) -> Iterator[Splice]:
    """``continue`` becomes ``break`` and back, or is gone."""
    if isinstance(node, ast.Continue | ast.Break):
        yield function.instead(node, "break" if isinstance(node, ast.Continue) else "continue")
        yield function.instead(node, "pass")


def swap(function: Function, body: Sequence[ast.stmt], at: int) -> Iterator[Splice]:
    """Two neighbouring statements are in the wrong order."""
    one, other = body[at], body[at + 1] if at + 1 < len(body) else None
    if isinstance(one, SIMPLE) and isinstance(other, SIMPLE) and depend(one, other):
        between = function.source[function.span(one)[1] : function.span(other)[0]]
        text = function.text(other) + between + function.text(one)
        yield Splice(function.span(one)[0], function.span(other)[1], text)


def depend(one: ast.stmt, other: ast.stmt) -> bool:
    """Return whether the order of two statements may matter: a call, or a name that one sets."""
    used, bound = list[set[str]](), list[set[str]]()
    for node in (one, other):
        inner = list(ast.walk(node))
        if any(isinstance(it, ast.Call | ast.Yield) for it in inner):
            return True
        names = [it for it in inner if isinstance(it, ast.Name | ast.Attribute)]
        used.append({name_of(it) for it in names})
        bound.append({name_of(it) for it in names if isinstance(it.ctx, ast.Store)})
    return bool(used[0] & bound[1] or used[1] & bound[0])


def name_of(node: ast.Name | ast.Attribute) -> str:
    """Return the name, or the attribute's name."""
    return node.id if isinstance(node, ast.Name) else node.attr


def early_end(function: Function, body: Sequence[ast.stmt], at: int) -> Iterator[Splice]:
    """A function without a result ends before this statement."""
    has_result = any(isinstance(it, ast.Return) and it.value for it in ast.walk(function.tree))
    if body is not getattr(function.tree, "body", None) or at == 0 or has_result:
        return
    start = function.span(body[at])[0]
    yield Splice(start, start, f"return\n{' ' * body[at].col_offset}")


def stale_snapshot(function: Function, body: Sequence[ast.stmt], at: int) -> Iterator[Splice]:
    """An attribute is read before the statement above, which calls something, and not after it."""
    if at == 0 or not isinstance(body[at - 1], SIMPLE):
        return
    before, start = body[at - 1], function.span(body[at - 1])[0]
    calls = any(isinstance(it, ast.Call) for it in ast.walk(before))
    bound = {it.id for it in ast.walk(before) if isinstance(it, ast.Name) and is_target(it)}
    for node in expressions(function, body[at]) if calls else ():
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            is_called = any(isinstance(it, ast.Call) and it.func is node
                            for it in ast.walk(body[at]))  # fmt: skip
            is_same = function.recorded.stays(node)
            if isinstance(root, ast.Name) and root.id not in bound and not (is_called or is_same):
                first, last = function.span(node)
                indent = " " * before.col_offset
                head = f"stale = {function.text(node)}\n{indent}"
                yield Splice(start, last, head + function.source[start:first] + "stale")


def is_target(node: ast.Name) -> bool:
    """Return whether a name is assigned."""
    return isinstance(node.ctx, ast.Store)


OnNode = Callable[[Function, ast.AST], Iterator[Splice]]
OnBody = Callable[[Function, Sequence[ast.stmt], int], Iterator[Splice]]
ON_NODE: tuple[OnNode, ...] = (
    border, negate, and_or, one_branch, off_by_one, wrong_constant, arithmetic, min_max,
    other_order, fewer, lost_field, swapped_arguments, sibling, drop_call, drop_update, guard,
    other_jump,
)  # fmt: skip
ON_BODY: tuple[OnBody, ...] = (swap, early_end, stale_snapshot)

# -- All changes of a function ---------------------------------------------------------------------

NEVER = (ast.Raise, ast.Assert, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Pass)


def bodies(function: Function) -> Iterator[Sequence[ast.stmt]]:
    """Yield each list of statements, those of inner functions too, without docstrings."""
    left: list[ast.AST] = [function.tree]
    while left:
        node = left.pop(0)
        if function.recorded.only_records(node, function.names):
            continue
        left += ast.iter_child_nodes(node)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                has_text = isinstance(node, ast.FunctionDef) and is_text(body[0])
                yield body[1:] if has_text and node is not function.tree else body


def expressions(function: Function, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of one statement that may change: no inner statement, text or type."""
    yield node
    recorded = [*function.recorded.passed(node)]
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and isinstance(
            node, ast.AnnAssign | ast.FunctionDef
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.stmt | ast.JoinedStr):
                continue
            if child in recorded or (isinstance(child, ast.keyword) and child.arg in NOT_PASSED_ON):
                continue
            if not isinstance(child, ast.excepthandler | ast.match_case):
                yield from expressions(function, child)


def statements(function: Function) -> Iterator[tuple[Sequence[ast.stmt], int]]:
    """Yield each statement that may change, as a list of statements and a place in it."""
    for body in bodies(function):
        acting = [*function.recorded.acting(body, function.names)]
        for at, node in enumerate(body):
            if node in acting and not isinstance(node, NEVER) and not is_text(node):
                yield body, at


def changes_at(function: Function, body: Sequence[ast.stmt], at: int) -> dict[str, list[Change]]:
    """Return all changes of one statement that compile to other code, by operator."""
    line, found = body[at].lineno, defaultdict[str, list[Splice]](list)
    for on_node in ON_NODE:
        for node in expressions(function, body[at]):
            found[on_node.__name__] += on_node(function, node)
    for on_body in ON_BODY:
        found[on_body.__name__] += on_body(function, body, at)
    whole, changes = code_of(function.source), dict[str, list[Change]]()
    for operator, splices in found.items():
        for start, end, text in splices:
            source = function.source[:start] + text + function.source[end:]
            code = code_of(source)
            if code is not None and code != whole:
                changes.setdefault(operator, []).append(Change(operator, line, source))
    return changes


def code_of(source: str) -> str | None:
    """Return what a source means, without line numbers and brackets; None if it is no Python."""
    try:
        compile(source, "change", "exec")
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return None


# -- Attributes of one class and one type ----------------------------------------------------------

Item = TypeVar("Item")


def siblings_in(sources: Sequence[str]) -> Siblings:
    """Return for each class and attribute the others that have the same type."""
    found = defaultdict[str, dict[str, list[str]]](dict)
    for source in sources:
        for cls in ast.walk(ast.parse(source)):
            if isinstance(cls, ast.ClassDef):
                alike = defaultdict[str, list[str]](list)
                for name, its_type in typed_attributes(cls):
                    alike[its_type].append(name)
                for names in alike.values():
                    for name in names:
                        found[cls.name][name] = [it for it in names if it != name]
    return found


def typed_attributes(cls: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the attributes of a class with their types: fields, properties, those of ``self``."""
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, ast.unparse(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            names = [ast.unparse(it) for it in node.decorator_list]
            if node.returns and {"property", "cached_property"}.intersection(names):
                yield node.name, ast.unparse(node.returns)
            for inner in ast.walk(node):
                if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Attribute):
                    yield inner.target.attr, ast.unparse(inner.annotation)


def functions_in(source: str) -> Iterator[tuple[str, str, int]]:
    """Yield the functions and methods of a module: name, source without indentation, first line."""
    lines = source.splitlines(keepends=True)
    for owner in ast.parse(source).body:
        inner = owner.body if isinstance(owner, ast.ClassDef) else [owner]
        for node in inner:
            if isinstance(node, ast.FunctionDef) and node.end_lineno:
                name = node.name if owner is node else f"{owner.name}.{node.name}"  # type: ignore[attr-defined]
                text = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))
                yield name, text, node.lineno
