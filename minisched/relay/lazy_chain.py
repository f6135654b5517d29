"""The lazy chain: the next step is built on the previous step's unevaluated tokens."""

from __future__ import annotations

from ..core import ScheduleBatch
from ..devices.base import Array
from ..models.base import placeholders
from .base import Bound, Relay


class LazyChain(Relay):
    """No buffer: the previous step's output array is this step's input array.

    SGLang ``hardware_backend/mlx/model_runner.py:decode_batch_start_chained``, which takes
    ``prev.lazy_tokens[:, None]`` as it is. An unknown id is minus (1 + its row's place in the
    previous batch), so that a row whose token the host knows may stand beside it. Two steps at
    most hold one array: the one that makes it, and the next; then it can go.
    """

    name = "chain"
    needs = "a loop that runs ahead and tells the relay which step each one is built on"
    is_chained = True

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Unknown ids become places in the previous batch; nothing has to be stored.

        Raises:
            ValueError: nobody has a row's token, neither the host nor the step it is built on.
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
        """By row its place in the step before."""
        return {row: -1 - token for row, _, token in placeholders(batch, ids)}

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """The previous step's tokens, in this batch's order; any, where that step has none."""
        if previous is None:
            return self.xp.clamp(ids, min=0)
        return self.xp.where(ids < 0, previous[self.xp.clamp(-ids - 1, min=0)], ids)

    def record(self, batch: ScheduleBatch, previous: ScheduleBatch | None, ids: list[int]) -> None:
        """Mark which step's array a step is built on (0: none), and which places, from 1 on."""
        if self.recorder.is_on:
            places = " ".join(str(-token) for token in ids if token < 0)
            source = previous.step if previous else 0
            self.recorder.mark("lazy tokens", step=batch.step, source=source, places=places)
