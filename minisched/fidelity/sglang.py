# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch==2.13.0", "numpy==2.4.6", "transformers==5.19.0", "fastapi==0.165.0", "openai==2.8.0",
#   "aiohttp==3.14.5", "dill==0.4.1", "distro==1.9.0", "einops==0.8.2", "msgspec==0.22.0",
#   "numba==0.65.1", "orjson==3.13.0", "packaging==26.3", "pillow==13.0.0",
#   "partial-json-parser==0.2.1.1.post7", "prometheus-client==0.26.0", "psutil==7.2.2",
#   "pybase64==1.5.1", "pydantic==2.14.3", "python-multipart==0.0.34", "pyzmq==27.3.0",
#   "regex==2026.11.15", "requests==2.34.2", "scipy==1.17.1", "setproctitle==1.3.8",
#   "uvicorn==0.54.0", "uvloop==0.23.0", "xxhash==4.1.0", "sglang==0.5.23"
# ]
#
# [[tool.uv.dependency-metadata]]
# name = "sglang"  # installed alone: its other requirements have stand-ins (STAND_INS)
# version = "0.5.23"
# requires-dist = []
# ///
"""SGLang's own scheduler and event loops, on a CPU, without model, sockets and GPU.

A ``Scheduler`` is made without its ``__init__``, and the attributes that its methods read are set.
The deciding methods and the two event loops are the original's. A loop receives a case's requests
where it would read its socket, and gets a case's tokens where it would launch a step. For ``bench
host`` the parts of the loop are called in turn, on a result that is there.
"""

from __future__ import annotations

import logging
import os
import random
import time
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any

from ..bench.peers.peer import serve
from ..bench.steps import ANY_TOKEN, NEW_TOKENS, VOCABULARY, HostWorkload, settle
from .case import EOS, VOCAB_SIZE, Arrival, FidelityCase, Rows, ScheduledStep
from .original import (
    DEVICE,
    ENTRY,
    KERNELS,
    LISTENER,
    SETTINGS,
    UNUSED,
    Off,
    Original,
    StandIn,
    Turns,
    stand_in,
)

MANAGERS, MEMORY = "sglang.srt.managers", "sglang.srt.mem_cache"
COMPONENTS = f"{MANAGERS}.scheduler_components"
DECIDING = (
    f"{MANAGERS}.scheduler", f"{MANAGERS}.schedule_policy", f"{MANAGERS}.schedule_batch",
    f"{COMPONENTS}.batch_result_processor", f"{COMPONENTS}.new_token_ratio_tracker",
    f"{MEMORY}.radix_cache", f"{MEMORY}.memory_pool", f"{MEMORY}.common", f"{MEMORY}.allocation",
    f"{MEMORY}.allocator.token", f"{MEMORY}.allocator.paged",
)  # fmt: skip
STAND_INS = (
    StandIn("triton", DEVICE, KERNELS),
    StandIn("tvm_ffi", DEVICE, KERNELS),
    StandIn("sgl_kernel", DEVICE, KERNELS),
    StandIn("flashinfer", DEVICE, KERNELS),
    StandIn("cuda", DEVICE, "the driver of a GPU"),
    StandIn("torchvision", DEVICE, f"images: {UNUSED}"),
    StandIn("sentencepiece", DEVICE, f"tokenizers: {UNUSED}"),
    StandIn("compressed_tensors", DEVICE, f"weights: {UNUSED}"),
    StandIn("gguf", DEVICE, f"weights: {UNUSED}"),
    StandIn("grpc", DEVICE, f"a server: {UNUSED}"),
    StandIn("IPython", DEVICE, f"notebooks: {UNUSED}"),
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
            "no program asks for a sign of life"),
)  # fmt: skip
SERIAL = ("serial",)  # loops of ours; the others are event_loop_overlap


class Silent(SimpleNamespace):
    """A listener of steps that does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **options: None


class Identity:
    """A part of another feature: each of its methods returns its batch unchanged."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda batch=None, *args, **options: batch


@cache
def set_up() -> Any:
    """Import it without a GPU, and return its ``Scheduler`` as a class that is made for a case."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import_module("torch")  # these two look for optional packages, and must not find stand-ins
    import_module("transformers.image_utils")
    import_module("transformers.utils.import_utils").is_torchvision_available()
    stand_in(STAND_INS, "sglang")
    logging.disable(logging.CRITICAL)
    settings: dict[str, dict[str, Any]] = {
        "schedule": {
            "retraction_policy": "length", "schedule_low_priority_values_first": False,
            "prefill_max_requests": None,
        },
        "memory": {},
        "disagg": {
            "disaggregation_mode": "null", "disaggregation_decode_retraction_backup": None,
        },
    }  # fmt: skip
    context = import_module("sglang.srt.runtime_context")
    context.RuntimeContext.config_bag = lambda self, name: Off(
        depth=name == "exec", **settings.get(name, {})
    )
    module: Any = import_module(f"{MANAGERS}.scheduler")
    places = {
        MEMORY: ("memory_pool", "radix_cache", "cache_init_params"),
        f"{MEMORY}.allocator": ("token", "paged"),
        COMPONENTS: ("new_token_ratio_tracker", "batch_result_processor"),
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
    parallel: Any = Off(pp_size=1, tp_size=1, dp_size=1)
    module.get_parallel = lambda: parallel
    model = Off(vocab_size=VOCAB_SIZE, is_encoder_decoder=False)
    beam = SimpleNamespace(pending_member_rows=lambda batch: 0)

    def make_allocator(num_slots: int, page_size: int) -> Any:
        """Make SGLang's allocator of KV slots."""
        about = torch.float16, "cpu"
        if page_size == 1:
            return parts.token.TokenToKVPoolAllocator(num_slots, *about, None, False)
        kv = SimpleNamespace()
        allocator = parts.paged.PagedTokenToKVPoolAllocator(num_slots, page_size, *about, kv, False)
        allocator.use_triton_kernels = False
        return allocator

    class Sglang(Off, module.Scheduler):  # type: ignore[misc]
        """The scheduler of one case."""

        def __init__(self, case: FidelityCase) -> None:
            config, is_overlap = case.config, case.loop not in SERIAL
            random.seed(config.random_seed)
            parallel.pp_max_micro_batch_size = config.max_running_requests
            is_priority = config.schedule_policy == "priority"
            policy = "fcfs" if is_priority else config.schedule_policy
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
            stages = Silent(_trace_stage=None, record=lambda stage: nullcontext())
            chunk = None if config.chunked_prefill_size == -1 else config.chunked_prefill_size
            null = module.DisaggregationMode.NULL
            tracker = parts.new_token_ratio_tracker.NewTokenRatioTracker
            processor = parts.batch_result_processor.SchedulerBatchResultProcessor(
                is_generation=True, disaggregation_mode=null, enable_overlap=is_overlap,
                enable_overlap_mlx=False, model_config=model, tree_cache=tree,
                token_to_kv_pool_allocator=allocator, req_to_token_pool=pool,
                hisparse_coordinator=None, decode_offload_manager=None, metrics_collector=None,
                metrics_reporter=reporter, draft_worker=None, model_worker=None,
                logprob_result_processor=None, output_streamer=Silent(), beam_coordinator=beam,
                abort_request=None,
            )  # fmt: skip
            super().__init__(
                turns=Turns(case), reqs={},
                loop=self.event_loop_overlap if is_overlap else self.event_loop_normal,
                req_to_token_pool=pool, token_to_kv_pool_allocator=allocator, tree_cache=tree,
                page_size=config.page_size, waiting_queue=[], chunked_req=None, last_batch=None,
                running_batch=parts.schedule_batch.ScheduleBatch(reqs=[], batch_is_full=False),
                chunked_prefill_size=chunk, max_prefill_tokens=config.max_prefill_tokens,
                max_running_requests=config.max_running_requests,
                max_total_num_tokens=config.num_slots, max_req_len=config.num_slots - 1,
                max_new_tokens_limit=None, kv_shard_widening=1, sliding_window_size=None,
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
                kv_events_publisher=Silent(), scheduler_stage_metrics=stages,
                invariant_checker=Silent(_check_all_pools=lambda stats: (False, ())),
                tp_worker=Silent(
                    model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)
                ),
            )  # fmt: skip

        def ingest_requests(self, stop_at_pause: bool = False) -> list[Any]:
            """Receive the requests of the next turn."""
            is_done = all(req.finished() for req in self.reqs.values()) and not self.result_queue
            lost = {rid: req.retraction_count for rid, req in self.reqs.items()}
            for arrival in self.turns.begin(is_done, lost):
                req = self.reqs[arrival.rid] = make_req(arrival)
                self.init_req_max_new_tokens(req)
                self._add_request_to_queue(req)
            return []

        def run_batch(self, batch: Any) -> Any:
            """Record a step, and return its tokens."""
            self.forward_ct += 1
            batch.forward_iter, batch.launch_ts = self.forward_ct, time.monotonic()
            ends = batch.seq_lens_cpu.tolist()
            self.turns.launched(step_of(batch, ends))
            rows = zip(batch.reqs, ends, strict=True)
            told = [self.turns.by_rid[req.rid].token(end) for req, end in rows]
            return make_result(torch.tensor(told, dtype=torch.int64))

        def maybe_send_health_check_signal(self) -> None:
            """Do nothing: there is no health check."""

    return Sglang


def step_of(batch: Any, ends: list[int]) -> ScheduledStep:
    """Return a batch in the form that is compared; in a mixed one the last rows decode."""
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


def make_req(arrival: Arrival) -> Any:
    """Return the request of an arrival, with greedy sampling."""
    params = import_module("sglang.srt.sampling.sampling_params").SamplingParams(
        max_new_tokens=arrival.max_new_tokens, ignore_eos=arrival.ignore_eos, temperature=0.0
    )
    params.normalize(None)
    return import_module(f"{MANAGERS}.schedule_batch").Req(
        arrival.rid, "", array("q", arrival.prompt), params, eos_token_ids={EOS},
        vocab_size=VOCABULARY, priority=arrival.priority,
    )  # fmt: skip


def make_result(tokens: Any) -> Any:
    """Return the sampled tokens of a step."""
    return SimpleNamespace(
        next_token_ids=tokens, copy_done=None, auxiliary_host_output=None, logits_output=None,
        routed_experts_output=None, indexer_topk_output=None, can_run_cuda_graph=False,
        extend_input_len_per_req=None, extend_logprob_start_len_per_req=None,
        num_correct_drafts_per_req_cpu=None, delay_sample_func=None,
        get_num_generated_tokens=lambda batch_size: batch_size,
    )  # fmt: skip


@cache
def result_of(num_reqs: int) -> Any:
    """Return the sampled tokens of a device that takes no time."""
    return make_result(import_module("torch").full((num_reqs,), ANY_TOKEN))


class SglangEngine:
    """``get_next_batch_to_run`` and ``process_batch_result`` in turn, as ``event_loop_normal``."""

    def __init__(self, load: HostWorkload) -> None:
        self.scheduler = set_up()(FidelityCase("serial", load.config, ()))
        self.numbers = count()
        settle(self.step, load, self.add)

    def add(self, tokens: list[int]) -> None:
        """Receive one request."""
        rid, prompt = str(next(self.numbers)), tuple(tokens)
        arrival = Arrival(rid, 0, prompt, (), NEW_TOKENS, ignore_eos=True)
        self.scheduler._add_request_to_queue(make_req(arrival))

    def step(self) -> int:
        """Run one turn, and return the number of requests in it."""
        scheduler = self.scheduler
        plan = scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        scheduler.forward_ct += 1
        batch.forward_iter, batch.launch_ts = scheduler.forward_ct, time.monotonic()
        scheduler.process_batch_result(batch, result_of(len(batch.reqs)))
        scheduler.last_batch = batch
        return len(batch.reqs)


ORIGINAL = Original(
    "sglang", "SGLang", DECIDING, STAND_INS, set_up, SglangEngine, distribution="sglang",
    has_future_map=True,
)  # fmt: skip

if __name__ == "__main__":
    serve(ORIGINAL.start)
