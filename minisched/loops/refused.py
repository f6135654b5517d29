"""What a loop's original does not combine with it, and why; each reason is the end of a sentence.

``grammar`` and ``penalties`` are a request's own wish; it ends with the sentence as its error. An
algorithm of speculation is the engine's: no engine is made. SGLang's names of the algorithms:
``NGRAM`` looks drafts up on the host, ``NGRAM_GPU`` (vLLM's ``ngram_gpu``) on the device,
``STANDALONE`` has a draft model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..core import Request
from ..scheduler import SchedulerConfig

if TYPE_CHECKING:
    from .design import LoopSpec

Refusals = dict[str, str]


def every_kind(reason: str) -> Refusals:
    """A loop that does not speculate at all."""
    return dict.fromkeys(("NGRAM", "NGRAM_GPU", "STANDALONE"), reason)


# SGLang has no NGRAM_GPU. Where its spec v2 overlaps (STANDALONE), vLLM's can do so as well: both
# leave tokens, drafts and lengths on the device for the step behind.
SGLANG_OVERLAP = {
    "NGRAM": "the host would have to look drafts up behind a token that it does not know yet, so "
    "SGLang turns overlap scheduling off (server_args.py; since #17260 its drafting waits instead)"
}
SGLANG_THREAD = every_kind(
    "as long as SGLang had the worker thread, it turned overlap scheduling off with speculation "
    "(server_args.py)"
)
SGLANG_MIXED = every_kind("SGLang turns mixed chunks off with speculation (server_args.py)")
SGLANG_MLX = every_kind(
    "SGLang's MLX backend speculates with Gemma's own assistant only, and without overlap then "
    "(hardware_backend/mlx/spec_config.py)"
)
PD = SGLANG_OVERLAP | dict.fromkeys(
    ("NGRAM_GPU", "STANDALONE"),
    "it is a limit of minisched and not of the original: the transfer has the target's KV alone, "
    "and SGLang's sends what the draft model has computed along with it",
)
MINI = {
    "grammar": "mini-sglang has none (core.py:SamplingParams)",
    "penalties": "mini-sglang has none (core.py:SamplingParams)",
    **every_kind("mini-sglang has no speculation"),
}
VLLM_ASYNC = {
    "NGRAM": "async scheduling leaves the newest tokens on the device, so vLLM takes only drafters "
    "that run there: EAGLE, MTP, a draft model, ngram_gpu (config/vllm.py)"
}
VLLM_PP = every_kind(
    "drafts are made behind the last stage, and the first one would have to get them; vLLM does "
    "not combine them (docs/features/speculative_decoding; of late EAGLE 3 alone)"
)
MULTI_STEP = {
    "grammar": "nobody hears the tokens of a burst before it is over; vLLM V0 refuses guided "
    "decoding with multi-step (engine/llm_engine.py, #9892)",
    "penalties": "nobody hears the tokens of a burst before it is over; vLLM V0 has penalties that "
    "are up to N - 1 tokens late then",
    **every_kind(
        "a burst gives one token a step; vLLM V0 refuses speculation with multi-step "
        "(engine/arg_utils.py)"
    ),
}
MINDIE = {
    **every_kind(
        "asynchronous inference does not go with look-ahead and memory decoding, which draft on "
        "the host (plugins/plugin_utils.py)"
    ),
    "STANDALONE": "MindIE drafts with MTP layers of the target, and runs no draft model",
}
MINDIE_FILL_DEVICE = {
    "grammar": "where the device fills the inputs (the experimental path), sampled tokens stay "
    "there, and the plugin steps a grammar on the host (structured_output_manager.py)"
}


def wanted_features(config: SchedulerConfig, requests: Iterable[Request]) -> set[str]:
    """What a workload needs of a loop, of all that some loop refuses."""
    params = [request.params for request in requests if not request.problem()]
    wanted = {config.speculative_algorithm} if config.speculative_algorithm else set()
    if any(item.has_grammar for item in params):
        wanted.add("grammar")
    if any(item.has_penalties for item in params):
        wanted.add("penalties")
    return wanted


def refusal(loop: str, spec: LoopSpec, wanted: set[str]) -> str | None:
    """One sentence on why a loop does not take a workload, or None."""
    refuses = spec.refusals(spec.relays[0])
    for feature in sorted(wanted & set(refuses)):
        return f"loop {loop!r} takes no {feature}: {refuses[feature]}."
    return None
