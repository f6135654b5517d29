"""The small interface of every relay, and the one that needs no device: wait for the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..core import ScheduleBatch
from ..devices.base import Array


class Relay(Protocol):
    """Turns input tokens that the host does not know into something the device can look up.

    ``bind`` runs on the host and numbers the unknown ones; ``resolve`` and ``store`` run on the
    device, in the ops that consume and produce the tokens.
    """

    run_ahead: bool  # whether a step may be launched on tokens the host does not know

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """Host: input ids, unknown ones as negative numbers, and a destination for each row."""
        ...

    def resolve(self, ids: Array, previous: Array | None) -> Array:
        """Device: real tokens in place of the negative numbers, [num_tokens]."""
        ...

    def store(self, dests: Array, tokens: Array) -> None:
        """Device: keep the sampled tokens, [num_reqs], for later steps."""
        ...


def known_ids(ids: Sequence[int | None]) -> list[int]:
    """The ids of a row whose tokens the host must all know.

    Raises:
        ValueError: one is still unknown.
    """
    if None in ids:
        raise ValueError("this relay cannot run ahead, yet a row's input token is still unknown")
    return [token for token in ids if token is not None]


class HostTrip:
    """No relay: every token goes to the host and comes back as input (SGLang's normal loop)."""

    run_ahead = False

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """The known ids, and no destinations."""
        return [token for row in batch.rows for token in known_ids(row.ids)], []

    def resolve(self, ids: Array, previous: Array | None) -> Array:
        """The ids as they are."""
        return ids

    def store(self, dests: Array, tokens: Array) -> None:
        """Nothing."""
