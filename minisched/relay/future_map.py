"""FutureMap: a buffer on the device in which step N leaves tokens that step N+1 picks up.

A token that the host does not know travels as a negative id: minus its cell in the buffer. This is
the first published form, a ring of future slots; the later one has a cell for each row of the
request table (``future_map_pool.py``).
"""

from __future__ import annotations

from ..core import ScheduleBatch
from ..core.batch import placeholders
from ..devices.base import Array, Buffer, Device
from ..trace import Touch
from .base import Relay


class FutureMap(Relay):
    """What both forms share: how an id is looked up, and what the trace is told.

    Cell 0 stands for "known already": it is read, and thrown away, for every id that is a token.
    """

    run_ahead = True

    def __init__(self, device: Device) -> None:
        self.xp = device.xp
        self.recorder = device.recorder

    def look_up(self, buffer: Buffer, ids: Array) -> Array:
        """Tokens for the negative ids, the others as they are: the ring's line, on every device."""
        xp = self.xp
        return xp.where(ids < 0, buffer[xp.clamp(-ids, min=0)], ids)

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """By row its future slot."""
        return {row: -token for row, _, token in placeholders(batch, ids)}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """The future slots that the placeholders name."""
        return [Touch("read", "future map", [-token for token in ids if token < 0])]

    def writes(self, batch: ScheduleBatch, dests: list[int]) -> list[Touch]:
        """A future slot for each row."""
        return [Touch("write", "future map", dests)]

    def record(self, batch: ScheduleBatch, ids: list[int], dests: list[int]) -> None:
        """Mark which future slots a step gets for its tokens, and which it will read."""
        if self.recorder.is_on:
            slots, reads = " ".join(map(str, dests)), " ".join(str(-i) for i in ids if i < 0)
            self.recorder.mark("future slots", step=batch.step, slots=slots, reads=reads)


class FutureMapRing(FutureMap):
    """The ring (SGLang ``managers/overlap_utils.py`` before #25862).

    Each batch takes the next ``num_reqs`` future slots. The counter wraps at ``limit`` =
    3 x ``max_running_requests``; the buffer has 5 x, so that the slots of one batch never wrap.
    A token outlives two full batches more, so it may be read three steps after its own, with four
    in flight. In the original a placeholder could wait for longer, while the chunks of a prompt
    took slots (sglang-jax #1487), and #13713 raised the limit to ``max_running_requests`` x
    (3 + ceil(context / chunk)). Here the host's value is used as soon as there is one: nobody
    reads the slot of a step that has come back, however many chunks follow.
    """

    name = "ring"
    most_in_flight: int | None = 4

    def __init__(self, device: Device, max_running_requests: int) -> None:
        super().__init__(device)
        self.kept_in = self.token_ids_map = device.memory(
            "future map", 5 * max_running_requests + 1
        )
        self.future_ct = 0
        self.future_limit = 3 * max_running_requests
        self.recorder.mark("future map", limit=self.future_limit, size=5 * max_running_requests)

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
            -lease.future_slot if token is None else token
            for lease, tokens in zip(batch.leases, batch.ids, strict=True)
            for token in tokens
        ]
        indices = list(self.alloc_future_indices(len(batch.reqs)))
        for lease, index in zip(batch.leases, indices, strict=True):
            lease.future_slot = index
        self.recorder.counter("future slots", self.future_ct)
        self.record(batch, ids, indices)
        return ids, indices

    def resolve(self, ids: Array, previous: Array | None) -> Array:
        """Real tokens in place of the placeholders."""
        return self.resolve_future(ids)

    def store(self, dests: Array, tokens: Array) -> None:
        """Keep this step's tokens."""
        self.store_to_map(dests, tokens)

    def resolve_future(self, ids: Array) -> Array:
        """What the future slots hold, in place of the negative ids."""
        return self.look_up(self.token_ids_map, ids)

    def store_to_map(self, indices: Array, tokens: Array) -> None:
        """Write the sampled tokens, [num_reqs], to their future slots."""
        self.token_ids_map[indices] = tokens
