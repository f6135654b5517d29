"""A bug as a change of a few lines, put into the healthy code while something runs.

The same text makes the bug and the diff of its cure, so both always agree. If the healthy code has
changed there, the patch fails.
"""

from __future__ import annotations
import __future__

import difflib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

from ..loops.design import first_line

SWAPPED = ("__code__", "__defaults__", "__kwdefaults__")  # the parts of a function that it sets


class StalePatch(ValueError):
    """The healthy code no longer has the lines that a patch replaces."""


@dataclass(frozen=True)
class Edit:
    """Lines of one function, in the healthy code and with the bug.

    ``where`` is ``module:Class.method`` or ``module:function``, with the module's path below
    ``minisched``. ``healthy`` occurs exactly once in the function's source, which has neither the
    indentation of its ``def`` nor its decorators.
    """

    where: str
    healthy: str
    bug: str


def read_edits(fix: str) -> tuple[Edit, ...]:
    """Return the edits of a fix: below ``@@ WHERE``, lines removed (-), added (+), and kept."""
    edits = []
    for part in fix.lstrip("@ \n").split("\n@@ "):
        where, _, lines = part.partition("\n")
        marked = [(line[:1] or " ", f"{line[1:]}\n") for line in lines.splitlines()]
        healthy = "".join(line for mark, line in marked if mark in " +")
        edits.append(Edit(where, healthy, "".join(line for mark, line in marked if mark in " -")))
    return tuple(edits)


class PatchedFunction(NamedTuple):
    """One function's source as it is, and with all edits of it."""

    where: str
    function: Any
    healthy: str
    bug: str


def function_at(where: str) -> FunctionType:
    """Return the function of ``module:function`` or ``module:Class.method``, unwrapped.

    Raises:
        StalePatch: there is no such function.
    """
    module, _, name = where.partition(":")
    try:
        found: Any = importlib.import_module(f"minisched.{module}")
        for part in name.split("."):
            found = inspect.getattr_static(found, part)
    except (ImportError, AttributeError) as error:
        raise StalePatch(f"{where} is no function of this patch's: {error}.") from error
    for inner in ("fget", "func", "__func__"):  # of a property, a cached one, a class method
        found = getattr(found, inner, found)
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise StalePatch(f"{where} is no function but a {type(found).__name__}.")
    return found


def changes(edits: Iterable[Edit]) -> list[PatchedFunction]:
    """Apply the edits to each function that they name, in order.

    Raises:
        StalePatch: a function is gone, or lacks the lines, or has them twice.
    """
    found: dict[str, PatchedFunction] = {}
    for edit in edits:
        if edit.where not in found:
            function = function_at(edit.where)
            source = source_of(function)
            found[edit.where] = PatchedFunction(edit.where, function, source, source)
        before = found[edit.where]
        count = before.bug.count(edit.healthy) if edit.healthy.strip() else 0
        if count != 1:
            first = next(iter(edit.healthy.strip().splitlines()), "")
            raise StalePatch(
                f"{edit.where} has the lines of this patch {count} times, and not once: {first!r}."
            )
        found[edit.where] = before._replace(bug=before.bug.replace(edit.healthy, edit.bug))
    return list(found.values())


def source_of(function: Any) -> str:
    """Return a function's source from its ``def`` on, without indentation."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if line.startswith(("def ", "async def ")))
    return "".join(lines[first:])


def compiled(change: PatchedFunction) -> Any:
    """Compile a function with the bug; it may use ``super()`` if the healthy one does.

    It is compiled in a class, so its name in its body is the global one, not itself.
    """
    function = change.function
    outer = "class Scope:\n" + textwrap.indent(change.bug, " ")
    scope: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(outer, function.__code__.co_filename, "exec", flags), function.__globals__, scope)
    made = vars(scope["Scope"])[function.__code__.co_name]
    line, name = first_line(function.__code__), function.__qualname__
    made.__code__ = made.__code__.replace(co_firstlineno=line, co_qualname=name)
    return made


@contextmanager
def put_in(edits: Iterable[Edit]) -> Iterator[None]:
    """Put the bug into the code inside the block, wherever the functions are already imported.

    Raises:
        StalePatch: see ``changes``.
    """
    with _with_parts_of([(change.function, compiled(change)) for change in changes(edits)]):
        yield


@contextmanager
def swapped(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace the package's functions by others inside the block; ``functions`` by ``where``.

    Raises:
        StalePatch: there is no such function.
    """
    with _with_parts_of([(function_at(at), _calling(it)) for at, it in functions.items()]):
        yield


def _calling(other: Callable[..., Any]) -> Any:
    """Return a function without free variables that calls another one."""

    def call(*args: Any, _other: Any = None, **options: Any) -> Any:
        """Call the other function."""
        return _other(*args, **options)

    call.__kwdefaults__ = {"_other": other}
    return call


@contextmanager
def _with_parts_of(pairs: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Give each first function the code of the second inside the block."""
    parts = [(function, other, part) for function, other in pairs for part in SWAPPED]
    before = [getattr(function, part) for function, _, part in parts]
    try:
        for function, other, part in parts:
            setattr(function, part, getattr(other, part))
        yield
    finally:
        for (function, _, part), value in zip(parts, before, strict=True):
            setattr(function, part, value)


def diff(edits: Iterable[Edit], context: int = 2) -> str:
    """Return the cure as a unified diff, function by function: from the bug to the healthy code.

    A line with file and function precedes each. Line numbers are left out: they would count from
    the ``def``.

    Raises:
        StalePatch: see ``changes``.
    """
    lines: list[str] = []
    for change in changes(edits):
        module, _, name = change.where.partition(":")
        heading = f"@@ minisched/{module.replace('.', '/')}.py: {name} @@"
        both = change.bug.splitlines(), change.healthy.splitlines()
        for line in list(difflib.unified_diff(*both, n=context, lineterm=""))[2:]:
            is_head = line.startswith("@@")
            lines.append(heading if is_head else line)
            heading = "@@ … @@" if is_head else heading
    return "\n".join(lines)
