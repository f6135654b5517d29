"""mini-sglang's answers, where they differ from SGLang's (``sglang.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core import Lease, Request
from ..memory import LeasePool, RadixCache
from ..memory.prefix_cache import Settled
from ..memory.radix_cache import TreeNode
from .prefill_adder import PrefillAdder
from .rules import UNWRITTEN, Deliberate, Rules
from .sglang import EvictAhead, Ratio

# -- The answers, in words, and those of the original that are not taken on purpose ----------------

RULES = Rules(
    ask_again="every_step",
    reserves="rest",
    budget_counts="tokens",
    chunk_ends="anywhere",
    too_many_tokens="refused",
    free_rule="lease",
    evicts="lacking",
    chunks_enter="whole_prompt",
    edges_end="parting",
    split_counts="neither",
    waiting_prefixes="stale",
)
DELIBERATE: Mapping[str, Deliberate] = {
    "free_rule": Deliberate(
        "at_once",
        "a second stream copies prompts to the token pool, and may write a reused row "
        "before the late token of a step in flight (mini-sglang #89)",
    ),
    "enters_cache": Deliberate("known", UNWRITTEN),
    "length_frees": Deliberate("last_launch", "the step of its last token still reads it"),
}


class Rest(Ratio):
    """Reserve all that running requests may still generate (``inflight_tokens``): no retraction.

    With larger pages, a page less one token is reserved besides, but not for requests of the same
    step: two of them can be promised the same page. The original fails an assertion then. Here a
    request waits if its pages are missing now; if they are missing later, one is retracted.
    """

    def kept_for(self, adder: PrefillAdder, req: Request) -> float:
        """Return the tokens of all steps that are not launched yet."""
        remain_len = req.max_device_len - req.device_len
        return remain_len + adder.page_size - 1 if remain_len > 0 else 0

    def new_tokens(self, req: Request) -> int:
        """Return the tokens that a request may still generate."""
        return req.params.max_new_tokens - len(req.output_ids)

    def total_tokens(self, adder: PrefillAdder, req: Request, extend_len: int) -> int:
        """Return the tokens that a new request needs, prompt and outputs."""
        return extend_len + self.new_tokens(req)

    def fits(self, adder: PrefillAdder, req: Request, extend_len: int, to_lock: int) -> bool:
        """Return whether they are left, and now the pages of the first chunk."""
        need = self.total_tokens(adder, req, extend_len)
        paged = adder.ceil_paged_tokens(adder.cut(extend_len))
        return need <= adder.rem_total_tokens - to_lock and paged <= adder.cur_rem_tokens - to_lock

    def charge(self, adder: PrefillAdder, req: Request, extend_len: int) -> None:
        """Subtract the pages of this chunk, and all that the request will need."""
        adder.cur_rem_token_offset += adder.lacking_tokens(req, req.computed_len + extend_len)
        adder.rem_total_token_offset += self.total_tokens(adder, req, req.extend_len)

    def is_spent(self, adder: PrefillAdder) -> bool:
        """Return False: each request is checked by ``fits``."""
        return False

    def chunk_limit(self, adder: PrefillAdder, rem: int) -> int:
        """Return ``rem``: the memory of a started prompt is reserved."""
        return rem


class Known(Settled):
    """Share all tokens that the host knows, though their step may run; replaced by ``Settled``."""

    def on_insert(self, req: Request, lease: Lease) -> None:
        """Count all launched tokens that the host knows as settled."""
        lease.settled_len = max(lease.settled_len, min(req.computed_len, req.known_len))


class QuietSplits(RadixCache):
    """A radix tree in which a split edge does not count as used (``kvcache/radix_cache.py``)."""

    def on_split(self, upper: TreeNode, lower: TreeNode, now: int) -> None:
        """Leave the times of both halves as they are."""


class EvictLacking(EvictAhead):
    """Evict only what the next step lacks, when it takes its pages (vLLM and nano-vllm, too)."""

    def before_prompts(self, leases: LeasePool, extend_lens: Sequence[int]) -> None:
        """Free nothing."""

    def before_decodes(self, leases: LeasePool, num_reqs: int) -> None:
        """Free nothing."""

    def before_retraction(self, leases: LeasePool, short: int) -> None:
        """Free nothing."""

    def after_retraction(self, leases: LeasePool, num_running: int) -> None:
        """Free nothing."""
