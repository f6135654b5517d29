"""Every function, class and field that a diagram names is there, in the package or the original."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from minisched.loops.registry import LOOPS

ROOT = Path(__file__).resolve().parents[1]
FOREIGN = {  # names that stand in the originals only
    "max_num_batched_tokens": "vLLM v1/core/sched/scheduler.py",
    "step_with_batch_queue": "vLLM v1/engine/core.py",
    "EngineCore": "vLLM v1/engine/core.py",
    "AsyncScheduler": "vLLM v1/core/sched/async_scheduler.py",
    "StructuredOutputManager": "vLLM v1/structured_output/__init__.py",
    "get_grammar_bitmask": "vLLM v1/core/sched/scheduler.py",
    "event_loop_overlap": "SGLang managers/scheduler.py",
    "table_idx": "mini-sglang scheduler/table.py",
    "LlmEngine": "MindIE-LLM src/engine/llm_engine.cpp",
    "AddNextTokenPlaceHolder": "MindIE-LLM src/engine/llm_engine.cpp",
    "ReplacePlaceHolderWithToken": "MindIE-LLM src/scheduler/scheduler.cpp",
}


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


NAMES = package_names() | set(LOOPS)


def named(text: str) -> set[str]:
    """Calls, CamelCase words and words with an underscore, without PlantUML's own.

    Where a link leads is for ``test_diagram_links.py``; what it says is read as the rest is.
    """
    text = re.sub(r"\[\[\S+ ([^\]]+)\]\]", r"\1", text)
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.S)
    text = re.sub(r"(?m)^(skinparam|hide|!pragma) .*$", "", text)
    declared = set(re.findall(r" as (\w+)$", text, re.M))  # the diagram's own lanes and actors
    text = re.sub(r"(#|line:)[0-9A-F]{6}|\[\w+\]", "", text)  # colours and shapes
    text = text.replace(r"\n", " ")
    calls = set(re.findall(r"\b([a-z]\w*)\(", text))
    classes = set(re.findall(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b", text))
    fields = {word for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)}
    return (calls | classes | fields) - declared


def test_the_search_finds_names() -> None:
    text = "title x (LeasePool)\n:min_of_it() and then [num_reqs] skip_me\\nPrefillAdder;"
    assert named(text) == {"LeasePool", "PrefillAdder", "min_of_it", "skip_me"}
    assert {"LeasePool", "PrefillAdder", "computed_len", "add_one_req"} <= NAMES
    assert named("a -> b : [[../my_file.py#A.f add_one_req()]]") == {"add_one_req"}
    assert named('participant "LeasePool" as the_pool\nthe_pool -> x : y') == {"LeasePool"}
    assert not {"LeasePond", "add_two_reqs"} & NAMES


@pytest.mark.parametrize(
    "path", sorted((ROOT / "diagrams").glob("*.puml")), ids=lambda path: path.stem
)
def test_what_a_diagram_names_exists(path: Path) -> None:
    missing = named(path.read_text(encoding="utf-8")) - NAMES - set(FOREIGN)
    assert not missing, f"{path.name} names {', '.join(sorted(missing))}"
