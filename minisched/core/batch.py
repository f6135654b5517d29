"""What one step runs: requests with their leases, frozen when the step was committed.

By the time a step's result is there, the scheduler has moved on: a request may have ended, lost its
memory, or be in two steps more. So a batch keeps what was true when it was committed, and nobody
asks a live request later. It takes three forms. The scheduler makes a ``ScheduleBatch``, which
names requests; the worker lays it out flat, as a ``ModelWorkerBatch``, in which there are only
numbers; and of that a ``ForwardBatch`` (``models/base.py``) is made, arrays on the device. What
comes back is a ``Result``, and what a client hears of it an ``Output``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import NoneType
from typing import Literal, NamedTuple

from .fields import on_host
from .logprobs import Logprobs, WantedLogprobs
from .request import FinishReason, Lease, Request
from .sampling import SamplingParams


class ForwardMode(Enum):
    """What a batch does (SGLang ``model_executor/forward_batch_info.py``)."""

    EXTEND = "extend"  # prompts, or chunks of them
    DECODE = "decode"  # one token a row
    MIXED = "mixed"  # prompts first, then rows that decode
    TARGET_VERIFY = "target verify"  # the last token and drafts of those behind it, in each row
    DRAFT_EXTEND = "draft extend"  # the draft model computes what the target has settled
    IDLE = "idle"  # nothing


class NoBatch(Enum):
    """Why ``next_batch`` gave no batch. Both are false, so a loop may write ``if batch:``."""

    WAIT = "wait"  # only results in flight can help
    IDLE = "idle"  # there is no request at all

    def __bool__(self) -> Literal[False]:
        return False


class Row(NamedTuple):
    """One request's part in one batch: everything that was true at commit.

    ``process`` and the worker read the row, never the live request: by the time a result comes
    back the scheduler has moved on (MindIE #233 read a live last-chunk flag).
    """

    req: Request
    lease: Lease
    start: int  # first position this row computes
    ids: tuple[int | None, ...]  # [extend_len] input tokens; None: only the device knows it
    pages_at: int  # which page of the row new_pages[0] is
    new_pages: Sequence[int]  # pages that the device's page table does not list for it yet
    deliver: bool  # False for a chunk that is not the last

    @property
    def extend_len(self) -> int:
        """Positions this row computes."""
        return len(self.ids)

    @property
    def end(self) -> int:
        """One past the last position this row computes: the position of the token it samples."""
        return self.start + len(self.ids)


@dataclass(eq=False, repr=False)
class ScheduleBatch:
    """A step as the scheduler sees it (SGLang ``managers/schedule_batch.py:ScheduleBatch``).

    Columns, filled at commit and never changed after; ``rows`` shows the same request by request.
    It is the first of three forms: the worker makes a ``ModelWorkerBatch`` of it, flat lists on
    the host, and of that a ``ForwardBatch``, arrays on the device.
    """

    step: int = on_host()
    mode: ForwardMode = on_host()
    num_extend_reqs: int = on_host()  # how many are prompts; they come first, the others decode
    reqs: list[Request] = on_host("[num_reqs]", list)
    leases: list[Lease] = on_host("[num_reqs]", list)
    starts: list[int] = on_host("[num_reqs]", list)  # see Row for these
    ids: list[tuple[int | None, ...]] = on_host("[num_reqs][extend_len]", list)
    delivers: list[bool] = on_host("[num_reqs]", list)
    new_pages: dict[int, tuple[int, Sequence[int]]] = on_host("{index of req: pages}", dict)
    has_sampling_extras: bool = on_host(default=True)  # False: nobody in it has any
    extend_logprob_start_lens: list[int] = on_host("[num_extend_reqs]", list)  # see logprobs.py

    def __repr__(self) -> str:
        rids = " ".join(req.rid for req in self.reqs)  # not ``self.rids``: it may still grow
        return f"<ScheduleBatch step {self.step}, {self.mode.value}, {rids}>"

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The requests' parts, prompts first."""
        columns = zip(self.reqs, self.leases, self.starts, self.ids, self.delivers, strict=True)
        none: tuple[int, Sequence[int]] = (0, ())
        return tuple(
            Row(req, lease, start, ids, *self.new_pages.get(index, none), deliver)
            for index, (req, lease, start, ids, deliver) in enumerate(columns)
        )

    @cached_property
    def rids(self) -> tuple[str, ...]:
        """The request ids, row by row; read once the batch is committed."""
        return tuple(req.rid for req in self.reqs)

    @property
    def anyone_left(self) -> bool:
        """Whether a request of it has ended, or lost its memory, since it was committed."""
        return any(
            req.lease is not lease for req, lease in zip(self.reqs, self.leases, strict=True)
        )

    @property
    def num_tokens(self) -> int:
        """Positions computed by the whole batch."""
        return sum(map(len, self.ids))

    @cached_property
    def size(self) -> tuple[int, int]:
        """Rows and new tokens, which decide what a step costs."""
        return len(self.reqs), self.num_tokens

    @cached_property
    def sample_lens(self) -> list[int]:
        """How many tokens each row samples, [num_reqs]: one, and one for each draft that it has."""
        first = self.num_extend_reqs
        return [1] * first + list(map(len, self.ids[first:]))

    @property
    def start_unknown(self) -> list[bool]:
        """Whose first position only the device knows, [num_reqs]: drafts before it are in flight.

        ``starts`` says then where it is if none of them is accepted. Empty without speculation.
        """
        if not (self.reqs and self.reqs[0].num_draft_tokens):
            return []
        return [None in ids for ids in self.ids]

    @cached_property
    def return_logprob(self) -> bool:
        """Whether any request of it wants log-probabilities."""
        return self.has_sampling_extras and any(req.params.return_logprob for req in self.reqs)

    @property
    def num_samples(self) -> int:
        """Tokens sampled by the whole batch."""
        return sum(self.sample_lens)


@dataclass(frozen=True)
class Result:
    """What came back from a step: tokens for every row, or the error that stopped it.

    Where a step may carry drafts, ``num_accepted_tokens`` says how many of each row's tokens
    count, and ``drafts`` what was drafted for the step behind it. ``logprobs`` has an entry for
    each row if anybody wants some, None for who does not.
    """

    tokens: Sequence[int]  # [num_samples]; empty after an error
    error: str = ""
    num_accepted_tokens: Sequence[int] | None = None  # [num_reqs]
    drafts: Sequence[int] = ()  # [num_reqs * k], or none
    logprobs: Sequence[Logprobs | None] = ()  # [num_reqs], or none
    nan_samples: frozenset[int] = frozenset()  # which of the samples had NaN among their logits


@dataclass(slots=True)
class Output:
    """One thing a client hears: a token, the end of its request, or both.

    ``logprobs``, if wanted: the token's, and with the first token those of the prompt. With
    ``namesake`` a request was refused because another one has its id: the refusal is about it
    alone, and whoever keeps books by id must leave those of the other one as they are.
    """

    rid: str
    token: int | None
    finish_reason: FinishReason | None = None
    error: str = ""
    logprobs: Logprobs | None = None
    namesake: bool = False


# -- The batch between scheduler and device: flat lists, and nothing that refers to a request ------


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


class Placeholder(NamedTuple):
    """A negative id: whose, where in the flat ids, and which."""

    row: int
    at: int
    token: int


def placeholders(batch: ScheduleBatch, ids: Sequence[int]) -> Iterator[Placeholder]:
    """The first placeholder of each row that has any."""
    start = 0
    for row, width in enumerate(map(len, batch.ids)):
        at = next((at for at in range(start, start + width) if ids[at] < 0), -1)
        if at >= 0:
            yield Placeholder(row, at, ids[at])
        start += width
