"""Which loops there are, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from ..relay.registry import check_relay
from ..worker import Worker
from ..worker.worker import OverlapWorker
from . import pd as pd_run
from . import refused
from .design import LoopSpec, parse, read_options
from .mindie_placeholder import mindie_dual, mindie_placeholder, mindie_single
from .mindie_plugin import mindie_plugin
from .mini import mini_normal, mini_overlap
from .mlx_async import mlx_async
from .multi_step import NUM_STEPS, multi_step
from .overlap import overlap
from .overlap_thread import overlap_thread
from .serial import serial
from .vllm import vllm_batch_queue, vllm_pp, vllm_step

# Relays of other designs, which fit a loop with two steps in flight if it is the worker that binds
# and launches its steps; where a thread or another engine does some of that, they may not.
OTHERS = ("token_pool", "prev_sampled", "fill_device")
FILLS = "a relay that fills placeholders: its plugin lays a step out and then asks for its masks"

LOOPS: dict[str, LoopSpec] = {
    "serial": LoopSpec(
        serial, depth=1, relays=("host",),
        source="SGLang managers/scheduler.py:event_loop_normal",
    ),
    "overlap": LoopSpec(
        overlap, depth=2, relays=("ring", "pool", *OTHERS), worker=OverlapWorker,
        source="SGLang managers/scheduler.py:event_loop_overlap",
        refuses=refused.SGLANG_OVERLAP,
    ),
    "overlap_pool_indexed": LoopSpec(
        overlap, depth=2, relays=("pool", "ring", *OTHERS), worker=OverlapWorker,
        source="SGLang managers/scheduler.py:event_loop_overlap since #25862",
        refuses=refused.SGLANG_OVERLAP,
    ),
    "overlap_thread": LoopSpec(
        overlap_thread, depth=2, overrun=1,
        relays=("ring", "pool", "prev_sampled", "fill_device"),
        takes="a relay that runs ahead and needs no more than its bind: the client, which binds a "
        "step, queues no copies of prompts, waits for no tokens and names no step before",
        source="SGLang managers/tp_worker_overlap_thread.py (out of use since #11210)",
        refuses=refused.SGLANG_THREAD,
    ),
    "mini_normal": LoopSpec(
        mini_normal, depth=1, relays=("token_pool", "host"), rules="mini-sglang",
        worker=partial(Worker, scheduler_stream="forward"),  # all of it is on the engine's stream
        source="mini-sglang scheduler/scheduler.py:normal_loop",
        refuses=refused.MINI,
    ),
    "mini_overlap": LoopSpec(
        mini_overlap, depth=2, rules="mini-sglang",
        relays=("token_pool", "ring", "pool", "prev_sampled", "fill_device"),
        source="mini-sglang scheduler/scheduler.py:overlap_loop",
        refuses=refused.MINI,
    ),
    "mlx_async": LoopSpec(
        mlx_async, depth=2, overrun=1, relays=("chain", "ring", "pool", *OTHERS),
        source="SGLang hardware_backend/mlx/scheduler_mixin.py:event_loop_overlap_mlx",
        refuses=refused.SGLANG_MLX,
    ),
    "vllm_step": LoopSpec(
        vllm_step, depth=1, relays=("host",), rules="vllm",
        settings={"keep_stale_outputs": True},
        source="vLLM v1/engine/core.py:EngineCore.step",
    ),
    "vllm_batch_queue": LoopSpec(
        vllm_batch_queue, depth=2, relays=("host",), rules="vllm",
        settings={"keep_stale_outputs": True},
        takes="every token over the host; with a relay that runs ahead it is loop 'vllm_async'",
        source="vLLM v1/engine/core.py:EngineCore.step_with_batch_queue",
    ),
    "vllm_async": LoopSpec(
        vllm_batch_queue, depth=2,
        relays=("prev_sampled", "pool", "token_pool", "ring", "fill_device"),
        rules="vllm", settings={"keep_stale_outputs": True},
        source="vLLM v1/core/sched/async_scheduler.py, with step_with_batch_queue",
        refuses=refused.VLLM_ASYNC,
    ),
    **{f"vllm_pp{stages}": vllm_pp(stages) for stages in (2, 4)},
    "mindie_plugin": LoopSpec(
        mindie_plugin, depth=2, overrun=1, relays=("fill_host", "fill_device"), takes=FILLS,
        source="MindIE-LLM mindie_llm/text_generator/plugins/plugin_manager.py",
        refuses=refused.MINDIE, refuses_with={"fill_device": refused.MINDIE_FILL_DEVICE},
    ),
    "mindie_placeholder": LoopSpec(
        mindie_placeholder, depth=1, depth_option="max_async_schedule_times", overrun=1,
        relays=("host", "fill_device", "ring", "pool", "token_pool", "prev_sampled"),
        source="MindIE-LLM src/engine/llm_engine.cpp, src/scheduler/scheduler.cpp",
        refuses=refused.MINDIE,
    ),
    "mindie_dual": LoopSpec(
        mindie_dual, depth=2, overrun=1, relays=("fill_host", "fill_device"), takes=FILLS,
        source="MindIE-LLM src/engine/llm_engine.cpp over plugins/plugin_manager.py",
        refuses=refused.MINDIE, refuses_with={"fill_device": refused.MINDIE_FILL_DEVICE},
    ),
    "mindie_single": LoopSpec(
        mindie_single, depth=2,
        relays=("fill_device", "ring", "pool", "token_pool", "prev_sampled"),
        source="a proposal: MindIE-LLM's two layers as one pipeline",
        refuses=refused.MINDIE,
    ),
    "multi_step": LoopSpec(
        multi_step, depth=NUM_STEPS, overrun=NUM_STEPS - 1,
        relays=("pool", "chain", "ring", *OTHERS),
        source="vLLM V0 worker/multi_step_model_runner.py (#7000)",
        refuses=refused.MULTI_STEP,
    ),
    "pd": LoopSpec(
        pd_run.no_turns, depth=2, overrun=1, relays=pd_run.RELAYS, whole_run=pd_run.whole_run,
        takes=pd_run.TAKES, devices=("sim",), only="it needs two devices with clocks of their own",
        source="SGLang disaggregation/prefill.py and decode.py",
        refuses=refused.PD,
    ),
    "mixed": LoopSpec(
        overlap, depth=2, relays=("ring", "pool", *OTHERS), worker=OverlapWorker,
        settings={"enable_mixed_chunk": True, "run_first": "prefill"},
        source="SGLang --enable-mixed-chunk, the other answer to what pd is for",
        refuses=refused.SGLANG_MIXED,
    ),
}  # fmt: skip


@contextmanager
def registered(name: str, spec: LoopSpec) -> Iterator[None]:
    """A loop of somebody's own is there by a name, as long as this lasts.

    Raises:
        ValueError: the name is taken, or could not be told from a relay or an option.
    """
    if name in LOOPS or set(name) & set(":=,"):
        raise ValueError(f"a loop of your own can't be called {name!r}; give it another name.")
    LOOPS[name] = spec
    try:
        yield
    finally:
        del LOOPS[name]


def find_loop(name: str) -> LoopSpec:
    """The loop of that name, with the relay and the options that the name asks for (``naming``).

    Raises:
        ValueError: there is none, or the relay or an option does not fit it.
    """
    loop, relay, options = parse(name)
    if loop not in LOOPS:
        raise ValueError(f"unknown loop {loop!r}; the loops are {', '.join(LOOPS)}.")
    spec = LOOPS[loop]
    if options:
        read = read_options(loop, spec.whole_run or spec.run, options)
        spec = replace(spec, options={**spec.options, **read})
    if relay is not None:
        check_relay(loop, spec.relays, relay, spec.takes)
        spec = replace(spec, relays=(relay,))
    return spec
