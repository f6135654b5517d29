"""The lines of a FutureMap: look tokens up, hand slots out, and make the ring large enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..engine.engine import Engine
from ..export.views import NothingToShow, draw
from ..loops.overlap import overlap
from ..trace import Trace
from .blame import blame
from .callable_check import takes
from .exercise import draw_trial, right, try_all
from .figure import Figure
from .guard import TooLong, bounded, in_time
from .laws import Broken
from .ring_notes import Reading, RingNotes
from .sticky_ring import Alloc, Resolve, StickyRing
from .trial import Trial, play
from .verdict import Verdict
from .wording import joined
from .workload import Asked, Shape, Workload

PLAIN = Shape()
LONGEST = 12  # the longest prompt, in chunks of 1, 2 and 4
CHUNKED = Shape(requests=3, prompt=LONGEST, arrives_ms=40, chunks=(1, 2, 4), may_stop=False)
CONTEXT = LONGEST + CHUNKED.new_tokens  # the most tokens of a request
Limit = Callable[[int, int, int], Any]


def check_resolve(resolve: Resolve) -> Verdict:
    """Whether ``resolve(ids, token_ids_map)`` puts tokens in the place of negative ids."""
    if problem := takes(resolve, "resolve", "ids", "token_ids_map"):
        return Verdict(False, [problem])
    playing = partial(play_ring, resolve=resolve)
    return try_all(playing, PLAIN, explain=why, draw=draw_slots) or right(
        "They ran through the overlap loop, where most ids are placeholders."
    )


def check_alloc(alloc: Alloc) -> Verdict:
    """Whether ``alloc(future_ct, num_reqs, limit)`` gives slots, and wraps in time."""
    if problem := takes(alloc, "alloc", "future_ct", "num_reqs", "limit"):
        return Verdict(False, [problem])
    playing = partial(play_ring, alloc=alloc)
    return try_all(playing, PLAIN, explain=why, draw=draw_slots) or right(
        "The ring went round and round, and no token was overwritten before it was read."
    )


def check_limit(limit: Limit) -> Verdict:
    """Whether ``limit(max_running_requests, context_len, chunk)`` slots are enough, and not silly.

    Prompts come in chunks here, and each chunk takes a slot while others wait for their next step.
    """
    if problem := takes(limit, "limit", "max_running_requests", "context_len", "chunk"):
        return Verdict(False, [problem])
    if problem := _bad_limit(limit):
        return Verdict(False, [problem])

    def playing(workload: Workload) -> Trial:
        size = limit(workload.max_running_requests, CONTEXT, workload.chunk)
        return play_ring(workload, limit=size)

    queues = [queue_of_prompts(most, chunk) for most in (2, 4) for chunk in CHUNKED.chunks]
    return try_all(playing, CHUNKED, explain=why, draw=draw_slots, hard=queues) or right(
        f"Prompts of up to {LONGEST} tokens came in chunks of {_chunks()}, also several of the "
        "longest in a row, and no slot was lapped."
    )


def queue_of_prompts(max_running_requests: int, chunk: int) -> Workload:
    """One request that is to decode, and behind it as many of the longest prompts as may run."""
    long = tuple(range(LONGEST))
    others = [Asked(rid, long, 2) for rid in "bcdefgh"[: max_running_requests - 1]]
    return Workload((Asked("a", (1,), 3), *others), max_running_requests, chunk)


def _chunks() -> str:
    return joined(list(map(str, CHUNKED.chunks)))


def play_ring(workload: Workload, **parts: Any) -> Trial:
    """The overlap loop with a ring of which some lines are a learner's."""
    notes = RingNotes()

    def patch(engine: Engine) -> None:
        ring = StickyRing(engine.device, workload.max_running_requests, **parts)
        ring.notes, engine.worker.relay = notes, ring

    trial = play(workload, overlap, patch=patch, name="overlap with your ring")
    trial.parts["notes"] = notes
    trial.problem = notes.problem or trial.problem
    return trial


def why(trial: Trial, what: Broken) -> Sequence[str]:
    """What the offending step read, in words."""
    notes: RingNotes = trial.parts["notes"]
    truths = {one.rid: one.truth for one in trial.workload.asked}
    before = [one for one in trial.tokens(what.rid) if one.step < what.step]
    if what.law != "identity" or not before:
        return []
    words = notes.say(what.step, what.rid, truths[what.rid][len(before) - 1])
    return [words] if words else []


def draw_slots(trial: Trial, what: Broken) -> list[Figure]:
    """The future slots up to the offending step, with the lapped one outlined; else its timing."""
    notes: RingNotes = trial.parts["notes"]
    read = notes.reads.get((what.step, what.rid))
    if what.law != "identity" or read is None or not read.is_lapped:
        return draw_trial(trial, what)
    try:
        return [outlined(draw("future_map", until(trial.trace, what.step)), read)]
    except NothingToShow:  # it read a slot that nobody had ever written
        return draw_trial(trial, what)


def outlined(svg: str, read: Reading) -> Figure:
    """A view of the future slots with one slot's lane in red."""
    rule = f'.box[data-slot="{read.slot}"] {{ stroke: var(--bubble); stroke-width: 2.5 }}'
    title = f"slot {read.slot}, outlined, was taken before request {read.rid} had read it"
    words = svg.replace("<title>", f"<title>{title}; ", 1)
    return Figure(words.replace("</svg>", f"<style>{rule}</style></svg>"))


def until(trace: Trace, step: int) -> Trace:
    """What was there when a step had run on the device."""
    mine = [item.end for item in trace.slices if item.step == step and item.lane == "forward"]
    end = max(mine, default=trace.end)
    return replace(
        trace,
        slices=tuple(item for item in trace.slices if item.start < end),
        edges=(),
        marks=tuple(item for item in trace.marks if item.time < end),
        counters=tuple(item for item in trace.counters if item.time < end),
    )


def _bad_limit(limit: Limit) -> str:
    """One sentence on a limit that is no number, or far from what is needed; or nothing."""
    for most, chunk in ((1, 1), (2, 4), (3, 1)):
        call = f"limit({most}, {CONTEXT}, {chunk})"
        try:
            with bounded():
                size = limit(most, CONTEXT, chunk)
        except (Exception, TooLong) as error:
            return f"{call}: {blame(error)}"
        if type(size) is not int:
            return f"{call} gives {size!r}, but it must be a whole number of slots."
        highest = 2 * most * (3 + -(-CONTEXT // chunk))
        if not most <= size <= highest:
            return (
                f"{call} gives {size}, but it must be at least {most}, a slot for each request, "
                f"and at most {highest}: memory is dear."
            )
    return ""
