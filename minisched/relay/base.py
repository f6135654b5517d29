"""The small interface of every relay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ..core import ScheduleBatch
from ..devices.base import Array, Buffer
from ..trace import Touch


class Relay(Protocol):
    """Turns input tokens that the host does not know into something the device can look up.

    ``bind`` runs on the host and numbers the unknown ones; ``resolve`` and ``store`` run on the
    device, in the ops that consume and produce the tokens. What has a body here is so unless a
    relay says more: no memory on the device, which then nobody reads or writes.
    """

    name: str  # as in ``registry.py:RELAYS``
    run_ahead: bool  # whether a step may be launched on tokens the host does not know
    most_in_flight: int | None = None  # steps, where one may leave out a request; None: any number
    kept_in: Buffer = None  # the device's memory in which tokens wait; None: in none
    is_chained: bool = False  # a step takes the value of an op before it, and no cell of that

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """Host: input ids, unknown ones as negative numbers, and a destination for each row."""

    def resolve(self, ids: Array, previous: Array | None) -> Array:
        """Device: real tokens in place of the negative numbers, [num_tokens]."""

    def store(self, dests: Array, tokens: Array) -> None:
        """Device: keep the sampled tokens, [num_reqs], for later steps."""
        return

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Host: by row, where ``resolve`` will find its token, given what ``bind`` gave.

        That is a cell of ``kept_in``, or a place in the step before; nothing for a row whose
        tokens the host has sent.
        """
        return {}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> Sequence[Touch]:
        """Host: what ``resolve`` will touch of the device's memory, given what ``bind`` gave."""
        return []

    def writes(self, batch: ScheduleBatch, dests: list[int]) -> Sequence[Touch]:
        """Host: what ``store`` will touch, given what ``bind`` gave."""
        return []


@runtime_checkable
class DraftRelay(Relay, Protocol):
    """A relay that also carries drafts and lengths, so that a step with drafts can run ahead."""

    def start_of(self, rows: Sequence[int]) -> Array:
        """Device: the position of each row's newest token, [num_reqs]."""

    def stash_lens(self, rows: Sequence[int], seq_lens: Array) -> None:
        """Device: how many tokens each row has now, [num_reqs]."""

    def stash_drafts(self, rows: Sequence[int], drafts: Array) -> None:
        """Device: what is drafted for each row's next step, [num_reqs * k]."""

    def touch_lens(self, kind: str, rows: Sequence[int]) -> Touch:
        """Host: what ``start_of`` will read, or ``stash_lens`` write."""

    def touch_drafts(self, rows: Sequence[int]) -> Touch:
        """Host: what ``stash_drafts`` will write."""


@runtime_checkable
class RowRelay(Relay, Protocol):
    """A relay that keeps something for each row of the request table, which goes with the row."""

    def of_row(self, row: int, length: int) -> Sequence[tuple[str, Sequence[int]]]:
        """Host: what it keeps for a row of ``length`` positions: cells by resource."""


class Prompts(NamedTuple):
    """What a relay copies to the device for a step: ``tokens`` into ``cells``, both [num_cells]."""

    cells: Array
    tokens: Array
    touches: Sequence[Touch]


@runtime_checkable
class UploadRelay(Relay, Protocol):
    """A relay that takes every input from the device, so what the host knows has to get there."""

    def upload(self, batch: ScheduleBatch) -> Prompts | None:
        """Host: what a step's rows lack there, to be copied before it runs; None if nothing.

        Called once for each step, after ``bind``.
        """

    def write(self, cells: Array, tokens: Array) -> Array:
        """Device: put tokens into cells; gives the tokens."""
        ...


# -- The host round trip: every token goes to the host and comes back as an input ------------------


class HostTrip(Relay):
    """No relay, and no device memory: a step waits for the host (SGLang's normal loop)."""

    name = "host"
    run_ahead = False

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
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

    def resolve(self, ids: Array, previous: Array | None) -> Array:
        """The ids as they are."""
        return ids
