"""An exercise is a table: a hole in the package, what fills it, and what that is held against.

Each lesson has a file of them in ``learn/exercises``, whose ``EXERCISES`` is found by itself. The
lesson's cell holds ``start`` and ends with ``learn.check("cut", cut)``. From the same table come
the tests. A whole one::

    Exercise(
        name="cut",                       # of the function or class that the learner writes
        lesson="04_prefill",              # the lesson's file, without .py
        hole=Function(                    # or Loop(..), or Pure(..)
            "policy.budget:PrefillBudget.cut",
            call=lambda cut, self, n: cut(self.rem_chunk_tokens, self.page_size, n),
        ),
        start='''
    def cut(rem_chunk, page_size, extend_len):
        return extend_len
    ''',
        solution='''
    def cut(rem_chunk, page_size, extend_len):
        if rem_chunk is None or extend_len <= rem_chunk:
            return extend_len
        return rem_chunk // page_size * page_size
    ''',
        mistakes=(                        # words of the solution, what stands there instead, and
            ("// page_size * page_size", "", "a page is half"),  # words that the checker says
        ),
        workloads=Workloads(level="tight", want=lambda case: case.workload.config.page_size > 1),
        laws=(),                          # of ``checks/judge.py``; without any, all of them
        extra=(no_step_over_the_chunk,),  # takes a ``Attempt``; a sentence, or nothing
        no_worse=(("makespan", 1.02),),   # than the package's own lines on the same case
        reach=4,                          # situations in which the hole must have been called
        picture="timing",                 # or a topic of ``topics.py``, of the run that is right
        hints=("What may a chunk end in the middle of?", "Whole pages: `//` and `*`."),
        why="Three sentences. Why it works. What comes next.",
    )
"""

from __future__ import annotations

import importlib
import linecache
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random
from textwrap import dedent
from typing import Any

from ..checks.case import Case
from ..checks.draw import LEVELS, at_level, draw, read_design
from ..checks.judge import Verdict
from ..devices.cost import NO_COST, CostModel, of_milliseconds
from ..engine.engine import Engine
from ..loops.design import Turns, find_loop, registered
from ..loops.run import wire
from ..museum.exhibit import case
from ..museum.patch import swapped
from ..scheduler import Scheduler, SchedulerConfig
from .guard import Mistake, TooLong, blame, bounded, unwatched
from .runs import VOCAB

COST = of_milliseconds(host=6, device=10, copy=1)

# -- What is heard of a learner's lines while they run ---------------------------------------------


@dataclass
class Calls:
    """The situations in which the learner's lines were called, and the first error of theirs."""

    situations: set[str] = field(default_factory=set)
    raised: str = ""
    last: tuple[tuple[Any, ...], Any] | None = None  # of a function: what it took and gave
    empty_turns: int = 0  # of a loop: nothing launched, processed, or slept
    in_flight: dict[int, None] = field(default_factory=dict)  # of a loop: steps, the oldest first

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call what runs a learner's lines: their instructions are counted, their errors noted."""
        try:
            with bounded():
                return function(*args, **options)
        except StopIteration:
            raise
        except (Exception, TooLong) as error:
            self.raised = self.raised or blame(error)
            raise


def sketch(thing: Any) -> str:
    """What tells one situation from another."""
    if isinstance(thing, list | tuple | set | frozenset):
        return f"[{' '.join(map(sketch, thing))}]"
    plain = thing if isinstance(thing, int | float | str) else ""
    return str(getattr(thing, "rid", None) or plain)


# -- Holes -----------------------------------------------------------------------------------------


PHASES = ("recv_requests", "get_next_batch_to_run", "chain", "run_batch", "process_batch_result",
          "wait_for", "process_result", "on_idle", "must_delay_sample", "update_vocab_mask",
          "launch_batch_sample_if_needed")  # fmt: skip
WORK = ("run_batch", "process_batch_result", "process_result", "on_idle")


@dataclass(frozen=True)
class Loop:
    """A whole loop, in the place of the body of ``base``: its relay, depth and scheduler stay.

    ``call`` makes a loop of what a learner writes, where that is less: one turn, or one decision.
    ``also`` is as in ``Function``; ``scheduler`` makes one of what a learner writes, where they
    write that, too.
    """

    base: str = "overlap"
    call: Callable[[Any], Callable[[Engine], Turns]] = lambda lines: lines
    also: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    scheduler: Callable[[Any, Calls], Callable[..., Scheduler]] | None = None

    @contextmanager
    def filled(self, lines: Any) -> Iterator[Calls]:
        """Within the block the loop ``yours`` is the learner's."""
        calls = Calls()

        def turns(engine: Engine, **options: Any) -> Turns:
            work, done, taken = [0], set[int](), set[int]()
            for name in PHASES:
                phase = _watched(name, getattr(engine, name), work, done, taken, calls.in_flight)
                setattr(engine, name, phase)
            loop = calls.call(self.call(lines), engine)
            if not isinstance(loop, Iterator):
                calls.raised = (
                    "Your loop gave back no turns: it needs a `yield` at the end of each."
                )
                raise ValueError(calls.raised)
            while True:
                before = work[0]
                try:
                    batch = calls.call(next, loop)
                except StopIteration:
                    calls.raised = "Your loop came to its end; it must go on for ever."
                    raise ValueError(calls.raised) from None
                calls.empty_turns += work[0] == before
                calls.situations.add(f"{sorted(engine.scheduler.live)} {work[0] - before}")
                yield batch

        spec, also = replace(find_loop(self.base), run=turns, options={}, lanes={}), {**self.also}
        if self.scheduler is not None:
            also["loops.run:make_engine"] = partial(engine_with, self.scheduler(lines, calls))
        with registered("yours", spec), swapped(also):
            yield calls

    def on(self, case: Case) -> Case:
        """The case on the learner's loop."""
        return replace(case, loop="yours", relay="", options={})


def engine_with(
    scheduler: Callable[..., Scheduler], loop: str, device: Any, model: Any,
    config: SchedulerConfig, frontend: Any, cost: CostModel = NO_COST, relay: str = "",
    **options: object,
) -> Engine:  # fmt: skip
    """``make_engine`` with another scheduler."""
    spec = find_loop(loop)
    spec = replace(spec, options={**spec.options, **options})
    return wire(
        loop, spec, device, model, config, frontend, cost, relay, scheduler_class=scheduler
    )  # fmt: skip


def _watched(
    name: str,
    phase: Callable[..., Any],
    work: list[int],
    done: set[int],
    taken: set[int],
    in_flight: dict[int, None],
) -> Callable[..., Any]:
    """A phase that counts as ``work``, and says in plain words what it can't do."""
    free = unwatched(phase)

    def call(*args: Any, **options: Any) -> Any:
        work[0] += name in WORK
        if name == "run_batch" and not args[0]:
            raise Mistake("`run_batch` got no batch: there was nothing to run; test `batch` first")
        if name == "get_next_batch_to_run" and taken:
            raise Mistake(f"step {min(taken)} was taken from `{name}` and never launched")
        if name == "launch_batch_sample_if_needed" and args[0].delay_sample_func is not None:
            missing_history = unwatched(phase.__self__.missing_history)  # type: ignore[attr-defined]
            if lacking := missing_history(args[0].batch):
                raise Mistake(
                    f"the sampling of step {args[0].batch.step} was launched too early: its "
                    f"{lacking} needs a token that is not processed yet. First process the result "
                    "of the step before, then launch the sampling"
                )
        if name == "process_batch_result":
            step = args[0].batch.step
            if step in done:
                raise Mistake(f"step {step} has already been processed")
            done.add(step)
            in_flight.pop(step, None)
        given = free(*args, **options)
        if name == "get_next_batch_to_run" and given:
            taken.add(given.step)
        if name == "run_batch":
            in_flight[given.batch.step] = None
            taken.discard(given.batch.step)
        return given

    return call


@dataclass(frozen=True)
class Function:
    """A function or method of the package, swapped while something runs.

    ``where`` is ``module:function`` or ``module:Class.method``, with the module's path below
    ``minisched``. ``call(lines, *args)`` gives the learner's lines what they take, and turns what
    they give back into what the package wants; by itself both have the same arguments. ``also`` are
    other functions that are not as they are meanwhile: as a system had them once.
    """

    where: str
    call: Callable[..., Any] = lambda lines, *args, **options: lines(*args, **options)
    also: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    @contextmanager
    def filled(self, lines: Any) -> Iterator[Calls]:
        """Within the block the package calls the learner's lines."""
        calls = Calls()

        def noted(*args: Any, **options: Any) -> Any:
            calls.situations.add(sketch(args))
            given = lines(*args, **options)
            calls.last = args, given
            return given

        def yours(*args: Any, **options: Any) -> Any:
            return calls.call(self.call, noted, *args, **options)

        with swapped({**self.also, self.where: yours}):
            yield calls

    def on(self, case: Case) -> Case:
        """The case as it is: what runs is the package's, but for the hole."""
        return case


@dataclass(frozen=True)
class Pure:
    """Something that the package does not call: held against ``truth`` or a property, case by case.

    ``cases`` gives tuples of arguments, the smallest first: the first that fails is told.
    ``truth(*args)`` is what is right; or ``holds(answer, *args)`` says in a sentence what is wrong,
    and runs none of the learner's lines.
    ``call(lines, *args)`` is what is done with the learner's lines, which may be a class.
    ``draw(answer, *args)`` gives an SVG of what they made of a case, or nothing.
    """

    cases: Callable[[], Iterable[tuple[Any, ...]]]
    truth: Callable[..., Any] | None = None
    holds: Callable[..., str] | None = None
    call: Callable[..., Any] = lambda lines, *args: lines(*args)
    draw: Callable[..., str] | None = None

    def wrong(self, lines: Any, args: tuple[Any, ...], calls: Calls) -> tuple[str, Any]:
        """What is wrong with the answer for these arguments, or nothing; and the answer."""
        try:
            answer = calls.call(self.call, lines, *deepcopy(args))
            if self.holds is not None:
                return self.holds(answer, *args), answer
        except (Exception, TooLong) as error:
            return f"With {shown(args)}: {blame(error)}", None
        assert self.truth is not None
        right = self.truth(*deepcopy(args))
        if type(answer) is type(right) and answer == right:
            return "", answer
        return (
            f"With {shown(args)} it gives {short(answer)}, should give {short(right)}.",
            answer,
        )


def shown(args: tuple[Any, ...]) -> str:
    """Arguments in a sentence."""
    return ", ".join(map(short, args)) or "nothing"


def short(thing: Any) -> str:
    """A value in a sentence."""
    text = repr(thing)
    return f"`{text}`" if len(text) <= 120 else f"`{text[:117]}...`"


# -- Workloads -------------------------------------------------------------------------------------


def every_case(case: Case) -> bool:
    """Each of them."""
    return True


@dataclass(frozen=True)
class Workloads:
    """Cases on the loop ``on``: some made by hand, and random ones up to a level that are wanted.

    Of several levels the next is tried when the one before holds, and time at last.

    ``show`` is the one that is drawn where all is well, and whose speed-up is told. ``at_once``
    lets everybody come in turn 0 and stay: so that a loop can be timed whose turns are not those of
    the package's. ``first`` are cases made by hand that one of several levels begins with.
    """

    on: str = "overlap"
    level: str | tuple[str, ...] = "plain"
    seeds: int = 40
    cases: tuple[Case, ...] = ()
    want: Callable[[Case], bool] = every_case
    change: Callable[[Case], Case] = lambda case: case
    cost: CostModel = COST
    show: Case | None = None
    at_once: bool = False
    first: Mapping[str, tuple[Case, ...]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Case]:
        yield from self.cases
        for level in self.levels:
            yield from self.drawn(level)

    @property
    def levels(self) -> tuple[str, ...]:
        """One after the other; mostly there is one."""
        return (self.level,) if isinstance(self.level, str) else self.level

    def drawn(self, level: str) -> Iterator[Case]:
        """The random cases of a level, behind those that it begins with."""
        yield from self.first.get(level, ())
        design = read_design(self.on)
        for seed in range(self.seeds):
            drawn = draw(seed, odd=False)
            workload = at_level(drawn.workload, level)
            if self.at_once:
                workload = replace(workload, arrivals=[0] * len(workload.arrivals), aborts={})
            drawn = replace(drawn, workload=workload, cost=self.cost)
            made = self.change(drawn.on(design))
            if self.want(made):
                yield made

    @property
    def is_tight(self) -> bool:
        """Whether settings matter: memory, pages, chunks."""
        return bool(self.cases) or not {*self.levels} <= {*LEVELS[:2]}

    @property
    def shown(self) -> Case:
        """The case to draw."""
        plain = "a: 1 2 3 4 -> 12; b: 2 3 4 5 -> 12"
        loop, _, relay = self.on.partition(":")
        return self.show or case(
            plain, f"{loop}:{relay.partition(':')[0]}".rstrip(":"), kv=64, rows=2,
            vocab_size=VOCAB, cost=self.cost,
        )  # fmt: skip


def asked(random: Random, rid: str, turn: int, prompt: int, new: int) -> str:
    """One request as ``museum.exhibit.case`` reads it, its prompt of so many random tokens."""
    tokens = " ".join(str(random.randrange(19)) for _ in range(prompt))
    return f"{rid} at {turn}: {tokens} -> {new}"


# -- The table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One case with a learner's lines in the hole: what ``extra`` laws look at."""

    case: Case
    verdict: Verdict
    calls: Calls


@dataclass(frozen=True)
class Exercise:
    """See the module's text, which has a whole one."""

    name: str
    lesson: str
    hole: Loop | Function | Pure
    start: str
    solution: str
    mistakes: tuple[tuple[str, str, str], ...]
    workloads: Workloads = field(default_factory=Workloads)
    laws: tuple[str, ...] = ()
    extra: tuple[Callable[[Attempt], str], ...] = ()
    no_worse: tuple[tuple[str, float], ...] = ()
    reach: int = 4
    picture: str = "timing"
    beside: str = "serial"  # the design whose run is drawn above theirs; "": none
    hints: tuple[str, ...] = ()
    why: str = ""
    survivors: tuple[str, ...] = ()  # mutants of the solution that are as good: a line of each

    def lines(self, text: str) -> Any:
        """What a text defines under the exercise's name."""
        text, place = dedent(text).strip() + "\n", f"<lines of {self.name} {hash(text)}>"
        linecache.cache[place] = len(text), None, text.splitlines(keepends=True), place
        names: dict[str, Any] = {"__name__": "lesson"}
        exec(compile(text, place, "exec"), names)
        return names[self.name]

    def mistaken(self) -> Iterator[tuple[str, str]]:
        """The text of each known mistake, and the words that it must be told with.

        Raises:
            ValueError: the solution does not have the words that a mistake changes.
        """
        solution = dedent(self.solution)
        for old, new, says in self.mistakes:
            if old and old not in solution:
                raise ValueError(f"the solution of {self.name} has no {old!r} in it.")
            yield solution.replace(old, new) if old else new, says


@cache
def exercises() -> dict[str, Exercise]:
    """All of them by name, in the order of the lessons.

    Raises:
        ValueError: two have one name.
    """
    package = importlib.import_module(f"{__package__}.exercises")
    found: dict[str, Exercise] = {}
    for module in sorted(item.name for item in pkgutil.iter_modules(package.__path__)):
        for one in importlib.import_module(f"{package.__name__}.{module}").EXERCISES:
            if one.name in found:
                raise ValueError(f"{one.name!r} is an exercise of {found[one.name].lesson}, too.")
            found[one.name] = one
    return found


def find(name: str) -> Exercise:
    """The exercise of that name.

    Raises:
        ValueError: there is none.
    """
    known = exercises()
    if name not in known:
        raise ValueError(f"there is no exercise {name!r}; there are {', '.join(known)}.")
    return known[name]
