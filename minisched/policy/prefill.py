"""Admission: which waiting prompts start now, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core import ChunkedReq, Request
from ..memory import PageAllocator, ReqToTokenPool
from .decode import DecodeManager


@dataclass
class PrefillAdder:
    """The budget of one prefill batch (mini-sglang ``scheduler/prefill.py:PrefillAdder``).

    ``token_budget`` is what is left of the chunk size; ``reserved_pages`` grows with every
    promise made, to running requests first and then to those added here.
    """

    token_budget: int
    reserved_pages: int
    decode: DecodeManager
    allocator: PageAllocator

    def add_chunked_req(self, req: Request) -> int:
        """How many tokens of a prompt that has already started to compute now (0: none fit)."""
        assert req.lease is not None
        room = (self.allocator.available_pages + len(req.lease.pages)) * self.allocator.page_size
        extend_len = min(self.token_budget, req.extend_len, room - req.computed_len)
        return self._charge(req, max(0, extend_len))

    def try_add_one(self, req: Request) -> int:
        """How many tokens of a waiting prompt to compute now (0: it has to wait).

        The whole prompt and the tokens kept back for it must fit beside all earlier promises.
        """
        if self.token_budget <= 0:
            return 0
        if self.reserved_pages + self._pages(req) > self.allocator.available_pages:
            return 0
        return self._charge(req, min(self.token_budget, req.extend_len))

    def _pages(self, req: Request) -> int:
        """Pages for the prompt and for what the decode manager would keep back after it."""
        held = len(req.lease.pages) if req.lease else 0
        length = min(req.max_device_len, req.device_len + self.decode.growth(req))
        return max(0, self.allocator.pages_for(length) - held)

    def _charge(self, req: Request, extend_len: int) -> int:
        self.token_budget -= extend_len
        self.reserved_pages += self._pages(req)
        return extend_len


@dataclass
class PrefillManager:
    """The waiting queue and the one prompt that is being computed in chunks.

    Follows mini-sglang ``scheduler/prefill.py:PrefillManager``; ``chunked_req`` is SGLang's name.
    Order is first come, first served, and the first prompt that does not fit stops the rest.
    """

    chunk_size: int
    decode: DecodeManager
    allocator: PageAllocator
    table: ReqToTokenPool
    pending_list: list[Request] = field(default_factory=list)
    chunked_req: ChunkedReq | None = None

    def schedule_next_batch(self) -> list[tuple[Request, int]]:
        """The next prefill batch: requests and how many of their tokens to compute.

        Opens a lease for each request that starts. A prompt that does not fit into the budget
        becomes ``chunked_req``; nobody else is admitted before it is done.
        """
        adder = PrefillAdder(
            token_budget=self.chunk_size,
            reserved_pages=self.decode.inflight_tokens // self.allocator.page_size,
            decode=self.decode,
            allocator=self.allocator,
        )
        batch: list[tuple[Request, int]] = []
        if self.chunked_req is not None:
            req = self.chunked_req.req
            if not (extend_len := adder.add_chunked_req(req)):
                return []
            batch.append((req, extend_len))
            self.chunked_req = None if extend_len == req.extend_len else self.chunked_req
        while self.chunked_req is None and self.pending_list and self.table.available_size:
            req = self.pending_list[0]
            if not (extend_len := adder.try_add_one(req)):
                break
            self.pending_list.pop(0)
            req.lease = self.table.alloc()
            batch.append((req, extend_len))
            if extend_len < req.extend_len:
                self.chunked_req = ChunkedReq(req)
        return batch

    def remove_req(self, req: Request) -> None:
        """Drop one request, wherever it waits."""
        if req in self.pending_list:
            self.pending_list.remove(req)
        if self.chunked_req is not None and self.chunked_req.req is req:
            self.chunked_req = None
