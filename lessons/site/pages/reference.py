"""The reference: a page for each layer of the package, from docstrings and signatures.

The sources are read and not imported, so the reference needs none of their libraries.
"""

from __future__ import annotations

import ast
from pathlib import Path

from .documented import entry, field_list, is_documented
from .repository import ROOT, text

LAYERS = (
    "nano", "core", "record", "record_torch", "trace", "memory", "policy", "scheduler", "devices", "models", "grammar",
    "speculative", "relay", "worker", "engine", "features", "loops", "checks", "topics", "recipes", "replay", "export",
    "fidelity", "comparison", "defaults", "museum", "sweep", "learn", "bench", "cli", "checking",
    "own_loops", "pytest_plugin", "minisched",
)  # fmt: skip


def pages() -> dict[str, str]:
    """Return the list of layers, and a page for each."""
    there = [layer for layer in LAYERS if sources(layer)]
    return {
        "reference/index.rst": HEAD + "\n".join(f"   {layer}" for layer in there) + "\n",
        **{f"reference/{layer}.rst": page(layer) for layer in there},
    }


def sources(layer: str) -> list[Path]:
    """Return the modules of a layer; a layer may be one module, or the package's top."""
    package = ROOT / "minisched"
    if layer == package.name:
        return [package / "__init__.py"]
    single, folder = package / f"{layer}.py", package / layer
    return [single] if single.is_file() else sorted(folder.rglob("*.py"))


def page(layer: str) -> str:
    """Return the page of a layer, from the docstrings of its modules."""
    return "\n".join([heading(layer, "="), *(module(path, layer) for path in sources(layer))])


def module(path: Path, layer: str) -> str:
    """Return the text of a module; empty without a docstring. The layer's own has no title."""
    tree = ast.parse(text(path.relative_to(ROOT).as_posix()))
    if not (said := ast.get_docstring(tree)):
        return ""
    name = module_name(path)
    title = (
        ""
        if name in (layer, f"minisched.{layer}")
        else heading(name.removeprefix("minisched."), "-")
    )
    parts = [f"{title}.. py:module:: {name}\n", field_list(said), ""]
    return "\n".join([*parts, *(entry(node, name) for node in tree.body if is_documented(node))])


def module_name(path: Path) -> str:
    """Return the dotted name of a file's module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def heading(words: str, line: str) -> str:
    """Return a title with its underline."""
    return f"{words}\n{line * len(words)}\n\n"


HEAD = """\
Reference
=========

The docstrings of the package, with a page for each folder, in the order of the layers. A file imports
only from its own folder and from folders above it.

.. toctree::
   :maxdepth: 1

"""
