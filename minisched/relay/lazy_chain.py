"""The lazy chain: a step takes the previous step's token array before it is computed.

``Worker.lay_out`` calls ``bind`` on the host, and keeps the op that samples the previous step's
tokens in ``Step.previous``. ``Worker.forward`` passes the value of that op, an array (or None if it
failed), to ``resolve_future``. On MLX the array has no numbers at that time, so the step becomes a
graph on the previous step's graph (``devices/mlx.py``). On other devices the forward pass runs
later on the same stream, when the array has its numbers.
"""

from __future__ import annotations

from ..core import ScheduleBatch
from ..devices.base import Array
from ..models.base import placeholders
from .base import Bound, Relay


class LazyChain(Relay):
    """No buffer: the previous step's output array is this step's input array.

    SGLang ``hardware_backend/mlx/model_runner.py:decode_batch_start_chained`` takes
    ``prev.lazy_tokens[:, None]`` as it is. An unknown id is sent as -1 minus its row's place in
    the previous batch, so known tokens may be in the same step. At most two steps refer to an
    array: the one that computes it and the next one. Then its memory is released.
    """

    name = "chain"
    needs = "a loop that runs ahead and gives the relay the step that each one is built on"
    is_chained = True

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Replace unknown ids by places in the previous batch; return no future slots.

        Raises:
            ValueError: neither the host nor the previous step has a row's token.
        """
        places = {rid: -1 - at for at, rid in enumerate(previous.rids)} if previous else {}
        try:
            ids = [
                places[req.rid] if token is None else token
                for req, tokens in zip(batch.reqs, batch.ids, strict=True)
                for token in tokens
            ]
        except KeyError as lost:
            source = f"step {previous.step}" if previous else "no step"
            raise ValueError(
                f"step {batch.step} is built on {source}, which has no token of {lost}, "
                "and the host does not know it either."
            ) from None
        self.record(batch, previous, ids)
        return ids, []

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Return the place in the previous step of each row that takes its token there."""
        return {row: -1 - token for row, _, token in placeholders(batch, ids)}

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Return the previous step's tokens in this batch's order; any tokens if it failed."""
        if previous is None:
            return self.xp.clamp(ids, min=0)
        return self.xp.where(ids < 0, previous[self.xp.clamp(-ids - 1, min=0)], ids)

    def record(self, batch: ScheduleBatch, previous: ScheduleBatch | None, ids: list[int]) -> None:
        """Mark the source of a step's array (a step, 0 for none), and the places in it, from 1."""
        if self.recorder.is_on:
            places = tuple(-token for token in ids if token < 0)
            source = previous.step if previous else 0
            self.recorder.mark("lazy tokens", step=batch.step, source=source, places=places)
