"""The law *crash* before a run: settings, loops and relays that can't work are refused.

Each refusal is a ``ValueError`` with a sentence, so a user learns it at once. The limits are
written here a second time: each change of the default settings is just outside of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..devices.sim import SimDevice
from ..engine.frontend import Frontend
from ..loops.design import LOOPS, find_loop
from ..loops.run import make_engine
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from .case import Case

NAMES = "schedule_policy", "radix_eviction_policy", "speculative_algorithm", "rules", "run_first"
WRONG: tuple[dict[str, Any], ...] = (
    *({name: "none"} for name in (*NAMES, "free_rule")),
    *({name: 0} for name in ("page_size", "max_running_requests", "max_prefill_tokens",
                             "context_len", "beam_width", "chunked_prefill_size",
                             "speculative_num_draft_tokens")),
    *({name: -1} for name in ("cuda_graph_max_bs", "schedule_conservativeness",
                              "priority_scheduling_preemption_threshold")),
    {"page_size": 4, "kv_tokens": 3},
    {"page_size": 4, "chunked_prefill_size": 6},
    {"chunked_prefill_size": -1, "enable_mixed_chunk": True},
    {"run_first": "decode", "enable_mixed_chunk": True},
    {"enable_priority_scheduling": True, "schedule_policy": "lpm"},
    {"speculative_algorithm": "NGRAM", "speculative_draft_model_path": "hash:1"},
    {"speculative_algorithm": "NGRAM", "enable_mixed_chunk": True},
    {"speculative_algorithm": "NGRAM_GPU", "late_penalties": True},
    {"rules": "sglang,none=newest"},
    {"rules": "sglang,split_counts=none"},
    {"rules": "sglang,output_pages=none"},
    {"rules": "sglang,prompt_pages=scheduled"},
)  # fmt: skip
"""Settings of which each can't work."""
RESERVES_NOTHING = "sglang,reserves=prompt"  # a request could be retracted for ever


def find_accepted(case: Case, run_ahead: bool) -> Iterator[str]:
    """Yield the settings and loops that can't work and are not refused.

    ``run_ahead`` is whether the loop of the case launches steps before it knows their tokens. A
    scheduler of one's own sets the rules itself.
    """
    loop, relay = case.loop, case.relay
    for change in WRONG:
        if is_accepted(SchedulerConfig, **change):
            yield f"the settings {change} can't work, but they are not refused"
    for name in (f"{loop}x", f"{loop}:none", f"{loop}:{relay or LOOPS[loop].relays[0]}:none=1"):
        if is_accepted(find_loop, name):
            yield f"there is no loop {name}, but it is not refused"
    if run_ahead and loop != "pd" and "rules" not in LOOPS[loop].settings:
        config = SchedulerConfig(rules=RESERVES_NOTHING)
        parts = SimDevice(), HashModel(), config, Frontend()
        if is_accepted(make_engine, loop, *parts, relay=relay, **case.options):
            yield f"{loop} runs ahead, but rules that reserve nothing are not refused"


def is_accepted(make: Callable[..., object], *args: Any, **options: Any) -> bool:
    """Return whether something can be made, without a ``ValueError``."""
    try:
        make(*args, **options)
    except ValueError:
        return False
    return True
