"""Makes the ordinary tests quick enough to be run for every mutant (``minisched bench mutation``).

A plugin of pytest: few examples for each law, always the same, and only what a change of host code
can break: no test that starts threads, other processes, or loads torch or mlx.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

EXAMPLES = 8
OTHER_DEVICES = ("thread", "mlx-", "-mlx", "[mlx", "torch", "cuda", "real_time")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs on another device, and lower the number of examples."""
    left_out = [item for item in items if any(word in item.name for word in OTHER_DEVICES)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        make_quick(item)


def make_quick(item: pytest.Item) -> None:
    """A law over examples is tried with the first few of them, the same ones every time."""
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None:
        few = min(own.max_examples, EXAMPLES)
        quick = settings(own, max_examples=few, derandomize=True, database=None)
        test._hypothesis_internal_use_settings = quick
