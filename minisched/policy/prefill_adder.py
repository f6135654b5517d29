"""Build one prefill batch: what is left for it, which requests fit, and why the next does not.

Prompts take KV memory and the tokens of a step. Schedulers differ most in how much memory must be
left for a request to start (``Reserve``). SGLang reserves a share of what running requests may
still generate, mini-sglang all of it, and nano-vllm nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ..core import Request
from ..memory import LeasePool, PrefixCache
from ..trace import Recorder

CLIP_MAX_NEW_TOKENS = 4096  # no request is expected to produce more than this


class AddReqResult(Enum):
    """The result of offering a request (SGLang ``schedule_policy.py:AddReqResult``)."""

    CONTINUE = "continue"  # added, and there is room for more
    NO_TOKEN = "no token"  # no KV memory
    OTHER = "other"  # the batch has enough prompt tokens


def refuse(
    recorder: Recorder,
    req: Request | None,
    result: AddReqResult,
    what: str,
    need: int = 0,
    left: int = 0,
) -> AddReqResult:
    """Record that ``req`` was refused because ``what`` is short; return ``result``.

    Without a ``need``, ``what`` is the reason why the queue was not looked at.
    """
    if req is not None and recorder.is_on:
        unit = "row" if what == "max_running_requests" else "token" if need == 1 else "tokens"
        reason = f"{what}: needs {need} {unit}, {left} left" if need else what
        recorder.mark(
            "refuse", rid=req.rid, result=result.name, need=need, left=left, reason=reason
        )
    return result


class Reserve(Protocol):
    """How much memory must be left for a request to start, in tokens (``sglang.py:Ratio``)."""

    def kept_for(self, adder: PrefillAdder, req: Request) -> float:
        """Return the tokens to reserve for a running request."""

    def total_tokens(self, adder: PrefillAdder, req: Request, extend_len: int) -> int:
        """Return the tokens that a request needs that has ``extend_len`` uncached tokens."""

    def fits(self, adder: PrefillAdder, req: Request, extend_len: int, to_lock: int) -> bool:
        """Return whether they are left once ``to_lock`` cached tokens can't be evicted."""

    def charge(self, adder: PrefillAdder, req: Request, extend_len: int) -> None:
        """Subtract a request's memory; this step computes ``extend_len`` of its prompt."""

    def is_spent(self, adder: PrefillAdder) -> bool:
        """Return whether no memory is left for any other request."""

    def chunk_limit(self, adder: PrefillAdder, rem: int) -> int:
        """Return how many of ``rem`` tokens the next chunk of a started prompt may use."""


@dataclass(frozen=True)
class ChunkRule:
    """How prompts share the tokens of a step; the defaults are SGLang's."""

    counts_pages: bool = True  # each prompt costs whole pages of the budget
    ends_with_page: bool = True  # a chunk ends with a page, because only whole pages are shared
    cuts_first_only: bool = False  # a later prompt waits unless it fits whole
    admits_alone: bool = True  # a refused request runs if no other holds memory
    asks_every_step: bool = False  # after a refusal the queue need not wait for a release


class PrefillAdder:
    """Adds requests in order (SGLang ``schedule_policy.py:PrefillAdder``).

    Four numbers count what is left.

    - ``rem_total_tokens``: memory, less what is reserved for running requests.
    - ``cur_rem_tokens``: memory available now.
    - ``rem_input_tokens``: prompt tokens of this batch.
    - ``rem_chunk_tokens``: the same, but a longer prompt is cut, not refused. None: no limit.

    In a mixed batch the decodes are paid first (``num_mixed_decode_tokens``).
    """

    def __init__(
        self,
        leases: LeasePool,
        cache: PrefixCache,
        recorder: Recorder,
        running: Iterable[Request],
        new_token_ratio: float,
        rem_input_tokens: int,
        rem_chunk_tokens: int | None,
        num_mixed_decode_tokens: int = 0,
        *,
        reserve: Reserve,
        chunks: ChunkRule,
    ) -> None:
        self.leases, self.cache, self.recorder = leases, cache, recorder
        self.running = list(running)
        self.reserve, self.chunks = reserve, chunks
        self.page_size = leases.allocator.page_size
        self.new_token_ratio = new_token_ratio
        self.can_run_list: list[tuple[Request, int]] = []  # with the tokens to compute now
        mixed = num_mixed_decode_tokens
        self.rem_input_tokens = rem_input_tokens - mixed
        self.rem_chunk_tokens = None if rem_chunk_tokens is None else rem_chunk_tokens - mixed
        self.cur_rem_token_offset = mixed
        self.rem_total_token_offset = mixed + self.inflight_tokens

    # -- admission

    def add_chunked_req(self, req: Request) -> bool:
        """Add the next chunk of a started prompt; return whether more of it is left.

        It takes what memory there is, also reserved memory: its pages are released only after it
        is computed.
        """
        assert req.lease is not None
        wanted, rem = req.extend_len, self.rem_chunk_tokens
        if rem is not None:
            wanted = min(wanted, self.reserve.chunk_limit(self, rem))
        pages = self.leases.available_pages + len(req.lease.pages)
        extend_len = max(0, min(wanted, pages * self.page_size - req.computed_len))
        if extend_len:
            self._add(req, extend_len)
        else:
            refuse(self.recorder, req, AddReqResult.OTHER, "the next chunk", 1, min(wanted, 0))
        return extend_len < req.extend_len or not extend_len

    def add_one_req(self, req: Request) -> AddReqResult:
        """Add a waiting request, cut to a chunk if need be, or record why it is refused.

        The matched prefix would no longer be evictable, so its pages count as needed. It is locked
        only after admission succeeds: a refused request does not use it.
        """
        match = self.cache.match_prefix(req)
        hit_len = len(match.pages) * self.page_size if match else 0
        extend_len = req.admission.asked_len = req.known_len - hit_len
        to_lock = self.leases.cache.num_pages_locked(match.node, 0) * self.page_size if match else 0
        if not self.reserve.fits(self, req, extend_len, to_lock):
            need = self.reserve.total_tokens(self, req, extend_len) + to_lock
            left = int(self.rem_total_tokens)
            return refuse(self.recorder, req, AddReqResult.NO_TOKEN, "KV memory", need, left)
        rem = self.rem_input_tokens
        is_much = self.ceil_paged_tokens(extend_len) >= rem and self.rem_chunk_tokens is None
        if is_much and self.can_run_list:
            return refuse(
                self.recorder, req, AddReqResult.OTHER, "max_prefill_tokens", extend_len, rem
            )
        length = self.cut(extend_len)
        must_be_whole = self.chunks.cuts_first_only and bool(self.can_run_list)
        if length < extend_len and (must_be_whole or not length):
            return self._no_page(req)
        req.start(self.leases.open(match, req.rid))
        self._add(req, self.cut(req.extend_len))
        return self.state()

    def add_alone(self, req: Request) -> AddReqResult:
        """Add a request that is refused although no other request holds memory.

        It would be refused forever. It fits without the spare page of ``Ratio``, because
        ``SchedulerConfig.refusal`` has checked its length. If decodes were preempted for it in this
        step, their part of the chunk is still subtracted. With less than a page left, it waits.
        """
        lease = self.leases.open(self.cache.match_prefix(req), req.rid)
        extend_len = self.cut(req.known_len - lease.settled_len)
        if not extend_len:
            self.leases.close(lease)
            return self._no_page(req)
        req.start(lease)
        self._add(req, extend_len)
        return self.state()

    def _no_page(self, req: Request) -> AddReqResult:
        need, left = self.page_size, max(0, self.rem_chunk_tokens or 0)
        return refuse(self.recorder, req, AddReqResult.OTHER, "a page of a chunk", need, left)

    def _add(self, req: Request, extend_len: int) -> None:
        """Put a request into the batch, and charge it."""
        is_chunked = extend_len < req.extend_len
        self.can_run_list.append((req, extend_len))
        self.charge(req, extend_len)
        self.recorder.mark(
            "admit", rid=req.rid, hit_len=req.admission.hit_len, extend_len=extend_len,
            is_chunked=is_chunked, **self.remains(),
        )  # fmt: skip

    def preempt_to_schedule(self, req: Request, threshold: int) -> list[Request]:
        """Return the running requests to preempt for ``req``: as many as needed, or none.

        Only a missing row is a reason to preempt. A request waits for memory, and for a row that is
        about to be released. Victims have a priority lower by more than ``threshold``; the lowest
        goes first, of equals the newest. The prompt counts with its tokens left to compute as of
        its last attempt, or 0. A victim counts with what was reserved for it.
        """
        if self.leases.returning:
            return []
        need = req.admission.asked_len + min(req.params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        short = need - self.rem_total_tokens
        victims: list[Request] = []
        for victim in sorted(
            self.running, key=lambda other: (other.priority, -other.admission.order)
        ):
            if (victims and short <= 0) or req.priority - victim.priority <= threshold:
                break
            victims.append(victim)
            short -= self.reserve.kept_for(self, victim)
        return victims if victims and short <= 0 else []

    # -- memory

    @property
    def rem_total_tokens(self) -> float:
        """Return the memory left, less what is reserved for running and added requests."""
        return self.leases.available_pages * self.page_size - self.rem_total_token_offset

    @property
    def cur_rem_tokens(self) -> int:
        """Return the memory left now."""
        return self.leases.available_pages * self.page_size - self.cur_rem_token_offset

    @property
    def inflight_tokens(self) -> float:
        """Return the tokens reserved for all running requests (mini-sglang ``DecodeManager``)."""
        return sum(self.reserve.kept_for(self, req) for req in self.running)

    def lacking_tokens(self, req: Request, length: int) -> int:
        """Return the tokens of the pages that a request lacks to hold ``length`` positions."""
        assert req.lease is not None
        return self.leases.pages_lacking(req.lease, length) * self.page_size

    def ceil_paged_tokens(self, tokens: int) -> int:
        """Return ``tokens`` rounded up to whole pages."""
        return self.leases.allocator.pages_for(tokens) * self.page_size

    # -- the tokens of a step

    def cut(self, extend_len: int) -> int:
        """Return how many tokens of a prompt fit into the chunk (``ChunkRule``)."""
        rem = self.rem_chunk_tokens
        if rem is None or self.paid_tokens(extend_len) <= rem:
            return extend_len
        whole = rem // self.page_size * self.page_size if self.chunks.ends_with_page else rem
        return max(0, min(whole, extend_len))  # a short prompt may cost a page that is not left

    def paid_tokens(self, extend_len: int) -> int:
        """Return what ``extend_len`` tokens of a prompt cost of a step's budget, in tokens."""
        return self.ceil_paged_tokens(extend_len) if self.chunks.counts_pages else extend_len

    def charge(self, req: Request, extend_len: int) -> None:
        """Charge a request that has ``extend_len`` tokens computed in this step."""
        self.reserve.charge(self, req, extend_len)
        self.rem_input_tokens -= self.paid_tokens(extend_len)
        if self.rem_chunk_tokens is not None:
            self.rem_chunk_tokens -= self.paid_tokens(extend_len)

    def state(self) -> AddReqResult:
        """Return whether another request can be added."""
        if self.reserve.is_spent(self):
            return AddReqResult.NO_TOKEN
        no_chunk = self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0
        if self.rem_input_tokens <= 0 or no_chunk:
            return AddReqResult.OTHER
        return AddReqResult.CONTINUE

    def spent(self) -> tuple[str, int]:
        """Return the name of the limit that is used up, and what is left of it."""
        if self.state() is AddReqResult.NO_TOKEN:
            return "KV memory", int(min(self.rem_total_tokens, self.cur_rem_tokens))
        if self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0:
            return "chunked_prefill_size", self.rem_chunk_tokens
        return "max_prefill_tokens", self.rem_input_tokens

    def remains(self) -> dict[str, int]:
        """Return the four numbers for the trace; -1: no limit."""
        rem_chunk = self.rem_chunk_tokens
        return {
            "rem_total": int(self.rem_total_tokens),
            "cur_rem": self.cur_rem_tokens,
            "rem_input": self.rem_input_tokens,
            "rem_chunk": -1 if rem_chunk is None else rem_chunk,
        }
