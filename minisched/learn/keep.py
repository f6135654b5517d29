"""``mine.py``: a file that runs, with each right cell as the learner wrote it; and hints."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import re
import subprocess
import symtable
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from ..trace.files import write_whole
from .exercise import Exercise, exercises, find

MINE = Path("mine.py")  # in the folder of the lessons
HEAD = (
    '"""My right answers to the exercises of minisched."""\n\nfrom __future__ import annotations\n'
)
MARK = re.compile(r"^# == (\w+), lesson (\w+) ==$", re.MULTILINE)
BEGINS = re.compile(r"^# (?:%%|== \w+, lesson)", re.MULTILINE)  # a cell of a lesson or of mine.py
MOST_SECONDS = 60.0  # of a file that runs alone
CHECKS = {"learn.check", "learn.hint", "check", "hint"}  # calls that belong to the lesson


def keep(exercise: Exercise, lines: Any, path: Path | None = None) -> str:
    """Put the learner's cell into ``mine.py``, and return a sentence on that.

    A cell that could not run there is not kept, and the sentence gives the reason.
    """
    path = path or MINE
    try:
        cell = cell_of(exercise.name, lines)
        kept = {**parts(path), exercise.name: cell}
        problem = trouble(exercise.name, kept, path.parent)
        if not problem:
            write_whole(path, text_of(kept))
    except (OSError, ValueError) as error:  # no text of the answer, or no file can be written
        problem = f"{str(error).rstrip('.')}."
    if problem:
        return f"Not kept in `{path.name}`: {problem}"
    return f"Kept in `{path.name}`: {len(kept)} of {len(exercises())} exercises right."


# -- The file --------------------------------------------------------------------------------------


def parts(path: Path | None = None) -> dict[str, str]:
    """Return the cell of each exercise in ``mine.py``, in the order of the lessons."""
    path = path or MINE
    if not path.is_file():
        return {}
    pieces = MARK.split(path.read_text(encoding="utf-8"))[1:]
    found = {name: text.strip() for name, text in zip(pieces[::3], pieces[2::3], strict=True)}
    return {name: found[name] for name in exercises() if name in found}


def text_of(kept: dict[str, str]) -> str:
    """Return the file with these cells."""
    sections = [
        f"# == {name}, lesson {one.lesson} ==\n\n{kept[name]}\n"
        for name, one in exercises().items()
        if name in kept
    ]
    return "\n\n".join([HEAD, *sections])


# -- A learner's cell ------------------------------------------------------------------------------


def cell_of(name: str, lines: Any) -> str:
    """Return the whole cell of an answer: its imports and helpers too, without the check itself.

    The file has the answer under the exercise's name. The capstone's class and loop are also
    ``Scheduler`` and ``loop``, which ``minisched check --loop mine.py`` reads.

    Raises:
        OSError: the text of the answer is not known.
    """
    answers = lines if isinstance(lines, tuple) else (lines,)
    text = "\n\n\n".join(dict.fromkeys(map(_cell_around, answers)))
    rows = text.splitlines()
    for node in ast.parse(text).body:
        if _is_of_the_lesson(node):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            rows[first:last] = [""] * (last - first)
    text, known = "\n".join(rows).strip(), [getattr(one, "__name__", "") for one in answers]
    if name not in bound(text) and {*known} <= bound(text).keys():
        text += f"\n\n\n{name} = {', '.join(known)}"
    if isinstance(lines, tuple) and known != ["Scheduler", "loop"]:
        text += f"\nScheduler, loop = {name}"
    return text


def _is_of_the_lesson(node: ast.stmt) -> bool:
    """Return whether a statement checks an answer, or is an import for the head of a file only."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return False
    calls = (item.func for item in ast.walk(node) if isinstance(item, ast.Call))
    return any(ast.unparse(call) in CHECKS for call in calls)


def _cell_around(answer: Any) -> str:
    """Return the text of the cell in which a function or class is written."""
    for code in _codes(answer):
        if rows := linecache.getlines(code.co_filename):
            text, at = "".join(rows), sum(map(len, rows[: code.co_firstlineno - 1]))
            begins = [0, *(found.start() for found in BEGINS.finditer(text)), len(text)]
            start = max(place for place in begins[:-1] if place <= at)
            end = next(place for place in begins if place > at)
            cell = text[start:end]
            return cell.partition("\n")[2] if BEGINS.match(cell) else cell
    raise OSError(f"the text of {getattr(answer, '__name__', answer)} is not known")


def _codes(answer: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of each method of a class."""
    for one in vars(answer).values() if isinstance(answer, type) else (answer,):
        code = getattr(inspect.unwrap(one), "__code__", None) if callable(one) else None
        if code is not None:
            yield code


# -- Whether the file runs -------------------------------------------------------------------------


def trouble(name: str, kept: dict[str, str], folder: Path) -> str:
    """Return a sentence on why the file would not run with the cell of ``name``, or ''."""
    if problem := trouble_of_names(name, kept):
        return problem
    error = run_alone(text_of(kept), folder)
    return f"the file stops with {error}." if error else ""


def trouble_of_names(name: str, kept: dict[str, str]) -> str:
    """Return a sentence on a name that is missing from a cell or taken by another one, or ''."""
    names = bound(kept[name])
    if name not in names:
        return f"no line of this cell defines `{name}`. Give your answer that name."
    if missing := unbound(kept[name]):
        return (
            f"this cell uses `{missing[0]}`, which is defined in another one. Define or import it "
            "here."
        )
    for other, text in kept.items():
        both = bound(text) if other != name else {}
        if clash := next((it for it in names if it in both and both[it] != names[it]), ""):
            return f"`{clash}` is already another thing in your `{other}`. Rename it here."
    return ""


def bound(text: str) -> dict[str, str]:
    """Return the names that a text binds, each with what it is bound to."""
    found = dict[str, str]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = getattr(node, "module", None)
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = f"{source} {alias.name}"
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.dump(node)
        else:
            stored = (
                it.id
                for it in ast.walk(node)
                if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)
            )
            found |= dict.fromkeys(stored, ast.dump(node))
    return found


def unbound(text: str) -> list[str]:
    """Return the names that a text reads, and that neither it nor Python defines."""
    scopes = [symtable.symtable(text, MINE.name, "exec")]
    read, known = dict[str, None](), {*vars(builtins), "__name__", "__file__", "__doc__"}
    for scope in scopes:
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            is_top = scope is scopes[0] or symbol.is_global()
            if is_top and (symbol.is_assigned() or symbol.is_imported()):
                known.add(symbol.get_name())
            elif is_top and symbol.is_referenced():
                read[symbol.get_name()] = None
    return [name for name in read if name not in known]


def run_alone(text: str, folder: Path) -> str:
    """Run a text in a fresh interpreter, in a folder; return its error in words, or ''.

    In a page there is no other process, and it runs in a namespace of its own.
    """
    if sys.platform == "emscripten":
        try:
            exec(compile(text, MINE.name, "exec"), {"__name__": MINE.stem})
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""
    try:
        done = subprocess.run(
            [sys.executable, "-"], input=text.encode(), capture_output=True, cwd=folder,
            timeout=MOST_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end after {MOST_SECONDS:g} s"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else (said or [f"exit code {done.returncode}"])[-1]


_told: dict[str, int] = {}


def hint(name: str) -> str:
    """Return the next hint for an exercise; each call gives one more.

    Raises:
        ValueError: there is no exercise of that name.
    """
    hints = find(name).hints
    at = _told.get(name, 0)
    _told[name] = min(at + 1, len(hints))
    if at >= len(hints):
        return "That was the last hint. The end of the lesson discusses solutions."
    return f"Hint {at + 1} of {len(hints)}: {hints[at]}"
