"""The page on which a reader drags the costs of a step: serial and another loop, laid out anew.

One file of at most 25 kB without a network, from the ``explore*`` files of this folder. Its model
(``explore_model.js``) has the loops with settled steps that need no scheduler: the order of calls
gives the simulator's time of a step.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median_low

from ..devices.cost import SIM_COST
from ..trace import Slice, Trace
from ..trace.events import is_copy, is_forward, is_host
from .chinese import LANGUAGES, in_language
from .html import PLACE, part
from .looks import DARK, LIGHT, STEPS
from .views import NothingToShow

PLAN, READ = ("schedule", "prepare", "launch"), ("process", "output")
ON_HOST = (*PLAN, "advance step", "fill", *READ, "postprocess")
LANES = {"forward": is_forward, "sample": is_forward, "copy": is_copy}  # of ops
SCRIPTS = ("explore_model.js", "explore_words.js", "explore.js")
COLOURS = ("paper", "ink", "faint", "grid", "lane", "bubble", "token")


def to_explore(traces: Sequence[Trace], lang: str = "en") -> str:
    """Return the page, with the costs of the first run and, if it is on offer, the second's loop.

    Raises:
        NothingToShow: the first run has no decode step that takes time.
    """
    first, costs = traces[0], costs_of(traces[0])
    if not costs["forward"] + costs["sample"]:
        raise NothingToShow(f"the run of loop {first.loop!r} has no decode step that takes time.")
    papers = [{name: paper[name] for name in COLOURS} for paper in (LIGHT, DARK)]
    start = {
        "costs": costs,
        "loop": traces[min(1, len(traces) - 1)].loop,
        "source": f"{first.loop} ({first.what_ran})",
        "lang": lang,
        "words": {name: shared_words(name) for name in LANGUAGES},
        "steps": [(look.fill, look.text) for look in STEPS.values()],
        "colours": {"light": papers[0], "dark": papers[1]},
    }
    places = {
        "start": json.dumps(start, separators=(",", ":"), ensure_ascii=False).replace(
            "<", "\\u003c"
        ),
        "style": plain_lines("explore.css"),
        "scripts": "".join(map(plain_lines, SCRIPTS)),
    }
    return PLACE.sub(lambda found: places[found[1]], part("explore.html"))


def shared_words(lang: str) -> dict[str, str]:
    """Return the words that the page shares with the picture by step."""
    words = {name: name for name in ("plan", "read", "run", "ms", "host", "idle")}
    words["forward"] = "device"  # a lane of the page, by its op
    return {name: in_language(word, lang) for name, word in words.items()}


def plain_lines(name: str) -> str:
    """Return a file of this folder without its indents and without lines that are comments."""
    lines = map(str.strip, part(name).splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))


def costs_of(trace: Trace) -> dict[str, int]:
    """Return the cost of each phase and op, in nanoseconds: medians, or as in the simulator.

    A phase that the trace lacks has the simulator's cost, at the speed of this trace's host.
    """
    found, known = medians(trace), (*PLAN, *READ)
    here, there = (sum(costs.get(it, 0) for it in known) for costs in (found, SIM_COST.host))
    lacking = {phase: SIM_COST.host[phase] * here // there for phase in ON_HOST}
    return {**lacking, "forward": 0, "sample": 0, "copy": 0, **found}


def medians(trace: Trace) -> dict[str, int]:
    """Return the median cost of each phase and op in decode steps, in nanoseconds.

    A step may have several slices of a phase. The ops of several stages are added up. A ``prepare``
    without its ``schedule`` advances a burst.
    """
    previous = dict[str, Slice]()
    found = defaultdict[tuple[str, str], Counter[int]](Counter)  # nanoseconds of each step
    for item in trace.slices:
        lane, name, last = item.lane, item.name, previous.get(item.lane)
        previous[lane] = item
        if item.mode != "decode":
            continue
        if name == "prepare":
            if last is not None and last.name == "schedule":
                found["schedule", lane][item.step] += last.duration
            else:
                name = "advance step"
        found[name, lane][item.step] += item.duration
    costs = Counter[str]()
    for (name, lane), times in found.items():
        is_on = LANES.get(name, is_host if name in ON_HOST else None)
        if is_on is not None and is_on(lane):
            costs[name] += median_low(times.values())
    return dict(costs)
