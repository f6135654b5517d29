"""What a mutant changes, read from the file that mutmut writes, and whether that can matter."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ORIGINAL, NUMBERED = "__mutmut_orig", "__mutmut_"
WORDING = "the wording of an error's sentence"
STRICT = "zip's strict, which only finds what an earlier mistake has made unequal"
TYPE = "the type in a cast, which is for the type checker alone"
MEMORY = "what simulated memory is called: what a step touches is declared apart"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """One change of one function.

    ``function`` is as Python names it (``RadixCache.insert``), ``line`` where the change is in the
    original ``path``; ``taken`` and ``put`` are the lines without their margins. ``left_out`` says
    why no test should see it, or is empty.
    """

    name: str  # mutmut's
    path: str  # from the checkout's root
    function: str
    line: int
    taken: str
    put: str
    left_out: str = ""

    @property
    def layer(self) -> str:
        """``scheduler``, ``memory``, ...: the package that it is in."""
        return self.path.split("/")[1]

    @property
    def diff(self) -> str:
        """The lines that go, then those that come."""
        lines = [f"- {line}" for line in self.taken.splitlines()]
        return "\n".join(lines + [f"+ {line}" for line in self.put.splitlines()])


def mutants_of(path: str, original: Path, mutated: Path) -> Iterator[Mutant]:
    """All mutants in one file; ``path`` is what it is called from the root."""
    text = mutated.read_text("utf-8")
    found = functions(ast.parse(text))
    starts = {name: node.lineno for name, node in functions(ast.parse(original.read_text("utf-8")))}
    lines, module = text.splitlines(), path.removesuffix(".py").replace("/", ".")
    healthy = {name.removesuffix(ORIGINAL): node for name, node in found if ORIGINAL in name}
    for full_name, node in found:
        base, _, number = full_name.rpartition(NUMBERED)
        if base not in healthy or not number.isdigit():
            continue
        before, after = body(lines, healthy[base]), body(lines, node)
        offset, taken, put = change(before, after)
        function = readable(base)
        key = full_name.rpartition(".")[2]
        yield Mutant(
            f"{module}.{key}", path, function, starts[function] + offset, taken, put,
            why_left_out(healthy[base], node),
        )  # fmt: skip


def functions(tree: ast.Module) -> list[tuple[str, Function]]:
    """The functions of a module and the methods of its classes, by ``CLASS.NAME``."""
    found: list[tuple[str, Function]] = []
    for node in tree.body:
        if isinstance(node, Function):
            found.append((node.name, node))
        elif isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, Function)]
            found += [(f"{node.name}.{item.name}", item) for item in methods]
    return found


def readable(base: str) -> str:
    """``CLASS.xǁCLASSǁNAME`` or ``x_NAME``, as Python names it."""
    name = base.rpartition(".")[2]
    return ".".join(name.split("ǁ")[1:]) if "ǁ" in name else name.removeprefix("x_")


def body(lines: list[str], node: Function) -> list[str]:
    """A function's lines, from ``def`` on, under a name that all its mutants share."""
    first, *rest = lines[node.lineno - 1 : node.end_lineno]
    return [first.replace(node.name, "name", 1), *rest]


def change(before: list[str], after: list[str]) -> tuple[int, str, str]:
    """How many lines after the ``def`` it begins, and the lines that go and come."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    codes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    if not codes:
        return 0, "", ""
    taken = [line.strip() for _, start, end, _, _ in codes for line in before[start:end]]
    put = [line.strip() for *_, start, end in codes for line in after[start:end]]
    return codes[0][1], "\n".join(taken), "\n".join(put)


def why_left_out(before: Function, after: Function) -> str:
    """Why no test should see the change; empty where one should."""
    for reason, blank, kind in RULES:
        has_any = any(isinstance(node, kind) for node in ast.walk(before))
        if has_any and blanked(before, blank) == blanked(after, blank):
            return reason
    return ""


def blanked(node: Function, blank: type[ast.NodeTransformer]) -> str:
    """A function's tree without its name and without what does not matter."""
    copy = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(copy, Function)
    copy.name = "name"
    return ast.dump(blank().visit(copy))


class NoWords(ast.NodeTransformer):
    """Without the words of errors that are raised."""

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        """Every text in it becomes the same one."""
        for item in ast.walk(node):
            if isinstance(item, ast.Constant) and isinstance(item.value, str):
                item.value = ""
        return node


class NoTypes(ast.NodeTransformer):
    """Without the types that are told to ``cast``."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """The first argument of every ``cast`` becomes the same one."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "cast" and node.args:
            node.args[0] = ast.Constant(None)
        return node


class NoStrict(ast.NodeTransformer):
    """Without ``strict`` at calls of ``zip``."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Every ``zip`` stops at its shortest."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "zip":
            node.keywords = [item for item in node.keywords if item.arg != "strict"]
        return node


class NoMemoryNames(ast.NodeTransformer):
    """Without the names that are given to a device's memory."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """The first argument of every ``device.memory`` becomes the same text."""
        self.generic_visit(node)
        named = isinstance(node.func, ast.Attribute) and node.func.attr == "memory"
        if named and node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value:
            node.args[0] = ast.Constant("")
        return node


RULES = (
    (WORDING, NoWords, ast.Raise),
    (TYPE, NoTypes, ast.Call),
    (STRICT, NoStrict, ast.Call),
    (MEMORY, NoMemoryNames, ast.Call),
)
