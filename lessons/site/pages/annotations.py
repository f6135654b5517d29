"""Annotations with the full names of what they name, so that each leads to the right entry."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from .repository import ROOT


def annotation(node: ast.expr, module: str) -> str:
    """An annotation of a module as text; ``~`` tells Sphinx to show a name's last part only."""
    return ast.unparse(FullNames(module).visit(node))


class FullNames(ast.NodeTransformer):
    """Puts full names in the place of those that a module has imported or defines."""

    def __init__(self, module: str) -> None:
        self.module = module

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """A name on its own."""
        place = place_of(self.module, node.id)
        return ast.Name("~" + place if "." in place else place)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """A name in quotation marks."""
        if isinstance(node.value, str):
            return self.visit(ast.parse(node.value, mode="eval").body)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """``Annotated`` is the type that it annotates; ``Literal`` has values and no names."""
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        return node if ast.unparse(node.value) == "Literal" else self.generic_visit(node)


def place_of(module: str, name: str) -> str:
    """Where a name of a module is defined, followed through packages that pass it on."""
    place = names_in(module).get(name, name)
    owner, _, last = place.rpartition(".")
    further = names_in(owner).get(last, place) if owner else place
    return place if further == place else place_of(owner, last)


@cache
def names_in(module: str) -> dict[str, str]:
    """What a module of minisched imports or defines, by name; nothing of any other module."""
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
    """Classes and functions, and what is assigned: an alias of a type."""
    defined = [it.name for it in tree.body if isinstance(it, ast.ClassDef | ast.FunctionDef)]
    assigned = [it.targets[0] for it in tree.body if isinstance(it, ast.Assign)]
    assigned += [it.target for it in tree.body if isinstance(it, ast.AnnAssign)]
    return defined + [target.id for target in assigned if isinstance(target, ast.Name)]


def source_of(module: str) -> Path | None:
    """The file of a module; None if minisched has none of that name."""
    base = ROOT.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)
