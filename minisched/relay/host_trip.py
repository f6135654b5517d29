"""The host round trip: every token goes to the host and comes back as an input."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import ScheduleBatch
from ..devices.base import Array
from ..trace import Touch


class HostTrip:
    """No relay, and no device memory: a step waits for the host (SGLang's normal loop)."""

    name = "host"
    run_ahead = False
    most_in_flight: int | None = None
    kept_in = None

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """The known ids, and no destinations.

        Raises:
            ValueError: a token is not known yet.
        """
        return [token for ids in batch.ids for token in known_ids(ids)], []

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Nothing."""
        return {}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """Nothing: tokens go over the host."""
        return []

    def writes(self, batch: ScheduleBatch, dests: list[int]) -> list[Touch]:
        """Nothing."""
        return []

    def resolve(self, ids: Array, previous: Array | None) -> Array:
        """The ids as they are."""
        return ids

    def store(self, dests: Array, tokens: Array) -> None:
        """Nothing."""


def known_ids(ids: Sequence[int | None]) -> list[int]:
    """The ids of a row whose tokens the host must all know.

    Raises:
        ValueError: one is still unknown.
    """
    if None in ids:
        raise ValueError("this relay cannot run ahead, yet a row's input token is still unknown")
    return [token for token in ids if token is not None]
