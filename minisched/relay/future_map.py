"""FutureMap: a buffer on the device in which step N leaves tokens that step N+1 reads.

A token's own way from step N to step N+1: ``sample`` of N chooses the token, and ``store_to_map``
writes it to the *future slot* of its row. The host does not know the token when it lays N+1 out, so
``bind`` writes minus the future slot in its place. ``resolve_future`` of N+1 reads the slot on the
device, and ``forward`` computes with the token.

This file has the first published form, a ring of future slots. In the later form each row of the
request table has a future slot of its own (``future_map_pool.py``).
"""

from __future__ import annotations

from ..core import ScheduleBatch
from ..devices.base import Array, Device
from ..models.base import placeholders
from ..trace import Touch
from .base import Bound, Relay, RelayShape


class FutureMap(Relay):
    """Both forms: they store tokens, look them up, and record marks for the trace.

    Slot 0 belongs to no token. ``resolve_future`` reads it for each known id, and drops the value.
    """

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Return tokens for the negative ids, and the other ids unchanged, on every device."""
        xp = self.xp
        return xp.where(ids < 0, self.token_ids_map[xp.clamp(-ids, min=0)], ids)

    def store_to_map(self, future_slots: Array, tokens: Array) -> None:
        """Write the sampled tokens, [num_reqs], to their future slots."""
        self.token_ids_map[future_slots] = tokens

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Return the future slot of each row that reads one."""
        return {row: -token for row, _, token in placeholders(batch, ids)}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """Return the future slots that the negative ids name."""
        return [Touch("read", "future map", [-token for token in ids if token < 0])]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """Return the future slots of the step's own tokens."""
        return [Touch("write", "future map", future_slots)]

    def record(self, batch: ScheduleBatch, ids: list[int], future_slots: list[int]) -> None:
        """Mark the future slots of a step's own tokens, and those that it will read."""
        if self.recorder.is_on:
            slots, reads = tuple(future_slots), tuple(-token for token in ids if token < 0)
            self.recorder.mark("future slots", step=batch.step, slots=slots, reads=reads)


class FutureMapRing(FutureMap):
    """The ring (SGLang ``managers/overlap_utils.py`` before #25862).

    Each batch takes the next ``num_reqs`` future slots. The counter wraps at ``future_limit`` =
    3 x ``max_running_requests``. The buffer has 5 x, so the slots of one batch never wrap. A token
    stays until two full batches more have taken slots, so it may be read three steps after its own,
    with four in flight. Chunks of a prompt take slots too; SGLang #13713 raised the limit for them
    (also sglang-jax #1487). Here the limit is enough, because no slot is read for a known token.
    """

    name = "ring"
    needs = (
        "a loop that runs ahead and reads a token within three steps (a fourth may lap the ring)"
    )
    most_in_flight: int | None = 4

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        self.future_ct, self.future_limit = 0, 3 * shape.max_running_requests
        self.future_slots = [0] * (shape.max_running_requests + 1)  # of each row's newest token
        size = 5 * shape.max_running_requests
        self.token_ids_map = device.memory("future map", size + 1)
        self.recorder.mark("future map", limit=self.future_limit, size=size)

    def alloc_future_indices(self, num_reqs: int) -> range:
        """Return ``num_reqs`` consecutive future slots for a batch, never 0."""
        start = self.future_ct + 1
        self.future_ct = (self.future_ct + num_reqs) % self.future_limit
        return range(start, start + num_reqs)

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Replace each unknown id by minus its future slot; allocate a new slot for each row."""
        rows = [lease.row for lease in batch.leases]
        newest = map(self.future_slots.__getitem__, rows)
        ids = [
            -slot if token is None else token
            for slot, tokens in zip(newest, batch.ids, strict=True)
            for token in tokens
        ]
        future_slots = list(self.alloc_future_indices(len(batch.reqs)))
        for row, slot in zip(rows, future_slots, strict=True):
            self.future_slots[row] = slot
        self.recorder.counter("future slots", self.future_ct)
        self.record(batch, ids, future_slots)
        return ids, future_slots
