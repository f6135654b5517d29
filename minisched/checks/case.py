"""What one run is of: a workload, a loop with its relay and options, what steps cost, a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..devices.cost import NO_COST, CostModel
from .workload import Workload


@dataclass(frozen=True)
class Case:
    """A workload, and what it runs on; on ``sim`` the same case gives the same run.

    The model is ``hash``, in the device's own tensors: the oracle knows no other. With
    ``built_by_host``, ``sim`` stands in for a device whose ops the host builds.
    """

    workload: Workload
    loop: str
    relay: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    cost: CostModel = NO_COST
    device: str = "sim"
    built_by_host: bool = False


def same_on(case: Case, loop: str, relay: str = "") -> Case:
    """The case on another loop, with that loop's own options."""
    return replace(case, loop=loop, relay=relay, options={})
