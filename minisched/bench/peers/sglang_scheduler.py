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
# name = "sglang"  # installed alone: what it needs else has stand-ins (missing.py)
# version = "0.5.23"
# requires-dist = []
# ///
"""SGLang's own decode step: ``ScheduleBatch`` and the result processor, with made-up tokens.

A turn is what ``update_running_batch`` and ``process_batch_result_decode`` do for those who run:
filter, check memory, ``prepare_for_decode``, process; tensors are on the CPU. Prompts are put into
the pools by hand, as extending a batch takes kernels of a GPU. So admission is not measured, and
neither is what the scheduler's other parts do (metrics, output to the detokenizer): they stand in.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ..steps import ANY_TOKEN, NEW_TOKENS, VOCABULARY, HostWorkload, answer_with, prompt
from .missing import PACKAGES, stand_in
from .peer import Answer, serve


class Nothing:
    """Settings of which each is off, in groups where ``depth`` says so."""

    def __init__(self, depth: int = 0, **given: Any) -> None:
        self.__dict__.update(given)
        self._depth = depth

    def __getattr__(self, name: str) -> Nothing | None:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(self._depth - 1) if self._depth else None


class Silent(SimpleNamespace):
    """Whoever hears of the step, and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **options: None


class SGLangScheduler:
    """Requests that decode, one token each, with the KV pool and the radix cache of SGLang."""

    def __init__(self, load: HostWorkload) -> None:
        torch, memory = import_module("torch"), "sglang.srt.mem_cache"
        length, size = load.prompt_len + NEW_TOKENS, load.num_pages * load.page_size
        self.torch = torch
        self.pool = import_module(f"{memory}.memory_pool").ReqToTokenPool(
            load.running, length, "cpu", False
        )
        self.allocator = import_module(f"{memory}.allocator.token").TokenToKVPoolAllocator(
            size, torch.float16, "cpu", None, False
        )
        params = import_module(f"{memory}.cache_init_params").CacheInitParams(
            disable=False, req_to_token_pool=self.pool, page_size=load.page_size,
            token_to_kv_pool_allocator=self.allocator,
        )  # fmt: skip
        self.tree = import_module(f"{memory}.radix_cache").RadixCache(params)
        self.model = Nothing(vocab_size=VOCABULARY)
        tokens = [(number, prompt(number, load.prompt_len)) for number in range(load.running)]
        self.reqs = [make_req(str(number), each, NEW_TOKENS) for number, each in tokens]
        self.batch = self.make_batch(load.prompt_len)
        self.processor = make_processor(
            self.tree, self.allocator, self.pool, self.model, beam=Silent()
        )
        self.result = make_result(torch.full((load.running,), ANY_TOKEN))

    def make_batch(self, prompt_len: int) -> Any:
        """The running batch, as it is after the prompts."""
        torch, rows = self.torch, self.pool.alloc(self.reqs)
        for req, row in zip(self.reqs, rows, strict=True):
            places = self.allocator.alloc(prompt_len).to(torch.int32)
            self.pool.write((row, slice(0, prompt_len)), places)
            req.kv.kv_allocated_len = req.kv.kv_committed_len = prompt_len
            req.output_ids.append(ANY_TOKEN)
        none = import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm.NONE
        batch = import_module("sglang.srt.managers.schedule_batch").ScheduleBatch.init_new(
            self.reqs, self.pool, self.allocator, self.tree, self.model, False, none
        )
        batch.req_pool_indices = batch.req_pool_indices_cpu = torch.tensor(rows)
        lens = torch.full((len(rows),), prompt_len)
        batch.seq_lens, batch.seq_lens_cpu = lens, lens.clone()
        batch.orig_seq_lens = lens.to(torch.int32)
        info = import_module("sglang.srt.sampling.sampling_batch_info").SamplingBatchInfo
        batch.sampling_info = info.from_schedule_batch(batch, VOCABULARY)
        return batch

    def step(self) -> int:
        """One turn; how many requests took part."""
        batch = self.batch
        batch.filter_batch()
        assert batch.check_decode_mem(), "there is room for everybody"
        batch.prepare_for_decode()
        self.processor.process_batch_result_decode(batch, self.result)
        return len(batch.reqs)


def make_processor(
    tree: Any,
    allocator: Any,
    pool: Any,
    model: Any,
    beam: Any,
    mode: Any = None,
    is_overlap: bool = False,
) -> Any:
    """What takes results; whoever it tells about them is silent."""
    components = "sglang.srt.managers.scheduler_components"
    return import_module(f"{components}.batch_result_processor").SchedulerBatchResultProcessor(
        is_generation=True, disaggregation_mode=mode, enable_overlap=is_overlap,
        enable_overlap_mlx=False, model_config=model, tree_cache=tree,
        token_to_kv_pool_allocator=allocator, req_to_token_pool=pool, hisparse_coordinator=None,
        decode_offload_manager=None, metrics_collector=None,
        metrics_reporter=Silent(num_generated_tokens=0, forward_ct_decode=0, enable_metrics=False),
        draft_worker=None, model_worker=None, logprob_result_processor=None,
        output_streamer=Silent(), beam_coordinator=beam, abort_request=None,
    )  # fmt: skip


def make_req(
    rid: str,
    prompt: Sequence[int],
    max_new_tokens: int,
    ignore_eos: bool = True,
    eos_ids: Iterable[int] = (),
    priority: int | None = None,
) -> Any:
    """A greedy request."""
    params = import_module("sglang.srt.sampling.sampling_params").SamplingParams(
        max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, temperature=0.0
    )
    params.normalize(None)
    return import_module("sglang.srt.managers.schedule_batch").Req(
        rid, "", array("q", prompt), params, eos_token_ids=set(eos_ids), vocab_size=VOCABULARY,
        priority=priority,
    )  # fmt: skip


def make_result(tokens: Any) -> Any:
    """What a step has sampled."""
    return SimpleNamespace(
        next_token_ids=tokens, copy_done=None, auxiliary_host_output=None, logits_output=None,
        routed_experts_output=None, indexer_topk_output=None, can_run_cuda_graph=False,
        extend_input_len_per_req=None, extend_logprob_start_len_per_req=None,
        num_correct_drafts_per_req_cpu=None, delay_sample_func=None,
        get_num_generated_tokens=lambda batch_size: batch_size,
    )  # fmt: skip


def import_without_gpu() -> None:
    """Make SGLang importable: what needs a GPU, and other features' packages, have stand-ins."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import_module("torch")  # these two look for optional packages, and must not find stand-ins
    import_module("transformers.image_utils")
    import_module("transformers.utils.import_utils").is_torchvision_available()
    stand_in(*PACKAGES["sglang"])


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Import it, with all settings off."""
    import_without_gpu()
    context = import_module("sglang.srt.runtime_context")
    context.RuntimeContext.config_bag = lambda self, name: Nothing(depth=name == "exec")
    import_module("sglang.srt.managers.scheduler_components.batch_result_processor")
    return partial(answer_with, SGLangScheduler)


if __name__ == "__main__":
    serve(start)
