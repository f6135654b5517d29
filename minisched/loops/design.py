"""Where a loop is in its own source while it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..core import NoBatch, ScheduleBatch
from ..devices.registry import DEVICES
from ..engine.engine import Engine
from ..engine.metrics import Metrics
from ..scheduler import Scheduler
from ..worker import Worker

# -- What a loop is made of, beside its body: what it needs from relay, scheduler, worker, device

Turns = Iterator[ScheduleBatch | NoBatch]


@dataclass(frozen=True)
class LoopSpec:
    """A loop and the design it belongs to.

    ``run`` is the generator. ``depth`` is how many steps can be in flight, unless the loop's option
    ``depth_option`` says so (``in_flight`` is what holds): the worker gets as many output buffers,
    pins as many batches, and drafts get as much room. ``relays`` are those that fit, the default
    first; ``takes`` is what the loop wants of one, where it refuses the others for a reason of its
    own (else each says itself what it needs). ``overrun`` is how many steps the original launches
    for a request past its length (``policy/running.py``).
    ``rules`` are those of its system, unless the user wants others (``policy/rules.py``).
    ``options`` are given to the loop, ``settings`` to the scheduler, whatever the user's are.
    ``refuses`` are the features that the original does not combine with this loop, with its
    reason: ``grammar``, ``penalties``, and speculation by algorithm (``NGRAM``, ..); all of them in
    ``refused.py``. ``refuses_with`` has more of them for some of its relays.
    ``devices`` says where it runs, and ``only`` why nowhere else. ``source`` is the published code
    that it follows. A design for which one engine is not enough has a ``whole_run``, which
    ``loops/run.py:run_loop`` calls in the place of the turns.
    """

    run: Callable[..., Turns]
    depth: int
    relays: tuple[str, ...]
    overrun: int = 0
    rules: str = "sglang"
    depth_option: str = "depth"
    source: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    worker: Callable[..., Worker] = Worker
    scheduler: Callable[..., Scheduler] = Scheduler
    engine: Callable[..., Engine] = Engine
    whole_run: Callable[..., Metrics] | None = None
    devices: tuple[str, ...] = tuple(DEVICES)
    only: str = ""
    takes: str = ""
    refuses: Mapping[str, str] = field(default_factory=dict)
    refuses_with: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        """Steps that can be in flight, with the options as they are."""
        return int(self.options.get(self.depth_option, self.depth))

    def start(self, engine: Engine, **options: Any) -> Turns:
        """The loop's turns on an engine; ``options`` go before the spec's own.

        Raises:
            ValueError: with them more steps may be in flight than the engine was made for.
        """
        chosen = replace(self, options={**self.options, **options})
        if chosen.in_flight > engine.worker.depth:
            raise ValueError(
                f"{self.depth_option} is {chosen.in_flight}, but the worker was made for "
                f"{engine.worker.depth} steps in flight; the engine has to be made with the "
                "options that its loop is started with."
            )
        return self.run(engine, **chosen.options)

    def refusals(self, relay: str) -> dict[str, str]:
        """What it refuses with a relay."""
        return {**self.refuses, **self.refuses_with.get(relay, {})}

    def check_device(self, loop: str, device: str) -> None:
        """Whether the loop runs on a device.

        Raises:
            ValueError: it does not; the sentence says why.
        """
        if device not in self.devices:
            raise ValueError(
                f"loop {loop!r} does not run on device {device!r}: {self.only}; "
                f"it runs on {', '.join(self.devices)}."
            )


# -- A loop as a command line names it: ``LOOP``, ``LOOP:RELAY``, ``LOOP:RELAY:OPTION=VALUE`` ------

YES_OR_NO = {"true": True, "false": False}


class LoopName(NamedTuple):
    """The parts of a name; ``relay`` is None where none is named."""

    loop: str
    relay: str | None
    options: dict[str, str]


def parse(name: str) -> LoopName:
    """Take a name apart: ``vllm_async:pool:depth=4``, ``multi_step:num_steps=2``.

    Raises:
        ValueError: it has more parts than a loop, a relay and options.
    """
    loop, *rest = name.split(":")
    relays = [part for part in rest if "=" not in part]
    if len(relays) > 1:
        raise ValueError(f"loop {name!r} names {len(relays)} relays, but a loop takes one.")
    options = dict(part.split("=", 1) for part in rest if "=" in part)
    return LoopName(loop, relays[0] if relays else None, options)


def read_options(loop: str, run: Callable[..., Any], texts: dict[str, str]) -> dict[str, Any]:
    """The values of a loop's options, which are numbers, or true or false.

    Raises:
        ValueError: the loop has no such option, or the value is not one of its kind.
    """
    known = {
        name: type(item.default)
        for name, item in inspect.signature(run).parameters.items()
        if isinstance(item.default, int)
    }
    for name in texts:
        if name not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise ValueError(f"loop {loop!r} has no option {name!r}; {has}.")
    return {name: _value(loop, name, text, known[name]) for name, text in texts.items()}


def _value(loop: str, name: str, text: str, kind: type) -> int | bool:
    if kind is bool and text.lower() in YES_OR_NO:
        return YES_OR_NO[text.lower()]
    if kind is int and text.removeprefix("-").isdecimal():
        return int(text)
    what = "true or false" if kind is bool else "a whole number"
    raise ValueError(f"option {name!r} of loop {loop!r} is {text!r}, but it must be {what}.")


def line_of(turns: Iterator[Any]) -> Callable[[], int]:
    """Tells at which line a loop is, counted from 0 at its ``def``; 0 once it has ended."""

    def line() -> int:
        frame = getattr(turns, "gi_frame", None)
        return frame.f_lineno - frame.f_code.co_firstlineno if frame else 0

    return line
