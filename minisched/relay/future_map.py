"""FutureMap: a buffer on the device in which step N leaves tokens that step N+1 picks up.

The way of a token from step N to step N+1: ``Worker.sample`` of N chooses it, and ``store_to_map``
writes it to the *future slot* of its row. The host does not know it when it lays out N+1, so
``bind`` puts a negative id in its place, minus the future slot. ``resolve_future`` of N+1 reads the
slot on the device, and ``Worker.forward`` takes the token.

This is the first published form, a ring of future slots. The later one has a future slot for each
row of the request table (``future_map_pool.py``).
"""

from __future__ import annotations

from ..core import ScheduleBatch
from ..devices.base import Array, Device
from ..models.base import placeholders
from ..trace import Touch
from .base import Bound, Relay, RelayShape


class FutureMap(Relay):
    """The code of both forms: keeping tokens, looking them up, and the marks of the trace.

    Cell 0 stands for "known already": it is read, and thrown away, for every id that is a token.
    """

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Tokens for the negative ids, the others as they are: the same line on every device."""
        xp = self.xp
        return xp.where(ids < 0, self.kept_in[xp.clamp(-ids, min=0)], ids)

    def store_to_map(self, future_slots: Array, tokens: Array) -> None:
        """Write the sampled tokens, [num_reqs], to their future slots."""
        self.kept_in[future_slots] = tokens

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """By row its future slot."""
        return {row: -token for row, _, token in placeholders(batch, ids)}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """The future slots that the placeholders name."""
        return [Touch("read", "future map", [-token for token in ids if token < 0])]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """A future slot for each row."""
        return [Touch("write", "future map", future_slots)]

    def record(self, batch: ScheduleBatch, ids: list[int], future_slots: list[int]) -> None:
        """Mark which future slots a step gets for its tokens, and which it will read."""
        if self.recorder.is_on:
            slots, reads = " ".join(map(str, future_slots)), " ".join(str(-i) for i in ids if i < 0)
            self.recorder.mark("future slots", step=batch.step, slots=slots, reads=reads)


class FutureMapRing(FutureMap):
    """The ring (SGLang ``managers/overlap_utils.py`` before #25862).

    Each batch takes the next ``num_reqs`` future slots. The counter wraps at ``limit`` =
    3 x ``max_running_requests``; the buffer has 5 x, so that the slots of one batch never wrap.
    A token outlives two full batches more, so it may be read three steps after its own, with four
    in flight. That is enough however many chunks of a prompt take slots meanwhile (sglang-jax
    #1487; SGLang #13713 raised the limit for them): a token that the host knows is not read here.
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
        self.kept_in = self.token_ids_map = device.memory("future map", size + 1)
        self.recorder.mark("future map", limit=self.future_limit, size=size)

    def alloc_future_indices(self, num_reqs: int) -> range:
        """Future slots for a batch: ``num_reqs`` in a row, never 0."""
        start = self.future_ct + 1
        self.future_ct = (self.future_ct + num_reqs) % self.future_limit
        return range(start, start + num_reqs)

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Unknown ids become minus their future slot; every row gets a new slot."""
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
