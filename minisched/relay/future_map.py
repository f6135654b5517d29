"""FutureMap: a buffer on the device in which step N leaves tokens that step N+1 picks up.

A token that the host does not know travels as a negative id: minus its future slot. The two
published forms differ only in who gets which slot.
"""

from __future__ import annotations

from ..core import ScheduleBatch
from ..devices.base import Array, Device


class FutureMap:
    """What both forms share: the buffer, and the two published lines that use it.

    Cell 0 stands for "known already": it is read, and thrown away, for every id that is a token.
    """

    run_ahead = True

    def __init__(self, device: Device, size: int) -> None:
        self.xp = device.xp
        self.recorder = device.recorder
        self.token_ids_map = device.memory("future map", size)

    def resolve(self, ids: Array, previous: Array | None) -> Array:
        """Real tokens in place of the placeholders."""
        return self.resolve_future(ids)

    def store(self, dests: Array, tokens: Array) -> None:
        """Keep this step's tokens."""
        self.store_to_map(dests, tokens)

    def resolve_future(self, ids: Array) -> Array:
        """Look up the negative ids and leave the others: the published line, on every device."""
        xp = self.xp
        return xp.where(ids < 0, self.token_ids_map[xp.clamp(-ids, min=0)], ids)

    def store_to_map(self, indices: Array, tokens: Array) -> None:
        """Write the sampled tokens, [num_reqs], to their future slots."""
        self.token_ids_map[indices] = tokens

    def record(self, batch: ScheduleBatch, ids: list[int], dests: list[int]) -> None:
        """Mark which future slots a step gets for its tokens, and which it will read."""
        if self.recorder.is_on:
            slots, reads = " ".join(map(str, dests)), " ".join(str(-i) for i in ids if i < 0)
            self.recorder.mark("future slots", step=batch.step, slots=slots, reads=reads)


class FutureMapRing(FutureMap):
    """The ring (SGLang ``managers/overlap_utils.py`` before #25862).

    Each batch takes the next ``num_reqs`` future slots. The counter wraps at ``limit`` =
    3 x ``max_running_requests``; the buffer has 5 x, so that the slots of one batch never wrap.
    Nothing bounds how long a placeholder waits to be read, so enough launches can lap it
    (#13713, sglang-jax #1487). Using the host's value as soon as there is one is what keeps this
    ring safe.
    """

    def __init__(self, device: Device, max_running_requests: int) -> None:
        super().__init__(device, 5 * max_running_requests + 1)
        self.future_ct = 0
        self.future_limit = 3 * max_running_requests

    def alloc_future_indices(self, num_reqs: int) -> range:
        """Future slots for a batch: ``num_reqs`` in a row, never 0."""
        start = self.future_ct + 1
        self.future_ct = (self.future_ct + num_reqs) % self.future_limit
        return range(start, start + num_reqs)

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """Unknown ids become minus their future slot; every row gets a new slot."""
        ids = [
            -row.lease.future_slot if token is None else token
            for row in batch.rows
            for token in row.ids
        ]
        indices = list(self.alloc_future_indices(len(batch.rows)))
        for lease, index in zip(batch.leases, indices, strict=True):
            lease.future_slot = index
        self.recorder.counter("future slots", self.future_ct)
        self.record(batch, ids, indices)
        return ids, indices


class FutureMapPool(FutureMap):
    """The pool-indexed form that replaced the ring (SGLang #25862).

    A request's future slot is its row in the request table: nothing to allocate, nothing to lap.
    """

    def __init__(self, device: Device, max_running_requests: int) -> None:
        super().__init__(device, max_running_requests + 1)

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """Unknown ids become minus their row; the destination is the row."""
        ids = [
            -row.lease.row if token is None else token for row in batch.rows for token in row.ids
        ]
        rows = [row.lease.row for row in batch.rows]
        self.record(batch, ids, rows)
        return ids, rows
