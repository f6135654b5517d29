"""Writes a Llama in Hugging Face's form as a GGUF file without a vocabulary, for llama.cpp.

The order of the q and k rows is that of llama.cpp's ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

OUTSIDE_LAYERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
INSIDE_A_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TYPES = {"float32": "F32", "bfloat16": "BF16"}


def write_gguf(folder: Path, file: Path, dtype: str) -> None:
    """Matrices in ``dtype``, norms in float32; the weights in ``folder`` must be float32.

    Raises:
        ValueError: the model has what is not written here: biases, norms of heads, scaled rope.
    """
    gguf: Any = import_module("gguf")
    load_file: Any = import_module("safetensors.numpy").load_file
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
    biased = config.get("attention_bias") or config.get("mlp_bias")
    if config["model_type"] != "llama" or scaled or biased:
        raise ValueError(f"{folder.name} is no plain Llama, so it is not written for llama.cpp.")
    writer = gguf.GGUFWriter(file, "llama")
    write_config(writer, config)
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }
    kind = gguf.GGMLQuantizationType[TYPES[dtype]]
    for name, tensor in load_file(folder / "model.safetensors").items():
        part = name.removesuffix(".weight").rpartition(".")[2]
        if part in heads:
            halves = tensor.reshape(heads[part], 2, -1, tensor.shape[-1])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        if tensor.ndim == 1 or dtype == "float32":
            writer.add_tensor(gguf_name(name), tensor)
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_config(writer: Any, config: dict[str, Any]) -> None:
    """The sizes, and that tokens have no texts."""
    heads = config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    if name in OUTSIDE_LAYERS:
        return OUTSIDE_LAYERS[name]
    layer, _, part = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
    return f"blk.{layer}.{INSIDE_A_LAYER[part]}.weight"
