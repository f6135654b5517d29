"""SGLang's own scheduler and event loops, on a CPU, without model, sockets and GPU.

A ``Scheduler`` is made without its ``__init__``; what its methods read is set. Those that decide,
and the two event loops, are the original's: a loop takes in a case's requests where it would read
its socket, and gets a case's tokens where it would launch a step.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module, metadata
from types import SimpleNamespace
from typing import Any

from ..bench.peers.missing import PACKAGES, stand_in
from ..bench.peers.peer import Answer, serve
from ..bench.peers.sglang_scheduler import (
    Nothing,
    Silent,
    import_without_gpu,
    make_processor,
    make_req,
    make_result,
)
from .case import EOS, VOCAB_SIZE, FidelityCase, Rows, Schedule, ScheduledStep, Shape
from .turns import DEVICE, ENTRY, LISTENER, SETTINGS, Played, StandIn, Turns

MANAGERS, MEMORY = "sglang.srt.managers", "sglang.srt.mem_cache"
COMPONENTS = f"{MANAGERS}.scheduler_components"
DECIDING = (
    f"{MANAGERS}.scheduler", f"{MANAGERS}.schedule_policy", f"{MANAGERS}.schedule_batch",
    f"{COMPONENTS}.batch_result_processor", f"{COMPONENTS}.new_token_ratio_tracker",
    f"{MEMORY}.radix_cache", f"{MEMORY}.memory_pool", f"{MEMORY}.common", f"{MEMORY}.allocation",
    f"{MEMORY}.allocator.token", f"{MEMORY}.allocator.paged",
)  # fmt: skip
STAND_INS = (
    *(StandIn(name, DEVICE, why) for name, why in PACKAGES["sglang"].items()),
    StandIn("sglang.kernels.ops.attention.fla", DEVICE, "kernels of linear attention"),
    StandIn("sglang.kernels.ops.mamba", DEVICE, "kernels of state-space layers"),
    StandIn("sglang.srt.layers.attention.fla", DEVICE, "linear attention"),
    StandIn("sglang.srt.layers.attention.mamba", DEVICE, "state-space layers"),
    StandIn("sglang.srt.runtime_context:RuntimeContext.config_bag", SETTINGS, "server arguments"),
    StandIn(f"{MANAGERS}.scheduler:get_parallel", SETTINGS, "one rank of everything"),
    StandIn(f"{MEMORY}.allocation:support_triton", DEVICE, "torch writes the page table"),
    StandIn(f"{MEMORY}.allocation:attention_backends", DEVICE, "which kernels attend"),
    StandIn(f"{MANAGERS}.scheduler:Scheduler.__init__", SETTINGS, "parts are made one by one"),
    StandIn(f"{MANAGERS}.scheduler:Scheduler.__getattr__", SETTINGS, "what was not set is off"),
    StandIn(f"{MANAGERS}.scheduler:Scheduler.ingest_requests", ENTRY, "the case's requests come"),
    StandIn(f"{MANAGERS}.scheduler:Scheduler.run_batch", ENTRY, "the case's tokens are the result"),
    StandIn(f"{MANAGERS}.scheduler:Scheduler.maybe_send_health_check_signal", LISTENER,
            "nobody asks whether it is alive"),
)  # fmt: skip
PARTS = {
    "serial": Shape(),
    "serial, tight": Shape(memory="tight"),
    **{f"serial, page {n}": Shape(page=n) for n in (4, 16, 64)},
    **{f"serial, tight, page {n}": Shape(page=n, memory="tight") for n in (4, 16, 64)},
    "serial, exact": Shape(memory="exact"),
    "serial, exact, page 4": Shape(page=4, memory="exact"),
    "serial, no chunks": Shape(chunks=False),
    "serial, ignore_eos": Shape(memory="tight", ignore_eos=1.0),
    "serial, no ignore_eos": Shape(memory="tight", ignore_eos=0.0),
    "overlap": Shape("overlap"),
    "overlap, tight": Shape("overlap", memory="tight"),
    "overlap, tight, page 16": Shape("overlap", 16, memory="tight"),
    "overlap, no chunks": Shape("overlap", chunks=False),
    "mixed": Shape(more={"enable_mixed_chunk": True}),
    "mixed, tight, page 4": Shape(page=4, memory="tight", more={"enable_mixed_chunk": True}),
    "mixed, overlap": Shape("mixed", more={"enable_mixed_chunk": True}),
    "priorities": Shape(priorities=True, more={"schedule_policy": "priority"}),
    "priorities, tight": Shape(
        memory="tight", priorities=True, more={"schedule_policy": "priority"}
    ),
    **{
        f"order {name}": Shape(more={"schedule_policy": name})
        for name in ("lpm", "dfs-weight", "lof", "random")
    },
    "order lpm, tight, page 64": Shape(page=64, memory="tight", more={"schedule_policy": "lpm"}),
    "no radix cache, tight": Shape(memory="tight", more={"disable_radix_cache": True}),
    "no radix cache, overlap": Shape("overlap", more={"disable_radix_cache": True}),
    **{
        f"evict {name}, tight": Shape(memory="tight", more={"radix_eviction_policy": name})
        for name in ("lfu", "fifo")
    },
    "retraction": Shape(memory="short", ignore_eos=0.0),
    "retraction, page 4": Shape(page=4, memory="short", ignore_eos=0.0),
    "retraction, mixed": Shape(memory="short", ignore_eos=0.0, more={"enable_mixed_chunk": True}),
    "retraction, lpm": Shape(memory="short", ignore_eos=0.0, more={"schedule_policy": "lpm"}),
    "retraction, no radix cache": Shape(
        memory="short", ignore_eos=0.0, more={"disable_radix_cache": True}
    ),
    "retraction, overlap": Shape("overlap", memory="short", ignore_eos=0.0),
}
SERIAL = ("serial",)  # loops of ours; the others are event_loop_overlap


class Identity:
    """A part of another feature: whatever it is asked to do to a batch, it gives it back."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda batch=None, *args, **options: batch


class Stages:
    """A stopwatch that nobody reads."""

    _trace_stage = None

    def record(self, stage: str) -> Any:
        """Nothing happens around it."""
        return nullcontext()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **options: None


def original(settings: dict[str, dict[str, Any]]) -> Any:
    """The original's ``Scheduler``, as a class that is made for a case; with what stands in."""
    module: Any = import_module(f"{MANAGERS}.scheduler")
    places = {
        MEMORY: ("memory_pool", "radix_cache", "cache_init_params"),
        f"{MEMORY}.allocator": ("token", "paged"),
        COMPONENTS: ("new_token_ratio_tracker",),
        MANAGERS: ("schedule_batch", "schedule_policy"),
    }
    parts: Any = SimpleNamespace(
        **{name: import_module(f"{at}.{name}") for at, names in places.items() for name in names}
    )
    torch = import_module("torch")
    none = import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm.NONE
    allocation: Any = import_module(f"{MEMORY}.allocation")
    allocation.support_triton = lambda backend: False
    allocation.attention_backends = lambda: ("torch_native", "torch_native")
    parallel: Any = Nothing(pp_size=1, tp_size=1, dp_size=1)
    module.get_parallel = lambda: parallel
    model = Nothing(vocab_size=VOCAB_SIZE, is_encoder_decoder=False)
    beam = SimpleNamespace(pending_member_rows=lambda batch: 0)

    def make_allocator(num_slots: int, page_size: int) -> Any:
        about = torch.float16, "cpu"
        if page_size == 1:
            return parts.token.TokenToKVPoolAllocator(num_slots, *about, None, False)
        kv = SimpleNamespace()
        allocator = parts.paged.PagedTokenToKVPoolAllocator(num_slots, page_size, *about, kv, False)
        allocator.use_triton_kernels = False
        return allocator

    class Sglang(module.Scheduler):  # type: ignore[misc]
        """The scheduler of one case."""

        def __init__(self, case: FidelityCase) -> None:
            config = case.config
            self.__dict__.update(turns=Turns(case), reqs={})
            parallel.pp_max_micro_batch_size = config.max_running_requests
            is_priority = config.schedule_policy == "priority"
            policy = "fcfs" if is_priority else config.schedule_policy
            is_overlap = case.loop not in SERIAL
            order = parts.schedule_policy.SchedulePolicy
            settings["schedule"].update(
                schedule_policy=policy, schedule_conservativeness=config.schedule_conservativeness
            )
            settings["memory"].update(
                radix_eviction_policy=config.radix_eviction_policy,
                disable_radix_cache=config.disable_radix_cache,
            )
            pool = parts.memory_pool.ReqToTokenPool(config.max_running_requests, 4096, "cpu", False)
            allocator = make_allocator(config.num_slots, config.page_size)
            tree = parts.radix_cache.RadixCache(
                parts.cache_init_params.CacheInitParams(
                    disable=config.disable_radix_cache, req_to_token_pool=pool,
                    token_to_kv_pool_allocator=allocator, page_size=config.page_size,
                    eviction_policy=config.radix_eviction_policy,
                )
            )  # fmt: skip
            reporter = Silent(num_generated_tokens=0, forward_ct_decode=0, enable_metrics=False)
            chunk = None if config.chunked_prefill_size == -1 else config.chunked_prefill_size
            null = module.DisaggregationMode.NULL
            tracker = parts.new_token_ratio_tracker.NewTokenRatioTracker
            processor = make_processor(tree, allocator, pool, model, beam, null, is_overlap)
            self.__dict__.update(
                req_to_token_pool=pool, token_to_kv_pool_allocator=allocator, tree_cache=tree,
                page_size=config.page_size, waiting_queue=[], chunked_req=None, last_batch=None,
                running_batch=parts.schedule_batch.ScheduleBatch(reqs=[], batch_is_full=False),
                chunked_prefill_size=chunk, max_prefill_tokens=config.max_prefill_tokens,
                max_running_requests=config.max_running_requests,
                is_mixed_chunk=config.enable_mixed_chunk, enable_overlap=is_overlap,
                enable_priority_scheduling=is_priority, enable_priority_preemption=is_priority,
                priority_scheduling_preemption_threshold=(
                    config.priority_scheduling_preemption_threshold
                ),
                policy=order(policy, tree, False, is_priority, False),
                new_token_ratio_tracker=tracker.from_config(), batch_result_processor=processor,
                model_config=model, spec_algorithm=none, disaggregation_mode=null, device="cpu",
                is_generation=True, max_prefill_bs=0, processed_tokens_counter=0, forward_ct=0,
                result_queue=deque(), prefill_decode_interval=0,
                _prefill_decode_interval_remaining=0, _last_stall_publish_ts=0.0,
                _pause_intervals=deque(), decode_moment_totals=[0] * 16, total_prefill_busy_us=0,
                total_prefill_uncached_tokens=0,
                grammar_manager=SimpleNamespace(
                    has_waiting_grammars=lambda: False, grammar_queue=()
                ),
                dllm_manager=SimpleNamespace(any_staging_reqs=lambda: False),
                dp_attn_adapter=Identity(), ngram_embedding_manager=Identity(),
                beam_coordinator=beam, metrics_reporter=reporter, load_inquirer=Silent(),
                load_publisher=Silent(), pool_stats_observer=Silent(), future_map=Silent(),
                kv_events_publisher=Silent(), scheduler_stage_metrics=Stages(),
                invariant_checker=Silent(_check_all_pools=lambda stats: (False, ())),
                tp_worker=Silent(
                    model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)
                ),
            )  # fmt: skip

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return None

        def ingest_requests(self, stop_at_pause: bool = False) -> list[Any]:
            is_done = all(req.finished() for req in self.reqs.values()) and not self.result_queue
            lost = {rid: req.retraction_count for rid, req in self.reqs.items()}
            for arrival in self.turns.begin(is_done, lost):
                req = self.reqs[arrival.rid] = make_req(
                    arrival.rid, arrival.prompt, arrival.max_new_tokens, arrival.ignore_eos, {EOS},
                    arrival.priority,
                )  # fmt: skip
                self._add_request_to_queue(req)
            return []

        def run_batch(self, batch: Any) -> Any:
            self.forward_ct += 1
            batch.forward_iter, batch.launch_ts = self.forward_ct, time.monotonic()
            ends = batch.seq_lens_cpu.tolist()
            self.turns.launched(step_of(batch, ends))
            rows = zip(batch.reqs, ends, strict=True)
            told = [self.turns.by_rid[req.rid].token(end) for req, end in rows]
            return make_result(torch.tensor(told, dtype=torch.int64))

        def maybe_send_health_check_signal(self) -> None:
            pass

    return Sglang


def step_of(batch: Any, ends: list[int]) -> ScheduledStep:
    """A batch as it is compared; of a mixed one the last rows decode."""
    mode = batch.forward_mode.name.lower()
    rids = [req.rid for req in batch.reqs]
    if mode == "decode":
        return ScheduledStep(mode, (), tuple(sorted(rids)))
    decodes = len(batch.decoding_reqs or ())
    rows = [
        Rows(rid, prefix, prefix + extend)
        for rid, prefix, extend in zip(rids, batch.prefix_lens, batch.extend_lens, strict=True)
    ]
    count = len(rows) - decodes
    return ScheduledStep(mode, tuple(rows[:count]), tuple(sorted(rids[count:])))


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Import it, with the stand-ins."""
    import_without_gpu()
    kernels = [each.name for each in STAND_INS if each.name.startswith("sglang.")]
    stand_in(*(name for name in kernels if ":" not in name), even_if_there=True)
    groups: dict[str, dict[str, Any]] = {
        "schedule": {
            "retraction_policy": "length",
            "schedule_low_priority_values_first": False,
            "prefill_max_requests": None,
        },
        "memory": {},
        "disagg": {
            "disaggregation_mode": "null",
            "disaggregation_decode_retraction_backup": None,
        },
    }
    context = import_module("sglang.srt.runtime_context")
    context.RuntimeContext.config_bag = lambda self, name: Nothing(
        depth=name == "exec", **groups.get(name, {})
    )
    made = original(groups)
    logging.disable(logging.CRITICAL)

    def play(case: FidelityCase) -> Schedule:
        random.seed(case.config.random_seed)
        scheduler = made(case)
        is_serial = case.loop in SERIAL
        turns: Turns = scheduler.turns
        return turns.play(
            scheduler.event_loop_normal if is_serial else scheduler.event_loop_overlap
        )

    overridden = [name for name in vars(made) if callable(getattr(made, name))]
    return Played(play, metadata.version("sglang"), DECIDING, "sglang", overridden).answer


if __name__ == "__main__":
    serve(start)
