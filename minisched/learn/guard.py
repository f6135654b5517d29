"""A learner's lines can't hang the notebook: they are counted, and a check has a deadline."""

from __future__ import annotations

import inspect
import os
import pickle
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from io import StringIO
from pathlib import Path
from select import select
from types import FrameType
from typing import Any, NoReturn, TypeVar

# -- An error of a learner's lines becomes one sentence, with the line at which it happened --------

PACKAGE = str(Path(__file__).resolve().parents[1])
LIBRARIES = tuple(sysconfig.get_path(of) for of in ("stdlib", "platstdlib", "purelib", "platlib"))


class Mistake(ValueError):
    """A learner's lines gave back something that can't be used; the sentence names it."""


class TooLong(BaseException):
    """The learner's lines never end; the sentence gives the limit that they reached."""


def is_learners(filename: str) -> bool:
    """Return whether a file is neither the package's nor of a library."""
    return not filename.startswith((PACKAGE, *LIBRARIES, "<frozen"))


def blame(error: BaseException) -> str:
    """Return one sentence on an error, and on the learner's line that raised it."""
    words = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, Mistake):
        return f"{words[:1].upper()}{words[1:]}."
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line for frame in frames if is_learners(frame.filename)]
    place = (f" at your line `{lines[-1]}`" if lines[-1] else " in your lines") if lines else ""
    if isinstance(error, TooLong):
        return f"{words}. They were stopped{place}." if place else f"{words}."
    return f"{type(error).__name__}{place}{': ' + words if words else ''}."


# -- A learner's answer must be callable in the way of the exercise --------------------------------


def takes(function: Any, name: str, *arguments: str) -> str:
    """Return one sentence on why it can't be called with these arguments, or ''."""
    call = f"{name}({', '.join(arguments)})"
    if not callable(function):
        kind = type(function).__name__
        return f"{name} is of type {kind}, but it must be a function: {call}."
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        return f"{name} can't be called as {call}: {error}."
    return ""


def is_loop(function: Any, name: str) -> str:
    """Return one sentence on why it is no loop of an engine, or ''."""
    if problem := takes(function, name, "engine"):
        return problem
    if not inspect.isgeneratorfunction(inspect.unwrap(function)):
        return f"{name} has no `yield`; a loop yields at the end of each of its turns."
    return ""


# -- Instructions: a limit stops most lines that never end, and names the line ---------------------

MOST_OPCODES = 200_000  # of the learner's, in one call; a right answer takes a few thousand


@contextmanager
def bounded(most: int = MOST_OPCODES) -> Iterator[None]:
    """Count the learner's instructions as they run.

    Not their lines: ``while True: pass`` never gets to another one. Lines that sleep, or that catch
    whatever is raised and go on, are stopped by the deadline of ``apart``.

    Raises:
        TooLong: there were more than ``most``.
    """
    before, left = sys.gettrace(), most

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        left -= event == "opcode"
        if left < 0:
            raise TooLong("Your lines go on and on: it looks as if they would never end")
        return look

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        if not is_learners(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        return look

    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


def unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the package as a learner calls it: inside it, nothing is counted."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        before = sys.gettrace()
        sys.settrace(None)
        try:
            return function(*args, **options)
        finally:
            sys.settrace(before)

    return call


# -- A deadline, which holds whatever the lines do -------------------------------------------------

MOST_SECONDS = 60.0  # for one check; a right answer takes a few
R = TypeVar("R")


def apart(check: Callable[[], R]) -> R:
    """Run a check in a process of its own and return its result; its output is printed at the end.

    Where no process can be forked (Windows, and a page, which has a deadline of its own) it runs
    in this one.

    Raises:
        TooLong: it was not done in time, or its process came to an end.
    """
    if sys.platform == "win32" or sys.platform == "emscripten":
        return check()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(check, writer)
    os.close(writer)
    with open(reader, "rb") as answer:
        try:
            is_done = select([answer], [], [], MOST_SECONDS)[0]
            told = answer.read() if is_done else b""
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if not told:
        how = "ended Python itself" if is_done else f"were not done after {MOST_SECONDS:g} s"
        hint = "do they sleep, or catch every exception and go on?"
        raise TooLong(f"Your lines {how}{'' if is_done else f' ({hint})'}")
    printed, given, error = pickle.loads(told)
    print(printed, end="")
    if error is not None:
        raise error
    found: R = given
    return found


def _answer(check: Callable[[], Any], writer: int) -> NoReturn:
    """Write the output of a check, and its result or error; then end this process."""
    printed, given, raised = StringIO(), None, None
    try:
        with redirect_stdout(printed):
            try:
                given = check()
            except Exception as error:
                raised = error
        with open(writer, "wb") as pipe:
            pickle.dump((printed.getvalue(), given, raised), pipe)
    finally:
        os._exit(0)
