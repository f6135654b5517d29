"""The law *crash* before a run: settings, loops, relays and requests that can't work are refused.

Each refusal of settings is a ``ValueError`` with a sentence. The limits are written here a second
time: each change of the default settings is just outside of one. Of two requests one is just within
a limit, and the other just outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..core import Request, SamplingParams
from ..devices.registry import DEVICES
from ..devices.sim import SimDevice
from ..engine.frontend import Frontend
from ..loops.design import LOOPS, find_loop
from ..loops.run import make_engine
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..scheduler.config import filled_by_a_run
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


SETTINGS: dict[str, Any] = {
    "rules": "vllm", "vocab_size": 5, "context_len": 50, "kv_tokens": 50, "has_tokenizer": True,
}  # fmt: skip
PROMPT = (1, 2, 3)
LIMITS: tuple[tuple[dict[str, Any], dict[str, Any], dict[str, Any]], ...] = (
    ({}, {"prompt": (4,)}, {"prompt": (5,)}),
    ({}, {"prompt": (0,)}, {"prompt": ()}),
    ({}, {"logit_bias": {4: 1.0}}, {"logit_bias": {5: 1.0}}),
    ({}, {"top_logprobs_num": 5}, {"top_logprobs_num": 6}),
    ({}, {"logprob_start_len": 2}, {"logprob_start_len": 3}),
    ({"context_len": 8}, {"max_new_tokens": 5}, {"max_new_tokens": 6}),
    ({"kv_tokens": 8}, {"max_new_tokens": 5}, {"max_new_tokens": 6}),
    ({"kv_tokens": 11, "page_size": 4}, {"max_new_tokens": 5}, {"max_new_tokens": 6}),
    ({"kv_tokens": 8, "draft_slack": 2}, {"max_new_tokens": 3}, {"max_new_tokens": 4}),
    ({"has_tokenizer": False}, {}, {"stop": ("a",)}),
    ({"has_logits": False}, {}, {"return_logprob": True}),
    ({"refuses": {"grammar": "-"}}, {"frequency_penalty": 1.0}, {"regex": "a"}),
    ({"refuses": {"penalties": "-"}}, {"regex": "a"}, {"frequency_penalty": 1.0}),
)
"""Settings, a request that can run with them, and one that can't; see ``request_with``."""
CLIPPED: tuple[tuple[dict[str, Any], int], ...] = (
    ({"context_len": 10}, 5),
    ({"kv_tokens": 10}, 5),
    ({"kv_tokens": 10, "page_size": 2}, 3),
    ({"context_len": 4}, 1),
)
"""Settings with SGLang's rules, and the tokens that a request for too many gets (``PROMPT``)."""
FILLED: tuple[dict[str, Any], ...] = (
    {"output_ids": [9]}, {"computed_len": 1}, {"computed_len": False}, {"parts": (None,)},
)  # fmt: skip
"""Values of a request that only a run may set."""


def find_accepted(case: Case, run_ahead: bool) -> Iterator[str]:
    """Yield the settings and loops that can't work and are not refused.

    ``run_ahead`` is whether the loop of the case launches steps before it knows their tokens. A
    scheduler of one's own sets the rules itself.
    """
    loop, relay = case.loop, case.relay
    if loop == "serial":  # settings and limits depend on no loop
        for change in WRONG:
            if is_accepted(SchedulerConfig, **change):
                yield f"the settings {change} can't work, but they are not refused"
        yield from find_beyond_limits()
    devices = ["sim"] if "real devices" in LOOPS[loop].refuses else [*DEVICES]
    for name in DEVICES:
        if (name in devices) is not is_accepted(LOOPS[loop].check_device, loop, name):
            yield f"{loop} runs on {', '.join(devices)}, but its check of {name!r} differs"
    for name in (f"{loop}x", f"{loop}:none", f"{loop}:{relay or LOOPS[loop].relays[0]}:none=1"):
        if is_accepted(find_loop, name):
            yield f"there is no loop {name}, but it is not refused"
    if run_ahead and loop != "pd" and "rules" not in LOOPS[loop].settings:
        config = SchedulerConfig(rules=RESERVES_NOTHING)
        parts = SimDevice(), HashModel(), config, Frontend()
        if is_accepted(make_engine, loop, *parts, relay=relay, **case.options):
            yield f"{loop} runs ahead, but rules that reserve nothing are not refused"


def find_beyond_limits() -> Iterator[str]:
    """Yield the requests that are refused and could run, or the reverse, or get wrong lengths."""
    for change, within, outside in LIMITS:
        config = SchedulerConfig(**SETTINGS | change)
        if (problem := config.refusal(request_with(**within))) is not None:
            yield f"a request with {within} fits the settings {change}, but is refused: {problem}"
        if config.refusal(request_with(**outside)) is None:
            yield f"a request with {outside} exceeds the settings {change}, but is not refused"
    for change, most in CLIPPED:
        config = SchedulerConfig(**SETTINGS | {"rules": "sglang"} | change)
        if (count := config.new_tokens_of(request_with(max_new_tokens=99))) != most:
            yield f"a request gets {count} new tokens with the settings {change}, but {most} fit"
    for change in FILLED:
        if not filled_by_a_run(Request("a", PROMPT, **change)):
            yield f"a new request with {change} is not refused"


def request_with(prompt: tuple[int, ...] = PROMPT, **params: Any) -> Request:
    """Return a request with some parameters; it asks for log-probabilities if they have limits."""
    params |= {"return_logprob": True} if any("logprob" in name for name in params) else {}
    return Request("a", prompt, SamplingParams(**{"max_new_tokens": 1} | params))


def is_accepted(make: Callable[..., object], *args: Any, **options: Any) -> bool:
    """Return whether something can be made, without a ``ValueError``."""
    try:
        make(*args, **options)
    except ValueError:
        return False
    return True
