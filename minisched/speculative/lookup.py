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

from collections.abc import Callable, Sequence

from ..core import Lease, ScheduleBatch
from ..devices.base import Array, Arrays, Buffer, Device
from ..devices.cost import CostModel
from ..devices.sim import Vector
from ..models.base import ForwardBatch
from ..trace import Touch
from .base import Reach

MIN_N, MAX_N = 1, 3  # lengths of the n-grams that are looked up


def propose_from_history(tokens: Sequence[int], count: int) -> list[int]:
    """Host: ``count`` drafts from known tokens, or none (``NGRAM``)."""
    return propose(tokens, count, MIN_N, MAX_N) if count else []


def propose(tokens: Sequence[int], num_draft_tokens: int, min_n: int, max_n: int) -> list[int]:
    """Host: drafts of the tokens behind ``tokens``, ``num_draft_tokens`` of them or none.

    None where no suffix of ``min_n`` to ``max_n`` tokens occurred before.
    """
    length = len(tokens)
    for n in range(min(max_n, length - 1), min_n - 1, -1):
        suffix = tokens[length - n :]
        for start in range(length - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                return follow(tokens, length - n - start, num_draft_tokens)
    return []


def follow(tokens: Sequence[int], distance: int, count: int) -> list[int]:
    """``count`` tokens, each equal to the one ``distance`` places before it."""
    return [tokens[len(tokens) - distance + at % distance] for at in range(count)]


def lookup(
    history: Buffer,
    max_len: int,
    rows: Sequence[int],
    lengths: Vector,
    num_draft_tokens: int,
    min_n: int,
    max_n: int,
) -> Vector:
    """Device (``sim``): drafts for every row, [num_reqs * num_draft_tokens].

    ``history[row * max_len + position]`` is a token, ``lengths`` [num_reqs] (at least 1) says how
    many each of ``rows`` has. Where nothing is found, the last token is drafted again and again:
    a step has one shape, so it has to verify something (vLLM ``ngram_proposer_gpu.py``).
    """
    drafts = Vector()
    for row, length in zip(rows, lengths, strict=True):
        tokens = history[row * max_len : row * max_len + length]
        drafts += propose(tokens, num_draft_tokens, min_n, max_n) or follow(
            tokens, 1, num_draft_tokens
        )
    return drafts


def lookup_torch(
    history: Array,
    max_len: int,
    rows: Sequence[int],
    lengths: Array,
    num_draft_tokens: int,
    min_n: int,
    max_n: int,
) -> Array:
    """The same drafts on torch tensors, every row at once (vLLM ``ngram_proposer_gpu.py``)."""
    import torch

    from ..devices.thread import ship

    tokens = history.view(-1, max_len)[ship(rows, history.device)]  # [num_reqs, max_len]
    last = lengths[:, None] - 1
    at = torch.arange(max_len, device=history.device)  # an occurrence is known by where it ends
    alike = at < last
    num_alike = torch.zeros_like(tokens)  # tokens up to ``at`` that are as those up to the last
    for back in range(max_n):
        same = tokens.roll(back, -1) == tokens.gather(-1, (last - back).clamp(min=0))
        alike = alike & same & (at >= back)
        num_alike += alike
    score = torch.where(num_alike >= min_n, num_alike * max_len + at, -1)
    best, end = score.max(-1, keepdim=True)
    distance = torch.where(best >= 0, last - end, 1)  # found nothing: the last token once more
    ahead = torch.arange(num_draft_tokens, device=history.device)
    return tokens.gather(-1, last + 1 - distance + ahead % distance).flatten()


def lookup_mlx(
    history: Array,
    max_len: int,
    rows: Sequence[int],
    lengths: Array,
    num_draft_tokens: int,
    min_n: int,
    max_n: int,
) -> Array:
    """The same drafts on MLX arrays, lazily."""
    import mlx.core as mx

    tokens = history.reshape(-1, max_len)[mx.array(list(rows))]  # [num_reqs, max_len]
    last = lengths[:, None] - 1
    at = mx.arange(max_len)  # an occurrence is known by where it ends
    alike = at < last
    num_alike = mx.zeros_like(tokens)  # tokens up to ``at`` that are as those up to the last
    for back in range(max_n):
        suffix = mx.take_along_axis(tokens, mx.maximum(last - back, 0), axis=-1)
        alike = alike & (mx.roll(tokens, back, -1) == suffix) & (at >= back)
        num_alike = num_alike + alike
    score = mx.where(num_alike >= min_n, num_alike * max_len + at, -1)
    end = mx.argmax(score, axis=-1, keepdims=True)
    found = mx.take_along_axis(score, end, axis=-1) >= 0
    distance = mx.where(found, last - end.astype(last.dtype), 1)  # else the last token once more
    ahead = mx.arange(num_draft_tokens) % distance
    return mx.take_along_axis(tokens, last + 1 - distance + ahead, axis=-1).flatten()


LOOKUPS = {"": lookup, "torch": lookup_torch, "mlx": lookup_mlx}  # by library of the arrays


HISTORY = "token history"
Cached = tuple[Array, Array]  # cells of the history, and the tokens that go there


class LookupDrafter:
    """``NGRAM_GPU`` (vLLM ``v1/spec_decode/ngram_proposer_gpu.py``).

    The host need not know the last tokens, so the next step need not wait for it. The history is
    ``token_ids_gpu``: one cell for each position of each row. Prompts and tokens are there because
    they pass through the steps; only of a prefix that the radix cache gave the host sends a copy.
    """

    def __init__(
        self, lookup: Callable[..., Array], num_draft_tokens: int, min_n: int, max_n: int
    ) -> None:
        self.lookup = lookup
        self.num_draft_tokens = num_draft_tokens
        self.sizes = min_n, max_n
        self.filled_for: dict[int, Lease] = {}  # row -> whose tokens its history is

    def allocate(
        self, device: Device, num_slots: int, max_running_requests: int, max_len: int
    ) -> None:
        """Take one cell for each position of each row."""
        self.xp = device.xp
        self.max_len = max_len
        self.history = device.memory(HISTORY, (max_running_requests + 1) * max_len)

    def bind(self, batch: ScheduleBatch, xp: Arrays) -> Cached | None:
        """Host: cached prefixes of the rows that are new, or None."""
        cells: list[int] = []
        tokens: list[int] = []
        for row in batch.rows[: batch.num_extend_reqs]:
            if self.filled_for.get(row.lease.row) is not row.lease:
                at = row.lease.row * self.max_len
                cells += range(at, at + row.start)
                tokens += row.req.known_tokens(0, row.start)
                self.filled_for[row.lease.row] = row.lease
        return (xp.asarray(cells), xp.asarray(tokens)) if cells else None

    def draft(
        self,
        batch: ForwardBatch,
        bound: Cached | None,
        tokens: Array,
        num_accepted: Array,
        page_table: Buffer,
    ) -> Array:
        """Device: write down what the step has read and chosen, and look up what came next.

        Rejected drafts are overwritten by what was chosen in their place; what the target chose
        behind a rejected draft lies beyond the row's length, until a later step overwrites it.
        """
        if bound is not None:
            cells, cached = bound
            self.history[cells] = cached
        ends = [p + e for p, e in zip(batch.prefix_lens, batch.extend_lens, strict=True)]
        firsts = [end - n + 1 for end, n in zip(ends, batch.sample_lens, strict=True)]
        self._write(batch.rows, batch.prefix_lens, ends, batch.ids[: batch.num_tokens])
        self._write(batch.rows, firsts, [end + 1 for end in ends], tokens)
        lengths = self.xp.add(self.xp.asarray(firsts), num_accepted)
        return self.lookup(
            self.history, self.max_len, batch.rows, lengths, self.num_draft_tokens, *self.sizes
        )

    def touches(self, reaches: Sequence[Reach]) -> list[Touch]:
        """The rows' histories up to what was chosen last; of a new row all of it is written."""
        touches = []
        for reach in reaches:
            first = reach.row * self.max_len
            start, end = first + reach.start, first + reach.end + 1
            written = range(first if reach.is_prompt else start, end)
            touches.append(Touch("write", HISTORY, written, reach.rid))
            touches.append(Touch("read", HISTORY, range(first, end), reach.rid))
        return touches

    def cost(self, cost: CostModel, num_tokens: int) -> int:
        """Nanoseconds on ``sim``: one lookup."""
        return cost.draft

    def _write(self, rows: list[int], starts: list[int], ends: list[int], tokens: Array) -> None:
        cells = [
            row * self.max_len + position
            for row, start, end in zip(rows, starts, ends, strict=True)
            for position in range(start, end)
        ]
        self.history[self.xp.asarray(cells)] = tokens
