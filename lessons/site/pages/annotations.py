"""Annotations with full names, so that each name links to the right entry."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from .repository import ROOT


def annotation(node: ast.expr, module: str) -> str:
    """Return an annotation of a module as text; ``~`` makes Sphinx show a name's last part."""
    return ast.unparse(FullNames(module).visit(node))


class FullNames(ast.NodeTransformer):
    """Replaces the names that a module imports or defines by full names."""

    def __init__(self, module: str) -> None:
        self.module = module

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Replace a single name."""
        place = place_of(self.module, node.id)
        return ast.Name("~" + place if "." in place else place)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Replace a name in quotation marks."""
        if isinstance(node.value, str):
            return self.visit(ast.parse(node.value, mode="eval").body)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace ``Annotated`` by its type; ``Literal`` has values and no names."""
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        return node if ast.unparse(node.value) == "Literal" else self.generic_visit(node)


def place_of(module: str, name: str) -> str:
    """Return the full name of a module's name, followed through imports of packages."""
    place = names_in(module).get(name, name)
    owner, _, last = place.rpartition(".")
    further = names_in(owner).get(last, place) if owner else place
    return place if further == place else place_of(owner, last)


@cache
def names_in(module: str) -> dict[str, str]:
    """Map the names of a module of minisched to full names; empty for other modules."""
    path = source_of(module)
    if path is None:
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
    return found | {name: f"{module}.{name}" for name in own_names(tree)}


def own_names(tree: ast.Module) -> list[str]:
    """Return the names of classes, functions and assignments (aliases of types)."""
    defined = [it.name for it in tree.body if isinstance(it, ast.ClassDef | ast.FunctionDef)]
    assigned = [it.targets[0] for it in tree.body if isinstance(it, ast.Assign)]
    assigned += [it.target for it in tree.body if isinstance(it, ast.AnnAssign)]
    return defined + [target.id for target in assigned if isinstance(target, ast.Name)]


def source_of(module: str) -> Path | None:
    """Return the file of a module; None if minisched has no such module."""
    base = ROOT.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)
