"""A step in numbers, as a model reads it, and the interface of a model.

The worker lays a batch out flat (``flatten``) and ships it (``make_forward_batch``). A ``Model``
writes the KV of a step's tokens through the page table, returns logits, and samples from them. A
token sampled from logits that are not numbers is *marked*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..core import ForwardMode, LogitAdjustment, SamplingParams, ScheduleBatch
from ..devices.base import Array, Arrays, Buffer, Device


@dataclass(eq=False)
class ForwardBatch:
    """A step in numbers (SGLang ``model_executor/forward_batch_info.py:ForwardBatch``).

    Requests are rows of the request table, pages are cells of the device's page table, and tokens
    lie flat, row after row. The host lays it out in lists (``flatten``) and then ships it
    (``make_forward_batch``): the same form, in which each field of type ``Array`` is an array on
    the device. Its tokens are padded to a multiple of ``Model.pad_to`` with tokens of row 0 at
    position 0, without a KV write.
    """

    step: int
    mode: ForwardMode
    rids: tuple[str, ...]  # [num_reqs]
    rows: list[int]  # [num_reqs] row of the request table
    prefix_lens: list[int]  # [num_reqs] positions computed before this step
    extend_lens: list[int]  # [num_reqs] positions computed in this step
    sample_lens: list[int]  # [num_reqs] tokens sampled, after a row's last positions
    logit_lens: list[int]  # [num_reqs] last positions of which logits are wanted
    sampling: list[tuple[SamplingParams, int, int]]  # [num_samples] with key and position
    ids: Array  # [num_tokens] tokens; a negative id is resolved by the relay
    future_slots: Array  # [num_reqs] where the relay keeps the sampled tokens
    table_index: Array  # [num_new_slots] cells of the page table to fill first
    table_slots: Array  # [num_new_slots] the KV slots that go there
    samples_at: Array = None  # [num_samples] places among the logits; None: all logits
    positions: Array = None  # [num_tokens] set when it is shipped, as the next three
    token_rows: Array = None  # [num_tokens] row of each token
    last: Array = None  # [num_reqs] index of each row's last token
    logits_at: Array = None  # [num_logits] index of each token with wanted logits
    adjustments: list[LogitAdjustment | None] = field(default_factory=list)  # [num_samples], or []

    @property
    def extents(self) -> Iterator[tuple[int, int]]:
        """Return first new position and number of new positions of each row, as costs need them."""
        return zip(self.prefix_lens, self.extend_lens, strict=True)

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens without padding."""
        return sum(self.extend_lens)


def flatten(
    batch: ScheduleBatch, ids: list[int], future_slots: list[int], max_len: int, page_size: int
) -> ForwardBatch:
    """Lay a batch out flat, in lists (SGLang's ``ScheduleBatch.get_model_worker_batch``).

    ``ids`` and ``future_slots`` come from the relay, all other columns from the batch: none from
    the live requests. A row of the page table has ``max_len`` cells.
    """
    rows = [lease.row for lease in batch.leases]
    lens, sample_lens = list(map(len, batch.ids)), batch.sample_lens
    ends = [start + length for start, length in zip(batch.starts, lens, strict=True)]
    index: list[int] = []
    slots: list[int] = []
    for at, (pages_at, pages) in batch.new_pages.items():
        cell = rows[at] * max_len + pages_at * page_size
        slots += pages if page_size == 1 else slots_of(pages, page_size)
        index += range(cell, cell + len(pages) * page_size)
    sampling = [
        (req.params, req.sampling_key, position)
        for req, end, samples in zip(batch.reqs, ends, sample_lens, strict=True)
        for position in ((end,) if samples == 1 else range(end - samples + 1, end + 1))
    ]
    return ForwardBatch(
        batch.step, batch.mode, batch.rids, rows, batch.starts, lens, sample_lens, sample_lens,
        sampling, ids, future_slots, index, slots,
    )  # fmt: skip


def make_forward_batch(batch: ForwardBatch, xp: Arrays, pad_to: int) -> ForwardBatch:
    """Ship a batch that is laid out in lists (SGLang's ``ForwardBatch.init_new``)."""
    rows, lens, logit_lens = batch.rows, batch.extend_lens, batch.logit_lens
    if len(batch.ids) == len(rows):  # one token for each row, as in nearly every step
        positions, token_rows = batch.prefix_lens, rows
        last = logits_at = list(range(len(rows)))
    else:
        positions = [at for start, length in batch.extents for at in range(start, start + length)]
        token_rows = [row for row, length in zip(rows, lens, strict=True) for _ in range(length)]
        last = [end - 1 for end in accumulate(lens)]
        logits_at = [
            at
            for end, count in zip(last, logit_lens, strict=True)
            for at in range(end - count + 1, end + 1)
        ]
    padding = [0] * (-len(positions) % pad_to)
    ids, at, of_row, index, slots, future_slots, *ends = xp.asarrays(
        batch.ids + padding,
        positions + padding,
        token_rows + padding,
        batch.table_index,
        batch.table_slots,
        batch.future_slots,
        last,
        *([] if logits_at == last else [logits_at]),
    )
    return ForwardBatch(
        batch.step, batch.mode, batch.rids, rows, batch.prefix_lens, lens, batch.sample_lens,
        logit_lens, batch.sampling, ids, future_slots, index, slots,
        samples_at=None if batch.samples_at is None else xp.asarray(batch.samples_at),
        positions=at, token_rows=of_row, last=ends[0], logits_at=ends[-1],
    )  # fmt: skip


def placeholders(batch: ScheduleBatch, ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the first negative id of each row that has any: row, place in the flat ids, id."""
    start = 0
    for row, width in enumerate(map(len, batch.ids)):
        at = next((at for at in range(start, start + width) if ids[at] < 0), -1)
        if at >= 0:
            yield row, at, ids[at]
        start += width


# -- Rows of a batch that attend together: neighbours that compute equally many positions ----------

TOGETHER = 32  # positions; rows that compute more fill a kernel alone, and need the memory


class RowRun(NamedTuple):
    """Neighbouring rows of a batch with one extent, and the place of their tokens."""

    rows: slice  # of the batch's rows
    tokens: slice  # of the flat batch
    extend_len: int  # positions that each row computes


def equal_extents(extend_lens: Sequence[int]) -> Iterator[RowRun]:
    """Yield the runs of a batch, in order: all rows of a decode, or of a verify step with drafts.

    Rows that compute more than ``TOGETHER`` positions, which only prompts do, attend singly.
    """
    row = token = 0
    for extend_len, group in groupby(extend_lens):
        alone = extend_len > TOGETHER
        count = len(list(group))
        for size in [1] * count if alone else [count]:
            end = token + size * extend_len
            yield RowRun(slice(row, row + size), slice(token, end), extend_len)
            row, token = row + size, end


# -- What a model offers ---------------------------------------------------------------------------

Tokenizer = Any  # encode(text) -> list[int], decode(ids) -> str


class Model(Protocol):
    """A language model over paged KV memory that it owns.

    ``page_table[row * max_len + position]`` is the KV slot of a position. Slot 0 belongs to no
    request.
    """

    name: str
    dtype: str  # dtype of its arithmetic; empty: whole numbers, or none
    vocab_size: int
    context_len: int
    eos_ids: frozenset[int]
    pad_to: int
    tokenizer: Tokenizer | None

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Take KV memory for ``num_slots`` slots and rows of at most ``max_len`` positions."""
        ...

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """On the device: write the KV of ``ids`` [num_tokens], return logits [num_logits, vocab].

        ``batch.positions`` gives the start of each row. ``batch.prefix_lens`` is the host's bound
        of it, which may be too large: a draft model continues from tokens that only the device
        counts.
        """
        ...

    def sample(self, logits: Array, batch: ForwardBatch) -> Array:
        """On the device: return one token for each sampled place, [num_samples].

        It is marked, -1 - token, where its logits are not numbers.
        """
        ...


@runtime_checkable
class GraphModel(Protocol):
    """A model that captures decode steps before there are any (``llama_graphs.py``)."""

    def init_cuda_graphs(self, device: Device, page_table: Buffer, max_bs: int) -> Buffer:
        """Capture steps of up to ``max_bs`` rows, 0 for none; return the page table they read."""
        ...


class LogitModel(Model, Protocol):
    """A model that computes logits: every model except ``replay/replay.py``'s."""

    def logprobs(self, logits: Array, at: Array, tokens: Array, top: int) -> Array:
        """On the device: return log-probabilities, [num_places, 1 + 2 * top] (``sampling.py``)."""
        ...


# -- NaN: a token sampled from logits that are not numbers is marked, as -1 - token ----------------
#
# For torch and for ``sampling.py`` a NaN is the largest of all logits, so the maximum is NaN if
# any logit is. (SGLang looks for NaN with ``--enable-nan-detection``, and
# samples from the rest: ``layers/sampler.py``.) All of this happens on the device, without a wait:
# the mark reaches the host with the token. Only the host's copy has it: later steps
# are in flight already, and their models need a token of the vocabulary.


def without_marks(xp: Arrays, marked: Array) -> Array:
    """On the device: return valid tokens, whatever their logits were."""
    return xp.where(marked < 0, -marked - 1, marked)


def read_marks(marked: Sequence[int]) -> tuple[Sequence[int], frozenset[int]]:
    """On the host: return the tokens, and the places where logits were not numbers."""
    if not marked or min(marked) >= 0:
        return marked, frozenset()
    places = frozenset(at for at, token in enumerate(marked) if token < 0)
    return [-1 - token if token < 0 else token for token in marked], places


def slots_of(pages: Sequence[int], page_size: int) -> list[int]:
    """Return the KV slots of pages, in order."""
    return [page * page_size + at for page in pages for at in range(page_size)]
