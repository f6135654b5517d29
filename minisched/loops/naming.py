"""A loop as a command line names it: ``LOOP``, ``LOOP:RELAY``, ``LOOP:RELAY:OPTION=VALUE``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

YES_OR_NO = {"true": True, "false": False}


class LoopName(NamedTuple):
    """The parts of a name; ``relay`` is None where none is named."""

    loop: str
    relay: str | None
    options: dict[str, str]


def parse(name: str) -> LoopName:
    """Take a name apart: ``vllm_async:pool:depth=4``, ``multi_step:num_steps=2``.

    Raises:
        ValueError: it has more parts than a loop, a relay and options.
    """
    loop, *rest = name.split(":")
    relays = [part for part in rest if "=" not in part]
    if len(relays) > 1:
        raise ValueError(f"loop {name!r} names {len(relays)} relays, but a loop takes one.")
    options = dict(part.split("=", 1) for part in rest if "=" in part)
    return LoopName(loop, relays[0] if relays else None, options)


def read_options(loop: str, run: Callable[..., Any], texts: dict[str, str]) -> dict[str, Any]:
    """The values of a loop's options, which are numbers, or true or false.

    Raises:
        ValueError: the loop has no such option, or the value is not one of its kind.
    """
    known = {
        name: type(item.default)
        for name, item in inspect.signature(run).parameters.items()
        if isinstance(item.default, int)
    }
    for name in texts:
        if name not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise ValueError(f"loop {loop!r} has no option {name!r}; {has}.")
    return {name: _value(loop, name, text, known[name]) for name, text in texts.items()}


def _value(loop: str, name: str, text: str, kind: type) -> int | bool:
    if kind is bool and text.lower() in YES_OR_NO:
        return YES_OR_NO[text.lower()]
    if kind is int and text.removeprefix("-").isdecimal():
        return int(text)
    what = "true or false" if kind is bool else "a whole number"
    raise ValueError(f"option {name!r} of loop {loop!r} is {text!r}, but it must be {what}.")
