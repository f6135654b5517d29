"""A small random checkpoint of each architecture, and the table of their classes.

``python -m tests.models.zoo`` writes ``minisched/cli/tried.toml``, which ``minisched models``
prints. ``test_tried.py`` compares the table with what is measured now.
"""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from minisched.cli.models import FILE
from minisched.models.checkpoint import WeightsError
from minisched.models.promise import kind_of
from minisched.models.registry import open_model

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
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "afmoe": dict(MOE, num_hidden_layers=4), "apertus": {}, "arcee": {}, "biogpt": {}, "bitnet": {},
    "bloom": {}, "cohere": TIED, "cohere2": {**TIED, **WINDOW, "num_hidden_layers": 4},
    "deepseek_v2": {**MOE, **MLA}, "deepseek_v3": {**MOE, **MLA}, "diffllama": {}, "doge": {},
    "dots1": MOE, "ernie4_5": {}, "ernie4_5_moe": dict(MOE, moe_num_experts=8, moe_k=2),
    "exaone4": dict(WINDOW, sliding_window_pattern=2, num_hidden_layers=4),
    "falcon": dict(head_dim=..., alibi=True, new_decoder_architecture=False), "falcon_h1": {},
    "gemma": TIED, "gemma2": {**TIED, **GEMMA},
    "gemma3_text": {**TIED, **GEMMA, "num_hidden_layers": 6}, "glm": {}, "glm4": {},
    "glm4_moe": MOE, "glm4_moe_lite": {**MOE, **MLA}, "gpt2": GPT, "gpt_bigcode": GPT,
    "gpt_neox": dict(intermediate_size=256), "gpt_oss": {**MOE, **WINDOW},
    "gptj": dict(GPT, rotary_dim=8, n_inner=256), "granite": {}, "granitemoe": MOE, "helium": {},
    "hunyuan_v1_dense": {}, "internlm3": {}, "jais2": {},
    "lfm2": dict(layer_types=["conv", "full_attention", "conv"]), "llama": {},
    "mamba2": dict(num_heads=8, n_groups=1), "mellum": {}, "minicpm3": MLA, "ministral": WINDOW,
    "ministral3": dict(sliding_window=None), "mistral": WINDOW, "mixtral": MOE, "nanochat": {},
    "nemotron": {}, "olmo": {}, "olmo2": {}, "olmo3": dict(WINDOW, num_hidden_layers=4),
    "olmoe": MOE, "opt": {}, "phi": ALL_HEADS, "phi3": {}, "phimoe": MOE, "qwen2": {},
    "qwen2_moe": MOE, "qwen3": {}, "qwen3_moe": MOE, "qwen3_next": MOE, "seed_oss": {},
    "smollm3": {}, "solar_open": MOE, "stablelm": {}, "starcoder2": {}, "vaultgemma": GEMMA,
    "xglm": {},
}  # fmt: skip
RELEASED: dict[str, dict[str, Any]] = {  # of released checkpoints' config.json; mlx-lm needs it
    "apertus": dict(mlp_bias=False, post_norm=False, qk_norm=True), "gpt2": dict(n_ctx=512),
    "exaone4": dict(sliding_window_pattern="LLLG"), "qwen3_moe": dict(num_experts=8),
    "mellum": dict(num_experts=8), "solar_open": dict(partial_rotary_factor=1.0),
    "gpt_neox": dict(rotary_emb_base=10_000, rotary_pct=0.25),
}  # fmt: skip
SEED = 1  # with it every architecture chooses many tokens
DEVICES = {"transformers": "thread", "mlx-lm": "mlx"}


def random_model(model_type: str, **more: Any) -> Any:
    """A model with wide logits and sharp attention; without either, texts soon repeat."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)  # of what is no matrix and not constant
    options = {name: value for name, value in (BASE | more).items() if value is not ...}
    config = AutoConfig.for_model(model_type, **options)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draw = torch.Generator().manual_seed(SEED)
    for name, values in model.named_parameters():
        if values.dim() >= 2:
            is_sharp = any(part in name for part in ("q_proj", "k_proj", "c_attn"))
            scale = 3.0 if "lm_head" in name or "embed_out" in name else 1.0 + is_sharp
            std = scale * values.shape[-1] ** -0.5
            values.data = torch.randn(values.shape, generator=draw) * std
        else:  # norms and biases differ from each other
            scale = 2.0 if "q_norm" in name or "k_norm" in name else 1.0
            noise = 0.2 * torch.randn(values.shape, generator=draw)
            values.data = (values.data + noise) * scale
    return model


def save(kind: str, folder: Path) -> Path:
    """Write a random checkpoint as transformers does."""
    directory = folder / kind
    random_model(kind, **ARCHITECTURES[kind]).save_pretrained(directory)
    file = directory / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text("utf-8")) | RELEASED.get(kind, {})), "utf-8"
    )
    return directory


def measured(library: str, directory: Path) -> str:
    """The class of a checkpoint with a library, and the reason where it is refused."""
    name = f"transformers:{directory}" if library == "transformers" else str(directory)
    try:
        model: Any = open_model(name, DEVICES[library], "float32")
    except WeightsError as error:
        return f"refused: {error}".replace(str(directory), directory.name)
    return kind_of(model.apart)


def main() -> None:
    """Measure every architecture and write the table."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, str]] = {library: {} for library in DEVICES}
    with TemporaryDirectory() as text, patch.dict(os.environ, MINISCHED_HOME=text):
        for kind in ARCHITECTURES:
            directory = save(kind, Path(text))
            for library, classes in found.items():
                classes[kind] = measured(library, directory)
                print(kind, library, classes[kind], flush=True)
    lines = [
        "# Written by `python -m tests.models.zoo`: random checkpoints in float32, one thread."
    ]
    lines += ["", "[measured_on]", f'machine = "{platform.machine()}"']
    lines += [f'{name} = "{version(name)}"' for name in ("mlx", "torch", *DEVICES)]
    for library, classes in found.items():
        lines += [
            "",
            f"[{library}]",
            *(f"{kind} = {json.dumps(text)}" for kind, text in classes.items()),
        ]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
