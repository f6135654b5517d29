"""Code that can't change a run: values that only the recorder gets, and attributes that stay.

The golden traces compare these byte by byte. The rule: a parameter or a local variable is
*recorded* if each use of it is in a statement that only records, is passed on as a recorded
parameter, or sets another recorded variable. A call only records if each function of its name does,
or returns a parameter as well, which the call drops. An attribute *stays* if no function but
``__init__`` sets one of its name and no class computes it: to read it earlier changes nothing.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

PURE = {"Label", "tuple", "replace", "len", "sum", "str", "join", "map", "int", "list", "round"}
"""Calls that may compute a recorded value: they change nothing."""
RECORDS = {"recorder", "recording", "token_edges", "log", "logger"}
"""Names of what writes the trace or the log."""
ACTS = {"touch", "wait", "launch", "say"}  # what a lane did: the laws judge these
BUILT_IN = {name for kind in (list, dict, set, str, deque) for name in dir(kind)}
"""A call by such a name may be one of a list's."""


class Recorded:
    """The recorded names of each function in some sources, and the functions that only record."""

    def __init__(self, sources: Iterable[str] = ()) -> None:
        found = [node for source in sources for node in ast.walk(ast.parse(source))]
        functions = [node for node in found if isinstance(node, ast.FunctionDef)]
        self.by_name = defaultdict[str, list[str]](list)  # functions, each as its ``ast.dump``
        self.names, self.params = dict[str, set[str]](), dict[str, list[str]]()
        keys = {ast.dump(function): function for function in functions}
        for key, function in keys.items():
            self.by_name[function.name].append(key)
            self.names[key], self.params[key] = set(names_in(function)), params_of(function)
        self.recording = {*self.by_name} - BUILT_IN  # names of functions that only record
        is_stable = False
        while not is_stable:
            is_stable = True
            for key, function in keys.items():
                used = self.names[key].intersection(self.used(function.body, self.names[key]))
                acts = function.name in self.recording and [
                    it for it in self.acting(function.body, self.names[key]) if not is_idle(it)
                ]
                if used or acts:
                    self.names[key] -= used
                    self.recording -= {function.name} if acts else set()
                    is_stable = False

        self.changing = {*self.by_name}
        for function in functions:
            if function.name not in ("__init__", "__post_init__"):
                self.changing |= {
                    node.attr
                    for node in ast.walk(function)
                    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
                }

    def stays(self, node: ast.expr) -> bool:
        """Return whether an attribute, and each that it is read from, is never set again."""
        while isinstance(node, ast.Attribute):
            if node.attr in self.changing:
                return False
            node = node.value
        return True

    def names_of(self, function: ast.FunctionDef) -> set[str]:
        """Return the recorded names of a function."""
        return self.names.get(ast.dump(function), set())

    def acting(self, body: Sequence[ast.stmt], names: set[str]) -> Iterator[ast.stmt]:
        """Yield the statements of a body that can change a run."""
        for node in body:
            if isinstance(node, ast.If) and is_off(node):
                return  # the rest only records
            if not self.only_records(node, names):
                yield node

    def only_records(self, node: ast.AST, names: set[str]) -> bool:
        """Return whether a statement only writes the trace or the log, or sets recorded names."""
        if isinstance(node, ast.If):
            return is_on(node)
        if isinstance(node, ast.Assign):
            calls = [it for it in ast.walk(node.value) if isinstance(it, ast.Call)]
            are_names = all(isinstance(it, ast.Name) and it.id in names for it in node.targets)
            return are_names and all(called(it) in PURE for it in calls)
        call = node.value if isinstance(node, ast.Expr) else None
        return isinstance(call, ast.Call) and (writes(call) or called(call) in self.recording)

    def used(self, body: Iterable[ast.AST], names: set[str]) -> Iterator[str]:
        """Yield the names that are read for more than the trace."""
        statements = [node for node in body if isinstance(node, ast.stmt)]
        acting = {id(node) for node in self.acting(statements, names)}
        for node in body:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.id
            if not isinstance(node, ast.stmt) or id(node) in acting:
                passed = {id(it) for it in self.passed(node)}
                inner = [it for it in ast.iter_child_nodes(node) if id(it) not in passed]
                yield from self.used(inner, names)

    def passed(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the arguments of a call, and its keywords, that only the recorder gets."""
        if not isinstance(node, ast.Call) or any(isinstance(it, ast.Starred) for it in node.args):
            return
        if writes(node):
            yield from (*node.args, *node.keywords)
        elif (name := called(node)) not in BUILT_IN and (functions := self.by_name.get(name)):
            for at, argument in enumerate(node.args):
                params = [self.params[it][at : at + 1] for it in functions]
                if all(
                    self.names[it].intersection(of)
                    for it, of in zip(functions, params, strict=True)
                ):
                    yield argument
            for keyword in node.keywords:
                if all(keyword.arg in self.names[it] for it in functions):
                    yield keyword


@cache
def is_off(node: ast.If) -> bool:
    """Return whether a statement is ``if not recorder.is_on: return``."""
    test = ast.unparse(node.test)
    is_it = test.startswith("not ") and test.endswith("recorder.is_on")
    return is_it and ast.unparse(node.body[-1]) == "return"


@cache
def is_on(node: ast.If) -> bool:
    """Return whether a statement is ``if recorder.is_on:``, perhaps with another condition."""
    parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    texts = [ast.unparse(part) for part in parts]
    is_plain = " or " not in ast.unparse(node.test) and not node.orelse
    return is_plain and any(
        text.endswith("recorder.is_on") and not text.startswith("not ") for text in texts
    )


@cache
def writes(call: ast.Call) -> bool:
    """Return whether a call writes the trace or the log."""
    names = ast.unparse(call.func).split(".")
    return bool(RECORDS.intersection(names)) and names[-1] not in ACTS


def called(call: ast.Call) -> str:
    """Return the name of a called function or method; '' if it has none."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_idle(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring, or returns a name."""
    return is_text(node) or (isinstance(node, ast.Return) and isinstance(node.value, ast.Name))


def params_of(function: ast.FunctionDef) -> list[str]:
    """Return the positional parameters, without that of the object."""
    names = [it.arg for it in function.args.args]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def names_in(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the parameters of a function and the names that it assigns."""
    yield from (*params_of(function), *(it.arg for it in function.args.kwonlyargs))
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield from (it.id for it in node.targets if isinstance(it, ast.Name))
