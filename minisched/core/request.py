"""A request and the memory it holds: the first file to read.

A request is a prompt plus the tokens generated so far. To be computed it needs a *lease*: a row of
the request table and pages of KV memory. Its lengths matter for overlap. The host commits a step
before it knows the token of the step before, so it counts tokens that it does not have yet::

    prompt      output_ids    in flight
    1 2 3 4 5   7 9 2         ?
                      |       |
              known_len = 8   device_len = 9: that many tokens will exist

``computed_len`` counts the positions with KV that is written, or will be by launched steps. The
next step computes the positions from there to ``device_len``.
"""

from __future__ import annotations

import zlib
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .part import Admission, FinishReason, Part, RequestPart
from .sampling import SamplingParams, is_text, is_whole, shown

# -- The memory of a request, from its admission until no step can touch it ------------------------


@dataclass(eq=False, slots=True, weakref_slot=True)
class Lease:
    """A row of the request table and its pages.

    It is closed when its request ends or is retracted, and released once no batch in flight refers
    to it. A retracted request gets a new lease, so a late token of the old one is recognized.
    """

    row: int  # index into the request-to-token table; row 0 is padding
    rid: str = ""  # the id of its request
    pages: list[int] = field(default_factory=list)  # by position; the first ones the cache's
    shared_pages: int = 0  # how many of them belong to the prefix cache
    node: Any = None  # where they end in the prefix cache; locked while the lease lives
    sent_pages: int = 0  # how many of them the device's page table lists as they are now
    settled_len: int = 0  # positions with written KV: their step has come back
    last_step: int = 0  # the last launched step that refers to it
    is_spoiled: bool = False  # a failed step left pages unwritten that it reads or has shared
    is_released: bool = False  # no step may read or write its row and pages any more


@dataclass(eq=False)
class Request:
    """One prompt, its output and its lengths (mini-sglang ``core.py:Req``).

    The host knows ``prompt`` plus ``output_ids``; ``device_len`` and ``computed_len`` (mini-sglang:
    ``cached_len``) run ahead of it.

    >>> request = Request("a", [1, 2, 3], SamplingParams(max_new_tokens=8))
    >>> request.device_len, request.max_device_len
    (3, 11)

    Its construction never fails, whatever its fields contain. The scheduler refuses it
    (``scheduler/input_processor.py``), and no other request is affected.
    """

    rid: str
    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival_time: int = 0  # nanoseconds on the device's clock
    output_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str = ""
    lease: Lease | None = None
    priority: int = 0  # the higher, the sooner, where ``enable_priority_scheduling`` is on
    admission: Admission = field(default_factory=Admission)
    computed_len: int = 0
    device_len: int = field(init=False)
    max_device_len: int = field(init=False)
    known_len: int = field(init=False)  # tokens that the host knows
    stop_ids: frozenset[int] = frozenset()  # tokens that end it: its own, and the model's
    parts: tuple[RequestPart, ...] = ()  # state of the features that it uses (core/feature.py)

    def __post_init__(self) -> None:
        if isinstance(self.prompt, MutableSequence):
            self.prompt = tuple(self.prompt)  # its parts, which the cache looks up, are tuples too
        length = len(self.prompt) if isinstance(self.prompt, Sequence) else 0
        limit = getattr(self.params, "max_new_tokens", 0)
        self.device_len = self.known_len = length
        self.max_device_len = length + (limit if is_whole(limit) else 0)

    @property
    def name(self) -> str:
        """Return its name in outputs and traces: its id, as a text whatever the id is."""
        return self.rid if is_text(self.rid) else shown(self.rid)

    @property
    def extend_len(self) -> int:
        """Return the number of positions that the next step has to compute."""
        return self.device_len - self.computed_len

    @property
    def num_output_placeholders(self) -> int:
        """Return the number of tokens in flight (vLLM ``v1/request.py``)."""
        return self.device_len - self.known_len

    @property
    def finished(self) -> bool:
        """Return whether the request has ended, for any reason."""
        return self.finish_reason is not None

    @cached_property
    def sampling_key(self) -> int:
        """Return a number below 2**63; with the position it decides every draw."""
        return self.params.seed % 2**31 << 32 | zlib.crc32(self.rid.encode())

    def tokens(self, start: int, end: int) -> tuple[int | None, ...]:
        """Return the tokens from ``start`` up to ``end``; None where only the device knows them."""
        known_end = min(end, self.known_len)
        return self.known_tokens(start, known_end) + (None,) * (end - max(start, known_end))

    def known_tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Return the tokens from ``start`` up to ``end`` that the host knows."""
        num_prompt = len(self.prompt)
        if start >= num_prompt:
            return tuple(self.output_ids[start - num_prompt : end - num_prompt])
        prompt = tuple(self.prompt[start:end])
        return prompt if end <= num_prompt else prompt + tuple(self.output_ids[: end - num_prompt])

    def append_host(self, token: int) -> FinishReason | None:
        """Append the next token; return a reason if it is the last one."""
        self.output_ids.append(token)
        length = self.known_len = self.known_len + 1
        reason = None
        if token in self.stop_ids:
            reason = FinishReason.STOP
        elif length == self.max_device_len:
            reason = FinishReason.LENGTH
        for part in self.parts:
            reason = part.on_token(token) or reason
        return reason

    def part(self, kind: type[Part]) -> Part | None:
        """Return its part of one kind, if it has one."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    def clip(self, max_new_tokens: int) -> None:
        """Reduce ``max_new_tokens`` before the request runs."""
        self.params = replace(self.params, max_new_tokens=max_new_tokens)
        self.max_device_len = len(self.prompt) + max_new_tokens

    def start(self, lease: Lease) -> None:
        """Begin under a new lease, after the prefix that it found in the cache."""
        self.lease = lease
        self.computed_len = self.admission.hit_len = lease.settled_len
