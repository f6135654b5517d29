"""Whether a program is well formed, so that whoever writes one hears what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable

from ..trace import Act
from ..trace.cells import spans_of

KINDS = ("launch", "begin", "end", "wait", "say", "read", "write", "free")
TOUCHES = ("read", "write", "free")


class BadProgram(ValueError):
    """What is wrong, in a few words that begin with the act's place: ``program[3] ...``."""


def check_program(program: Iterable[Act]) -> None:
    """Look at each act, and at each op: launched once, begun once, ended once where it began.

    An op that never ends and a wait for what never comes are no mistakes of the file: the race
    check tells of them.

    Raises:
        BadProgram: see the README of the folder ``traces``.
    """
    acts = list(program)
    launched = {act.op for act in acts if act.kind == "launch"}
    seen: dict[tuple[str, int], str] = {}  # kind and op -> lane
    running: dict[str, int] = {}  # lane -> op
    for index, act in enumerate(acts):
        wrong = _wrong_by_itself(act) or _wrong_in_its_place(act, launched, seen, running)
        if wrong:
            raise BadProgram(f"program[{index}] {wrong}")
        seen[act.kind, act.op] = act.lane
        if act.kind == "begin":
            running[act.lane] = act.op
        elif act.kind == "end":
            del running[act.lane]


def _wrong_by_itself(act: Act) -> str:
    """What is wrong with an act, whatever stands around it; empty: nothing."""
    if act.kind not in KINDS:
        return f"has kind = {act.kind!r}, but it must be one of {', '.join(KINDS)}"
    if not act.lane:
        return "has no lane"
    if act.kind not in TOUCHES:
        if act.resource or act.at:
            return f"is a {act.kind} and touches nothing, but it has a resource or cells"
        return "" if act.op > 0 else f"has op = {act.op}, but an op is a number above 0"
    if not act.resource or not act.at:
        return f"is a {act.kind}, but it lacks {'cells (at)' if act.resource else 'a resource'}"
    try:
        if spans_of(act.at) and act.at == " ".join(act.at.split()):
            return ""
    except ValueError:
        pass
    return f"has at = {act.at[:40]!r}, but cells are written in order, as in '3-7 9'"


def _wrong_in_its_place(
    act: Act, launched: set[int], seen: dict[tuple[str, int], str], running: dict[str, int]
) -> str:
    """What is wrong with an act behind those before it; empty: nothing."""
    is_again = (act.kind, act.op) in seen
    if act.kind in ("launch", "begin", "end") and is_again:
        return f"is a second {act.kind} of op {act.op}"
    if act.kind == "say" and is_again and seen[act.kind, act.op] != act.lane:
        return f"says signal {act.op}, which lane {seen[act.kind, act.op]!r} says too"
    if act.kind == "begin" and act.op not in launched:
        return f"is a begin of op {act.op}, which nobody launches"
    if act.kind == "begin" and act.lane in running:
        return f"is a begin of op {act.op}, but op {running[act.lane]} has not ended on its lane"
    if act.kind == "end" and running.get(act.lane) != act.op:
        return f"is an end of op {act.op}, which has not begun on its lane"
    return ""
