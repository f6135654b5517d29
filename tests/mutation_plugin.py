"""Makes the ordinary tests quick enough to be run for every mutant (``minisched bench mutation``).

A plugin of pytest: few examples for each law, always the same, and only what a change of host code
can break: no test that starts threads, other processes, or loads torch or mlx.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import Phase, settings

EXAMPLES = 6
LONGEST_S = 20.0
PHASES = (Phase.explicit, Phase.generate)  # a counterexample need not be small
OTHER_DEVICES = ("[thread", "-thread", "[mlx]", "-mlx]", "torch", "cuda", "real_time", "smollm2")
CHANGES_CODE = ("lap_a_ring", "defect_that_was_here")  # by its text, which mutmut has moved
SLOW = ("ten_thousand_pages", "published_prefix_delta", "joins_each_hit", "forms_show_every_page")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs on another device, and lower the number of examples."""
    left_out = [
        item
        for item in items
        if any(word in item.name for word in (*OTHER_DEVICES, *CHANGES_CODE, *SLOW))
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        make_quick(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that takes several times what any of them takes hangs: it fails instead.

    The time is the processor's, so that a busy machine makes no test red.
    """
    signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def give_up(number: int, frame: object) -> NoReturn:
    """What the clock calls.

    Raises:
        TimeoutError: always.
    """
    raise TimeoutError(f"a test took {LONGEST_S} s of the processor: it hangs")


def make_quick(item: pytest.Item) -> None:
    """A law over examples is tried with the first few of them, the same ones every time."""
    machine: Any = getattr(item, "cls", None)
    if isinstance(getattr(machine, "settings", None), settings):
        machine.settings = quick(machine.settings)
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None:
        test._hypothesis_internal_use_settings = quick(own)


def quick(own: settings) -> settings:
    """The same with few examples."""
    few = min(own.max_examples, EXAMPLES)
    return settings(own, max_examples=few, derandomize=True, database=None, phases=PHASES)
