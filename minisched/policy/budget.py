"""Memory for the prompt alone: who decodes on and finds none takes it from whoever came last."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder

# -- Why a request does not run: recorded each time, so that a learner can ask ---------------------


def refuse(
    recorder: Recorder, req: Request, result: AddReqResult, what: str, need: int, left: int
) -> AddReqResult:
    """Record that ``req`` was refused for want of ``what``; gives ``result`` back."""
    if recorder.is_on:
        unit = "row" if what == "max_running_requests" else "token" if need == 1 else "tokens"
        recorder.mark(
            "refuse", rid=req.rid, result=result.name, need=need, left=left,
            reason=f"{what}: needs {need} {unit}, {left} left",
        )  # fmt: skip
    return result


def hold_back(recorder: Recorder, req: Request | None, reason: str) -> None:
    """Record that ``req``, the first who waits, was not even asked, and why."""
    if req is not None and recorder.is_on:
        other = AddReqResult.OTHER.name
        recorder.mark("refuse", rid=req.rid, result=other, need=0, left=0, reason=reason)


# -- How much of what running requests may still produce admission keeps memory back for -----------

INIT, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
RETRACT_DECODE_STEPS = 20  # for which those who stay have memory after a retraction, if they may


class NewTokenRatio:
    """The share of their remaining tokens that requests are expected to use.

    Most requests stop early, so it starts below 1 and sinks with every decode step; a retraction
    shows that it was too low, and sets it to what the running requests have really used so far
    (SGLang ``managers/scheduler.py`` and ``schedule_batch.py:retract_decode``).
    """

    def __init__(self, conservativeness: float, recorder: Recorder) -> None:
        self.init = min(INIT * conservativeness, 1.0)
        self.min = self.init * MIN_FACTOR
        self.decay = (self.init - self.min) / DECAY_STEPS
        self.current = self.init
        self.recorder = recorder

    def on_decode(self) -> None:
        """One more decode step without a retraction."""
        self.current = max(self.current - self.decay, self.min)

    def on_retraction(self, remaining: Collection[Request]) -> None:
        """Estimate it anew from those who were kept."""
        produced = sum(len(req.output_ids) for req in remaining)
        wanted = sum(req.params.max_new_tokens for req in remaining)
        estimate = (produced + RETRACT_DECODE_STEPS * len(remaining)) / (wanted + 1)
        self._set(min(1.0, estimate))

    def reset(self) -> None:
        """Nothing runs any more."""
        if self.current != self.init:
            self._set(self.init)

    def _set(self, value: float) -> None:
        self.current = value
        self.recorder.mark("new token ratio", value=round(value, 6))


# -- Who ends when, and whether memory suffices until then: admission where nothing is cached ------

RESERVE_TOKENS = 1  # kept free for each request (SGLang ``IGNORE_EOS_RESERVE_TOKENS``)


class EndsSimulation:
    """Those who run and those who are about to, by the steps that each has left.

    SGLang ``schedule_policy.py:PrefillAdder.add_one_req_ignore_eos``, its ``req_states``. With each
    step everybody takes a token; who ends gives back what it holds.
    """

    def __init__(self, budget: PrefillBudget, reqs: Iterable[Request]) -> None:
        self.budget = budget
        states = filter(None, map(self._state, reqs))
        self.req_states = sorted(states, key=lambda state: state[0])  # tokens left, tokens held

    def insert(self, req: Request) -> None:
        """One more is to start; as in the original, nobody goes behind the last."""
        state = self._state(req)
        if state is None:
            return
        earlier = [left for left, _ in self.req_states if left < state[0]]
        last = max(0, len(self.req_states) - 1)
        self.req_states.insert(min(len(earlier), last), state)

    def all_fit(self, free: int) -> bool:
        """Whether ``free`` tokens suffice until the last has ended."""
        for at, (left, held) in enumerate(self.req_states):
            num_running = len(self.req_states) - at
            if free - left * num_running <= RESERVE_TOKENS * num_running:
                return False
            free += held
        return True

    def _state(self, req: Request) -> tuple[float, int] | None:
        left = req.params.max_new_tokens * self.budget.share(req) - len(req.output_ids)
        return (left, len(req.prompt) + len(req.output_ids)) if left > 0 else None


# -- The four numbers that admission counts down, all in tokens ------------------------------------

CLIP_MAX_NEW_TOKENS = 4096  # no request is expected to produce more than this


class AddReqResult(Enum):
    """What became of a request that was offered (SGLang ``schedule_policy.py:AddReqResult``)."""

    CONTINUE = "continue"  # added, and there is room for more
    NO_TOKEN = "no token"  # no KV memory
    OTHER = "other"  # the batch has enough prompt tokens


class PrefillBudget:
    """What is left for one prefill batch (SGLang ``schedule_policy.py:PrefillAdder``).

    ``rem_total_tokens``: memory, less what those who run may still come to need.
    ``cur_rem_tokens``: memory now. ``rem_input_tokens``: prompt tokens of one batch.
    ``rem_chunk_tokens``: the same, but here a prompt is cut instead of refused; None: no limit.
    Whoever runs while batches are mixed is paid first (``num_mixed_decode_tokens``).
    ``reserves_whole``: of one who ignores EOS, who will say all that it may, all is kept back.
    ``counts_tokens``: prompts are paid in tokens, not in whole pages. ``cuts_anywhere``: a chunk
    may end within a page. ``cuts_first``: nobody is cut but the first of a batch.
    """

    keeps_share = True  # of what those who run may say; else all of it (``rest_budget.py``)

    def __init__(
        self,
        leases: LeasePool,
        running: Iterable[Request],
        new_token_ratio: float,
        rem_input_tokens: int,
        rem_chunk_tokens: int | None,
        num_mixed_decode_tokens: int = 0,
        reserves_whole: bool = True,
        counts_tokens: bool = False,
        cuts_anywhere: bool = False,
        cuts_first: bool = False,
    ) -> None:
        self.leases = leases
        self.running = list(running)
        self.reserves_whole = reserves_whole
        self.counts_tokens = counts_tokens
        self.cuts_anywhere = cuts_anywhere
        self.cuts_first = cuts_first
        self.page_size = leases.allocator.page_size
        self.new_token_ratio = new_token_ratio
        mixed = num_mixed_decode_tokens
        self.rem_input_tokens = rem_input_tokens - mixed
        self.rem_chunk_tokens = None if rem_chunk_tokens is None else rem_chunk_tokens - mixed
        self.cur_rem_token_offset = mixed
        self.rem_total_token_offset = mixed + self.inflight_tokens

    @property
    def rem_total_tokens(self) -> float:
        """Memory left once those who run, and those added here, have produced what they may."""
        return self.leases.available_pages * self.page_size - self.rem_total_token_offset

    @property
    def cur_rem_tokens(self) -> int:
        """Memory left right now."""
        return self.leases.available_pages * self.page_size - self.cur_rem_token_offset

    @property
    def inflight_tokens(self) -> float:
        """Tokens kept back for all who run (mini-sglang ``DecodeManager.inflight_tokens``)."""
        return sum(map(self.reserve, self.running))

    def reserve(self, req: Request) -> float:
        """Tokens for which memory is kept back on behalf of a running request."""
        return self.new_tokens(req) * self.share(req)

    def share(self, req: Request) -> float:
        """The part of its tokens that a request is expected to produce."""
        return 1.0 if self.reserves_whole and req.params.ignore_eos else self.new_token_ratio

    def new_tokens(self, req: Request) -> int:
        """Tokens that a request is expected to produce at most."""
        return min(req.params.max_new_tokens - len(req.output_ids), CLIP_MAX_NEW_TOKENS)

    def fits(self, req: Request, extend_len: int, to_lock: int) -> bool:
        """Whether memory reaches for a request that starts with so many tokens to compute.

        ``to_lock``: tokens of the cache that could be evicted until then.
        """
        return self.total_tokens(req, extend_len) < self.rem_total_tokens - to_lock

    def total_tokens(self, req: Request, extend_len: int) -> int:
        """What a request needs that starts with so many tokens to compute."""
        return extend_len + self.new_tokens(req) + self.page_size

    def gave_way(self, req: Request) -> None:
        """A running request has been preempted: nothing is kept back for it any more."""
        self.rem_total_token_offset -= self.reserve(req)
        self.running.remove(req)

    def ceil_paged_tokens(self, tokens: int) -> int:
        """Tokens of the whole pages that these need."""
        return self.leases.allocator.pages_for(tokens) * self.page_size

    def state(self) -> AddReqResult:
        """Whether anybody else can be added."""
        if self.rem_total_tokens <= 0 or self.cur_rem_tokens <= 0:
            return AddReqResult.NO_TOKEN
        no_chunk = self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0
        if self.rem_input_tokens <= 0 or no_chunk:
            return AddReqResult.OTHER
        return AddReqResult.CONTINUE

    def spent(self) -> tuple[str, int]:
        """Which number lets nobody in any more, by its limit's name, and what is left of it."""
        if self.state() is AddReqResult.NO_TOKEN:
            return "KV memory", int(min(self.rem_total_tokens, self.cur_rem_tokens))
        if self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0:
            return "chunked_prefill_size", self.rem_chunk_tokens
        return "max_prefill_tokens", self.rem_input_tokens

    def cut(self, extend_len: int) -> int:
        """What fits into the chunk: all, or as many whole pages as do.

        Whether all fits is asked in whole pages, too: they are what is charged.
        """
        rem = self.rem_chunk_tokens
        if rem is None or self.paid_tokens(extend_len) <= rem:
            return extend_len
        return max(0, rem if self.cuts_anywhere else rem // self.page_size * self.page_size)

    def next_chunk(self) -> int | None:
        """What a prompt that goes on may take; of memory no more than is left, if any is."""
        rem = self.rem_chunk_tokens
        if rem is not None and self.rem_total_tokens >= 1:
            return min(rem, int(self.rem_total_tokens))
        return rem

    def paid_tokens(self, extend_len: int) -> int:
        """What the budget of a step pays for so many tokens of a prompt."""
        return extend_len if self.counts_tokens else self.ceil_paged_tokens(extend_len)

    def charge(self, req: Request, extend_len: int) -> None:
        """Pay for a request, of whose prompt so many tokens are computed now."""
        self.charge_memory(req, extend_len)
        self.rem_input_tokens -= self.paid_tokens(extend_len)
        if self.rem_chunk_tokens is not None:
            self.rem_chunk_tokens -= self.paid_tokens(extend_len)

    def charge_memory(self, req: Request, extend_len: int) -> None:
        """Keep memory back for it: what it may say is counted with the last of its chunks.

        One that comes back after a retraction is charged for all its tokens again.
        """
        tokens, is_chunked = self.ceil_paged_tokens(extend_len), extend_len < req.extend_len
        most = 0 if is_chunked else min(req.params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        self.rem_total_token_offset += tokens + most + self.page_size
        self.cur_rem_token_offset += tokens + self.page_size

    def remains(self) -> dict[str, int]:
        """All four, for the trace; -1: no limit."""
        rem_chunk = self.rem_chunk_tokens
        return {
            "rem_total": int(self.rem_total_tokens),
            "cur_rem": self.cur_rem_tokens,
            "rem_input": self.rem_input_tokens,
            "rem_chunk": -1 if rem_chunk is None else rem_chunk,
        }


# -- Memory kept back in full: who is admitted can say all that it may, and nobody is retracted ----


class RestBudget(PrefillBudget):
    """mini-sglang ``scheduler/prefill.py:PrefillAdder``: no ratio, only ``inflight_tokens``.

    A request is admitted if its prompt and its longest answer fit beside all that those who run
    may still say, and it may take the last token. Everybody is asked, however little is left.

    With pages of one token nobody who runs ever lacks memory. With larger ones those who run keep
    a page less one token back besides, but those admitted in one step do not: two of them can be
    promised a page that is not there. The original stops at an assertion then; here whoever is to
    come waits if its pages are missing now, and if they are missing later somebody is retracted.
    """

    keeps_share = False

    def reserve(self, req: Request) -> float:
        """All that a running request may still say, as far as its steps are not launched yet."""
        remain_len = req.max_device_len - req.device_len
        return remain_len + self.page_size - 1 if remain_len > 0 else 0

    def new_tokens(self, req: Request) -> int:
        """Tokens that a request may still produce."""
        return req.params.max_new_tokens - len(req.output_ids)

    def fits(self, req: Request, extend_len: int, to_lock: int) -> bool:
        """Whether memory reaches for a request, and for the pages of its first step now."""
        pages = self.ceil_paged_tokens(self.cut(extend_len))
        reaches = self.total_tokens(req, extend_len) <= self.rem_total_tokens - to_lock
        return reaches and pages <= self.cur_rem_tokens - to_lock

    def total_tokens(self, req: Request, extend_len: int) -> int:
        """Its prompt and its longest answer, and nothing for a last page that stays half empty."""
        return extend_len + self.new_tokens(req)

    def state(self) -> AddReqResult:
        """Whether the step takes more prompt tokens; of memory each is asked on its own."""
        limits = (self.rem_input_tokens, self.rem_chunk_tokens)
        is_spent = any(left is not None and left <= 0 for left in limits)
        return AddReqResult.OTHER if is_spent else AddReqResult.CONTINUE

    def next_chunk(self) -> int | None:
        """The chunk: memory for all of its prompt was kept back when it began."""
        return self.rem_chunk_tokens

    def charge_memory(self, req: Request, extend_len: int) -> None:
        """Keep back all of its prompt and its answer, and the pages that it takes now."""
        assert req.lease is not None
        pages = self.leases.pages_lacking(req.lease, req.computed_len + extend_len)
        self.cur_rem_token_offset += pages * self.page_size
        self.rem_total_token_offset += self.total_tokens(req, req.extend_len)


class PromptBudget(RestBudget):
    """nano-vllm ``engine/scheduler.py:schedule`` with ``block_manager.py:can_allocate``.

    A request comes if there are pages for all of its prompt, which it then has, also where only a
    part is computed in this step. Nothing is kept back for answers, its own or those of others.
    """

    def reserve(self, req: Request) -> float:
        """Nothing: those who run take pages as they need them."""
        return 0

    def fits(self, req: Request, extend_len: int, to_lock: int) -> bool:
        """Whether there are pages for all of the prompt now."""
        return self.total_tokens(req, extend_len) <= self.cur_rem_tokens - to_lock

    def total_tokens(self, req: Request, extend_len: int) -> int:
        """The whole pages that its prompt lacks; what it found in the cache is whole pages, too."""
        return self.ceil_paged_tokens(extend_len)

    def charge_memory(self, req: Request, extend_len: int) -> None:
        """Take the pages of all of its prompt, and not only of what is computed now."""
        assert req.lease is not None
        pages = self.leases.pages_lacking(req.lease, req.device_len)
        self.cur_rem_token_offset += pages * self.page_size
        self.rem_total_token_offset += pages * self.page_size
