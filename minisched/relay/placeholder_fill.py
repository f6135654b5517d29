"""Placeholder fill: a step is laid out with placeholders, and tokens of the step before fill them.

A row of N that was also in N-1 has no input token yet, so its id is a placeholder. The host knows
its row in N-1 before N-1 has run. When N-1 has its tokens, the host or the device writes them in.
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
    """The rows of N that take their token from a row of N-1; three columns of one length."""

    hit_rows: list[int]  # rows of N (as a mask: hit_sequence_ids_mask)
    update_indices: list[int]  # places of these tokens among N's flat input ids
    hit_indices: list[int]  # rows of N-1 that sample the tokens


def prepare_masks_for_filling(
    batch: ScheduleBatch, last_sequence_ids: Sequence[str]
) -> FillingMasks:
    """Return the masks (MindIE ``plugins/plugin_manager.py:_prepare_masks_for_filling``).

    The original looks up the ids of the last batch and excludes prompts (MindIE #75). A preempted
    sequence that starts again is in both batches, with a known prompt. Here an unknown token is
    marked in the row itself, with the same result.
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
    """Both forms: ``bind`` makes the masks from the sequences of the last step."""

    most_in_flight: int | None = 2
    filling_masks: FillingMasks  # of the step bound last
    last_sequence_ids: tuple[str, ...] = ()

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Replace each unknown id by the placeholder minus the row of the last step that fills it.

        The future slot of a row's own token is its place in the batch.

        Raises:
            KeyError: an unknown token is not from the last step.
        """
        self.filling_masks = masks = prepare_masks_for_filling(batch, self.last_sequence_ids)
        ids = [PLACEHOLDER_TOKEN if token is None else token for row in batch.ids for token in row]
        for at, row in zip(masks.update_indices, masks.hit_indices, strict=True):
            ids[at] = PLACEHOLDER_TOKEN - row
        if self.recorder.is_on:  # rows of the last step by row, -1 for a known token
            sources = dict(zip(masks.hit_rows, masks.hit_indices, strict=True))
            rows = tuple(sources.get(row, -1) for row in range(len(batch.reqs)))
            self.recorder.mark("placeholder fill", step=batch.step, rows=rows)
        self.last_sequence_ids = batch.rids
        return ids, list(range(len(batch.reqs)))

    def reset(self) -> None:
        """Forget the last batch: the host has its tokens, so it fills no placeholder."""
        self.last_sequence_ids = ()


class FillHost(PlaceholderFill):
    """The host waits for N-1's tokens, writes them into N's inputs, and ships these.

    (MindIE ``plugin_manager.py:_fill_in_model_result``, its default.) The device idles from the end
    of N-1 until N's inputs are filled and launched.
    """

    name = "fill_host"
    needs = "a loop that lays a step out before it waits for the tokens, and then writes them in"

    def fill(self, model_inputs: ForwardBatch, tokens: Sequence[int]) -> None:
        """Write the tokens of N-1, [its num_reqs], into the ids of N, on the host.

        A failed step has no tokens. Its requests end, so their rows in N get a wrong token.
        """
        masks = self.filling_masks
        for at, row in zip(masks.update_indices, masks.hit_indices, strict=True):
            model_inputs.ids[at] = tokens[row] if tokens else WRONG_TOKEN


class FillDevice(PlaceholderFill):
    """The device writes N-1's tokens into N's inputs at the start of N's forward pass.

    (MindIE ``plugin_manager.py:_fill_in_model_result_exp``, the experimental path.) The buffer
    holds the tokens of one step by its rows. Both steps run on one stream, so N reads them before
    it stores its own. Older tokens are lost. So at most two steps are in flight, unless all have
    the same rows. The rows to read are sent in the ids, so no array of indices must be kept alive.
    """

    name = "fill_device"
    needs = (
        "a loop that runs ahead, in which the next step reads each token that the host does not "
        "know (only the last step's rows fill)"
    )

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        self.token_ids_map = device.memory("last tokens", shape.max_running_requests)

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Return the last step's tokens for the placeholders, and the other ids unchanged.

        Row 0 is read for each known id, and its token is dropped.
        """
        rows = self.xp.clamp(-ids - 1, min=0)
        return self.xp.where(ids < 0, self.token_ids_map[rows], ids)

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Return the row of the last step for each row that takes its token there."""
        return {row: -1 - token for row, _, token in placeholders(batch, ids)}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """Return the rows of the last step that fill placeholders."""
        return [Touch("read", "last tokens", [-1 - token for token in ids if token < 0])]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """Return the future slots of the step's own tokens."""
        return [Touch("write", "last tokens", future_slots)]
