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
# name = "vllm"  # installed alone: what it needs else has stand-ins (missing.py)
# version = "0.33.0"
# requires-dist = []
# ///
"""vLLM's own scheduler: ``schedule`` and ``update_from_output`` in turn, with made-up tokens.

Built as vLLM's tests build it (``tests/v1/core/utils.py:create_scheduler``), from real configs but
for the model's, which would ask for a model's folder and for a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any

from ..steps import ANY_TOKEN, PAGE, PREFILL_TOKENS, HostWorkload, answer_with, settle
from .missing import PACKAGES, stand_in
from .peer import Answer, serve

MOST_NEW = PAGE + 128  # tokens: those admitted first decode beside the others' prompts
MOST_LEN = 1 << 20  # tokens; longer than the longest prompt of any workload
SETTINGS = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


class StandInModelConfig(SimpleNamespace):
    """What the scheduler asks about the model: a text model without anything special."""

    def __getattr__(self, name: str) -> None:
        return None


class VllmScheduler:
    """A scheduler with a workload set up; prefix caching and chunked prefill are on, as always."""

    def __init__(self, load: HostWorkload) -> None:
        self.numbers = count()
        self.page_size = load.page_size
        self.Request = import_module("vllm.v1.request").Request
        self.SamplingParams = import_module("vllm.sampling_params").SamplingParams
        self.Output = import_module("vllm.v1.outputs").ModelRunnerOutput
        self.hasher = make_hasher(load.page_size)
        self.scheduler = make_scheduler(
            load.running + load.spare_rows, PREFILL_TOKENS, load.num_pages, load.page_size
        )
        settle(self.admit, load, self.add)

    def add(self, tokens: list[int]) -> None:
        """Receive one request."""
        params = self.SamplingParams(max_tokens=MOST_NEW, ignore_eos=True, temperature=0.0)
        name = str(next(self.numbers))
        self.scheduler.add_request(
            self.Request(
                request_id=name, prompt_token_ids=tokens, sampling_params=params,
                pooling_params=None, block_hasher=self.hasher,
            )
        )  # fmt: skip

    def admit(self) -> int:
        """One turn; how many requests started in it."""
        return len(self.turn().scheduled_new_reqs)

    def step(self) -> int:
        """One turn; how many requests took part."""
        return len(self.turn().num_scheduled_tokens)

    def turn(self) -> Any:
        """One turn of its engine core: what it has scheduled."""
        plan = self.scheduler.schedule()
        names = list(plan.num_scheduled_tokens)
        places = {name: at for at, name in enumerate(names)}
        output = self.Output(names, places, [[ANY_TOKEN] for _ in names])
        self.scheduler.update_from_output(plan, output)
        return plan


def make_hasher(page_size: int) -> Any:
    """Names blocks by their content, with vLLM's default hash."""
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
    """A scheduler over a pool of ``num_pages`` blocks."""
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
    """vLLM's settings, at its defaults where nothing else is said."""
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
    whole.model_config = StandInModelConfig(
        max_model_len=MOST_LEN, runner_type="generate", skip_tokenizer_init=True
    )
    return whole


def make_kv_config(num_pages: int, page_size: int) -> Any:
    """One group of layers with full attention; block 0 is vLLM's own, so there is one more."""
    interface = import_module("vllm.v1.kv_cache_interface")
    spec = interface.FullAttentionSpec(
        block_size=page_size, num_kv_heads=1, head_size=1, dtype=import_module("torch").float32
    )
    group = interface.KVCacheGroupSpec(["layer"], spec)
    return interface.KVCacheConfig(num_pages + 1, [], [group])


def import_without_gpu() -> None:
    """Make vLLM importable, and quiet."""
    os.environ.update(SETTINGS)
    stand_in(*PACKAGES["vllm"])


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Import it."""
    import_without_gpu()
    import_module("vllm.v1.core.sched.scheduler")
    return partial(answer_with, VllmScheduler)


if __name__ == "__main__":
    serve(start)
