"""vLLM's model runner v2: the state of each request stays in its slot on the device.

The host sends no token that the device has sampled, and no -1 in its place. It sends the slot of
each row (``idx_mapping``). The device knows how many tokens of a slot are computed, so it finds the
inputs of a row by itself: tokens of its prompt, or the token that it has sampled last. A request
keeps its slot while rows of the batch move, so no token is moved or scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core import Lease, Row, ScheduleBatch
from ..devices.base import Array, Device
from ..trace import Touch
from .base import Bound, Relay, RelayShape

NO_TOKEN = 0  # a slot, and its first cell, that no request has: for samples that are not tokens


class StepInputs(NamedTuple):
    """The numbers of one step, in host memory that the device reads when the step runs."""

    slots: Array  # [num_tokens] slot of each token's row (idx_mapping and query_start_loc)
    idx_mapping: Array  # [num_reqs] slot of each row
    query_lens: Array  # [num_reqs] positions that each row computes
    prefills: Array  # [num_prefills] slots with new prompt tokens
    num_computed: Array  # [num_prefills] positions computed before this step
    prefill_end: Array  # [num_prefills] one past the last cell with a prompt token
    cells: Array  # [num_new_tokens] where the prompt tokens go (staged writes)
    tokens: Array  # [num_new_tokens]


class RequestState(Relay):
    """vLLM ``v1/worker/gpu/states.py:RequestState``, with the kernels of ``gpu/input_batch.py``.

    A slot is the row of the request table. ``bind`` is ``add_requests`` and the host's half of
    ``prepare_inputs``. ``resolve_future`` is its device half: it applies the staged writes, and
    chooses each input by the number of computed tokens (``prepare_prefill_inputs``,
    ``combine_sampled_and_draft_tokens``). ``store_to_map`` is ``post_update``.

    Everything runs in the order of one stream, so a slot can be reused immediately. The exception
    is the host memory of a step's numbers (``UvaBufferPool``), which the device reads in place.
    There is one buffer for each step in flight. The host waits for a step before it uses the
    step's buffer again (vLLM #53176).

    These answers differ. vLLM writes a whole prompt at its admission, here each chunk is written
    with its step. vLLM counts computed tokens after the sampling, since drafts may be rejected;
    this relay takes no drafts, and counts before it. vLLM stores the sampled tokens after the
    prompt, too, where drafters and penalties read them. Positions of a ``ForwardBatch`` come from
    the host.
    """

    name = "request_state"
    needs = "a loop that runs ahead"
    num_sent: list[int]  # of the newest step: prompt tokens that the host sends for each row

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        self.max_len, rows = shape.max_len, shape.max_running_requests + 1
        self.input_ids = device.memory("input ids", rows * shape.max_len)
        self.all_token_ids = device.memory("all token ids", rows * shape.max_len)
        self.prefill_end = device.memory("prefill end", rows)  # vLLM: prefill_len
        self.num_computed_tokens = device.memory("num computed tokens", rows)
        self.token_ids_map = device.memory("last sampled", rows)  # vLLM: last_sampled_tokens
        self.uva_buffers: list[StepInputs | None] = [None] * shape.in_flight
        self.num_bound, self.num_resolved = 0, 0  # steps; each bind is followed by one resolve
        self.sampled_for: dict[int, Lease] = {}  # slot -> the lease that its last token is of

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Replace every id by minus the first cell of its slot, plus its place in the row."""
        self.num_sent = [len(row.ids) if self.is_prefill(row) else 0 for row in batch.rows]
        prefills = self.prefills(batch)
        inputs = self.xp.asarrays(
            [row.lease.row for row in batch.rows for _ in row.ids],
            [row.lease.row for row in batch.rows],
            [len(row.ids) for row in batch.rows],
            [row.lease.row for row in prefills],
            [row.start for row in prefills],
            [self.cell(row, row.end) for row in prefills],
            [self.cell(row, at) for row in prefills for at in range(row.start, row.end)],
            [token for row in prefills for token in row.ids if token is not None],
        )
        self.num_bound += 1  # not if there was no memory: such a step has no turn in resolve_future
        buffer = self.num_bound % len(self.uva_buffers)
        self.recorder.touch("write", "uva buffer", [buffer])
        self.uva_buffers[buffer] = StepInputs(*inputs)
        self.record(batch)
        for row in batch.rows:
            if row.deliver:
                self.sampled_for[row.lease.row] = row.lease
        ids = [-self.cell(row, at) for row in batch.rows for at, _ in enumerate(row.ids)]
        return ids, [row.lease.row if row.deliver else NO_TOKEN for row in batch.rows]

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Return ``input_ids`` from the state of each slot, [num_tokens]."""
        self.num_resolved += 1
        inputs = self.uva_buffers[self.num_resolved % len(self.uva_buffers)]
        assert inputs is not None
        if len(inputs.prefills):  # apply_staged_writes
            self.all_token_ids[inputs.cells] = inputs.tokens
            self.num_computed_tokens[inputs.prefills] = inputs.num_computed
            self.prefill_end[inputs.prefills] = inputs.prefill_end
        # prepare_prefill_inputs, combine_sampled_and_draft_tokens
        num_tokens, slots, where = len(inputs.slots), inputs.slots, self.xp.where
        cells = -ids[:num_tokens] + self.num_computed_tokens[slots]
        is_prompt = (cells + -self.prefill_end[slots]) < 0
        nothing = slots + -slots
        prompt = self.all_token_ids[where(is_prompt, cells, nothing)]
        sampled = self.token_ids_map[where(is_prompt, nothing, slots)]
        self.input_ids[:num_tokens] = where(is_prompt, prompt, sampled)
        # post_update
        rows = inputs.idx_mapping
        self.num_computed_tokens[rows] = self.num_computed_tokens[rows] + inputs.query_lens
        return self.input_ids[: len(ids)]

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Return the slot of each row that reads its last sampled token."""
        found = enumerate(zip(batch.leases, self.num_sent, strict=True))
        return {at: lease.row for at, (lease, sent) in found if not sent}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """Return the step's buffer, the state of its slots, and the cells of new prompt tokens."""
        slots = [lease.row for lease in batch.leases]
        prefills, decodes = self.prefills(batch), [*self.takes(batch, ids).values()]
        cells = [self.cell(row, at) for row in prefills for at in range(row.start, row.end)]
        return [
            Touch("read", "uva buffer", [self.num_bound % len(self.uva_buffers)]),
            Touch("write", "all token ids", cells),
            Touch("read", "num computed tokens", decodes),
            Touch("write", "num computed tokens", slots),
            Touch("read", "prefill end", decodes),
            Touch("write", "prefill end", [row.lease.row for row in prefills]),
            Touch("read", "last sampled", decodes),
            Touch("write", "input ids", range(len(ids))),
        ]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """Return the slots that sample a token."""
        return [Touch("write", "last sampled", [slot for slot in future_slots if slot != NO_TOKEN])]

    def of_row(self, row: int, length: int) -> list[tuple[str, Sequence[int]]]:
        """Return the state of a slot, with the cells of its tokens."""
        first = row * self.max_len
        return [
            ("all token ids", range(first, first + min(length, self.max_len))),
            *((name, [row]) for name in ("num computed tokens", "prefill end", "last sampled")),
        ]

    def cell(self, row: Row, position: int) -> int:
        """Return the cell of a position of a row in ``all_token_ids``."""
        return row.lease.row * self.max_len + position

    def prefills(self, batch: ScheduleBatch) -> list[Row]:
        """Return the rows of the newest step for which the host sends tokens."""
        return [row for row, sent in zip(batch.rows, self.num_sent, strict=True) if sent]

    def is_prefill(self, row: Row) -> bool:
        """Return whether the host has all tokens of a row: its lease has not sampled any yet."""
        return self.sampled_for.get(row.lease.row) is not row.lease

    def record(self, batch: ScheduleBatch) -> None:
        """Mark the slot of each row, the first position it computes, and the tokens sent for it."""
        if self.recorder.is_on:
            columns = {
                "slots": [lease.row for lease in batch.leases],
                "starts": batch.starts,
                "sent": self.num_sent,
            }
            marked = {name: tuple(values) for name, values in columns.items()}
            self.recorder.mark("request state", step=batch.step, **marked)
