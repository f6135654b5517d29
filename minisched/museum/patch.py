"""A bug as a change of a few lines, put into the healthy code while something runs.

The same text makes the bug and the diff that shows its cure, so neither can be wrong alone; and
where the healthy code has moved on, putting it in fails.
"""

from __future__ import annotations
import __future__

import difflib
import importlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any


class StalePatch(ValueError):
    """The healthy code no longer has the lines that a patch replaces."""


@dataclass(frozen=True)
class Edit:
    """Lines of one function, as they are and as the bug has them.

    ``where`` is ``module:Class.method`` or ``module:function``, with the module's path below
    ``minisched``. ``healthy`` stands exactly once in the function's source, from which the
    indentation of its ``def`` has been taken away.
    """

    where: str
    healthy: str
    bug: str

    @property
    def function(self) -> Any:
        """The function to change, whatever it is wrapped in."""
        module, _, name = self.where.partition(":")
        found: Any = importlib.import_module(f"minisched.{module}")
        for part in name.split("."):
            found = inspect.getattr_static(found, part)
        found = getattr(found, "fget", found)  # a property
        found = getattr(found, "func", found)  # a cached one
        found = inspect.unwrap(getattr(found, "__func__", found))
        return found

    @property
    def sources(self) -> tuple[str, str]:
        """The function's source, healthy and with the bug.

        Raises:
            StalePatch: it does not have the lines, or has them more than once.
        """
        source = textwrap.dedent(inspect.getsource(self.function))
        count = source.count(self.healthy)
        if count != 1:
            raise StalePatch(
                f"{self.where} has the lines of this patch {count} times, and not once: "
                f"{self.healthy.strip().splitlines()[0]!r}"
            )
        return source, source.replace(self.healthy, self.bug)


@contextmanager
def put_in(edits: Iterable[Edit]) -> Iterator[None]:
    """The bug is in the code inside the block, wherever the functions are known by now.

    Raises:
        StalePatch: see ``Edit.sources``.
    """
    before: list[tuple[Any, CodeType]] = []
    try:
        for edit in edits:
            function, (_, bug) = edit.function, edit.sources
            before.append((function, function.__code__))
            function.__code__ = compiled(function, bug)
        yield
    finally:
        for function, code in reversed(before):
            function.__code__ = code


def compiled(function: Any, source: str) -> CodeType:
    """The code of ``function`` written otherwise; it may use ``super()`` if that one does."""
    lines = source.splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if line.startswith(("def ", "async def ")))
    body = textwrap.indent("".join(lines[first:]), " ")
    outer = f"def make(__class__):\n{body}\n return {function.__name__}\n"
    scope: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(outer, function.__code__.co_filename, "exec", flags), function.__globals__, scope)
    made: CodeType = scope["make"](object).__code__
    line = function.__code__.co_firstlineno
    return made.replace(co_firstlineno=line, co_qualname=function.__qualname__)


def diff(edits: Iterable[Edit], context: int = 2) -> str:
    """The cure as a unified diff, function by function: from the bug to the healthy code."""
    parts = []
    for edit in edits:
        healthy, bug = (text.splitlines() for text in edit.sources)
        lines = difflib.unified_diff(bug, healthy, n=context, lineterm="")
        path = edit.where.partition(":")[0].replace(".", "/")
        heading = f"minisched/{path}.py, {edit.where.partition(':')[2]}"
        parts.append("\n".join([heading, *list(lines)[2:]]))
    return "\n".join(parts)
