"""Every function, class and field that a diagram names is there in the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOREIGN = {"max_num_batched_tokens"}  # vLLM's word for the budget of ``unified``


def package_names() -> set[str]:
    """Whatever the package's code defines or uses as a name."""
    names: set[str] = set()
    for path in (ROOT / "minisched").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
    return names


NAMES = package_names()


def named(text: str) -> set[str]:
    """Calls, CamelCase words and words with an underscore, without PlantUML's own."""
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.S)
    text = re.sub(r"(?m)^(skinparam|hide|!pragma) .*$", "", text)
    text = re.sub(r"(#|line:)[0-9A-F]{6}|\[\w+\]", "", text)  # colours and shapes
    text = text.replace(r"\n", " ")
    calls = set(re.findall(r"\b([a-z]\w*)\(", text))
    classes = set(re.findall(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b", text))
    fields = {word for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)}
    return calls | classes | fields


def test_the_search_finds_names() -> None:
    text = "title x (LeasePool)\n:min_of_it() and then [num_reqs] skip_me\\nPrefillAdder;"
    assert named(text) == {"LeasePool", "PrefillAdder", "min_of_it", "skip_me"}
    assert {"LeasePool", "PrefillAdder", "computed_len", "add_one_req"} <= NAMES
    assert not {"LeasePond", "add_two_reqs"} & NAMES


@pytest.mark.parametrize(
    "path", sorted((ROOT / "diagrams").glob("*.puml")), ids=lambda path: path.stem
)
def test_what_a_diagram_names_exists(path: Path) -> None:
    missing = named(path.read_text(encoding="utf-8")) - NAMES - FOREIGN
    assert not missing, f"{path.name} names {', '.join(sorted(missing))}"
