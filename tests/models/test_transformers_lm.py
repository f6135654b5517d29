"""Models of transformers on our page table: in any batch the tokens are transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from copy import copy
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from minisched.core import Request, SamplingParams
from minisched.loops.run import run_loop
from minisched.models.llama import WeightsError
from minisched.models.llama_torch import DTYPES, ROWS
from minisched.models.transformers_lm import TransformersLM
from minisched.scheduler import SchedulerConfig
from tests.models.test_llama import THREE, Keeps, any_loop, play_exact, workloads
from tests.support import many, open_device, prompt

pytestmark = pytest.mark.usefixtures("one_torch_thread")

# -- a Llama and two Qwens: exact to the bit -------------------------------------------------------


class Exact(Keeps, TransformersLM):
    """It keeps its logits, and knows what they are alone, all at once."""

    def __init__(self, *loaded: Any) -> None:
        TransformersLM.__init__(self, *loaded)
        self.kept = []
        self.logits_after = cache(self.alone)

    def alone(self, tokens: tuple[int, ...]) -> list[float]:
        count, alone = len(tokens), copy(self)
        with closing(open_device("thread")) as device:
            alone.allocate(device, count + 1, count)
        padding = [0] * (-count % ROWS)
        table = torch.tensor([0] * count + list(range(1, count + 1)))
        ids, positions = torch.tensor([*tokens, *padding]), torch.tensor([*range(count), *padding])
        batch: Any = SimpleNamespace(
            rows=[1], prefix_lens=[0], extend_lens=[count], positions=positions, num_tokens=count,
            token_rows=torch.tensor([1] * count + padding), logits_at=torch.tensor([count - 1]),
        )  # fmt: skip
        last: list[float] = alone.forward(batch, ids, table)[0].tolist()
        return last


@pytest.fixture(scope="module")
def exact(kinds: dict[str, Path]) -> Callable[..., Exact]:
    return cache(lambda kind, dtype: Exact.from_directory(kinds[kind], dtype))


@pytest.mark.parametrize("kind", THREE)
@given(data=st.data())
@settings(max_examples=many(3, 9))
def test_it_is_exact_to_the_bit(
    kind: str, data: st.DataObject, exact: Callable[..., Exact]
) -> None:
    model = exact(kind, data.draw(st.sampled_from([*DTYPES])))
    workload = data.draw(workloads())
    seen = play_exact(workload, "thread", model, *any_loop(data, "thread"))
    assert seen >= sum(len(req.output_ids) for req in workload.requests)


# -- small random checkpoints of many architectures: transformers' own pass is the truth -----------

BASE: dict[str, Any] = dict(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=3, head_dim=16,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, eos_token_id=0,
    bos_token_id=None, pad_token_id=None, tie_word_embeddings=False, attention_dropout=0.0,
)  # fmt: skip
ALL_HEADS = dict(num_key_value_heads=4)
GPT = dict(n_embd=64, n_layer=3, n_head=4, n_positions=512, n_inner=128)
TIED = dict(tie_word_embeddings=True)
WINDOW = dict(sliding_window=24)  # prompts are longer
MOE = dict(
    num_experts=8, num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, n_group=1,
    shared_expert_intermediate_size=32, n_routed_experts=8, n_shared_experts=1, topk_group=1,
    first_k_dense_replace=1, moe_layer_freq=1,
)  # fmt: skip
MLA = dict(
    q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
    num_key_value_heads=4, head_dim=8,
)  # fmt: skip
GEMMA = dict(query_pre_attn_scalar=16, **WINDOW)
FEW: dict[str, dict[str, Any]] = {
    "mistral": WINDOW, "gemma2": GEMMA, "phi": ALL_HEADS, "gpt2": GPT, "mixtral": MOE,
}  # fmt: skip
MANY: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {}, "qwen3": {}, "ministral": WINDOW, "ministral3": {}, "gemma": {},
    "gemma3_text": dict(GEMMA, num_hidden_layers=6), "phi3": {}, "starcoder2": {}, "olmo": {},
    "stablelm": {}, "olmo2": {}, "olmo3": WINDOW, "cohere": TIED, "cohere2": {**TIED, **WINDOW},
    "granite": {}, "glm": {}, "glm4": {}, "exaone4": dict(WINDOW, sliding_window_pattern=2),
    "helium": {}, "smollm3": {}, "nemotron": {}, "seed_oss": {}, "hunyuan_v1_dense": {},
    "ernie4_5": {}, "apertus": {}, "minicpm3": MLA, "gpt_neox": {}, "gpt_bigcode": GPT, "opt": {},
    "bitnet": {}, "qwen2_moe": MOE, "qwen3_moe": MOE, "olmoe": MOE, "phimoe": MOE,
    "granitemoe": MOE,
    "ernie4_5_moe": dict(MOE, moe_num_experts=8, moe_k=2), "glm4_moe": MOE, "dots1": MOE,
    "deepseek_v2": {**MOE, **MLA}, "deepseek_v3": {**MOE, **MLA}, "arcee": {},
    "jais2": {}, "vaultgemma": GEMMA, "doge": {}, "biogpt": {},
}  # fmt: skip
KINDS: list[Any] = [*FEW, *(pytest.param(kind, marks=pytest.mark.thorough) for kind in MANY)]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gpt_oss": ({**MOE, **WINDOW}, "has sinks"),
    "xglm": ({}, "pass no keys"),
    "gptj": (dict(GPT, rotary_dim=8), "pass no keys"),
    "diffllama": ({}, "more than keys and values"),
    "lfm2": (
        dict(layer_types=["conv", "full_attention", "conv"]),
        "layers of type conv keep",
    ),
    "mamba2": (dict(num_heads=8, n_groups=1), "layers of type linear_attention"),
    "qwen3_next": (MOE, "layers of type linear_attention keep another state"),
    "bloom": ({}, ""),
    "falcon": (dict(head_dim=..., alibi=True, new_decoder_architecture=False), ""),
}


def random_model(kind: str, **more: Any) -> Any:
    """A model with wide logits and sharp attention; without either, texts soon repeat."""
    options = {name: value for name, value in (BASE | more).items() if value is not ...}
    config = AutoConfig.for_model(kind, **options)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draw = torch.Generator().manual_seed(0)
    for name, values in model.named_parameters():
        if values.dim() >= 2:
            is_sharp = any(part in name for part in ("q_proj", "k_proj", "c_attn"))
            scale = 3.0 if "lm_head" in name or "embed_out" in name else 1.0 + is_sharp
            std = scale * values.shape[-1] ** -0.5
            values.data = torch.randn(values.shape, generator=draw) * std
    return model


def some() -> list[Request]:
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    return [Request(f"r{i}", prompt(i, n), params) for i, n in enumerate((3, 17, 40, 70))]


def alone(model: Any, request: Request) -> list[int]:
    """The request's tokens by whole passes, each without a cache."""
    tokens = list(request.prompt)
    with torch.inference_mode():
        for _ in range(request.params.max_new_tokens):
            logits = model(torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(request.prompt) :]


@pytest.mark.parametrize("kind", KINDS)
def test_any_architecture_has_the_tokens_that_transformers_computes(kind: str) -> None:
    model = random_model(kind, **(FEW | MANY)[kind])
    truth = {request.rid: alone(model, request) for request in some()}
    assert len({*chain(*truth.values())}) > 8  # else little here could fail
    config = SchedulerConfig(chunked_prefill_size=32, max_running_requests=3, page_size=4)
    ours = TransformersLM(model)
    for loop in ("serial", "overlap"):
        run = run_loop(loop, open_device("thread"), ours, some(), config)
        assert not run.errors and run.outputs == truth
    for request in some():  # the model that was given computes as before
        assert alone(model, request) == truth[request.rid]


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_more_than_keys_and_values_is_refused(kind: str) -> None:
    more, reason = REFUSED[kind]
    with pytest.raises(WeightsError, match=f"can't run over a page table: .*{reason}") as caught:
        TransformersLM(random_model(kind, **more), name=kind)
    assert "\n" not in str(caught.value)
