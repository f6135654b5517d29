"""The topics: one word names an idea in its code, picture, lesson, laws, trace and view."""

from __future__ import annotations

TOPICS = {  # topic -> its code, a module in minisched/
    "radix_cache": "memory/radix_cache",
    "page_allocator": "memory/pool",
    "schedule_policy": "policy/waiting",
    "prefill": "policy/admission",
    "decode": "policy/decode",
    "retraction": "policy/retraction",
    "mixed_chunk": "policy/admission",
    "unified": "policy/vllm",
    "future_map": "relay/future_map",
    "token_pool": "relay/token_pool",
    "lazy_chain": "relay/lazy_chain",
    "placeholder_fill": "relay/placeholder_fill",
    "prev_sampled": "relay/prev_sampled",
    "request_state": "relay/request_state",
    "generation_batch_result": "worker/worker",
    "grammar_manager": "features/history",
    "beam_search": "features/beam_search",
    "serial": "loops/serial",
    "overlap": "loops/overlap",
    "overlap_thread": "loops/overlap_thread",
    "mini_normal": "loops/mini",
    "mini_overlap": "loops/mini",
    "mlx_async": "loops/mlx_async",
    "vllm_step": "loops/vllm",
    "vllm_batch_queue": "loops/vllm",
    "vllm_pp": "loops/vllm_pp",
    "mindie_plugin": "loops/mindie_plugin",
    "mindie_placeholder": "loops/mindie_placeholder",
    "mindie_dual": "loops/mindie_placeholder",
    "mindie_single": "loops/mindie_placeholder",
    "multi_step": "loops/multi_step",
    "pd": "loops/pd",
    "trtllm_overlap": "loops/trtllm_overlap",
    "two_batch": "loops/two_batch",
}


# A loop -> the loop whose picture is kept. Only the name differs, because the settled steps are
# equal slice by slice. ``mini_overlap`` and ``mindie_single`` differ from ``overlap`` in their
# relay, and ``mindie_plugin`` from ``mindie_dual`` in the scheduler above the plugin.
SAME_PICTURE = {
    "mindie_plugin": "mindie_dual",
    "mindie_single": "overlap",
    "mini_overlap": "overlap",
}
LOOPS_WITH_MORE = {"mindie_placeholder": "ledger", "two_batch": "halves"}  # a picture of their own
DRAWN_BY = {"prev_sampled": "placeholder_fill", "unified": "mixed_chunk"}  # two in one module


def view_of(topic: str) -> str:
    """Return the module of ``export/views`` that draws a topic; empty for most loops."""
    is_loop = TOPICS.get(topic, "loops/").startswith("loops/")
    return "" if is_loop and topic not in LOOPS_WITH_MORE else DRAWN_BY.get(topic, topic)
