"""The token pool: every token of every running request, on the device, by row and position.

No placeholder and no future slot. A step gathers its inputs by index and writes what it samples
one position further; the next step finds it there, because it comes later on the same stream.
"""

from __future__ import annotations

from ..core import Lease, ScheduleBatch
from ..core.batch import Row
from ..devices.base import Array, Device
from ..models.base import placeholders
from ..trace import Touch
from .base import Bound, Prompts, Relay, RelayShape

DUMP = 0  # a cell of row 0, which is nobody's: samples that mean nothing go there


class TokenPool(Relay):
    """``token_pool[table_idx, pos]`` (mini-sglang ``scheduler/table.py:TableManager``).

    Prompts come from the host on the scheduler's stream, with whatever else a row needs that has
    just been started or resumed; the forward stream waits for that copy. All samples are written
    by the forward stream itself. A chunk that is not the last samples into ``DUMP`` (mini-sglang
    writes to position -1 there: at ``device_len`` the next chunk's first token is on its way,
    which is what ef4367f mended).

    A row that is handed on while a launched step still writes it is written by two streams in no
    order: who frees it, and when, is ``memory/pool.py``.
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
        self.kept_in = self.token_pool = device.memory("token pool", size)
        self.filled_for: dict[int, Lease] = {}  # row -> whose tokens it holds

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Minus its cell for every input, known or not; one cell further for what is sampled."""
        ids = [-self.cell(row, at) for row in batch.rows for at in range(row.start, row.end)]
        return ids, [self.cell(row, row.end) if row.deliver else DUMP for row in batch.rows]

    def upload(self, batch: ScheduleBatch) -> Prompts | None:
        """The prompts, or the chunks, of this step; a new row gets its cached prefix too.

        Tokens and cells (``pinned``, one cell for each step) are arguments of the op, which the
        step holds and its result waits for: their memory is not handed out again while the copy may
        still read it.
        """
        cells: list[int] = []
        tokens: list[int] = []
        begins = [-1] * len(batch.reqs)
        for index, row in enumerate(batch.rows[: batch.num_extend_reqs]):
            begins[index] = begin = row.start if self.is_filled(row) else 0
            self.filled_for[row.lease.row] = row.lease
            cells += range(self.cell(row, begin), self.cell(row, row.end))
            tokens += row.req.known_tokens(begin, row.end)
        self.record(batch, begins)
        if not cells:
            return None
        source, target = self.xp.asarray(tokens), self.xp.asarray(cells)
        self.recorder.program.touch("write", "pinned", [batch.step])
        touches = [Touch("read", "pinned", [batch.step]), Touch("write", "token pool", cells)]
        return Prompts(target, source, touches)

    def resolve_future(self, ids: Array, previous: Array | None = None) -> Array:
        """Gather: the tokens in the cells."""
        return self.token_pool[-ids]

    def takes(self, batch: ScheduleBatch, ids: list[int]) -> dict[int, int]:
        """By row that decodes, the cell of its newest token; prompts come from the host."""
        first = batch.num_extend_reqs
        return {row: -token for row, _, token in placeholders(batch, ids) if row >= first}

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """The cells of all inputs."""
        return [Touch("read", "token pool", [-cell for cell in ids])]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """The cell behind each row's inputs; the dump is nobody's."""
        return [Touch("write", "token pool", [cell for cell in future_slots if cell != DUMP])]

    def of_row(self, row: int, length: int) -> list[tuple[str, range]]:
        """A cell for each position, and for the token behind the last."""
        first = row * self.max_len
        return [("token pool", range(first, first + min(length + 1, self.max_len)))]

    def cell(self, row: Row, position: int) -> int:
        """Where in the pool a position of a row lies; never 0."""
        return row.lease.row * self.max_len + position

    def is_filled(self, row: Row) -> bool:
        """Whether the pool's row has the earlier tokens of this one's lease."""
        return self.filled_for.get(row.lease.row) is row.lease

    def record(self, batch: ScheduleBatch, begins: list[int]) -> None:
        """Mark what a step does to the pool, request by request.

        ``uploads``: the first position copied, -1 for none; up to ``ends``, as what is gathered
        from ``starts`` on. ``writes``: the position sampled into, -1 for the dump.
        """
        if self.recorder.is_on:
            columns = {
                "rows": [row.lease.row for row in batch.rows],
                "uploads": begins,
                "starts": batch.starts,
                "ends": [row.end for row in batch.rows],
                "writes": [row.end if row.deliver else -1 for row in batch.rows],
            }
            texts = {name: " ".join(map(str, values)) for name, values in columns.items()}
            self.recorder.mark("token pool", step=batch.step, **texts)
