"""Relays: each brings a token that the host does not know to the step that reads it.

A relay keeps tokens in *future slots*, the cells of ``token_ids_map``, a buffer on the device. If
the host does not know an input token, it sends minus the token's future slot instead. The device
replaces this number when the step runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..core import ScheduleBatch
from ..devices.base import Array, Arrays, Buffer, Device
from ..trace import Recorder, Touch

Bound = tuple[list[int], list[int]]
"""Input ids [num_tokens], unknown ones as negative numbers; future slots [num_reqs]."""


class RelayShape(NamedTuple):
    """The size of a relay: rows of the request table (from 1), and positions in each."""

    max_running_requests: int
    max_len: int = 0
    num_draft_tokens: int = 0  # most drafts in a row
    in_flight: int = 2  # most steps at the same time


class Prompts(NamedTuple):
    """Known tokens that a relay lacks on the device: ``tokens`` for ``cells``, both [num_cells]."""

    cells: Array
    tokens: Array
    touches: Sequence[Touch]


class Relay(Protocol):
    """Replaces input tokens that the host does not know by numbers that the device can look up.

    ``bind`` runs on the host when a step is laid out. ``resolve_future`` and ``store_to_map``
    (SGLang's names) run on the device, in the ops that read and sample the tokens. A method with a
    body is the default of all relays.
    """

    name: str  # as in ``LOOP:RELAY``
    needs: str  # from a loop, so that it fits
    xp: Arrays
    recorder: Recorder
    run_ahead: bool = True  # a step may be launched while the host does not know its tokens
    most_in_flight: int | None = None  # steps, if a step may leave a request out; None: no limit
    is_chained: bool = False  # a step takes the value of an earlier op, and no future slot
    gives_every_input: bool = False  # ``resolve_future`` gives known tokens too: see ``upload``
    token_ids_map: Buffer = None  # tokens by future slot, on the device; None: there is no buffer

    def __init__(self, device: Device, shape: RelayShape) -> None:
        self.xp = device.xp
        self.recorder = device.recorder

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Return the ids to send for a step, and the future slots of its own tokens, on the host.

        ``previous`` is the step before, for a chained relay.
        """

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Return the ids with real tokens for negative numbers, [num_tokens], on the device."""
        return ids

    def store_to_map(self, future_slots: Array, tokens: Array) -> None:
        """Write sampled tokens, [num_reqs], to their future slots, on the device."""
        if self.token_ids_map is not None:
            self.token_ids_map[future_slots] = tokens

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Return the future slots that the rows of a step read, by row; ``ids`` are from ``bind``.

        A relay without future slots returns places in the step before. A row is left out if the
        host sent its tokens.
        """
        return {}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """Return the memory that ``resolve_future`` will touch; ``ids`` are from ``bind``."""
        return []

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """Return the memory that ``store_to_map`` will touch, at the slots from ``bind``."""
        return []

    def of_row(self, row: int, length: int) -> Sequence[tuple[str, Sequence[int]]]:
        """Return the cells that are released with a row of ``length`` positions, by resource."""
        return []

    def upload(self, batch: ScheduleBatch) -> Prompts | None:
        """Return the known tokens of a step that the device lacks; None if it has all of them.

        Called once for each step, after ``bind``, if ``gives_every_input``.
        """
        return None


# -- Over the host: every token is copied back and sent as an input --------------------------------


class HostTrip(Relay):
    """No relay and no device memory: a step waits for the host (SGLang's normal loop)."""

    name = "host"
    needs = "a loop that launches a step only when the host has every token of it"
    run_ahead = False

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Return the known ids, and no future slots.

        Raises:
            ValueError: a token is not known yet.
        """
        known = [token for ids in batch.ids for token in ids if token is not None]
        if len(known) < batch.num_tokens:
            raise ValueError(
                "this relay cannot run ahead, yet a row's input token is still unknown"
            )
        return known, []
