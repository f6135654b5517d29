"""A design: a loop and its spec, both in the loop's own file.

A loop is a generator. Each ``yield`` ends one turn: receive, schedule, launch, process, in the
design's own order. ``@design(...)`` above it is the spec, with the design's name. ``LOOPS`` has all
designs.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any, TypeVar

from ..core import NoBatch, Request, ScheduleBatch
from ..core.form import wrong_form
from ..devices.registry import DEVICES
from ..engine.engine import Engine
from ..engine.metrics import Metrics
from ..relay import RELAYS, check_relay
from ..scheduler import Scheduler, SchedulerConfig
from ..worker import Worker

Turns = Iterator[ScheduleBatch | NoBatch]
Loop = TypeVar("Loop", bound=Callable[..., Turns])

OTHERS = ("token_pool", "prev_sampled", "request_state", "fill_device")
"""Relays of other designs. They fit a loop with two steps in flight if the worker binds and
launches its steps. They may not fit where a thread or another engine does a part of that."""


@dataclass(frozen=True)
class LoopSource:
    """The text of a loop. The ``line`` of a slice counts from the first of its lines."""

    name: str  # the function's
    path: str  # from the repository's root
    first_line: int  # the line of its ``def``, counted from 1
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Design:
    """A loop, and what it needs of scheduler, relay, worker and device.

    ``refuses`` maps a word to the reason, which is the end of a sentence. ``grammar`` and
    ``penalties`` are a request's own wish; it ends with the sentence as its error. An algorithm of
    speculation and ``beam search`` are the engine's: no engine is made. ``NGRAM`` looks drafts up
    on the host, and ``NGRAM_GPU`` (vLLM's ``ngram_gpu``) on the device. ``STANDALONE`` has a draft
    model. ``grammar with fill_device`` is refused with that relay only. ``other relays`` are all
    but ``relays``; without that word each relay checks its own needs. ``real devices`` are all but
    ``sim``.
    """

    run: Callable[..., Turns]
    relays: tuple[str, ...]  # that fit, the default first
    depth: int = 1  # steps in flight: output buffers, pinned batches, drafts past a length
    overrun: int = 0  # steps launched for a request past its length (policy/decode.py)
    follows: str = ""  # the published code
    rules: str = "sglang"  # of its system (policy/rules.py), unless the user names others
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the scheduler
    options: Mapping[str, Any] = field(default_factory=dict)  # of the loop
    worker: Callable[..., Worker[Any]] = Worker  # which launches the ops of its steps
    second_writer: bool = False  # another stream than the steps' writes KV of requests
    pins: int = 0  # steps with arrays pinned after their launch; 0: the host waits for each step
    refuses: Mapping[str, str] = field(default_factory=dict)
    begins: Callable[[Engine, int], None] | None = None  # before its first turn; of steps in flight
    whole_run: Callable[..., Metrics] | None = None  # instead of turns, if one engine is not enough
    lanes: Mapping[str, Callable[..., Turns]] = field(
        default_factory=dict
    )  # what runs on them then
    scheduler: Callable[..., Scheduler] = Scheduler  # made with the settings and the recorder
    source: LoopSource | None = None  # of a loop that is not this package's: a trace keeps it

    @property
    def in_flight(self) -> int:
        """Steps that can be in flight, with the options as they are."""
        return int(self.options.get("depth", self.depth))

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices on which it runs."""
        if "real devices" not in self.refuses:
            return tuple(DEVICES)
        return ("sim",)

    def start(self, engine: Engine, **options: Any) -> Turns:
        """The loop's turns on an engine; ``options`` go before the design's own.

        Raises:
            ValueError: with them more steps may be in flight than the engine was made for; or one
                engine is not enough.
        """
        if self.whole_run is not None:
            raise ValueError("it is two engines, so it runs only as a whole: with compare or run.")
        chosen = replace(self, options={**self.options, **options})
        if chosen.in_flight > engine.worker.depth:
            raise ValueError(
                f"depth is {chosen.in_flight}, but the worker was made for "
                f"{engine.worker.depth} steps in flight; the engine has to be made with the "
                "options that its loop is started with."
            )
        if (own := self.source) is not None:
            engine.device.recorder.mark(
                "loop source", loop=own.name, path=own.path, first_line=own.first_line,
                text="\n".join(own.lines),
            )  # fmt: skip
        if self.begins is not None:
            self.begins(engine, chosen.in_flight)
        return self.run(engine, **chosen.options)

    def refusals(self, relay: str) -> dict[str, str]:
        """Features that it does not combine, if it runs with a relay."""
        found = {}
        for word, reason in self.refuses.items():
            feature, _, only_with = word.partition(" with ")
            if only_with in ("", relay) and word not in ("other relays", "real devices"):
                found[feature] = reason
        kind = RELAYS.get(relay)
        if self.worker is not Worker or (kind is not None and kind.gives_every_input):
            found.setdefault("beam search", "its steps have one row for each request")
        return found

    def check_device(self, loop: str, device: str) -> None:
        """Check that the loop runs on a device.

        Raises:
            ValueError: it does not; the message has the reason.
        """
        if device not in self.devices:
            raise ValueError(
                f"loop {loop!r} does not run on device {device!r}: "
                f"{self.refuses.get('real devices', 'no such device is known')}; "
                f"it runs on {', '.join(self.devices)}."
            )

    def refusal(self, loop: str, wanted: set[str]) -> str | None:
        """One sentence on why the loop does not take a workload, or None."""
        refuses = self.refusals(self.relays[0])
        for feature in sorted(wanted & set(refuses)):
            return f"loop {loop!r} takes no {feature}: {refuses[feature]}."
        return None


def wanted_features(config: SchedulerConfig, requests: Iterable[Request]) -> set[str]:
    """Return the features of a workload that some loop refuses."""
    params = [request.params for request in requests if not wrong_form(request)]
    wanted = {config.speculative_algorithm} if config.speculative_algorithm else set()
    if config.beam_width > 1:
        wanted.add("beam search")
    if any(item.has_grammar for item in params):
        wanted.add("grammar")
    if any(item.has_penalties for item in params):
        wanted.add("penalties")
    return wanted


# -- All designs -----------------------------------------------------------------------------------

LOOPS: dict[str, Design] = {}


def design(name: str = "", **fields: Any) -> Callable[[Loop], Loop]:
    """Register the loop below, by its own name; ``fields`` are those of ``Design``.

    Above that there may be more, each with a ``name``: variants with the same body, which differ
    from the first one in the fields that they give.
    """

    def register(run: Loop) -> Loop:
        """Put a loop into the registry."""
        first = LOOPS.get(run.__name__)
        if first is None or first.run is not run:
            first = Design(run, **fields)
        LOOPS[name or run.__name__] = replace(first, **fields)
        return run

    return register


@contextmanager
def registered(name: str, spec: Design) -> Iterator[None]:
    """Register a loop of one's own inside the block.

    Raises:
        ValueError: the name is taken, or has a sign that separates a relay or an option.
    """
    if name in LOOPS or set(name) & set(":=,"):
        raise ValueError(f"a loop of your own can't be called {name!r}; give it another name.")
    with loops_as_before():
        LOOPS[name] = spec
        yield


@contextmanager
def loops_as_before() -> Iterator[None]:
    """Forget, at the end of the block, the loops that were registered inside it."""
    before = dict(LOOPS)
    try:
        yield
    finally:
        LOOPS.clear()
        LOOPS.update(before)


# -- A loop as a command line names it: ``LOOP``, ``LOOP:RELAY``, ``LOOP:RELAY:OPTION=VALUE`` ------


def find_loop(name: str, more: Mapping[str, Any] = MappingProxyType({})) -> Design:
    """The loop of that name, with the relay and the options that the name asks for, and ``more``.

    Raises:
        ValueError: there is none, or the relay or an option does not fit it.
    """
    loop, *rest = name.split(":")
    if loop not in LOOPS:
        raise ValueError(f"unknown loop {loop!r}; the loops are {', '.join(LOOPS)}.")
    spec = LOOPS[loop]
    relays = [part for part in rest if "=" not in part]
    if len(relays) > 1:
        raise ValueError(f"loop {name!r} names {len(relays)} relays, but a loop takes one.")
    if options := dict(part.split("=", 1) for part in rest if "=" in part):
        more = {**read_options(loop, spec.whole_run or spec.run, options), **more}
    for relay in relays:
        check_relay(loop, spec.relays, relay, spec.refuses.get("other relays", ""))
        spec = replace(spec, relays=(relay,))
    return replace(spec, options={**spec.options, **more})


MOST_STEPS = 64  # of the options that count steps, each of which has buffers of its own
COUNTS_STEPS = ("depth", "num_steps")
MOST_DIGITS = 100  # of a number; Python reads only a few thousand


def read_options(loop: str, run: Callable[..., Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a loop's options, which are numbers, or true or false.

    Raises:
        ValueError: the loop has no such option, or the value is of another kind or above its limit.
    """
    defaults = {name: item.default for name, item in inspect.signature(run).parameters.items()}
    kinds = {name: type(value) for name, value in defaults.items() if isinstance(value, int)}
    values: dict[str, int | bool] = {}
    for name, text in texts.items():
        if name not in kinds:
            has = f"its options are {', '.join(kinds)}" if kinds else "it has none"
            raise ValueError(f"loop {loop!r} has no option {name!r}; {has}.")
        if kinds[name] is bool and text.lower() in ("true", "false"):
            values[name] = text.lower() == "true"
        elif kinds[name] is int and text.removeprefix("-").isdecimal():
            values[name] = int(text[:MOST_DIGITS])
            if name in COUNTS_STEPS and values[name] > MOST_STEPS:
                raise ValueError(
                    f"option {name!r} of loop {loop!r} is {text}, but it must be at most "
                    f"{MOST_STEPS}; each of these steps has buffers of its own."
                )
        else:
            what = "true or false" if kinds[name] is bool else "a whole number"
            raise ValueError(
                f"option {name!r} of loop {loop!r} is {text!r}, but it must be {what}."
            )
    return values


# -- Where in its source a loop is, for pictures that show it --------------------------------------


def source_of(loop: str) -> dict[str, LoopSource]:
    """Return the source of a loop by its host lane: ``host``, or one for each side of ``pd``.

    Raises:
        ValueError: there is no loop of that name.
    """
    spec, found = find_loop(loop), dict[str, LoopSource]()
    for lane, run in (spec.lanes or {"host": spec.run}).items():
        lines, begin = inspect.getsourcelines(run)
        first, path = first_line(run.__code__), f"{run.__module__.replace('.', '/')}.py"
        own = tuple(line.rstrip() for line in lines[first - begin :])
        found[lane] = LoopSource(run.__name__, path, first, own)
    return found


def own_line(error: Exception, design: Design) -> tuple[str, bool]:
    """Return the line of a loop of one's own that an error passed, and whether it was raised there.

    The text goes after a sentence; it is empty for a loop of this package.
    """
    code = getattr(design.run, "__code__", None)
    if design.source is None or code is None:
        return "", False
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == code.co_filename]
    if not own:
        return "", False
    where = f" of {Path(design.source.path).name}" if design.source.path else ""
    return f", at line {own[-1].lineno}{where}: `{own[-1].line}`", own[-1] is frames[-1]


class LoopStuck(RuntimeError):
    """A loop with turns that ended, or do nothing, while requests are left."""


def take_turn(turns: Turns) -> ScheduleBatch | NoBatch:
    """Take the next turn of a loop.

    Raises:
        LoopStuck: the generator has ended.
    """
    try:
        return next(turns)
    except StopIteration:
        raise LoopStuck("its turns have ended, but a loop must go on: `while True`") from None


def line_of(turns: Iterator[Any]) -> Callable[[], int]:
    """Tells at which line a loop is, counted from 0 at its ``def``; 0 once it has ended."""
    code = getattr(turns, "gi_code", None)
    first = first_line(code) if code else 0

    def line() -> int:
        """Return the loop's current line of source, or 0."""
        frame = getattr(turns, "gi_frame", None)
        return frame.f_lineno - first if frame else 0

    return line


@cache
def first_line(code: CodeType) -> int:
    """Return the line of a function's ``def``, from 1; its code begins with its decorators."""
    try:
        lines, first = inspect.getsourcelines(code)
    except OSError:  # its source is not available
        return code.co_firstlineno
    return first + next((at for at, line in enumerate(lines) if line[:4] == "def "), 0)
