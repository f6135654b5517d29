"""mlx-lm's architectures on the page table: the tokens of mlx-lm's own forward, and their class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch

from minisched.core import Request, SamplingParams
from minisched.loops.run import run_loop
from minisched.models.mlx_lm import MlxLm
from minisched.models.promise import Refused, promise_of
from minisched.scheduler import SchedulerConfig
from tests.support import open_device, prompt

SIZES = dict(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
    eos_token_id=0, bos_token_id=None, pad_token_id=None, tie_word_embeddings=False,
)  # fmt: skip
MOE = dict(
    num_experts=8, num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
    shared_expert_intermediate_size=32, n_routed_experts=8, n_shared_experts=1, n_group=1,
    topk_group=1, first_k_dense_replace=1, moe_layer_freq=1,
)  # fmt: skip
TIED = dict(tie_word_embeddings=True)
EXACT: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {}, "gemma": TIED, "phi3": {},
    "starcoder2": {}, "olmo2": {}, "cohere": TIED, "granite": {}, "glm4": {}, "helium": {},
    "smollm3": {}, "seed_oss": {}, "ernie4_5": {}, "hunyuan_v1_dense": {}, "stablelm": {},
    "nemotron": {}, "glm": {}, "internlm3": {},
    "gemma3_text": TIED | dict(num_hidden_layers=6, query_pre_attn_scalar=16, sliding_window=24),
    "phi": dict(num_key_value_heads=4), "ministral3": dict(sliding_window=None),
    "mixtral": MOE, "qwen2_moe": MOE, "olmoe": MOE, "granitemoe": MOE, "dots1": MOE,
}  # fmt: skip
REFUSED: dict[str, dict[str, Any]] = {"falcon_h1": {}, "qwen3_next": MOE}

pytestmark = [pytest.mark.usefixtures("one_torch_thread"), pytest.mark.thorough]


def checkpoint(kind: str, more: dict[str, Any], folder: Path) -> Path:
    """A random checkpoint as transformers writes it, with sharp attention and wide logits."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **{**SIZES, **more})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    numbers = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if weight.dim() >= 2:
            scale = 3.0 if "lm_head" in name or "embed_out" in name else 1.0
            drawn = torch.randn(weight.shape, generator=numbers) * weight.shape[-1] ** -0.5
            weight.data = drawn * scale
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", EXACT)
def test_an_architecture_is_exact_and_gives_mlx_lm_s_own_tokens(kind: str, tmp_path: Path) -> None:
    model = MlxLm.from_directory(checkpoint(kind, EXACT[kind], tmp_path), "float32")
    assert promise_of(model, "mlx").kind == "exact"
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    requests = [Request(f"r{n}", prompt(n, n), params) for n in (3, 33, 40)]
    config = SchedulerConfig(chunked_prefill_size=32, max_running_requests=3, context_len=64)
    run = run_loop("mlx_async", open_device("mlx"), model, requests, config)
    assert not run.errors
    model.model[model.body].wanted_at = None
    for req in requests:
        tokens = [*req.prompt]
        for token in req.output_ids:
            logits = model.model(mx.array([tokens]))[0, -1]  # without any cache
            assert logits.max() - logits[token] < 1e-3
            tokens.append(token)


@pytest.mark.parametrize("kind", REFUSED)
def test_an_architecture_with_another_state_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"can't run here: a layer keeps a \w+, and only keys"):
        MlxLm.from_directory(checkpoint(kind, REFUSED[kind], tmp_path), "float32")


def test_a_layer_that_needs_another_mask_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """mlx-lm's gemma2 wants a mask with an axis more, if a call has several rows."""
    more = TIED | dict(query_pre_attn_scalar=16, sliding_window=24)
    model = MlxLm.from_directory(checkpoint("gemma2", more, tmp_path), "float32")
    with pytest.raises(Refused, match=r"can't run here: .*broadcast"):
        promise_of(model, "mlx")
