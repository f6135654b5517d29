"""SGLang's answers: the memory reserved for running requests, the victim, what may be shared.

``rules.py`` has the questions. ``RULES`` has a word for each answer, and ``scheduler/wiring.py``
turns the words into the objects below, and into those of ``mini_sglang.py``, ``vllm.py`` and
``nano_vllm.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..core import Lease, Request
from ..memory import LeasePool
from ..memory.prefix_cache import Settled
from .prefill_adder import CLIP_MAX_NEW_TOKENS, PrefillAdder
from .rules import UNWRITTEN, Deliberate, Rules

# -- The answers, in words, and those of the original that are not taken on purpose ----------------

RULES = Rules()
DELIBERATE: Mapping[str, Deliberate] = {
    "enters_cache": Deliberate("launched", UNWRITTEN),
}


# -- reserves: memory that must be left for a request to start -------------------------------------


class Ratio:
    """Reserve a share of what running requests may still generate, ``new_token_ratio``.

    If that is too little, a running request is retracted later. A request that ignores EOS will
    generate all of its tokens, so all are reserved for it.
    """

    def kept_for(self, adder: PrefillAdder, req: Request) -> float:
        """Return the tokens to reserve for a running request."""
        share = 1.0 if req.params.ignore_eos else adder.new_token_ratio
        return self.new_tokens(req) * share

    def new_tokens(self, req: Request) -> int:
        """Return the most tokens that a request is expected to generate."""
        return min(req.params.max_new_tokens - len(req.output_ids), CLIP_MAX_NEW_TOKENS)

    def total_tokens(self, adder: PrefillAdder, req: Request, extend_len: int) -> int:
        """Return the tokens that a new request needs, one page of them to spare."""
        return extend_len + self.new_tokens(req) + adder.page_size

    def fits(self, adder: PrefillAdder, req: Request, extend_len: int, to_lock: int) -> bool:
        """Return whether they are left once ``to_lock`` cached tokens can't be evicted."""
        return self.total_tokens(adder, req, extend_len) < adder.rem_total_tokens - to_lock

    def charge(self, adder: PrefillAdder, req: Request, extend_len: int) -> None:
        """Subtract an admitted request's memory from what is left.

        New tokens are charged with the last chunk. A retracted request is charged for all of its
        ``max_new_tokens`` again.
        """
        tokens, is_chunked = adder.ceil_paged_tokens(extend_len), extend_len < req.extend_len
        most = 0 if is_chunked else min(req.params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        adder.rem_total_token_offset += tokens + most + adder.page_size
        adder.cur_rem_token_offset += tokens + adder.page_size

    def is_spent(self, adder: PrefillAdder) -> bool:
        """Return whether no memory is left for any other request."""
        return adder.rem_total_tokens <= 0 or adder.cur_rem_tokens <= 0

    def chunk_limit(self, adder: PrefillAdder, rem: int) -> int:
        """Return how many of ``rem`` tokens the next chunk of a started prompt may use."""
        return min(rem, int(adder.rem_total_tokens)) if adder.rem_total_tokens >= 1 else rem


# -- victim: the running request that is retracted -------------------------------------------------


def fewest_outputs(running: Iterable[Request]) -> Request:
    """Return the request with the fewest outputs; of equals the longest prompt, then the last.

    The least work is lost that way (SGLang ``schedule_batch.py:retract_decode``).
    """
    latest = reversed(list(running))
    return min(latest, key=lambda req: (len(req.output_ids), -len(req.prompt)))


# -- enters_cache: what the prefix cache takes -----------------------------------------------------


class Launched(Settled):
    """Share all that is launched; ``DELIBERATE`` replaces it by ``Settled``.

    A chunk enters once the next step is scheduled. Of a finished request the last token enters,
    too, if a step in flight computes it.
    """

    def on_schedule(self, req: Request, lease: Lease) -> bool:
        """Count the launched chunk as settled, and share it."""
        lease.settled_len = max(lease.settled_len, req.computed_len)
        return True

    def on_chunk_result(self, lease: Lease, end: int) -> bool:
        """Change nothing: the chunk has entered already, and later ones may have, too."""
        return False

    def on_finish(self, req: Request, lease: Lease) -> None:
        """Count all launched tokens that the host knows as settled."""
        lease.settled_len = max(lease.settled_len, min(req.computed_len, req.known_len))


# -- evicts: how much of the cache is evicted when memory is short ---------------------------------

RETRACT_DECODE_STEPS = 20  # decode steps of the kept requests for which pages are evicted


class EvictAhead:
    """Evict more than the next step lacks."""

    def before_prompts(self, leases: LeasePool, extend_lens: Sequence[int]) -> None:
        """Free a page more than each prompt may need (``alloc_paged_token_slots_extend``)."""
        if (page_size := leases.allocator.page_size) > 1:
            tokens = sum(extend_len + page_size for extend_len in extend_lens)
            leases.make_free(leases.allocator.pages_for(tokens))

    def before_decodes(self, leases: LeasePool, num_reqs: int) -> None:
        """Free a page for each decode, whether it needs one or not."""
        if leases.allocator.page_size > 1:
            leases.make_free(num_reqs)

    def before_retraction(self, leases: LeasePool, short: int) -> None:
        """Free all pages that the starved step lacks, as far as they are evictable."""
        leases.make_free(short + leases.available_pages)

    def after_retraction(self, leases: LeasePool, num_running: int) -> None:
        """Free pages for ``RETRACT_DECODE_STEPS`` of each kept request."""
        pages = leases.allocator.pages_for(RETRACT_DECODE_STEPS * num_running)
        leases.make_free(pages - leases.pages_returning)
