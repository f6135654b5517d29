"""Prompt lookup: drafts are the tokens after an earlier occurrence of the last few tokens.

vLLM ``v1/spec_decode/ngram_proposer.py``, SGLang's ``NGRAM``. The longest suffix of the history
that occurred before wins, then its most recent occurrence. SGLang's default does the same. vLLM
takes the earliest one, which fits the present topic less. Where a copy reaches the end of the
history, it continues with the drafts themselves, so repeating text is drafted in full. Both
originals stop there.

With ``NGRAM`` the host proposes. With ``NGRAM_GPU`` a drafter on the device keeps the history there
and looks up all rows at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from ..core import Lease, ScheduleBatch
from ..devices.base import Array, Buffer, Device
from ..devices.cost import CostModel
from ..devices.sim import Vector
from ..models.base import ForwardBatch
from ..trace import Touch

MIN_N, MAX_N = 1, 3  # lengths of the n-grams


def propose(tokens: Sequence[int], count: int) -> list[int]:
    """Host (``NGRAM``): return ``count`` drafts of the tokens after ``tokens``, or none.

    There are none if no suffix of ``MIN_N`` to ``MAX_N`` tokens occurred before.
    """
    length = len(tokens)
    for n in range(min(MAX_N, length - 1), MIN_N - 1, -1) if count else ():
        suffix = tokens[length - n :]
        for start in range(length - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                return follow(tokens, length - n - start, count)
    return []


def follow(tokens: Sequence[int], distance: int, count: int) -> list[int]:
    """Return ``count`` tokens, each equal to the one ``distance`` places before it."""
    return [tokens[len(tokens) - distance + at % distance] for at in range(count)]


def lookup(
    history: Buffer, max_len: int, rows: Sequence[int], lengths: Vector, count: int
) -> Vector:
    """Device (``sim``): return ``count`` drafts for every row, [num_reqs * count].

    ``history[row * max_len + position]`` is a token, and ``lengths`` [num_reqs] (at least 1) is the
    length of each of ``rows``. Without a match, the last token is drafted repeatedly: a step has
    one shape, so it has to verify something (vLLM ``ngram_proposer_gpu.py``).
    """
    drafts = Vector()
    for row, length in zip(rows, lengths, strict=True):
        tokens = history[row * max_len : row * max_len + length]
        drafts += propose(tokens, count) or follow(tokens, 1, count)
    return drafts


def lookup_at_once(library: Any, tokens: Array, lengths: Array, at: Array, ahead: Array) -> Array:
    """Return the same drafts on the arrays of torch or ``mlx.core``, for all rows together.

    ``tokens`` [num_reqs, max_len] are histories; ``at`` [max_len] and ``ahead`` [count] count from
    0.
    """
    take = library.take_along_dim if hasattr(library, "take_along_dim") else library.take_along_axis
    last = lengths[:, None] - 1
    alike = at < last  # an occurrence is identified by its end
    num_alike = tokens * 0  # number of tokens up to ``at`` that equal those up to the last
    for back in range(MAX_N):
        suffix = take(tokens, library.clip(last - back, 0, None), -1)
        alike = alike & (library.roll(tokens, back, -1) == suffix) & (at >= back)
        num_alike = num_alike + alike
    score = library.where(num_alike >= MIN_N, num_alike * len(at) + at, -1)
    end = library.argmax(score, -1, True)
    distance = library.where(take(score, end, -1) >= 0, last - end, 1)  # 1: the last token again
    return take(tokens, last + 1 - distance + ahead % distance, -1).flatten()


# -- A drafter on the device -----------------------------------------------------------------------


class Reach(NamedTuple):
    """The possible positions of one row of a step, as far as the host knows."""

    row: int  # of the request table
    rid: str
    is_prompt: bool
    reads_late: bool  # whether it reads the writes of a later row in the same step
    start: int  # the least
    end: int  # one past the most
    slots: Sequence[int]  # its slots in the page table; the last page may extend past ``end``


HISTORY = "token history"
Cached = tuple[Array, Array]  # cells of the history, and their tokens


class LookupDrafter:
    """``NGRAM_GPU`` (vLLM ``v1/spec_decode/ngram_proposer_gpu.py``).

    The host need not know the last tokens, so the next step need not wait for it. The history is
    ``token_ids_gpu``: one cell for each position of each row. Prompts and tokens pass through the
    steps, so the device has them. The host sends only the tokens of a cached prefix.
    """

    def __init__(self, library: str, num_draft_tokens: int) -> None:
        self.library: Any = None  # the arrays' library; None: they are lists
        if library:
            self.library = import_module("mlx.core" if library == "mlx" else library)
        self.num_draft_tokens = num_draft_tokens
        self.filled_for: dict[int, Lease] = {}  # row -> the lease of its history's tokens

    def allocate(
        self, device: Device, num_slots: int, max_running_requests: int, max_len: int
    ) -> None:
        """Take one cell for each position of each row."""
        self.xp = device.xp
        self.max_len = max_len
        self.history = device.memory(HISTORY, (max_running_requests + 1) * max_len)
        self.at, self.ahead = map(self.xp.asarray, (range(max_len), range(self.num_draft_tokens)))

    def bind(self, batch: ScheduleBatch) -> Cached | None:
        """Host: return cached prefixes of the rows that are new, or None."""
        cells: list[int] = []
        tokens: list[int] = []
        for row in batch.rows[: batch.num_extend_reqs]:
            if self.filled_for.get(row.lease.row) is not row.lease:
                at = row.lease.row * self.max_len
                cells += range(at, at + row.start)
                tokens += row.req.known_tokens(0, row.start)
                self.filled_for[row.lease.row] = row.lease
        return (self.xp.asarray(cells), self.xp.asarray(tokens)) if cells else None

    def draft(
        self,
        batch: ForwardBatch,
        bound: Cached | None,
        tokens: Array,
        num_accepted: Array,
        page_table: Buffer,
    ) -> Array:
        """Device: record the tokens that the step read and chose, and look up drafts.

        ``batch`` has real ids and positions. Of the ``tokens`` [num_samples] that the target chose,
        ``num_accepted`` [num_reqs] of each row count. Return ``num_draft_tokens`` guesses for each
        row, [num_reqs * k].

        Rejected drafts are overwritten by the chosen tokens. Tokens that the target chose after a
        rejected draft lie beyond the row's length, until a later step overwrites them.
        """
        if bound is not None:
            cells, cached = bound
            self.history[cells] = cached
        ends = [p + e for p, e in zip(batch.prefix_lens, batch.extend_lens, strict=True)]
        firsts = [end - n + 1 for end, n in zip(ends, batch.sample_lens, strict=True)]
        for starts, stops, written in (
            (batch.prefix_lens, ends, batch.ids[: batch.num_tokens]),
            (firsts, [end + 1 for end in ends], tokens),
        ):
            places = [
                row * self.max_len + position
                for row, start, stop in zip(batch.rows, starts, stops, strict=True)
                for position in range(start, stop)
            ]
            self.history[self.xp.asarray(places)] = written
        lengths = self.xp.asarray(firsts) + num_accepted
        if self.library is None:
            return lookup(self.history, self.max_len, batch.rows, lengths, self.num_draft_tokens)
        histories = self.history.reshape(-1, self.max_len)[self.xp.asarray(batch.rows)]
        return lookup_at_once(self.library, histories, lengths, self.at, self.ahead)

    def touches(self, reaches: Sequence[Reach]) -> list[Touch]:
        """Host: list the rows' histories up to the last chosen token; a new row's whole one."""
        touches = []
        for reach in reaches:
            first = reach.row * self.max_len
            start, end = first + reach.start, first + reach.end + 1
            written = range(first if reach.is_prompt else start, end)
            touches.append(Touch("write", HISTORY, written, reach.rid))
            touches.append(Touch("read", HISTORY, range(first, end), reach.rid))
        return touches

    def cost(self, cost: CostModel) -> int:
        """Return the nanoseconds on ``sim``: one lookup."""
        return cost.draft
