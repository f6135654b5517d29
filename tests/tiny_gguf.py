"""Writes a tiny Llama as llama.cpp would, so that the conversion is tested without a download."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers.pre_tokenizers import ByteLevel

from minisched.models.llama_config import LlamaConfig

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def gguf_name(name: str) -> str:
    """``model.layers.0.mlp.up_proj.weight`` becomes ``blk.0.ffn_up.weight``."""
    part = name.removesuffix(".weight")
    if part.startswith("model.layers."):
        layer, part = part.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{PARTS[part]}.weight"
    return f"{PARTS[part]}.weight"


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of q and k (``convert_hf_to_gguf.py``, ``permute``)."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_tiny_gguf(
    file: Path, model: Path, config: LlamaConfig, quantization: str = "F32", tied: bool = False,
    more: Mapping[str, int | float | str] | None = None,
) -> None:  # fmt: skip
    """The Hugging Face directory ``model`` as a GGUF file; matrices in ``quantization``.

    ``more`` has further entries of its metadata.
    """
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    adds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in (more or {}).items():
        adds[type(value)](key, value)
    _add_tokenizer(writer)
    for name, weight in load_file(model / "model.safetensors").items():
        if tied and name == "lm_head.weight":
            continue
        if "q_proj" in name or "k_proj" in name:
            query = "q_proj" in name
            heads = config.num_attention_heads if query else config.num_key_value_heads
            weight = permute(weight, heads)
        kind = gguf.GGMLQuantizationType[quantization if weight.ndim == 2 else "F32"]
        writer.add_tensor(gguf_name(name), gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
