"""Each loop's golden run over time, and who tells whom in a few steps of it."""

from __future__ import annotations

from functools import partial

from ...loops.mini import upload
from ...loops.pd import PrefillEngine
from ...loops.vllm_pp import recv_tensors
from ...trace import Trace
from ...worker import Worker
from ...worker.worker import copy
from ..puml_style import Code
from ..recipes import trace_of
from ..runs import messages, stretch
from ..scene_puml import to_puml

TITLES = {
    "serial": "serial: host and device take turns",
    "overlap": "overlap: the host works on the steps before and after",
    "overlap_thread": "overlap_thread: a second host thread launches what was put",
    "mlx_async": "mlx_async: the next step is built on tokens nobody has computed yet",
    "mini_normal": "mini_normal: one step after the other, prompts copied on the engine's stream",
    "mini_overlap": "mini_overlap: prompts on the scheduler's stream, steps on the engine's",
    "mindie_plugin": "mindie_plugin: a thread launches, and answers come one call late",
    "mindie_placeholder": "mindie_placeholder: one call at a time, a placeholder for its token",
    "mindie_dual": "mindie_dual: a C++ scheduler that waits over a plugin that runs ahead",
    "mindie_single": "mindie_single: both layers as one pipeline",
    "vllm_step": "vllm_step: one step at a time, its sampling launched by itself",
    "vllm_batch_queue": "vllm_batch_queue: two batches take turns, and neither runs ahead",
    "vllm_pp": "vllm_pp4: first one batch for all the stages, then one for each",
    "multi_step": "multi_step: scheduled once, decoded four times, and only then looked at",
    "pd": "pd: prompts on one device, decoding on another, KV sent from here to there",
}
SEQUENCE_TITLES = {  # where the few steps show something else
    "vllm_pp": "vllm_pp4: one step alone in all the stages, then one behind the other",
    "multi_step": "multi_step: the end of a burst, and the beginning of the next",
}
STEPS = {  # shown over time, and in order; where settled steps don't show what a loop is about
    "vllm_batch_queue": ((5, 8), (5, 6)),
    "vllm_pp": ((3, 11), (3, 4)),
    "multi_step": ((20, 23), (23, 24)),  # a burst
    "pd": ((4, 9), (7, 8)),  # until a prompt's request decodes too; where the last of its KV comes
}
CODE: Code = {
    "launch": Worker.launch,
    "copy": copy,
    "upload": upload,
    "recv": recv_tensors,
    "send": PrefillEngine.send_kv_chunk,
}


def shown(loop: str, trace: Trace) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The first and last step of both; None: a few settled ones."""
    if loop.startswith("mini_"):  # while a prompt comes in
        step = max(item.step for item in trace.slices if item.name == "upload")
        return (step - 1, step + 1), (step - 1, step)
    return STEPS.get(loop, (None, None))


def timing(loop: str) -> str:
    """Who works when."""
    trace = trace_of(loop)
    first, last = shown(loop, trace)[0] or (None, None)
    return to_puml(stretch(trace, first, last, TITLES[loop]))


def sequence(loop: str) -> str:
    """Who tells whom."""
    trace = trace_of(loop)
    first, last = shown(loop, trace)[1] or (None, None)
    title = SEQUENCE_TITLES.get(loop, TITLES[loop])
    return to_puml(messages(trace, first, last, title), code=CODE)


PICTURES = {
    **{loop: partial(timing, loop) for loop in TITLES},
    **{f"{loop}_sequence": partial(sequence, loop) for loop in TITLES},
}
