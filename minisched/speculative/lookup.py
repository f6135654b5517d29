"""Prompt lookup: what followed the last few tokens the last time they occurred.

vLLM ``v1/spec_decode/ngram_proposer.py``, SGLang's ``NGRAM``. The longest suffix of the history
that occurred before wins, then its most recent occurrence. (So SGLang's by default; vLLM takes
the earliest one, which knows less of the present topic.) Where the tokens that followed reach the
end of the history, reading goes on with the drafts themselves, so that text which goes in circles
is drafted in full; both originals stop short there.

With ``NGRAM`` the host proposes. With ``NGRAM_GPU`` a drafter on the device keeps the history there
and looks up every row at once.
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

MIN_N, MAX_N = 1, 3  # lengths of the n-grams that are looked up


def propose(tokens: Sequence[int], count: int) -> list[int]:
    """Host (``NGRAM``): ``count`` drafts of the tokens behind ``tokens``, or none.

    None where no suffix of ``MIN_N`` to ``MAX_N`` tokens occurred before.
    """
    length = len(tokens)
    for n in range(min(MAX_N, length - 1), MIN_N - 1, -1) if count else ():
        suffix = tokens[length - n :]
        for start in range(length - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                return follow(tokens, length - n - start, count)
    return []


def follow(tokens: Sequence[int], distance: int, count: int) -> list[int]:
    """``count`` tokens, each equal to the one ``distance`` places before it."""
    return [tokens[len(tokens) - distance + at % distance] for at in range(count)]


def lookup(
    history: Buffer, max_len: int, rows: Sequence[int], lengths: Vector, count: int
) -> Vector:
    """Device (``sim``): ``count`` drafts for every row, [num_reqs * count].

    ``history[row * max_len + position]`` is a token, ``lengths`` [num_reqs] (at least 1) says how
    many each of ``rows`` has. Where nothing is found, the last token is drafted again and again:
    a step has one shape, so it has to verify something (vLLM ``ngram_proposer_gpu.py``).
    """
    drafts = Vector()
    for row, length in zip(rows, lengths, strict=True):
        tokens = history[row * max_len : row * max_len + length]
        drafts += propose(tokens, count) or follow(tokens, 1, count)
    return drafts


def lookup_at_once(library: Any, tokens: Array, lengths: Array, at: Array, ahead: Array) -> Array:
    """The same drafts on the arrays of a library, torch or ``mlx.core``, every row at once.

    ``tokens`` [num_reqs, max_len] are histories; ``at`` [max_len] and ``ahead`` [count] are counted
    from 0.
    """
    take = library.take_along_dim if hasattr(library, "take_along_dim") else library.take_along_axis
    last = lengths[:, None] - 1
    alike = at < last  # an occurrence is known by where it ends
    num_alike = tokens * 0  # tokens up to ``at`` that are as those up to the last
    for back in range(MAX_N):
        suffix = take(tokens, library.clip(last - back, 0, None), -1)
        alike = alike & (library.roll(tokens, back, -1) == suffix) & (at >= back)
        num_alike = num_alike + alike
    score = library.where(num_alike >= MIN_N, num_alike * len(at) + at, -1)
    end = library.argmax(score, -1, True)
    distance = library.where(take(score, end, -1) >= 0, last - end, 1)  # else the last token again
    return take(tokens, last + 1 - distance + ahead % distance, -1).flatten()


# -- A drafter on the device -----------------------------------------------------------------------


class Reach(NamedTuple):
    """Where the positions of one row of a step may lie, as far as the host knows."""

    row: int  # of the request table
    rid: str
    is_prompt: bool
    reads_late: bool  # what a row behind it writes in the same step
    start: int  # the least
    end: int  # one past the most
    slots: Sequence[int]  # that the page table lists for it; the last page may go on past ``end``


HISTORY = "token history"
Cached = tuple[Array, Array]  # cells of the history, and the tokens that go there


class LookupDrafter:
    """``NGRAM_GPU`` (vLLM ``v1/spec_decode/ngram_proposer_gpu.py``).

    The host need not know the last tokens, so the next step need not wait for it. The history is
    ``token_ids_gpu``: one cell for each position of each row. Prompts and tokens are there because
    they pass through the steps; only of a prefix that the radix cache gave the host sends a copy.
    """

    def __init__(self, library: str, num_draft_tokens: int) -> None:
        self.library: Any = None  # that of the arrays; None: they are lists
        if library:
            self.library = import_module("mlx.core" if library == "mlx" else library)
        self.num_draft_tokens = num_draft_tokens
        self.filled_for: dict[int, Lease] = {}  # row -> whose tokens its history is

    def allocate(
        self, device: Device, num_slots: int, max_running_requests: int, max_len: int
    ) -> None:
        """Take one cell for each position of each row."""
        self.xp = device.xp
        self.max_len = max_len
        self.history = device.memory(HISTORY, (max_running_requests + 1) * max_len)
        self.at, self.ahead = map(self.xp.asarray, (range(max_len), range(self.num_draft_tokens)))

    def bind(self, batch: ScheduleBatch) -> Cached | None:
        """Host: cached prefixes of the rows that are new, or None."""
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
        """Device: write down what the step has read and chosen, and look up what came next.

        ``batch`` has real ids and positions; of the ``tokens`` [num_samples] that the target chose
        ``num_accepted`` [num_reqs] of each row count. Gives ``num_draft_tokens`` guesses for each
        row, [num_reqs * k].

        Rejected drafts are overwritten by what was chosen in their place; what the target chose
        behind a rejected draft lies beyond the row's length, until a later step overwrites it.
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
        """Host: the rows' histories up to what was chosen last; all of a new row's is written."""
        touches = []
        for reach in reaches:
            first = reach.row * self.max_len
            start, end = first + reach.start, first + reach.end + 1
            written = range(first if reach.is_prompt else start, end)
            touches.append(Touch("write", HISTORY, written, reach.rid))
            touches.append(Touch("read", HISTORY, range(first, end), reach.rid))
        return touches

    def cost(self, cost: CostModel) -> int:
        """Nanoseconds on ``sim``: one lookup."""
        return cost.draft
