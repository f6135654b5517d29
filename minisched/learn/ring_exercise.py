"""The lines of a FutureMap: look tokens up, and hand slots out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..engine.engine import Engine
from ..export.views import NothingToShow
from ..loops.overlap import overlap
from ..trace import Trace
from .blame import blame
from .callable_check import takes
from .exercise import draw_trial, right, try_all
from .figure import LessonFigure
from .guard import TooLong, bounded, in_time
from .laws import BrokenLaw
from .ring_notes import RingNotes
from .ring_picture import draw_ring
from .sticky_ring import Alloc, Resolve, StickyRing
from .trial import Trial, play
from .verdict import ExerciseVerdict
from .workload import ExerciseWorkload, WorkloadLimits

PLAIN = WorkloadLimits()
SLOTS = [0, 31, 47, 5, 62]  # what they hold; slot 0 is nobody's
MIXED = ([7, 0, 3], [-2, -1], [5, -2], [-3, 9, 0, -1], [0, -4])


@in_time
def check_resolve(resolve: Resolve) -> ExerciseVerdict:
    """Whether ``resolve(ids, token_ids_map)`` puts tokens in the place of negative ids."""
    if problem := takes(resolve, "resolve", "ids", "token_ids_map"):
        return ExerciseVerdict(False, [problem])
    playing = partial(play_ring, resolve=resolve)
    if failed := try_all(playing, PLAIN, explain=why, draw=draw_slots):
        return failed
    if problem := _wrong_on_mixed(resolve):
        return ExerciseVerdict(False, [problem])
    return right(
        "They ran through the overlap loop, where most ids are placeholders, and were called with "
        f"{len(MIXED)} lists of both."
    )


def _wrong_on_mixed(resolve: Resolve) -> str:
    """One sentence on the first list of tokens and placeholders that is wrong, or nothing."""
    for ids in MIXED:
        call = f"resolve({ids}, {SLOTS})"
        try:
            with bounded():
                given = resolve(list(ids), list(SLOTS))
        except (Exception, TooLong) as error:
            return f"{call}: {blame(error)}"
        truth = [SLOTS[-token] if token < 0 else token for token in ids]
        if list(given) != truth:
            return f"{call} gave {given!r}, should give {truth}."
    return ""


@in_time
def check_alloc(alloc: Alloc) -> ExerciseVerdict:
    """Whether ``alloc(future_ct, num_reqs, limit)`` gives slots, and wraps in time."""
    if problem := takes(alloc, "alloc", "future_ct", "num_reqs", "limit"):
        return ExerciseVerdict(False, [problem])
    playing = partial(play_ring, alloc=alloc)
    return try_all(playing, PLAIN, explain=why, draw=draw_slots) or right(
        "The ring went round and round, and no token was overwritten before it was read."
    )


def play_ring(workload: ExerciseWorkload, **parts: Any) -> Trial:
    """The overlap loop with a ring of which some lines are a learner's."""
    notes = RingNotes()

    def patch(engine: Engine) -> None:
        ring = StickyRing(engine.device, workload.max_running_requests, **parts)
        ring.notes, engine.worker.relay = notes, ring

    trial = play(workload, overlap, patch=patch, name="overlap with your ring")
    trial.parts |= {"notes": notes, "deals": "alloc" in parts}
    trial.problem = notes.problem or trial.problem
    return trial


def why(trial: Trial, what: BrokenLaw) -> Sequence[str]:
    """What the offending step read, in words."""
    notes: RingNotes = trial.parts["notes"]
    truths = {one.rid: one.truth for one in trial.workload.asked}
    before = [one for one in trial.tokens(what.rid) if one.step < what.step]
    if what.law == "identity" and not before:
        words = notes.say_token(what.step)
        return [words] if words else []
    if what.law != "identity":
        return []
    words = notes.say(what.step, what.rid, truths[what.rid][len(before) - 1])
    return [words] if words else []


def draw_slots(trial: Trial, what: BrokenLaw) -> list[LessonFigure]:
    """The future slots up to the offending step, with the lapped one outlined; else its timing."""
    notes: RingNotes = trial.parts["notes"]
    read = notes.reads.get((what.step, what.rid))
    is_lapped = what.law == "identity" and read is not None and read.is_lapped
    if not is_lapped and not (what.law == "ends" and trial.parts["deals"]):
        return draw_trial(trial, what)
    try:
        thief = (read.slot, read.found.step) if is_lapped and read and read.found else None
        svg = draw_ring(until(trial.trace, what.step), thief, notes.beyond)
    except NothingToShow:  # it read a slot that nobody had ever written, or no step ran
        return draw_trial(trial, what)
    if notes.beyond:
        slot, step, rid = notes.beyond
        words = f"slot {slot}, outlined, is beyond the limit: step {step} was to get it for {rid}"
        return [outlined(svg, slot, words)]
    if is_lapped and read:
        words = f"slot {read.slot}, outlined, was taken before request {read.rid} had read it"
        return [outlined(svg, read.slot, words)]
    return [LessonFigure(svg)]


def outlined(svg: str, slot: int, title: str) -> LessonFigure:
    """A view of the future slots with one slot's lane in red."""
    rule = f'.box[data-slot="{slot}"] {{ stroke: var(--bubble); stroke-width: 2.5 }}'
    words = svg.replace("<title>", f"<title>{title}; ", 1)
    return LessonFigure(words.replace("</svg>", f"<style>{rule}</style></svg>"))


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
