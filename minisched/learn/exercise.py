"""An exercise is a table: a hole in the package, what fills it, and what that is held against.

Each lesson has a file of them in ``learn/exercises``, and every ``EXERCISES`` there is found
(``l04_long_prompt.py`` begins with one that has nearly everything). A learner begins with the
lesson's cell, which ends with ``learn.check("cut", cut)``. The tests are made from the same table,
and from ``tests/learn/mistakes.py``.
"""

from __future__ import annotations

import importlib
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import signature
from math import isclose
from pathlib import Path
from pkgutil import iter_modules
from random import Random
from textwrap import dedent
from typing import Any

from ..checks.case import Case
from ..checks.draw import LEVELS, at_level, draw, read_design
from ..checks.judge import Finding, Verdict
from ..devices.cost import CostModel, of_milliseconds
from ..engine.engine import Engine
from ..loops.design import Turns, find_loop, registered
from ..museum.exhibit import case
from ..museum.patch import Edit, put_in, swapped
from .guard import MOST_OPCODES, PACKAGE, Mistake, TooLong, blame, bounded, unwatched
from .runs import VOCAB

COST = of_milliseconds(host=6, device=10, copy=1)

# -- Observations of a learner's lines while they run ----------------------------------------------


@dataclass
class Calls:
    """The situations in which the learner's lines were called, and the first error of theirs."""

    most_opcodes: int = MOST_OPCODES  # of the learner's, in one call
    situations: set[str] = field(default_factory=set)
    raised: str = ""
    is_endless: bool = False  # whether a call was stopped after ``most_opcodes``
    last: tuple[tuple[Any, ...], Any] | None = None  # arguments and answer of a function
    # Of a loop:
    turn: Counter[str] = field(default_factory=Counter)  # calls of each phase in this turn
    empty_turns: int = 0  # turns that launched, processed and slept nothing
    idle_turns: int = 0  # turns that slept and also launched or processed
    taken: int = 0  # the step that was scheduled and is not launched yet
    may_fill: bool = False  # whether the last schedule had a batch
    harvested: list[tuple[int, int]] = field(default_factory=list)  # meanwhile: step, in flight
    in_flight: dict[int, None] = field(default_factory=dict)  # steps, the oldest first
    delayed: list[int] = field(default_factory=list)  # steps without sampling that lack no token

    def end_turn(self, live: Iterable[str]) -> None:
        """Count the turn that a loop has ended, with the requests that live then."""
        launched_or_processed = sum(self.turn[name] for name in WORK)
        self.empty_turns += not launched_or_processed and not self.turn["on_idle"]
        self.idle_turns += bool(launched_or_processed and self.turn["on_idle"])
        worked = launched_or_processed + self.turn["on_idle"]
        self.situations.add(f"{sorted(live)} {worked}")
        self.turn.clear()

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call what runs a learner's lines: their instructions are counted, their errors noted."""
        try:
            with bounded(self.most_opcodes):
                return function(*args, **options)
        except StopIteration:
            raise
        except (Exception, TooLong) as error:
            self.raised = self.raised or blame(error)
            self.is_endless = isinstance(error, TooLong)
            raise

    def stop(self, words: str) -> Mistake:
        """A mistake that was none of a line's."""
        mistake = Mistake(words)
        self.raised = blame(mistake)
        return mistake


def sketch(thing: Any) -> str:
    """Return a text that differs where two situations differ."""
    if isinstance(thing, list | tuple | set | frozenset):
        return f"[{' '.join(map(sketch, thing))}]"
    plain = thing if isinstance(thing, int | float | str) else ""
    return str(getattr(thing, "rid", None) or plain)


# -- Holes -----------------------------------------------------------------------------------------

PHASES = ("recv_requests", "get_next_batch_to_run", "chain", "run_batch", "process_batch_result",
          "wait_for", "process_result", "on_idle", "must_delay_sample", "update_vocab_mask",
          "launch_batch_sample_if_needed")  # fmt: skip
WORK = ("run_batch", "process_batch_result", "process_result")
MOST_CALLS = 200  # of one phase in one turn
DRAWN = 400  # arguments of a function
MOST_DRAWN_OPCODES = 3_000_000  # for one of them: a right answer may sort 300 items slowly
PACKAGE_LOOPS = str(Path(PACKAGE, "loops"))


@dataclass(frozen=True)
class Loop:
    """A whole loop instead of the body of ``base``: its relay, depth and scheduler stay.

    ``call`` makes a loop of what a learner writes, where that is less: one turn, or one decision.
    ``takes`` names the options of ``base`` that it gets after the engine.
    ``bug`` is as in ``Function``; ``swaps`` are functions of the package that are others meanwhile,
    made of what a learner writes, where that is more than a loop.
    """

    base: str = "overlap"
    call: Callable[[Any], Callable[..., Turns]] = lambda lines: lines
    takes: tuple[str, ...] = ()
    bug: tuple[Edit, ...] = ()
    swaps: Callable[[Any, Calls], Mapping[str, Callable[..., Any]]] = lambda lines, calls: {}

    @contextmanager
    def filled(self, lines: Any) -> Iterator[Calls]:
        """Within the block the loop ``yours`` is the learner's."""
        calls = Calls()

        def turns(engine: Engine, **options: Any) -> Turns:
            for name in PHASES:
                setattr(engine, name, _watched(engine, name, calls))
            loop = calls.call(self.call(lines), engine, *(options[name] for name in self.takes))
            if not isinstance(loop, Iterator):
                raise calls.stop("your loop gave back no turns: each ends with a `yield`")
            while True:
                try:
                    batch = calls.call(next, loop)
                except StopIteration:
                    raise calls.stop("your loop came to its end; it must go on for ever") from None
                calls.end_turn(engine.scheduler.live)
                yield batch

        base = find_loop(self.base)
        spec = replace(base, run=turns, options=self.taken(base.options), lanes={})
        with registered("yours", spec), put_in(self.bug), swapped(self.swaps(lines, calls)):
            yield calls

    def taken(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that the learner's loop takes."""
        return {name: value for name, value in options.items() if name in self.takes}

    def on(self, case: Case) -> Case:
        """The case on the learner's loop."""
        return replace(case, loop="yours", relay="", options=self.taken(case.options))


def _watched(engine: Engine, name: str, calls: Calls) -> Callable[..., Any]:
    """Return a phase as a learner's loop calls it: it notes steps and refuses wrong calls."""
    phase, missing_history = unwatched(getattr(engine, name)), unwatched(engine.missing_history)

    def problem(given: Any, caller: str) -> str:
        if caller.startswith(PACKAGE_LOOPS):
            return "this is a loop of the package. Write its turns yourself"
        if calls.turn[name] > MOST_CALLS:
            return (
                f"one turn of your loop called `{name}` {MOST_CALLS} times, as no `yield` ends the "
                "turn. Put the `yield` at the end of the `while` block"
            )
        match name:
            case "get_next_batch_to_run" | "chain" if calls.taken:
                return f"step {calls.taken} was taken from `{name}` and never launched"
            case "run_batch" if not given:
                return "`run_batch` got no batch: there was nothing to run; test `batch` first"
            case "process_batch_result" if given.batch.step not in calls.in_flight:
                return f"step {given.batch.step} has already been processed"
            case "launch_batch_sample_if_needed" if given.delay_sample_func is not None:
                if lacking := missing_history(given.batch):
                    return (
                        f"the sampling of step {given.batch.step} was launched too early: its "
                        f"{lacking} needs a token that is not processed yet. First process the "
                        "result of the step before, then launch the sampling"
                    )
        return ""

    def call(*args: Any, **options: Any) -> Any:
        calls.turn[name] += 1
        caller = sys._getframe(1).f_code.co_filename
        if said := problem(args[0] if args else None, caller):
            raise Mistake(said)
        if name == "run_batch" and options.get("delay_sample") and not missing_history(args[0]):
            calls.delayed.append(args[0].step)
        found = phase(*args, **options)
        match name:
            case "get_next_batch_to_run":
                calls.taken, calls.may_fill = found.step if found else 0, bool(found)
            case "chain":
                calls.taken = found.step if found else 0
            case "run_batch":
                calls.taken = 0
                calls.in_flight[found.batch.step] = None
            case "process_batch_result":
                if calls.may_fill:
                    calls.harvested.append((args[0].batch.step, len(calls.in_flight)))
                calls.in_flight.pop(args[0].batch.step)
        return found

    return call


@dataclass(frozen=True)
class Function:
    """A function or method of the package, swapped while something runs.

    ``where`` is ``module:function`` or ``module:Class.method``, with the module's path below
    ``minisched``. ``call(lines, *args)`` gives the learner's lines what they take, and turns what
    they give back into what the package wants; by itself both have the same arguments. ``bug`` is
    in the code meanwhile: a line as a system had it once. ``others`` returns functions of the
    package that are replaced meanwhile, for one run of the checker.

    ``asked(random)`` draws arguments of the learner's lines that a run can have. There they must
    answer as the solution does; ``counts(answer, *args)`` is the part of an answer that counts.
    """

    where: str
    call: Callable[..., Any] = lambda lines, *args, **options: lines(*args, **options)
    bug: tuple[Edit, ...] = ()
    others: Callable[[], Mapping[str, Callable[..., Any]]] = lambda: {}
    asked: Callable[[Random], tuple[Any, ...]] | None = None
    counts: Callable[..., Any] = lambda answer, *args: answer

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

        with put_in(self.bug), swapped({self.where: yours, **self.others()}):
            yield calls

    def on(self, case: Case) -> Case:
        """The case as it is: what runs is the package's, but for the hole."""
        return case

    def difference(self, lines: Any, solution: Callable[..., Any]) -> str:
        """Return a sentence on the smallest drawn arguments with a wrong answer, or ''."""
        calls = Calls(MOST_DRAWN_OPCODES)

        def wrong(*args: Any) -> str:
            right, words = solution(*deepcopy(args)), with_arguments(solution, args)
            given = deepcopy(args)
            try:
                answer = calls.call(lines, *given)
                if not self.is_same(answer, right, args):
                    return f"{words} it gives {short(answer)}, should give {short(right)}."
                written = overwritten(solution, args, given)
                return f"{words} {written}." if written else ""
            except (Exception, TooLong) as error:
                return f"{words}: {blame(error)}"

        return shortest(wrong, self.asked, calls)

    def is_same(self, answer: Any, right: Any, args: tuple[Any, ...]) -> bool:
        """Return whether what counts of an answer is what counts of the right one."""
        try:
            return is_alike(self.counts(answer, *args), self.counts(right, *args))
        except (AttributeError, TypeError):  # it is of another kind
            return False


@dataclass(frozen=True)
class Scored(Function):
    """A decision without a formula: graded by the points of one workload of ``score.py``.

    ``enough`` points are needed, and a makespan of at most ``slowest`` times that with the
    package's own lines. ``retractions``: the most that the run may have. The same holds on the
    workload ``second``, which refuses a constant that fits the first one.
    """

    workload: str = ""
    second: str = ""
    loop: str = "overlap"
    enough: float = 0.0
    slowest: float = 1.05
    retractions: int = 0


@dataclass(frozen=True)
class Pure:
    """Something that the package does not call: held against ``truth`` or a property, case by case.

    ``cases`` gives tuples of arguments, the smallest first: the verdict is on the first that fails.
    ``truth(*args)`` is the right answer; with ``near`` it is a number, measured in ``unit``, and an
    answer may be off by that share. Or ``holds(answer, *args)`` returns a sentence on what is
    wrong, and runs none of the learner's lines.
    ``call(lines, *args)`` calls the learner's lines, which may be a class.
    ``draw(answer, *args)`` returns an SVG of their answer to a case, or ''.

    ``asked(random)`` draws more arguments of a formula that ``cases`` hold against runs. There the
    lines must answer as the solution does.
    """

    cases: Callable[[], Iterable[tuple[Any, ...]]]
    truth: Callable[..., Any] | None = None
    near: float = 0.0
    unit: str = ""
    holds: Callable[..., str] | None = None
    call: Callable[..., Any] = lambda lines, *args: lines(*args)
    draw: Callable[..., str] | None = None
    asked: Callable[[Random], tuple[Any, ...]] | None = None

    def difference(self, lines: Any, solution: Callable[..., Any]) -> str:
        """Return a sentence on the smallest drawn arguments with a wrong answer, or ''."""
        formula, calls = replace(self, truth=solution), Calls()
        return shortest(lambda *args: formula.wrong(lines, args, calls)[0], self.asked, calls)

    def wrong(self, lines: Any, args: tuple[Any, ...], calls: Calls) -> tuple[str, Any]:
        """Return a sentence on the answer for these arguments, or ''; and the answer."""
        names, given = self.truth or self.holds or self.call, deepcopy(args)
        asked = with_arguments(names, args)
        try:
            answer = calls.call(self.call, lines, *given)
            if written := overwritten(names, args, given):
                return f"{asked} {written}.", answer
            if self.holds is not None:
                return self.holds(answer, *args), answer
        except (Exception, TooLong) as error:
            return f"{asked}: {blame(error)}", None
        assert self.truth is not None
        right = self.truth(*args)
        if not self.near:
            is_right = type(answer) is type(right) and is_alike(answer, right)
            words = f"it gives {short(answer)}, should give {short(right)}"
        elif isinstance(answer, bool) or not isinstance(answer, int | float):
            is_right, words = False, f"it gives {short(answer)}, which is not a number"
        else:
            is_right = isclose(answer, right, rel_tol=self.near, abs_tol=self.near)
            words = f"it gives {answer:.7g}, should give {right:.7g} {self.unit}"
        return "" if is_right else f"{asked} {words}.", answer


def shortest(
    wrong: Callable[..., str], asked: Callable[[Random], tuple[Any, ...]] | None, calls: Calls
) -> str:
    """Return the shortest sentence of ``wrong`` on drawn arguments: it has the smallest values.

    Lines that never end would take too long for each of them, so the first such sentence is it.
    """
    random, found = Random(0), list[str]()
    for _ in range(DRAWN if asked else 0):
        words = wrong(*asked(random))  # type: ignore[misc]
        if calls.is_endless:
            return words
        found += [words] if words else []
    return min(found, key=lambda words: (len(words), words), default="")


def is_alike(mine: Any, due: Any) -> bool:
    """Return whether two answers are equal, and each whole number is one: no float or truth value.

    The same holds for the items of a list or tuple.
    """
    if isinstance(due, list | tuple) and type(mine) is type(due):
        return len(mine) == len(due) and all(map(is_alike, mine, due))
    return bool(mine == due) and (type(due) is not int or type(mine) is int)


def overwritten(function: Callable[..., Any], args: Any, given: Any) -> str:
    """Return words on the first of the ``given`` arguments that is not as in ``args`` any more.

    Objects that no comparison finds equal to their copies are left out.
    """
    for name, before, after in zip(names_of(function, args), args, given, strict=False):
        if before != after and before == deepcopy(before):
            return f"your lines write to `{name}`, which is then {short(after)}. Write to a copy"
    return ""


def names_of(function: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """Return the last parameters of a function, as many as there are arguments."""
    return [*signature(function).parameters][-len(args) :]


def with_arguments(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return ``With a 1, b 2``: the last parameters of a function, and their values."""
    pairs = zip(names_of(function, args), args, strict=False)
    given = (f"{name} {short(arg)}" for name, arg in pairs)
    return f"With {', '.join(given) or 'nothing'}"


def is_large(random: Random) -> bool:
    """Return whether to draw large arguments: one time in ten."""
    return random.random() < 0.1


def of_any_size(random: Random, least: int, most: int) -> int:
    """Draw ``most``, or a number from ``least`` on; each order of magnitude is as likely.

    So a bound that only a learner's lines have (16, 128, 2,048) is between some of the numbers.
    """
    share = 1.0 if random.random() < 0.2 else random.random()
    size: float = least * (most / least) ** share
    return round(size)


def short(thing: Any) -> str:
    """A value in a sentence; of a long list how it begins."""
    text = repr(thing)
    if isinstance(thing, int | float):
        return text
    if len(text) > 120:
        text = f"{text[:100]}..."
        return f"`{text}` ({len(thing)} of them)" if isinstance(thing, list) else f"`{text}`"
    return f"`{text}`"


# -- Workloads -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workloads:
    """Cases on the loop ``on``: some made by hand, and random ones up to a level that are wanted.

    ``show`` is the case of the picture and the speed-up of a right answer. With several levels, the
    next one is tried when the one before holds, and time at last; ``first`` are cases made by hand
    for the beginning of a level.
    """

    on: str = "overlap"
    levels: tuple[str, ...] = ("plain",)  # of ``checks/draw.py:LEVELS``
    seeds: int = 40
    cases: tuple[Case, ...] = ()
    want: Callable[[Case], bool] = lambda case: True
    change: Callable[[Case], Case] = lambda case: case
    cost: CostModel = COST
    show: Case | None = None
    first: Mapping[str, tuple[Case, ...]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Case]:
        yield from self.cases
        for level in self.levels:
            yield from self.drawn(level)

    def drawn(self, level: str) -> Iterator[Case]:
        """Yield the cases made by hand of a level, and then its random ones."""
        yield from self.first.get(level, ())
        design = read_design(self.on)
        for seed in range(self.seeds):
            drawn = draw(seed, odd=False)
            workload = at_level(drawn.workload, level)
            made = self.change(replace(drawn, workload=workload, cost=self.cost).on(design))
            if self.want(made):
                yield made

    @property
    def is_tight(self) -> bool:
        """Return whether settings matter: memory, pages, chunks."""
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


# -- The table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One case with a learner's lines in the hole, and the first thing that does not hold."""

    case: Case
    verdict: Verdict
    calls: Calls
    found: Finding | None = None


@dataclass(frozen=True)
class Exercise:
    """One row of the table: a learner's task, and the sentences of its verdict."""

    name: str  # of the function or class that they write
    hole: Loop | Function | Pure
    solution: str
    workloads: Workloads = field(default_factory=Workloads)
    laws: tuple[str, ...] = ()  # of ``checks/judge.py``; without any, all of them
    extra: tuple[Callable[[Attempt], str], ...] = ()  # a sentence on what is wrong, or nothing
    no_worse: tuple[tuple[str, float], ...] = ()  # one of ``grade.MEASURES``, by which factor
    reach: int = 4  # situations in which the hole must have been called
    picture: str = "timing"  # or a topic of ``topics.py``: of a run that is right
    beside: str = "serial"  # the design drawn above theirs; "": none
    hints: tuple[str, ...] = ()
    why: str = ""  # it works, and what comes next: three sentences
    lesson: str = ""  # its file, without .py: as that of the table begins

    def lines(self, text: str) -> Any:
        """Return the value that a text defines under the exercise's name."""
        text, place = dedent(text).strip() + "\n", f"<lines of {self.name} {hash(text)}>"
        linecache.cache[place] = len(text), None, text.splitlines(keepends=True), place
        names: dict[str, Any] = {"__name__": "lesson"}
        exec(compile(text, place, "exec"), names)
        return names[self.name]


@cache
def exercises() -> dict[str, Exercise]:
    """All of them by name, in the order of the lessons."""
    package = importlib.import_module(f"{__package__}.exercises")
    every = dict[str, Exercise]()
    for module in sorted(item.name for item in iter_modules(package.__path__)):
        for one in importlib.import_module(f"{package.__name__}.{module}").EXERCISES:
            every[one.name] = replace(one, lesson=module.removeprefix("l"))
    return every


def find(name: str) -> Exercise:
    """The exercise of that name.

    Raises:
        ValueError: there is none.
    """
    known = exercises()
    if name not in known:
        raise ValueError(f"there is no exercise {name!r}; there are {', '.join(known)}.")
    return known[name]
