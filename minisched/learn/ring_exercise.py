"""The lines of a FutureMap: look tokens up, and hand slots out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from ..core import Row, ScheduleBatch
from ..devices.base import Array, Device
from ..engine.engine import Engine
from ..export.views import NothingToShow
from ..loops.overlap import overlap
from ..relay import FutureMapRing
from ..relay.future_map import FutureMap
from ..trace import Trace
from .figure import LessonFigure, draw_ring
from .grade import ExerciseVerdict
from .guard import Mistake, TooLong, blame, bounded, in_time, takes
from .runs import joined
from .trial import Asked, BrokenLaw, ExerciseWorkload, Trial, WorkloadLimits, play
from .verdicts import draw_trial, right, try_all

# -- What each step read from the future map, noted as it was bound: for the words of a verdict ----


class Stored(NamedTuple):
    """Whose token was put into a slot, and by which step."""

    rid: str
    step: int


@dataclass(frozen=True)
class Reading:
    """One row's look into the map: the slot, who had it last, and where in the ids it stands."""

    step: int
    rid: str
    slot: int
    at: int
    own: int  # the step that put the request's newest token there
    found: Stored | None  # whose token was there by then

    @property
    def is_lapped(self) -> bool:
        """Whether it is not the request's own token that was there."""
        return self.found != Stored(self.rid, self.own)


@dataclass
class RingNotes:
    """Reads by (step, request), and what the learner's lines made of the ids of each step."""

    reads: dict[tuple[int, str], Reading] = field(default_factory=dict)
    looked_up: list[tuple[list[int], object]] = field(default_factory=list)  # step by step
    slots: dict[int, Stored] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)  # request id -> step of its newest token
    beyond: tuple[int, int, str] | None = None  # a slot behind the limit, its step and request
    problem: str = ""  # a sentence on what the learner's lines raised

    def note_read(self, step: int, rid: str, slot: int, at: int) -> None:
        """A step will look a slot up: it finds what the steps before have put there."""
        found = self.slots.get(slot)
        self.reads[step, rid] = Reading(step, rid, slot, at, self.newest.get(rid, 0), found)

    def note_slots(self, step: int, rids: Sequence[str], slots: Sequence[int]) -> None:
        """A step will put its tokens there, behind its reads."""
        for rid, slot in zip(rids, slots, strict=True):
            self.slots[slot] = Stored(rid, step)
            self.newest[rid] = step

    def say(self, step: int, rid: str, truth: int) -> str:
        """What a step read for a request, in words; ``truth`` is what it should have been.

        Nothing, if the step read no slot for it.
        """
        read = self.reads.get((step, rid))
        if read is None:
            return ""
        if read.is_lapped:
            return f"Step {step} read slot {read.slot} for request {rid}: {_lapped(read)}"
        given = self.looked_up[step - 1][1] if step <= len(self.looked_up) else None
        made = given[read.at] if isinstance(given, list) and read.at < len(given) else "nothing"
        return (
            f"For request {rid}, step {step} was sent the id {-read.slot}: minus slot {read.slot}, "
            f"where step {read.own} had left {truth}. Your lines made {made} of it."
        )

    def say_token(self, step: int) -> str:
        """Which token of a step the learner's lines changed, in words; or nothing."""
        ids, given = self.looked_up[step - 1] if step <= len(self.looked_up) else ([], None)
        for token, made in zip(ids, given if isinstance(given, list) else [], strict=False):
            if token >= 0 and made != token:
                return (
                    f"Step {step} was sent the id {token}; your lines made {made} of it: {token} "
                    "is a token, and stays what it is."
                )
        return ""


def _lapped(read: Reading) -> str:
    if read.found is None:
        return "nobody has ever put a token there."
    mine = f"step {read.own} had put its token there"
    if read.found.step == read.own:
        return f"{mine}, and so it had request {read.found.rid}'s: two rows with one slot."
    return (
        f"{mine}, but step {read.found.step} has put request {read.found.rid}'s there since. "
        "The slot was lapped: taken again before its token was read."
    )


# -- The ring as SGLang had it, with a learner's lines in the place of the package's ---------------
#
# A placeholder stays what it is until its request runs again, even if the host knows the token by
# then (SGLang ``managers/overlap_utils.py`` and ``schedule_batch.py`` before #25862). So a slot is
# read as late as its request is scheduled, and that is why a ring can be lapped.

Alloc = Callable[[int, int, int], Any]
Resolve = Callable[[list[int], Sequence[int]], Any]


class BeyondLimit(Mistake):
    """A batch was given slots that begin at ``slot``, behind the limit."""

    def __init__(self, problem: str, slot: int) -> None:
        super().__init__(problem)
        self.slot = slot


class StickyRing(FutureMapRing):
    """A FutureMap whose rows read their slot even where the host knows the token.

    ``limit`` is where the counter wraps; the buffer has ``max_running_requests`` slots more, so
    that the slots of one batch may stand in a row. ``alloc`` and ``resolve`` are a learner's.
    """

    def __init__(
        self,
        device: Device,
        max_running_requests: int,
        limit: int = 0,
        alloc: Alloc | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        FutureMap.__init__(self, device)
        self.future_ct, self.future_limit = 0, limit or 3 * max_running_requests
        self.num_slots = self.future_limit + max_running_requests
        self.kept_in = self.token_ids_map = device.memory("future map", self.num_slots + 1)
        self.recorder.mark("future map", limit=self.future_limit, size=self.num_slots)
        self.alloc, self.resolve_ids, self.notes = alloc, resolve, RingNotes()

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """A row that decodes reads its slot; every row gets a new one."""
        ids: list[int] = []
        for row in batch.rows:
            if placeholder := is_decode(row):
                self.notes.note_read(batch.step, row.req.rid, row.lease.future_slot, len(ids))
            ids += [-row.lease.future_slot] if placeholder else known(row)
        try:
            indices = list(self.alloc_future_indices(len(batch.rows)))
        except BeyondLimit as error:
            self.notes.beyond = error.slot, batch.step, batch.rids[0]
            raise
        self.notes.note_slots(batch.step, batch.rids, indices)
        for lease, index in zip(batch.leases, indices, strict=True):
            lease.future_slot = index
        self.recorder.counter("future slots", self.future_ct)
        self.record(batch, ids, indices)
        return ids, indices

    def alloc_future_indices(self, num_reqs: int) -> Any:
        """The learner's, checked; or the package's.

        Raises:
            Mistake: what the learner's lines give are no slots.
        """
        if self.alloc is None:
            return super().alloc_future_indices(num_reqs)
        asked = self.future_ct, num_reqs, self.future_limit
        indices, self.future_ct = checked(self.call(self.alloc, *asked), asked, self.num_slots)
        return indices

    def resolve_future(self, ids: Array) -> Array:
        """The learner's, or the package's.

        Raises:
            Mistake: what the learner's lines give are no tokens.
        """
        if self.resolve_ids is None:
            return super().resolve_future(ids)
        given = self.call(self.resolve_ids, list(ids), list(self.token_ids_map[:]))
        self.notes.looked_up.append((list(ids), given))
        if not _are_integers(given) or len(given) != len(ids):
            self.notes.problem = (
                f"Your resolve({list(ids)}, ...) gave {_short(given)}, but it must give a list of "
                f"{len(ids)} integer{'s' if len(ids) > 1 else ''}, one for each id."
            )
            raise Mistake(self.notes.problem)
        return self.xp.asarray(given)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a learner's lines; what they raise on the device is noted before it is lost."""
        try:
            with bounded():
                return function(*args)
        except Exception as error:
            self.notes.problem = blame(error)
            raise


def checked(given: Any, asked: tuple[int, int, int], num_slots: int) -> tuple[list[int], int]:
    """The slots of a batch and the counter behind them; ``asked`` is what alloc was called with.

    Raises:
        Mistake: they are something else, too many or too few, outside of the buffer, or begin
            beyond the limit.
    """
    _, num_reqs, limit = asked
    call = f"your alloc({', '.join(map(str, asked))}) gave {_short(given)}"
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], int)):
        raise Mistake(f"{call}, but it must give two things: slots, and the new counter")
    slots = list(given[0]) if isinstance(given[0], list | tuple | range) else given[0]
    if not _are_integers(slots) or len(slots) != num_reqs:
        plural = "s" if num_reqs > 1 else ""
        raise Mistake(
            f"{call}, but its first part must be a list or range of {num_reqs} slot{plural}"
        )
    if any(not 1 <= slot <= num_slots for slot in slots):
        raise Mistake(f"{call}, but the buffer has the slots 1 to {num_slots} (0 would be a token)")
    if slots[0] > limit:
        problem = f"{call}, but slots begin at 1 again once {limit} of them are handed out"
        raise BeyondLimit(problem, slots[0])
    return slots, given[1]


def is_decode(row: Row) -> bool:
    """Whether a row continues behind its prompt."""
    return row.start >= len(row.req.prompt)


def known(row: Row) -> list[int]:
    """The tokens of a row of a prompt: the host has all of them."""
    return [token for token in row.ids if token is not None]


def _are_integers(given: Any) -> bool:
    return isinstance(given, list) and all(type(item) is int for item in given)


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."


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


# -- How large must the ring be: a formula, tried in runs, and then held against what is needed ----

CONTEXT = 19  # the most tokens of a request here, its prompt and its new ones
CHUNKED = WorkloadLimits(
    requests=3, prompt=CONTEXT - 1, arrives_ms=40, chunks=(1, 2, 4, CONTEXT), may_stop=False,
    context=CONTEXT,
)  # fmt: skip
MOST = 8  # requests at a time, in the runs
GRID = ((1, 2, 3, 8, 64, 256), (16, 19, 1000, 4096, 32768), (1, 4, 64, 512, 8192))
Limit = Callable[[int, int, int], Any]


@in_time
def check_limit(limit: Limit) -> ExerciseVerdict:
    """Whether ``limit(max_running_requests, context_len, chunk)`` slots are enough, and not silly.

    Prompts come in chunks here, and each chunk takes a slot while others wait for their next step.
    """
    if problem := takes(limit, "limit", "max_running_requests", "context_len", "chunk"):
        return ExerciseVerdict(False, [problem])
    ours = list(product(range(1, MOST + 1), [CONTEXT], CHUNKED.chunks))
    for case in ours:
        if problem := _silly(limit, case) or _too_small(limit, case, case[0]):
            return ExerciseVerdict(False, [problem])

    def playing(workload: ExerciseWorkload) -> Trial:
        size = limit(workload.max_running_requests, CONTEXT, workload.chunk)
        return play_ring(workload, limit=size)

    queues = [queue_of_prompts(most, chunk) for most in (2, 4, MOST) for chunk in CHUNKED.chunks]
    if failed := try_all(playing, CHUNKED, explain=why, draw=draw_slots, hard=queues):
        return failed
    for case in product(*GRID):
        if problem := _silly(limit, case) or _too_small(limit, case, needed(*case)):
            return ExerciseVerdict(False, [problem])
    chunks = joined(list(map(str, CHUNKED.chunks)))
    return right(
        f"Prompts of up to {CONTEXT - 1} tokens came in chunks of {chunks}, also several of the "
        "longest in a row, and no slot was lapped. The formula itself was held against what is "
        f"needed in {len(list(product(*GRID)))} more cases, up to {GRID[0][-1]} requests of "
        f"{GRID[1][-1]} tokens."
    )


def queue_of_prompts(max_running_requests: int, chunk: int) -> ExerciseWorkload:
    """One request that is to decode, and behind it as many of the longest prompts as may run."""
    long = tuple(range(CONTEXT - 1))
    others = [Asked(rid, long, 1) for rid in "bcdefgh"[: max_running_requests - 1]]
    return ExerciseWorkload((Asked("a", (1,), 3), *others), max_running_requests, chunk)


def needed(most: int, context: int, chunk: int) -> int:
    """The least that can do: a slot for each chunk of everybody in front, and the own one."""
    return max(most, (most - 1) * -(-(context - 1) // chunk) + 1)


def _silly(limit: Limit, case: tuple[int, ...]) -> str:
    """One sentence on a limit that is no number, or more than twice what is needed; or nothing."""
    call = f"limit{case}"
    try:
        with bounded():
            size = limit(*case)
    except (Exception, TooLong) as error:
        return f"{call}: {blame(error)}"
    if type(size) is not int:
        return f"{call} gives {size!r}, but it must be a whole number of slots."
    highest = 2 * case[0] * (3 + -(-case[1] // case[2]))
    if size <= highest:
        return ""
    return (
        f"{call} gives {size}, but at most {highest} make sense there: memory is dear.{_of(case)}"
    )


def _too_small(limit: Limit, case: tuple[int, ...], least: int) -> str:
    """One sentence on a limit with which slots are taken too early; or nothing."""
    size, others = limit(*case), case[0] - 1
    if size >= least:
        return ""
    if least == case[0]:
        return (
            f"limit{case} gives {size}, but there must be at least {least}, a slot for each "
            f"request.{_of(case)}"
        )
    return (
        f"limit{case} gives {size}, but there must be at least {least}: {others} prompts may stand "
        f"in front of a request, each of up to {case[1] - 1} tokens, in chunks of {case[2]}."
    )


def _of(case: tuple[int, ...]) -> str:
    """Where the numbers of a case come from, if they are not made up."""
    if case[1] != CONTEXT:
        return ""
    return f" ({CONTEXT}: the longest request of the runs here, prompt and new tokens.)"
