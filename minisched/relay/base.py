"""What every relay is: how a token that the host does not know comes to the step that reads it.

A relay keeps tokens in *future slots*. An input token that the host does not know travels as a
negative number, minus its future slot; the device looks it up when the step runs.
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
    """What a relay has room for: rows of the request table (from 1), positions in each."""

    max_running_requests: int
    max_len: int = 0
    num_draft_tokens: int = 0  # that a row may carry


class Prompts(NamedTuple):
    """What a relay copies to the device for a step: ``tokens`` into ``cells``, both [num_cells]."""

    cells: Array
    tokens: Array
    touches: Sequence[Touch]


class Relay(Protocol):
    """Turns input tokens that the host does not know into something the device can look up.

    ``bind`` runs on the host and numbers the unknown ones; ``resolve_future`` and ``store_to_map``
    (SGLang's names) run on the device, in the ops that consume and produce the tokens. What has a
    body here is so unless a relay says more.
    """

    name: str  # as ``LOOP:RELAY`` has it
    needs: str  # what a loop must do so that it fits
    xp: Arrays
    recorder: Recorder
    run_ahead: bool = True  # whether a step may be launched on tokens the host does not know
    most_in_flight: int | None = None  # steps, where one may leave out a request; None: any number
    is_chained: bool = False  # a step takes the value of an op before it, from no future slot
    gives_every_input: bool = False  # also what the host knows, which ``upload`` has to bring there
    kept_in: Buffer = None  # the device's memory in which tokens wait; None: in none

    def __init__(self, device: Device, shape: RelayShape) -> None:
        self.xp = device.xp
        self.recorder = device.recorder

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Host: what the step's inputs are, and where its tokens go.

        ``previous`` is the step that it may be built upon, for a relay that is chained.
        """

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Device: real tokens in place of the negative numbers, [num_tokens]."""
        return ids

    def store_to_map(self, future_slots: Array, tokens: Array) -> None:
        """Device: keep the sampled tokens, [num_reqs], for later steps."""
        if self.kept_in is not None:
            self.kept_in[future_slots] = tokens

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Host: by row, where ``resolve_future`` will find its token, given what ``bind`` gave.

        That is a future slot, or a place in the step before; nothing for a row whose
        tokens the host has sent.
        """
        return {}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """Host: what ``resolve_future`` will touch of memory, given what ``bind`` gave."""
        return []

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """Host: what ``store_to_map`` will touch, given what ``bind`` gave."""
        return []

    # -- with speculation, where the host does not know how far a row has come

    def start_of(self, rows: Sequence[int]) -> Array:
        """Device: the position of each row's newest token, [num_reqs], from a relay that has it."""
        return self.xp.asarray([])

    def stash_lens(self, rows: Sequence[int], seq_lens: Array) -> None:
        """Device: how many tokens each row has now, [num_reqs]."""
        return

    def stash_drafts(self, rows: Sequence[int], drafts: Array) -> None:
        """Device: the drafts of each row's next step, [num_reqs * num_draft_tokens]."""
        return

    def writes_drafts(self, batch: ScheduleBatch) -> list[Touch]:
        """Host: what ``stash_drafts`` will touch."""
        return []

    # -- what belongs to rows of the request table

    def of_row(self, row: int, length: int) -> Sequence[tuple[str, Sequence[int]]]:
        """Host: cells, by resource, that go with a row of the request table; of so many positions.

        Nothing, where cells do not belong to rows.
        """
        return []

    def upload(self, batch: ScheduleBatch) -> Prompts | None:
        """Host: what a step's rows lack on the device, stored there before it runs.

        Called once for each step after ``bind``, if ``gives_every_input``; None: they lack nothing.
        """
        return None


# -- The host round trip: every token goes to the host and comes back as an input ------------------


class HostTrip(Relay):
    """No relay, and no device memory: a step waits for the host (SGLang's normal loop)."""

    name = "host"
    needs = "a loop that launches a step only when the host has every token of it"
    run_ahead = False

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """The known ids, and no destinations.

        Raises:
            ValueError: a token is not known yet.
        """
        known = [token for ids in batch.ids for token in ids if token is not None]
        if len(known) < batch.num_tokens:
            raise ValueError(
                "this relay cannot run ahead, yet a row's input token is still unknown"
            )
        return known, []
