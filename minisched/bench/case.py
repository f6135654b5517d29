"""What a bench runs on a real device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import Request
from ..models.base import Model
from ..scheduler import SchedulerConfig


@dataclass(frozen=True)
class Case:
    """A workload for one device."""

    device: str
    model: Model
    requests: Sequence[Request]
    config: SchedulerConfig
