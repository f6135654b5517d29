"""A step as a model reads it, and what the worker asks of a model.

The worker lays a batch out flat (``get_model_worker_batch``): a ``ModelWorkerBatch`` has lists and
nothing that refers to a request. ``make_forward_batch`` ships it: its lists become a
``ForwardBatch``, arrays on the device beside what the host needs to launch. A ``Model`` writes the
KV of a step's tokens through the page table, gives the logits that are asked for, and samples from
them. What is sampled where logits are not numbers is *marked*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import NoneType
from typing import Any, Protocol, runtime_checkable

from ..core import ForwardMode, LogitAdjustment, SamplingParams, ScheduleBatch
from ..core.batch import slots_of
from ..core.fields import on_device, on_host
from ..devices.base import Array, Arrays, Buffer, Device, Label
from .sampling import LogprobInfo, get_logprob_info


@dataclass(frozen=True, eq=False)
class ModelWorkerBatch:
    """A step as the worker gets it (SGLang ``managers/schedule_batch.py:ModelWorkerBatch``).

    Tokens lie flat, row after row. It could be sent to another process: pages have become cells
    of the device's page table, requests have become rows of the request table.
    """

    step: int = on_host()
    forward_mode: ForwardMode = on_host()
    rids: tuple[str, ...] = on_host("[num_reqs]")
    input_ids: list[int] = on_host("[num_tokens]")  # negative: the relay has it
    dests: list[int] = on_host("[num_reqs]")  # where the relay keeps what is sampled
    req_pool_indices: list[int] = on_host("[num_reqs]")  # rows of the request table
    extend_prefix_lens: list[int] = on_host("[num_reqs]")  # positions computed before
    extend_seq_lens: list[int] = on_host("[num_reqs]")  # positions computed now
    sample_lens: list[int] = on_host("[num_reqs]")  # tokens sampled, after a row's last positions
    sampling_info: list[tuple[SamplingParams, int, int]] = on_host("[num_samples]")
    start_unknown: list[bool] = on_host("[num_reqs]")  # extend_prefix_lens is only a lower bound
    table_index: list[int] = on_host("[num_new_slots]")  # cells of the page table to fill
    table_slots: list[int] = on_host("[num_new_slots]")  # the KV slots that go there
    logprobs: LogprobInfo | None = on_host("one", NoneType)  # None: nobody wants any


def get_model_worker_batch(
    batch: ScheduleBatch, ids: list[int], dests: list[int], max_len: int, page_size: int
) -> ModelWorkerBatch:
    """Lay a batch out flat (SGLang's ``ScheduleBatch.get_model_worker_batch``).

    ``ids`` and ``dests`` come from the relay. Everything else is the batch's own, nothing is read
    from the live requests. A row of the page table has ``max_len`` cells.
    """
    rows = [lease.row for lease in batch.leases]
    lens = list(map(len, batch.ids))
    ends = [start + length for start, length in zip(batch.starts, lens, strict=True)]
    index: list[int] = []
    slots: list[int] = []
    for at, (pages_at, pages) in batch.new_pages.items():
        cell = rows[at] * max_len + pages_at * page_size
        slots += pages if page_size == 1 else slots_of(pages, page_size)
        index += range(cell, cell + len(pages) * page_size)
    return ModelWorkerBatch(
        step=batch.step,
        forward_mode=batch.mode,
        rids=batch.rids,
        input_ids=ids,
        dests=dests,
        req_pool_indices=rows,
        extend_prefix_lens=batch.starts,
        extend_seq_lens=lens,
        sample_lens=batch.sample_lens,
        sampling_info=[
            (req.params, req.sampling_key, position)
            for req, end, samples in zip(batch.reqs, ends, batch.sample_lens, strict=True)
            for position in ((end,) if samples == 1 else range(end - samples + 1, end + 1))
        ],
        start_unknown=[*batch.start_unknown],
        table_index=index,
        table_slots=slots,
        logprobs=get_logprob_info(batch) if batch.has_sampling_extras else None,
    )


def placeholders(batch: ScheduleBatch, ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The first negative id of each row that has any: row, place in the flat ids, and id."""
    start = 0
    for row, width in enumerate(map(len, batch.ids)):
        at = next((at for at in range(start, start + width) if ids[at] < 0), -1)
        if at >= 0:
            yield row, at, ids[at]
        start += width


@dataclass(frozen=True)
class ForwardBatch:
    """One step's input (SGLang ``model_executor/forward_batch_info.py``).

    Tokens lie flat, row after row, padded to a multiple of ``Model.pad_to`` with tokens of row 0 at
    position 0, whose KV is not written.
    """

    label: Label = on_host()
    is_decode: bool = on_host()
    num_tokens: int = on_host()  # without padding
    rows: list[int] = on_host("[num_reqs]")  # row of the request table
    prefix_lens: list[int] = on_host("[num_reqs]")  # positions computed before this step
    extend_lens: list[int] = on_host("[num_reqs]")  # positions computed in this step
    logit_lens: list[int] = on_host("[num_reqs]")  # of how many last positions logits are wanted
    sample_lens: list[int] = on_host("[num_reqs]")  # after how many of them a token is sampled
    sampling: list[tuple[SamplingParams, int, int]] = on_host("[num_samples]")  # with key, position
    ids: Array = on_device("[num_tokens]")  # tokens; negative: where the relay finds them
    positions: Array = on_device("[num_tokens]")  # position of each token
    token_rows: Array = on_device("[num_tokens]")  # row of each token
    last: Array = on_device("[num_reqs]")  # index of each row's last token
    logits_at: Array = on_device("[num_logits]")  # index of each token whose logits are wanted
    table_index: Array = on_device("[num_new_slots]")  # page-table cells to fill first
    table_slots: Array = on_device("[num_new_slots]")  # the KV slots that go there
    dests: Array = on_device("[num_reqs]")  # where the relay keeps the sampled tokens
    adjustments: list[LogitAdjustment | None] = on_host("[num_samples]", list)  # or none at all
    start_unknown: list[bool] = on_host("[num_reqs]", list)  # only the device has prefix_lens
    logprobs: LogprobInfo | None = on_host("one", NoneType)  # None: nobody wants any

    @property
    def extents(self) -> Iterator[tuple[int, int]]:
        """First new position and new positions of each row, which decide what a pass costs."""
        return zip(self.prefix_lens, self.extend_lens, strict=True)


def make_forward_batch(batch: ModelWorkerBatch, xp: Arrays, pad_to: int) -> ForwardBatch:
    """Ship a batch (SGLang's ``ForwardBatch.init_new``)."""
    rows, lens, logit_lens = batch.req_pool_indices, batch.extend_seq_lens, batch.sample_lens
    if batch.logprobs is not None:
        logit_lens = batch.logprobs.logit_lens
    if len(batch.input_ids) == len(rows):  # one token a row, as in nearly every step
        positions, token_rows = batch.extend_prefix_lens, rows
        last = logits_at = list(range(len(rows)))
    else:
        positions = [
            position
            for start, length in zip(batch.extend_prefix_lens, lens, strict=True)
            for position in range(start, start + length)
        ]
        token_rows = [row for row, length in zip(rows, lens, strict=True) for _ in range(length)]
        last = [end - 1 for end in accumulate(lens)]
        logits_at = [
            at
            for end, count in zip(last, logit_lens, strict=True)
            for at in range(end - count + 1, end + 1)
        ]
    padding = [0] * (-len(positions) % pad_to)
    ids, at, of_row, index, slots, dests, *ends = xp.asarrays(
        batch.input_ids + padding,
        positions + padding,
        token_rows + padding,
        batch.table_index,
        batch.table_slots,
        batch.dests,
        last,
        *([] if logits_at == last else [logits_at]),
    )
    return ForwardBatch(
        label=Label(batch.step, batch.forward_mode.value, batch.rids),
        is_decode=batch.forward_mode is ForwardMode.DECODE,
        num_tokens=len(positions),
        rows=rows,
        prefix_lens=batch.extend_prefix_lens,
        extend_lens=lens,
        logit_lens=logit_lens,
        sample_lens=batch.sample_lens,
        sampling=batch.sampling_info,
        ids=ids,
        positions=at,
        token_rows=of_row,
        last=ends[0],
        logits_at=ends[-1],
        table_index=index,
        table_slots=slots,
        dests=dests,
        start_unknown=batch.start_unknown,
        logprobs=batch.logprobs and batch.logprobs.shipped(xp),
    )


# -- What a model offers ---------------------------------------------------------------------------

Tokenizer = Any  # encode(text) -> list[int], decode(ids) -> str


class Model(Protocol):
    """A language model over paged KV memory that it owns.

    ``page_table[row * max_len + position]`` is the KV slot of a position. Slot 0 is nobody's.
    """

    name: str
    dtype: str  # what it computes in; empty: in whole numbers, or not at all
    vocab_size: int
    context_len: int
    eos_ids: frozenset[int]
    pad_to: int
    tokenizer: Tokenizer | None

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Take KV memory for ``num_slots`` slots and rows of at most ``max_len`` positions."""
        ...

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """On the device: write the KV of ``ids`` [num_tokens], give logits [num_logits, vocab].

        ``batch.positions`` says where rows begin. ``batch.prefix_lens`` is what the host knows of
        it, which may be too much: a draft model goes on from tokens that only the device counts.
        """
        ...

    def sample(self, logits: Array, batch: ForwardBatch) -> Array:
        """On the device: one token for each place that is sampled, [num_samples].

        It is marked, -1 - token, where its logits are not numbers.
        """
        ...


@runtime_checkable
class GraphModel(Protocol):
    """A model that captures decode steps before there are any (``llama_graphs.py``)."""

    def init_cuda_graphs(self, device: Device, page_table: Buffer, max_bs: int) -> Buffer:
        """Capture steps of up to ``max_bs`` rows, 0 for none; give the page table they read."""
        ...


class LogitModel(Model, Protocol):
    """A model that computes logits, as every one does but ``replay/replay.py``."""

    def logprobs(self, logits: Array, at: Array, tokens: Array, top: int) -> Array:
        """On the device: how likely tokens are, [num_places, 1 + 2 * top] (``sampling.py``)."""
        ...


# -- NaN: a token that was sampled where logits are not numbers comes marked, as -1 - token --------
#
# To torch a NaN is the largest of all logits, and to ``sampling.py`` too: the one that was found to
# be largest tells whether there is any. (SGLang looks for NaN with ``--enable-nan-detection``, and
# samples from what is left: ``layers/sampler.py``.) All of this happens on the device, and nobody
# waits for it: the mark comes to the host with the token. Only the host's copy has it: steps behind
# are in flight already, and their models must be given a token of the vocabulary.


def without_marks(xp: Arrays, marked: Array) -> Array:
    """On the device: valid tokens, whatever their logits were."""
    return xp.where(marked < 0, -marked - 1, marked)


def read_marks(marked: Sequence[int]) -> tuple[Sequence[int], frozenset[int]]:
    """On the host: the tokens, and at which places logits were not numbers."""
    if not marked or min(marked) >= 0:
        return marked, frozenset()
    places = frozenset(at for at, token in enumerate(marked) if token < 0)
    return [-1 - token if token < 0 else token for token in marked], places
