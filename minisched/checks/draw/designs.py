"""Which loops the random workloads run on: each with every relay and option that it has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

from ...devices.base import Device
from ...devices.sim import SimDevice
from ...engine.frontend import Frontend
from ...loops.design import LOOPS, find_loop
from ...loops.run import CARRIERS, make_engine
from ...models.hash import HashModel
from ...scheduler import SchedulerConfig
from ...scheduler.config import ALGORITHMS

OTHER_VALUES = {
    "clear_cache_every": (3,), "depth": (3, 4, 5, 6, 7, 8), "max_async_schedule_times": (2,),
    "num_steps": (2, 3),
}  # fmt: skip
"""What a loop's number is set to instead of its default; a loop's yes or no is turned round.

The ring holds four steps in flight; eight are far more than any loop has by itself."""

WITH_DEPTH = {"harvest_when_done": 4}
"""Options that hardly change a loop's course at its usual depth: tried at this one, too."""

OFTEN = {"vllm_async:ring:depth=3": 4, "vllm_async:ring:depth=4": 8, "vllm_async:pool:depth=8": 2}
"""How often a design comes in its loop's round, where it is not once. With four steps in flight
the ring is used to its whole length, and with eight in flight drafts are long unread; few workloads
do that (``draw.py:for_deep``), so it is tried on more of them."""


@dataclass(frozen=True)
class Design:
    """A loop with a relay and options, under the name that a command line has for it."""

    loop: str
    relay: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``LOOP``, ``LOOP:RELAY`` or ``LOOP:RELAY:OPTION=VALUE`` (``loops/design.py``)."""
        if self.relay == LOOPS[self.loop].relays[0] and not self.options:
            return self.loop
        options = (f"{name}={str(value).lower()}" for name, value in self.options.items())
        return ":".join([self.loop, self.relay, *options])

    @property
    def in_flight(self) -> int:
        """Steps that it has in flight at the most."""
        spec = LOOPS[self.loop]
        return replace(spec, options={**spec.options, **self.options}).in_flight

    def refuses(self) -> set[str]:
        """The features that it does not combine: ``grammar``, ``penalties``, speculation."""
        refused = set(LOOPS[self.loop].refusals(self.relay))
        return refused if self.relay in CARRIERS else refused | set(ALGORITHMS)


def read_design(name: str) -> Design:
    """The design that a command line names.

    Raises:
        ValueError: there is no such loop, or the relay or an option does not fit it.
    """
    spec = find_loop(name)
    loop = name.partition(":")[0]
    own = LOOPS[loop].options
    changed = {key: value for key, value in spec.options.items() if own.get(key) != value}
    design = Design(loop, spec.relays[0], changed)
    check_options(design)
    return design


def variants(loop: str) -> Iterator[dict[str, Any]]:
    """The options that change a loop's course, few at a time; what its spec settles stays."""
    spec = LOOPS[loop]
    run: Callable[..., Any] = spec.whole_run or spec.run
    for name, item in inspect.signature(run).parameters.items():
        if isinstance(item.default, bool):
            yield {name: not item.default}
            if name in WITH_DEPTH and "depth" not in spec.options:
                yield {"depth": WITH_DEPTH[name], name: not item.default}
        elif isinstance(item.default, int) and name not in spec.options:
            yield from ({name: value} for value in OTHER_VALUES[name])


@cache
def all_designs() -> tuple[Design, ...]:
    """Every loop with every relay that fits it, as it is, and with each option that they take."""
    return tuple(
        design
        for loop, spec in LOOPS.items()
        for options in ({}, *variants(loop))
        for relay in spec.relays
        if takes_its_options(design := Design(loop, relay, options))
    )


def takes_its_options(design: Design) -> bool:
    """Whether loop and relay go with the options."""
    try:
        check_options(design)
    except ValueError:
        return False
    return True


def check_options(design: Design) -> None:
    """Let loop and relay say whether they go with the options, which they do at the first turn.

    Raises:
        ValueError: they don't; the sentence is theirs.
    """
    if not design.options:
        return
    device, model = cast(Device, SimDevice()), HashModel()
    engine = make_engine(
        design.loop, device, model, SchedulerConfig(), Frontend(), relay=design.relay,
        **design.options,
    )  # fmt: skip
    next(LOOPS[design.loop].start(engine, **design.options))
