"""Whether what a learner hands over can be called as the exercise says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes(function: Any, name: str, *arguments: str) -> str:
    """One sentence on why it can't be called with so many arguments, or nothing."""
    call = f"{name}({', '.join(arguments)})"
    if not callable(function):
        kind = type(function).__name__
        return f"{name} is of type {kind}, but it must be a function: {call}."
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        return f"{name} can't be called as {call}: {error}."
    return ""


def one_argument(
    function: Callable[..., Any], name: str, argument: str, generator: bool = False
) -> str:
    """The same for one argument; a loop must be a generator."""
    if problem := takes(function, name, argument):
        return problem
    if generator and not inspect.isgeneratorfunction(inspect.unwrap(function)):
        return f"{name} has no `yield`; a loop yields at the end of each of its turns."
    return ""
