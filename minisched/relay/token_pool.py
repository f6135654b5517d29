"""The token pool: every token of every running request, on the device, by row and position.

Each position of each row has a future slot. So a step sends no token at all: it gathers its inputs
and writes each sampled token one position further. The next step on the same stream reads it there.
"""

from __future__ import annotations

from ..core import Lease, ScheduleBatch
from ..core.batch import Row
from ..devices.base import Array, Device
from ..models.base import placeholders
from ..trace import Touch
from .base import Bound, Prompts, Relay, RelayShape

DUMP = 0  # a slot of row 0, which no request has: for samples that are not tokens


class TokenPool(Relay):
    """``token_pool[table_idx, pos]`` (mini-sglang ``scheduler/table.py:TableManager``).

    The host copies prompts on the scheduler's stream, also the tokens of a resumed request. The
    forward stream waits for that copy, and writes all samples itself. A chunk that is not the last
    samples into ``DUMP``. mini-sglang writes to position -1 since ef4367f: at ``device_len`` is
    the first token of the next chunk.

    If a row is released while a step in flight still writes to it, two streams write to it in no
    order. The rule that releases it is in ``memory/free_rules.py``.
    """

    name = "token_pool"
    needs = (
        "a loop that runs ahead, or mini-sglang's own, with whole steps on one stream that waits "
        "for the copies of prompts"
    )
    gives_every_input = True

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        self.max_len = shape.max_len
        size = (shape.max_running_requests + 1) * self.max_len
        self.token_ids_map = device.memory("token pool", size)
        self.filled_for: dict[int, Lease] = {}  # row -> the lease of its tokens

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Replace every id by minus its future slot, also a known one."""
        ids = [-self.future_slot(row, at) for row in batch.rows for at in range(row.start, row.end)]
        return ids, [self.future_slot(row, row.end) if row.deliver else DUMP for row in batch.rows]

    def upload(self, batch: ScheduleBatch) -> Prompts | None:
        """Return the prompts, or chunks, of a step; a new row gets its cached prefix too.

        The arrays (``pinned``, one cell for each step) are arguments of the op that copies them.
        The step refers to the op until its result is there, so their memory is not reused before.
        """
        cells: list[int] = []
        tokens: list[int] = []
        begins = [-1] * len(batch.reqs)
        for index, row in enumerate(batch.rows[: batch.num_extend_reqs]):
            begins[index] = begin = row.start if self.is_filled(row) else 0
            self.filled_for[row.lease.row] = row.lease
            cells += range(self.future_slot(row, begin), self.future_slot(row, row.end))
            tokens += row.req.known_tokens(begin, row.end)
        self.record(batch, begins)
        if not cells:
            return None
        source, target = self.xp.asarray(tokens), self.xp.asarray(cells)
        self.recorder.touch("write", "pinned", [batch.step])
        touches = [Touch("read", "pinned", [batch.step]), Touch("write", "token pool", cells)]
        return Prompts(target, source, touches)

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Return the tokens in the future slots."""
        return self.token_ids_map[-ids]

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """Return the future slot of each row that decodes; prompts come from the host."""
        first = batch.num_extend_reqs
        return {row: -token for row, _, token in placeholders(batch, ids) if row >= first}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """Return the future slots of all inputs."""
        return [Touch("read", "token pool", [-token for token in ids])]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """Return the future slots of the step's own tokens, without ``DUMP``."""
        return [Touch("write", "token pool", [slot for slot in future_slots if slot != DUMP])]

    def of_row(self, row: int, length: int) -> list[tuple[str, range]]:
        """Return the future slots of all positions, and of the token after the last one."""
        first = row * self.max_len
        return [("token pool", range(first, first + min(length + 1, self.max_len)))]

    def future_slot(self, row: Row, position: int) -> int:
        """Return the future slot of a position of a row, never 0."""
        return row.lease.row * self.max_len + position

    def is_filled(self, row: Row) -> bool:
        """Return whether the pool has the earlier tokens of this row's lease."""
        return self.filled_for.get(row.lease.row) is row.lease

    def record(self, batch: ScheduleBatch, begins: list[int]) -> None:
        """Mark the positions of the pool that a step touches, in one column for each attribute.

        The prompts are copied from ``uploads`` to ``ends`` (-1: nothing is copied). The inputs are
        gathered from ``starts`` to ``ends``. ``writes`` has the sampled positions, -1 for ``DUMP``.
        """
        if self.recorder.is_on:
            columns = {
                "rows": [row.lease.row for row in batch.rows],
                "uploads": begins,
                "starts": batch.starts,
                "ends": [row.end for row in batch.rows],
                "writes": [row.end if row.deliver else -1 for row in batch.rows],
            }
            marked = {name: tuple(values) for name, values in columns.items()}
            self.recorder.mark("token pool", step=batch.step, **marked)
