"""Placeholder fill: a step's inputs are laid out with holes, which the step before it fills.

A row of N that was in N-1 has no input token yet: a placeholder stands there. Which row of N-1
has it is known before N-1 has run; the token itself is written in by the host, once it is there,
or by the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core import ScheduleBatch
from ..devices.base import WRONG_TOKEN, Array, Device
from ..models.base import ForwardBatch, placeholders
from ..trace import Touch
from .base import Bound, Relay, RelayShape

PLACEHOLDER_TOKEN = -1


class FillingMasks(NamedTuple):
    """Which rows of N take their token from which row of N-1, all three of one length."""

    hit_rows: list[int]  # rows of N (as a mask: hit_sequence_ids_mask)
    update_indices: list[int]  # where these tokens stand among N's flat input ids
    hit_indices: list[int]  # the row of N-1 that samples each


def prepare_masks_for_filling(
    batch: ScheduleBatch, last_sequence_ids: Sequence[str]
) -> FillingMasks:
    """MindIE ``plugins/plugin_manager.py:_prepare_masks_for_filling``.

    The original asks whether an id was in the last batch, and leaves prompts out: a sequence that
    was preempted and starts again is in both batches, and its prompt is known (MindIE #75). Here
    a row says itself that its token is unknown, which comes to the same. Prompts alone give none.
    """
    place = {rid: row for row, rid in enumerate(last_sequence_ids)}
    masks = FillingMasks([], [], [])
    start = 0
    for row, (req, ids) in enumerate(zip(batch.reqs, batch.ids, strict=True)):
        if None in ids:
            masks.hit_rows.append(row)
            masks.update_indices.append(start + len(ids) - 1)
            masks.hit_indices.append(place[req.rid])
        start += len(ids)
    return masks


class PlaceholderFill(Relay):
    """What both forms share: the masks, made when a step is bound, and whose tokens come next.

    Unless the device does it, the host fills the placeholders: no step touches any memory for that.
    """

    most_in_flight: int | None = 2
    filling_masks: FillingMasks  # of the step bound last
    last_sequence_ids: tuple[str, ...] = ()

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """For each unknown id a placeholder, less the row of the last step that will fill it.

        A row's destination is its place in the batch.

        Raises:
            KeyError: an unknown token is not the last step's.
        """
        self.filling_masks = masks = prepare_masks_for_filling(batch, self.last_sequence_ids)
        ids = [PLACEHOLDER_TOKEN if token is None else token for row in batch.ids for token in row]
        for at, row in zip(masks.update_indices, masks.hit_indices, strict=True):
            ids[at] = PLACEHOLDER_TOKEN - row
        if self.recorder.is_on:  # for each row the one that fills it, -1 where its token is known
            sources = dict(zip(masks.hit_rows, masks.hit_indices, strict=True))
            rows = " ".join(str(sources.get(row, -1)) for row in range(len(batch.reqs)))
            self.recorder.mark("placeholder fill", step=batch.step, rows=rows)
        self.last_sequence_ids = batch.rids
        return ids, list(range(len(batch.reqs)))

    def reset(self) -> None:
        """Forget the last batch: its tokens are on the host, and nobody will be filled from it."""
        self.last_sequence_ids = ()


class FillHost(PlaceholderFill):
    """The host fills: it waits for N-1's tokens and writes them into N's inputs, then ships them.

    MindIE ``plugin_manager.py:_fill_in_model_result``, its default. The device has nothing to do
    from the end of N-1 until N's inputs are filled and launched.
    """

    name = "fill_host"
    needs = "a loop that lays a step out before it waits for the tokens, and then writes them in"

    def fill(self, model_inputs: ForwardBatch, tokens: Sequence[int]) -> None:
        """Host: ``ids[hit] = tokens``; ``tokens`` [num_reqs of N-1].

        A step that failed has none: its requests end, and their rows here get one that is wrong.
        """
        masks = self.filling_masks
        for at, row in zip(masks.update_indices, masks.hit_indices, strict=True):
            model_inputs.ids[at] = tokens[row] if tokens else WRONG_TOKEN


class FillDevice(PlaceholderFill):
    """The device fills: N's forward pass begins by scattering N-1's tokens into its inputs.

    MindIE ``plugin_manager.py:_fill_in_model_result_exp``, the experimental path. The tokens stay
    in one buffer, in the rows of the step that sampled them: on one stream N reads them before it
    stores its own. So only the last step's can be unknown: at most two steps are in flight, or all
    have the same rows. The rows to read travel in the ids, so there are no indices to keep alive.
    """

    name = "fill_device"
    needs = (
        "a loop that runs ahead, in which the very next step reads a token that nobody knows "
        "(only the last step's rows fill)"
    )

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        self.kept_in = device.memory("last tokens", shape.max_running_requests)

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """The last step's tokens in place of the placeholders; the other ids as they are.

        Row 0 is read in vain for what is known.
        """
        rows = self.xp.clamp(-ids - 1, min=0)
        return self.xp.where(ids < 0, self.kept_in[rows], ids)

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """By row, which one of the last step it waits for."""
        return {row: -1 - token for row, _, token in placeholders(batch, ids)}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """The rows that placeholders wait for."""
        return [Touch("read", "last tokens", [-1 - token for token in ids if token < 0])]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """A future slot for each row."""
        return [Touch("write", "last tokens", future_slots)]
