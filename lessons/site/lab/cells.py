"""Exercises of a lesson's page: run the earlier cells that an exercise needs, then its own lines.

The module runs in the browser (Pyodide), and in any other Python. ``tests/repo/test_site.py`` tries
the solutions of every lesson.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import linecache
import sys
import traceback
from contextlib import redirect_stdout
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from minisched import learn

MINE = Path("mine.py")  # the right answers of all lessons; the page keeps the file
YOURS = "your lines"  # the file name of the learner's lines


def exercise(asked: str) -> str:
    """Run an exercise, from ``{"before": [cells], "lines": cell, "mine": text}`` in JSON.

    Returns JSON with ``html`` (the shown value), ``text`` (printed lines, or an error), ``passed``,
    and the new ``mine``.
    """
    wanted = json.loads(asked)
    MINE.write_text(wanted["mine"], encoding="utf-8")
    said, shown, passed = io.StringIO(), "", False
    with redirect_stdout(said):
        try:
            value = run(needed(wanted["before"], wanted["lines"]), wanted["lines"])
            passed = bool(getattr(value, "passed", False))
            shown = html_of(value)
        except Exception as error:
            print(in_words(error))
    answer = {"html": shown, "text": said.getvalue().rstrip(), "passed": passed}
    return json.dumps(answer | {"mine": MINE.read_text(encoding="utf-8")})


def hint(name: str) -> str:
    """Return the next hint for an exercise."""
    return learn.hint(name)


def run(before: list[str], lines: str) -> Any:
    """Return the value of the last expression of ``lines``, run in a module of its own."""
    module = ModuleType("lesson")
    sys.modules[module.__name__] = module
    value = None
    for number, source in enumerate([*before, lines]):
        name = module.__file__ = YOURS if source is lines else f"cell {number}"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), vars(module))
        if last:
            value = eval(compile(ast.Expression(last.value), name, "eval"), vars(module))
    return value


def html_of(value: Any) -> str:
    """Return the HTML that a notebook shows for a value."""
    if value is None:
        return ""
    if hasattr(value, "_repr_mimebundle_"):
        return value._repr_mimebundle_()["text/html"]
    has_own = hasattr(value, "_repr_html_")
    return value._repr_html_() if has_own else f"<pre>{escape(repr(value))}</pre>"


def in_words(error: Exception) -> str:
    """Describe an error with its place in the learner's lines, without the frames below them."""
    told = traceback.TracebackException.from_exception(error)
    own = [frame for frame in told.stack if frame.filename == YOURS]
    where = [f"line {frame.lineno}:  {frame.line}\n" for frame in own[-1:]]
    return "".join([*where, *told.format_exception_only()]).replace(f'  File "{YOURS}", ', "")


# -- What an exercise needs ------------------------------------------------------------------------


def needed(before: list[str], lines: str) -> list[str]:
    """Return the statements of earlier cells that bind the used names, in order.

    Names that these statements use count too. Unused runs and pictures are left out, and so are
    libraries that only those need.
    """
    steps = [node for source in before for node in parsed(source)]
    wanted = used(ast.parse(lines, YOURS))
    imported = {name for node in steps if is_import(node) for name in bound(node)}
    kept: set[int] = set()
    while True:
        new = {
            at
            for at, node in enumerate(steps)
            if at not in kept and (bound(node) | changed(node) - imported) & wanted
        }
        if not new:
            return [ast.unparse(steps[at]) for at in sorted(kept)]
        kept |= new
        wanted = wanted.union(*(used(steps[at]) for at in new))


def parsed(source: str) -> list[ast.stmt]:
    """Return the statements of a cell, with one import for each name; none if it has an error."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # another exercise, unfinished
        return []
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.Import):
            found += [ast.Import([alias]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [ast.ImportFrom(node.module, [it], node.level) for it in node.names]
        else:
            found.append(node)
    return found


def is_import(node: ast.stmt) -> bool:
    """Return whether a statement is an import."""
    return isinstance(node, ast.Import | ast.ImportFrom)


def bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {it.id for it in ast.walk(node) if is_name(it, ast.Store)}


def changed(node: ast.stmt) -> set[str]:
    """Return the names of values that a statement may change: ``rows.append(3)``, ``rows[0] = 3``."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return set()
    found = [it.func for it in ast.walk(node) if isinstance(it, ast.Call)]
    found += [it for it in ast.walk(node) if isinstance(getattr(it, "ctx", None), ast.Store)]
    reached = {inner.id for it in found if not isinstance(it, ast.Name) for inner in roots(it)}
    return reached


def roots(node: ast.expr) -> list[ast.Name]:
    """Return the name before the dots and brackets."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return [node] if isinstance(node, ast.Name) else []


def used(tree: ast.AST) -> set[str]:
    """Return the names that are read, except Python's own."""
    return {it.id for it in ast.walk(tree) if is_name(it, ast.Load)} - set(dir(builtins))


def is_name(node: ast.AST, context: type) -> bool:
    """Return whether a node is a name in this context."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)
