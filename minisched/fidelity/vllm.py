# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch==2.13.0", "numpy==2.4.6", "transformers==5.19.0", "fastapi==0.136.3", "openai==3.54.0",
#   "openai-harmony==0.0.8", "aiohttp==3.14.5", "cachetools==8.0.1", "cbor2==6.2.1",
#   "cloudpickle==3.1.2", "msgspec==0.22.0", "packaging==26.3", "pillow==13.0.0",
#   "partial-json-parser==0.2.1.1.post7", "prometheus-client==0.26.0", "psutil==7.2.2",
#   "py-cpuinfo==9.0.0", "pybase64==1.5.1", "pydantic==2.14.3", "pyzmq==27.3.0",
#   "regex==2026.11.15", "requests==2.34.2", "uvloop==0.23.0", "vllm==0.33.0"
# ]
#
# [[tool.uv.dependency-metadata]]
# name = "vllm"  # installed alone: its other requirements have stand-ins (STAND_INS)
# version = "0.33.0"
# requires-dist = []
# ///
"""vLLM's own scheduler and engine core, on a CPU: whole and unchanged, over configs of its own.

``EngineCore.step`` and ``step_with_batch_queue`` are the original's too. The executor is replaced:
it returns the case's tokens immediately. A scheduler is built as vLLM's tests build it
(``tests/v1/core/utils.py:create_scheduler``). Its configs are real, except the model's, which would
need a model's folder and a GPU. ``bench host`` calls it without an engine core.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from concurrent.futures import Future
from importlib import import_module
from itertools import count
from typing import Any

from ..bench.peers.peer import serve
from ..bench.steps import ANY_TOKEN, PAGE, PREFILL_TOKENS, HostWorkload, settle
from .case import EOS, Arrival, FidelityCase, Rows, ScheduledStep
from .original import DEVICE, ENTRY, SETTINGS, UNUSED, Off, Original, StandIn, Turns, stand_in

SCHED = "vllm.v1.core.sched"
DECIDING = (
    f"{SCHED}.scheduler", f"{SCHED}.async_scheduler", f"{SCHED}.request_queue", f"{SCHED}.utils",
    "vllm.v1.core.kv_cache_manager", "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.single_type_kv_cache_manager", "vllm.v1.core.block_pool",
    "vllm.v1.core.kv_cache_utils", "vllm.v1.request", "vllm.v1.engine.core",
)  # fmt: skip
CORE = "vllm.v1.engine.core:EngineCore"
STAND_INS = (
    StandIn("xgrammar", DEVICE, f"grammars: {UNUSED}"),
    StandIn("llguidance", DEVICE, f"grammars: {UNUSED}"),
    StandIn("vllm.config:VllmConfig.model_config", SETTINGS, "a text model of nothing special"),
    StandIn(f"{CORE}.__init__", SETTINGS, "parts are made one by one"),
    StandIn(f"{CORE}.__getattr__", SETTINGS, "what was not set is off"),
    StandIn(f"{CORE}.model_executor", ENTRY, "the case's tokens are the result"),
)
LOOPS = {"serial": "vllm_step", "queue": "vllm_batch_queue", "async": "vllm_async"}
MOST_NEW = PAGE + 128  # tokens: the first admitted requests decode next to the others' prompts
MOST_LEN = 1 << 20  # tokens; longer than the longest prompt of any workload
SETTINGS_OF_VLLM = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

# -- A scheduler -----------------------------------------------------------------------------------


def make_hasher(page_size: int) -> Any:
    """Return the function that names blocks by content, with vLLM's default hash."""
    utils = import_module("vllm.v1.core.kv_cache_utils")
    hash_of = import_module("vllm.utils.hashing").get_hash_fn_by_name("sha256")
    utils.init_none_hash(hash_of)
    return utils.get_request_block_hasher(page_size, hash_of)


def make_scheduler(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    num_pages: int,
    page_size: int,
    caches: bool = True,
    is_async: bool = False,
) -> Any:
    """Return a scheduler over a pool of ``num_pages`` blocks."""
    config = make_config(max_num_seqs, max_num_batched_tokens, num_pages, page_size, caches)
    structured = import_module("vllm.v1.structured_output").StructuredOutputManager(config)
    sched = "vllm.v1.core.sched"
    kind = (
        import_module(f"{sched}.async_scheduler").AsyncScheduler
        if is_async
        else import_module(f"{sched}.scheduler").Scheduler
    )
    return kind(
        vllm_config=config, kv_cache_config=make_kv_config(num_pages, page_size), log_stats=False,
        block_size=page_size, structured_output_manager=structured,
    )  # fmt: skip


def make_config(
    max_num_seqs: int, max_num_batched_tokens: int, num_pages: int, page_size: int, caches: bool
) -> Any:
    """Return vLLM's settings, at its defaults unless given."""
    config = import_module("vllm.config")
    scheduler_config = config.SchedulerConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=MOST_LEN, is_encoder_decoder=False, enable_chunked_prefill=True,
    )  # fmt: skip
    cache_config = config.CacheConfig(block_size=page_size, enable_prefix_caching=caches)
    cache_config.num_gpu_blocks = num_pages + 1
    whole = config.VllmConfig(
        scheduler_config=scheduler_config,
        cache_config=cache_config,
        device_config=config.DeviceConfig(device="cpu"),
    )
    whole.model_config = Off(
        max_model_len=MOST_LEN, runner_type="generate", skip_tokenizer_init=True
    )
    return whole


def make_kv_config(num_pages: int, page_size: int) -> Any:
    """Return one group of layers with full attention, with one more block: vLLM owns block 0."""
    interface = import_module("vllm.v1.kv_cache_interface")
    spec = interface.FullAttentionSpec(
        block_size=page_size, num_kv_heads=1, head_size=1, dtype=import_module("torch").float32
    )
    group = interface.KVCacheGroupSpec(["layer"], spec)
    return interface.KVCacheConfig(num_pages + 1, [], [group])


# -- A case, turn by turn --------------------------------------------------------------------------


class Executor:
    """Runs nothing: the tokens of a step come from the case."""

    def __init__(self, turns: Turns, scheduler: Any) -> None:
        self.turns, self.scheduler = turns, scheduler
        self.output_of = import_module("vllm.v1.outputs").ModelRunnerOutput
        self.sampled: Any = None

    def execute_model(self, plan: Any, non_block: bool) -> Future[Any]:
        """Record the scheduled step; the result of a sampling step is that of its sampling."""
        rows, told = [], []
        for rid, new in plan.num_scheduled_tokens.items():
            request = self.scheduler.requests[rid]
            end = request.num_computed_tokens
            rows.append(Rows(rid, end - new, end))
            is_chunk = request.is_prefill_chunk
            told.append([] if is_chunk else [self.turns.by_rid[rid].token(end)])
        names = [row.rid for row in rows]
        output = self.output_of(names, {name: at for at, name in enumerate(names)}, told)
        if not rows:
            return done(output)
        self.turns.launched(ScheduledStep("step", tuple(sorted(rows))))
        self.sampled = output
        return done(None)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Return the tokens of the step that was launched last."""
        return done(self.sampled) if non_block else self.sampled


def done(value: Any) -> Future[Any]:
    """Return a future that already has its value."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def make_request(arrival: Arrival, hasher: Any) -> Any:
    """Return the request of an arrival."""
    params = import_module("vllm.sampling_params").SamplingParams(
        max_tokens=arrival.max_new_tokens, ignore_eos=arrival.ignore_eos, temperature=0.0
    )
    params._eos_token_id = None if arrival.ignore_eos else EOS
    params.stop_token_ids = [] if arrival.ignore_eos else [EOS]
    return import_module("vllm.v1.request").Request(
        request_id=arrival.rid, prompt_token_ids=list(arrival.prompt), sampling_params=params,
        pooling_params=None, block_hasher=hasher,
    )  # fmt: skip


def set_up() -> Any:
    """Import it without a GPU or logs, and return ``EngineCore`` as a class for one case."""
    os.environ.update(SETTINGS_OF_VLLM)
    stand_in(STAND_INS, "vllm")
    module: Any = import_module("vllm.v1.engine.core")

    class Vllm(Off, module.EngineCore):  # type: ignore[misc]
        """The engine core of one case."""

        def __init__(self, case: FidelityCase) -> None:
            config, caches = case.config, not case.config.disable_radix_cache
            scheduler = make_scheduler(
                config.max_running_requests, config.max_prefill_tokens, config.num_pages,
                config.page_size, caches, case.loop == LOOPS["async"],
            )  # fmt: skip
            turns, requests = Turns(case), dict[str, Any]()
            super().__init__(
                scheduler=scheduler, model_executor=Executor(turns, scheduler), turns=turns,
                batch_queue=deque(maxlen=2), batch_queue_size=2, is_pooling_model=False,
                is_mm_encoder_only=False, check_for_draft_tokens=False,
                aborts_queue=queue.Queue(), vllm_config=scheduler.vllm_config,
                is_serial=case.loop == LOOPS["serial"], requests=requests,
                hasher=make_hasher(config.page_size) if caches else None,
            )  # fmt: skip

        def loop(self) -> None:
            """Run one turn."""
            is_done = not (self.scheduler.has_unfinished_requests() or self.batch_queue)
            lost = {rid: request.num_preemptions for rid, request in self.requests.items()}
            for arrival in self.turns.begin(is_done, lost):
                request = self.requests[arrival.rid] = make_request(arrival, self.hasher)
                self.scheduler.add_request(request)
            if self.is_serial:
                self.step()
            else:
                self.step_with_batch_queue()

    return Vllm


# -- A workload on a device that takes no time -----------------------------------------------------


class VllmEngine:
    """A scheduler with a workload; prefix caching and chunked prefill are on, as always."""

    def __init__(self, load: HostWorkload) -> None:
        self.numbers = count()
        self.Output = import_module("vllm.v1.outputs").ModelRunnerOutput
        self.hasher = make_hasher(load.page_size)
        self.scheduler = make_scheduler(
            load.running + load.spare_rows, PREFILL_TOKENS, load.num_pages, load.page_size
        )
        settle(self.admit, load, self.add)

    def add(self, tokens: list[int]) -> None:
        """Receive one request."""
        rid, prompt = str(next(self.numbers)), tuple(tokens)
        arrival = Arrival(rid, 0, prompt, (), MOST_NEW, ignore_eos=True)
        self.scheduler.add_request(make_request(arrival, self.hasher))

    def admit(self) -> int:
        """Run one turn, and return the number of requests that started in it."""
        return len(self.turn().scheduled_new_reqs)

    def step(self) -> int:
        """Run one turn, and return the number of requests in it."""
        return len(self.turn().num_scheduled_tokens)

    def turn(self) -> Any:
        """Run one turn of its engine core, and return the scheduled step."""
        plan = self.scheduler.schedule()
        names = list(plan.num_scheduled_tokens)
        places = {name: at for at, name in enumerate(names)}
        output = self.Output(names, places, [[ANY_TOKEN] for _ in names])
        self.scheduler.update_from_output(plan, output)
        return plan


ORIGINAL = Original("vllm", "vLLM", DECIDING, STAND_INS, set_up, VllmEngine, distribution="vllm")

if __name__ == "__main__":
    serve(ORIGINAL.start)
