"""The batch of one step: requests with their leases, frozen when the step is committed.

When the result of a step arrives, a request may have ended, lost its memory, or be in two more
steps. So a batch keeps the state of the commit: inputs come from it, and ``process`` compares the
request's lease with the one it had. The scheduler makes a ``ScheduleBatch``, which refers to
requests. The worker makes a ``ForwardBatch`` of it, which has only numbers (``models/base.py``).
The device returns a ``Result``, and a client receives an ``Output``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from .forward_mode import ForwardMode
from .logprobs import Logprobs
from .part import FinishReason
from .request import Lease, Request


class Row(NamedTuple):
    """One request's part in one batch, as it was at the commit.

    The batch has columns; this is a view of them (MindIE #233 read a live last-chunk flag).
    """

    req: Request
    lease: Lease
    start: int  # first position this row computes
    ids: tuple[int | None, ...]  # [extend_len] input tokens; None: only the device knows it
    deliver: bool  # False for a chunk that is not the last

    @property
    def end(self) -> int:
        """Return the position of the token that this row samples."""
        return self.start + len(self.ids)


@dataclass(eq=False, repr=False)
class ScheduleBatch:
    """A step as the scheduler sees it (SGLang ``managers/schedule_batch.py:ScheduleBatch``).

    Its columns are filled at the commit and never changed after.
    """

    step: int
    mode: ForwardMode
    num_extend_reqs: int  # number of prompts; they come first, the others decode
    reqs: list[Request] = field(default_factory=list)  # [num_reqs]
    leases: list[Lease] = field(default_factory=list)  # [num_reqs]
    starts: list[int] = field(default_factory=list)  # [num_reqs] see Row for these
    ids: list[tuple[int | None, ...]] = field(default_factory=list)  # [num_reqs][extend_len]
    # {index of req: pages} pages that the device's page table lacks, with the index of the first
    new_pages: dict[int, tuple[int, Sequence[int]]] = field(default_factory=dict)
    chunked_req: Request | None = None  # its chunk in this batch is not its last
    features: tuple[Any, ...] = ()  # of type Feature (feature.py): live requests use these

    def __repr__(self) -> str:
        rids = " ".join(req.rid for req in self.reqs)  # not ``self.rids``: it may still grow
        return f"<ScheduleBatch step {self.step}, {self.mode.value}, {rids}>"

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Return the columns request by request, prompts first."""
        return tuple(
            Row(req, lease, start, ids, req is not self.chunked_req)
            for req, lease, start, ids in zip(
                self.reqs, self.leases, self.starts, self.ids, strict=True
            )
        )

    @cached_property
    def rids(self) -> tuple[str, ...]:
        """Return the request ids; only after the commit."""
        return tuple(req.rid for req in self.reqs)

    @property
    def has_departed_reqs(self) -> bool:
        """Return whether a request has ended or lost its memory since the commit."""
        return any(
            req.lease is not lease for req, lease in zip(self.reqs, self.leases, strict=True)
        )

    @property
    def num_tokens(self) -> int:
        """Return the number of positions that the batch computes."""
        return sum(map(len, self.ids))

    @cached_property
    def size(self) -> tuple[int, int]:
        """Return the numbers of rows and of new tokens, which decide the cost of a step."""
        return len(self.reqs), self.num_tokens

    @cached_property
    def sample_lens(self) -> list[int]:
        """Return the number of tokens that each row samples, [num_reqs]."""
        return [1] * len(self.reqs)

    def drafts(self, at: int) -> Sequence[int]:
        """Return the drafts of row ``at`` that the host knows; a plain batch has none."""
        return ()

    def sample_position(self, at: int, num_newest: int = 0) -> int:
        """Return the position of the first token that row ``at`` samples.

        ``num_newest`` counts the tokens that the host has, but its request does not have yet.
        """
        return self.starts[at] + len(self.ids[at])


@dataclass(frozen=True)
class Result:
    """The result of a step: tokens for every row, or the error that stopped it."""

    tokens: Sequence[int]  # [num_samples]; empty after an error
    error: str = ""
    nan_samples: frozenset[int] = frozenset()  # samples that had NaN among their logits
    found: Mapping[Any, Any] = field(default_factory=dict)  # by Feature, added by its StepPart


@dataclass(slots=True)
class Output:
    """A message to a client: a token, the end of its request, or both.

    ``namesake``: it was refused because another request has its id, and that one goes on.
    """

    rid: str
    token: int | None
    finish_reason: FinishReason | None = None
    error: str = ""
    logprobs: Logprobs | None = None  # the token's, and with the first token those of the prompt
    namesake: bool = False


class Outputs:
    """Messages to clients, in order (SGLang ``managers/io_struct.py:BatchTokenIDOutput``).

    They are kept in two columns, [num_outputs]; ``more`` has those that are more than a token.
    """

    __slots__ = "more", "rids", "tokens"

    def __init__(self) -> None:
        self.rids: list[str] = []
        self.tokens: list[int | None] = []
        self.more: dict[int, Output] = {}

    def add(self, output: Output) -> None:
        """Add a message that may be more than a token."""
        self.more[len(self.rids)] = output
        self.rids.append(output.rid)
        self.tokens.append(output.token)

    def __len__(self) -> int:
        return len(self.rids)

    def __getitem__(self, at: int) -> Output:
        at = range(len(self))[at]
        return self.more.setdefault(at, Output(self.rids[at], self.tokens[at]))

    def __iter__(self) -> Iterator[Output]:
        return map(self.__getitem__, range(len(self)))
