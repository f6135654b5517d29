"""A documented function or class, as reStructuredText for Sphinx's Python domain."""

from __future__ import annotations

import ast
from textwrap import indent

from sphinx.ext.napoleon import Config, GoogleDocstring

from .annotations import annotation

STEP = "   "
PROPERTIES = {"property", "cached_property"}


def is_documented(node: ast.AST) -> bool:
    """Return whether a name is public and has a docstring."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
        return False
    return bool(ast.get_docstring(node))


def entry(node: ast.stmt, module: str, owner: str = "") -> str:
    """Return the entry of a function, a class, or (with an ``owner``) a method or property."""
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    kind, signature = directive(node, module, owner)
    name = f"{owner}.{node.name}" if owner else node.name
    parts = [field_list(ast.get_docstring(node) or "")]
    if isinstance(node, ast.ClassDef):
        parts += [entry(item, module, name) for item in node.body if is_documented(item)]
    body = indent("\n\n".join(parts), STEP)
    return f".. py:{kind}:: {name}{signature}\n\n{body}\n"


def directive(node: ast.FunctionDef | ast.ClassDef, module: str, owner: str) -> tuple[str, str]:
    """Return the directive of an entry, and the text after its name."""
    if isinstance(node, ast.ClassDef):
        known = fields(node, module)
        return "class", f"({', '.join(known)})" if known else ""
    decorators = {ast.unparse(item).split("(")[0] for item in node.decorator_list}
    if owner and decorators & PROPERTIES:
        return "property", ""
    if owner and "staticmethod" not in decorators and node.args.args:
        node.args.args.pop(0)  # self
    returns = f" -> {annotation(node.returns, module)}" if node.returns else ""
    return ("method" if owner else "function"), f"({arguments(node.args, module)}){returns}"


def arguments(node: ast.arguments, module: str) -> str:
    """Return the arguments with the full names of their types."""
    for item in ast.walk(node):
        if isinstance(item, ast.arg) and item.annotation:
            item.annotation = ast.Name(annotation(item.annotation, module))
    return ast.unparse(node)


def fields(node: ast.ClassDef, module: str) -> list[str]:
    """Return the fields of a dataclass or a named tuple."""
    known = {ast.unparse(item).split("(")[0] for item in [*node.decorator_list, *node.bases]}
    if not known & {"dataclass", "NamedTuple"}:
        return []
    found = (item for item in node.body if isinstance(item, ast.AnnAssign))
    return [f"{ast.unparse(item.target)}: {annotation(item.annotation, module)}" for item in found]


def field_list(docstring: str) -> str:
    """Return a docstring with its sections (``Raises:``) as Sphinx's fields."""
    return "\n".join(GoogleDocstring(docstring, Config()).lines())
