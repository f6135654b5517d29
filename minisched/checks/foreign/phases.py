"""An engine's steps, and the phases of a step, as their authors call them in annotations.

A *step* is one turn of an engine, from the launch of a batch's forward pass to its tokens. Who
writes an engine says where one begins and ends, with ``torch.profiler.record_function``, an NVTX
range, or both:

- SGLang: ``scheduler.run_batch``, in it ``step[DECODE bs=32]``, ``step[EXTEND bs=15 toks=15360]``,
- vLLM: ``execute_context_3(128)_generation_2(2)``, also ``execute_5_context_..`` with the sums of
  the attention's lengths in the brackets, and ``execute_new_1_cached_2``,
- TensorRT-LLM: ``[Executor] _forward_step 7: 1 ctx reqs, ..``,
- anybody: ``step``, ``step 12``, ``iteration#3``, and ``ProfilerStep#3`` of ``torch.profiler``.

A name that the user gives goes before all of them. What else is annotated inside of a step are its
phases; the outermost one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

WORK = "work"  # where nothing is annotated
COUNTED = re.compile(r"[\s#:_-]*\d+$")  # forward 12, forward#12: one phase, however often
NOISE = re.compile(
    r", (op_id|seq) = \d+.*$| object at 0x[0-9a-f]+|^.*/(?=[^/]+\.py\(\d+\): )", re.DOTALL
)
TAKEN = frozenset({"wait", "receive"})  # of our own traces: blocked, or asleep until somebody comes

# what marks a step, and what it is called in a sentence; a kind is used if none above it is there
ENGINES = (
    (re.compile(r"scheduler\.run_batch"), "scheduler.run_batch"),
    (re.compile(r"execute_(\d+_)?context_.+|execute_new_\d+_cached_\d+"), "execute_…"),
    (re.compile(r"step\[.*"), "step[…]"),
    (re.compile(r"\[Executor\] _forward_step \d+.*"), "_forward_step …"),
)
ANYBODY = ((re.compile(r"(step|iteration)[\s#:_-]*\d*", re.IGNORECASE), "step"),)
OF_PROFILER = "ProfilerStep"  # around everything, so that as a phase it says nothing
PROFILER = ((re.compile(r"ProfilerStep(#\d+)?\*?"), OF_PROFILER),)
KINDS = (ENGINES, ANYBODY, PROFILER)


class Range(NamedTuple):
    """Anything else that a thread said it was doing: an operator, an annotation, a function.

    ``is_annotation`` where the engine's authors named it: ``record_function``, an NVTX range.
    """

    thread: str
    name: str
    start: int
    end: int
    is_annotation: bool = False


class Phase(NamedTuple):
    """An outermost annotation, its number left off; times in nanoseconds."""

    name: str
    start: int
    end: int


@lru_cache(1 << 12)
def plain(name: str) -> str:
    """A range's name without numbers of operators (``emit_nvtx``), addresses and folders."""
    return NOISE.sub("", name)


@lru_cache(1 << 12)
def step_named(name: str) -> str:
    """What the step is called that a range of this name marks; empty: it marks none."""
    name = plain(name)
    return next((said for kind in KINDS for what, said in kind if what.fullmatch(name)), "")


def namer(pattern: str) -> list[Callable[[str], bool]]:
    """What may mark a step, the best first: ``pattern`` alone, if there is one.

    A pattern is a name in full; ``*`` in it stands for any text.
    """
    if pattern:
        wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
        return [lambda name: bool(wanted.fullmatch(plain(name)))]
    return [_any_of(tuple(what for what, _ in kind)) for kind in KINDS]


def _any_of(whats: tuple[re.Pattern[str], ...]) -> Callable[[str], bool]:
    return lambda name: any(what.fullmatch(plain(name)) for what in whats)


class Phases:
    """Which phase a thread was in; it has to be asked in order of time."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        ranges = list(ranges)
        steps = (item for item in ranges if step_named(item.name) not in ("", OF_PROFILER))
        self.layers = [_Layer(outermost(ranges)), _Layer(_outermost(steps, step_named))]

    def cut(self, start: int, end: int) -> Iterator[Phase]:
        """The time from ``start`` to ``end``, cut where a phase begins or ends.

        What no phase of a step is around has the step's own name, and is ``work`` outside of one.
        """
        for phase in self.layers[0].cut(start, end):
            yield from self.layers[1].cut(*phase[1:]) if phase.name == WORK else (phase,)


class _Layer:
    """Phases of which none is in another one."""

    def __init__(self, phases: Iterable[Phase]) -> None:
        self.phases = list(phases)
        self.passed = 0

    def cut(self, start: int, end: int) -> Iterator[Phase]:
        """The same, with ``work`` wherever there is none."""
        while self.passed < len(self.phases) and self.phases[self.passed].end <= start:
            self.passed += 1
        at = self.passed
        while at < len(self.phases) and self.phases[at].start < end:
            name, since, until = self.phases[at]
            if start < since:
                yield Phase(WORK, start, since)
            yield Phase(name, max(start, since), min(until, end))
            start = min(until, end)
            at += 1
        if start < end:
            yield Phase(WORK, start, end)


def outermost(ranges: Iterable[Range]) -> Iterator[Phase]:
    """The annotations that are in no other one but in a step; ``ranges`` by their start."""

    def named(name: str) -> str:
        name = plain(name)
        if step_named(name) or name.startswith("aten::"):
            return ""
        name = COUNTED.sub("", name)
        return f"{name} (annotated)" if name in TAKEN else name

    return _outermost((item for item in ranges if item.is_annotation), named)


def _outermost(ranges: Iterable[Range], named: Callable[[str], str]) -> Iterator[Phase]:
    free: int | None = None
    for item in ranges:
        if (free is None or item.start >= free) and (name := named(item.name)):
            yield Phase(name, item.start, item.end)
            free = item.end
