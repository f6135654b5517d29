"""What a part of the bench is asked: the options of ``minisched bench`` that were given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..models.registry import AUTO
from .options import WorkloadOptions


@dataclass(frozen=True)
class BenchCall:
    """One call of ``minisched bench``; what is None was not given, and each part has its own.

    ``repetitions`` are interleaved; ``report`` shows what is being done. ``nano_vllm`` and
    ``vidur`` are checkouts of peers that have no wheels.
    """

    part: str
    device: str | None = None
    model: str | None = None
    requests: int | None = None
    max_new_tokens: int | None = None
    repetitions: int = 5
    nano_vllm: Path | None = None
    vidur: Path | None = None
    dtype: str | None = None
    report: Callable[[str], None] = lambda doing: None

    def workload(
        self,
        device: str = "thread",
        model: str = "smollm2",
        requests: int = 4,
        max_new_tokens: int = 32,
    ) -> WorkloadOptions:
        """What was asked for, and the part's own where nothing was."""
        return WorkloadOptions(
            self.device or device,
            self.model or model,
            dtype=self.dtype or AUTO,
            requests=requests if self.requests is None else self.requests,
            max_new_tokens=(max_new_tokens if self.max_new_tokens is None else self.max_new_tokens),
        )

    def refuse(self, *names: str) -> None:
        """Refuse options that this part has no use for.

        Raises:
            ValueError: one of them was given.
        """
        for name in names:
            if getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} is of no use to bench {self.part}.")
