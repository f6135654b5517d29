"""The batch between scheduler and device: flat lists, and nothing that refers to a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType

from .batch import ForwardMode, ScheduleBatch
from .logprobs import WantedLogprobs
from .residence import on_host
from .sampling_params import SamplingParams


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
    logprobs: WantedLogprobs | None = on_host("one", NoneType)  # None: nobody wants any


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
        slots += slots_of(pages, page_size)
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
            for position in range(end - samples + 1, end + 1)
        ],
        start_unknown=batch.start_unknown,
        table_index=index,
        table_slots=slots,
        logprobs=wanted_logprobs(batch) if batch.return_logprob else None,
    )


def wanted_logprobs(batch: ScheduleBatch) -> WantedLogprobs:
    """What the requests of a batch want, and the prompts' tokens that it is about."""
    starts = batch.extend_logprob_start_lens
    ids = [
        list(row.req.prompt[row.start + start_len + 1 : row.end + 1])
        for row, start_len in zip(batch.rows, starts, strict=False)
    ]
    nums = [req.params.top_logprobs_num if req.params.return_logprob else -1 for req in batch.reqs]
    return WantedLogprobs(nums, starts, ids)


def slots_of(pages: Sequence[int], page_size: int) -> list[int]:
    """The KV slots of pages, in order."""
    return [page * page_size + at for page in pages for at in range(page_size)]
