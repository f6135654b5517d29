"""Whether there is anything to judge: what a law looks at, and what a trace lacks of it.

A law holds of a run in which nothing happened, too; but that is no reason for a green tick.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from ..trace import Trace


def lacking(law: str, trace: Trace) -> str:
    """What a trace lacks to be judged by a law, as ``no token was delivered``; else nothing.

    Laws are called as in ``checks/many.py:LAWS``.
    """
    return LOOKED_AT.get(law, _no_steps)(trace)


def _tokens(trace: Trace) -> str:
    marks = [mark for mark in trace.marks if mark.name == "tokens"]
    if not marks:
        return "no tokens are recorded"
    heard = any(mark.attrs.get("side") != "prefill" and mark.attrs.get("rids") for mark in marks)
    return "" if heard else "no token was delivered"


def _memory(trace: Trace) -> str:
    taken = any(mark.name in ("row alloc", "page alloc") for mark in trace.marks)
    return "" if taken else "no memory is recorded"


def _company(trace: Trace) -> str:
    """One is left out, or goes before another, only where there are two."""
    now: dict[str, int] = {}
    for counter in trace.counters:
        if counter.name.endswith(("waiting", "running")):
            now[counter.name] = counter.value
            if sum(now.values()) > 1:
                return ""
    return "nobody had to wait, or to share a step"


def _memory_on_sim(trace: Trace) -> str:
    on_sim = trace.device == "sim"
    return _memory(trace) if on_sim else "what an op touches can be watched on sim alone"


def _accesses(trace: Trace) -> str:
    """A race takes a resource that two lanes touch, one of them not only reading."""
    who: defaultdict[str, set[str]] = defaultdict(set)
    changed = set()
    for act in trace.program:
        if act.resource:
            who[act.resource].add(act.lane)
            if act.kind != "read":
                changed.add(act.resource)
    if not who:
        return "no accesses are recorded"
    if not any(len(lanes) > 1 and name in changed for name, lanes in who.items()):
        return "no memory is recorded that one lane changes and another one touches"
    return ""


def _end(trace: Trace) -> str:
    ended = any(mark.name in ("finish", "refused") for mark in trace.marks)
    return "" if ended else "no request ended"


def _logprobs(trace: Trace) -> str:
    computed = any(item.name == "logprobs" for item in trace.slices)
    return "" if computed else "nobody was given log-probabilities"


def _abort(trace: Trace) -> str:
    ends = (mark for mark in trace.marks if mark.name == "finish")
    given_up = any(mark.attrs.get("reason") == "abort" for mark in ends)
    return "" if given_up else "nobody was given up"


def _no_steps(trace: Trace) -> str:
    return "" if trace.slices else "nothing is recorded that ran"


LOOKED_AT: dict[str, Callable[[Trace], str]] = {
    "identity": _tokens,
    "client": _end,
    "logprobs": _logprobs,
    "abort": _abort,
    "leak": _memory,
    "order": _company,
    "ownership": _memory,
    "progress": _company,
    "race": _accesses,
    "touches": _memory_on_sim,
}
