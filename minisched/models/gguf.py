"""Turns a GGUF file of a Llama into a Hugging Face directory that transformers and mlx-lm load.

Only numpy is used (through the ``gguf`` package), so it works beside torch or MLX alone. GGUF is
llama.cpp's format; its names and its order of the q and k rows differ from Hugging Face's.
Source: llama.cpp ``convert_hf_to_gguf.py``, whose ``LlamaModel.permute`` is undone here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader, ReaderTensor


Field = Callable[[str], Any]  # one entry of the file's metadata, by its key

OUTSIDE_LAYERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
INSIDE_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SUPPORTED = {"general.architecture": "llama", "tokenizer.ggml.pre": "smollm"}
SIZES = {  # config.json's names for a Llama's entries
    "vocab_size": "llama.vocab_size",
    "hidden_size": "llama.embedding_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "intermediate_size": "llama.feed_forward_length",
    "max_position_embeddings": "llama.context_length",
    "rope_theta": "llama.rope.freq_base",
}
EPS = "llama.attention.layer_norm_rms_epsilon"
KEY_LENGTH = "llama.attention.key_length"  # a head's size; the file may leave it out
WHOLE_HEADS = ("llama.attention.value_length", "llama.rope.dimension_count")  # equal to it
NO_SCALING = {  # what a file may say of its positions, and what leaves them as they are
    "llama.rope.scaling.type": ("none", "linear"),
    "llama.rope.scaling.factor": (0.0, 1.0),
    "llama.rope.scale_linear": (0.0, 1.0),
}


class GGUFError(ValueError):
    """A GGUF file that is damaged, or that holds something else than a Llama."""


def convert(gguf_file: Path, directory: Path) -> None:
    """Write config.json, model.safetensors (float32), tokenizer.json and its config.

    ``directory`` must exist. Raises GGUFError with one sentence for a file that cannot be
    converted.
    """
    from safetensors.numpy import save_file

    reader = _open(gguf_file)
    field = partial(_field, reader)
    _refuse_unsupported(gguf_file, field)
    config = _config(field, _head_dim(gguf_file, reader))
    tensors = {hf_name(tensor.name): _values(tensor, config) for tensor in reader.tensors}
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tokenizer(directory, field, config["max_position_embeddings"])


def hf_name(name: str) -> str:
    """``blk.3.attn_q.weight`` becomes ``model.layers.3.self_attn.q_proj.weight``."""
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in INSIDE_A_LAYER:
            return f"model.layers.{layer}.{INSIDE_A_LAYER[part]}.weight"
        case [part, "weight"] if part in OUTSIDE_LAYERS:
            return f"{OUTSIDE_LAYERS[part]}.weight"
    raise GGUFError(f"The GGUF tensor {name!r} is not one of a Llama's.")


def undo_rope_permutation(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k [heads * head_dim, hidden] back in Hugging Face's order.

    llama.cpp rotates neighbouring pairs of a head's rows, Hugging Face its first half against its
    second; so pair after pair becomes all firsts, then all seconds.
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)


def _open(gguf_file: Path) -> GGUFReader:
    """The file's reader, or GGUFError where it is no whole GGUF file."""
    from gguf import GGUFReader

    try:
        return GGUFReader(gguf_file)
    except (ValueError, IndexError, KeyError) as error:
        raise GGUFError(f"{gguf_file} is not a whole GGUF file ({error}).") from error


def _refuse_unsupported(gguf_file: Path, field: Field) -> None:
    """Raise GGUFError for another architecture, or another way to split text into words."""
    for key, wanted in SUPPORTED.items():
        if (found := field(key)) != wanted:
            raise GGUFError(f"{gguf_file}: {key} is {found!r}; only {wanted!r} is supported.")


def _head_dim(gguf_file: Path, reader: GGUFReader) -> int:
    """The size of a head; GGUFError where the file says more of its Llama than goes with it.

    No entry is passed over: left out, it might make another model.
    """
    field = partial(_field, reader)
    said = {key for key in reader.fields if key.startswith("llama.")}
    heads, hidden = field(SIZES["num_attention_heads"]), field(SIZES["hidden_size"])
    head_dim: int = field(KEY_LENGTH) if KEY_LENGTH in said else hidden // heads
    whole = dict.fromkeys(WHOLE_HEADS, (head_dim,))
    for key in sorted(said - {*SIZES.values(), EPS, KEY_LENGTH}):
        fine = {**whole, **NO_SCALING}.get(key, ())
        if (found := field(key)) not in fine:
            wanted = f"only {' or '.join(map(repr, fine))} is" if fine else "that entry is not"
            raise GGUFError(f"{gguf_file}: {key} is {found!r}; {wanted} supported.")
    return head_dim


def _field(reader: GGUFReader, key: str) -> Any:
    """One entry of the file's metadata, or GGUFError naming the one that is missing."""
    field = reader.get_field(key)
    if field is None:
        raise GGUFError(f"The GGUF file has no entry {key!r}.")
    return field.contents()


def _values(tensor: ReaderTensor, config: dict[str, Any]) -> np.ndarray:
    """A tensor as float32, its rows in Hugging Face's order."""
    import numpy as np
    from gguf import dequantize

    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    if "attn_q." in tensor.name:
        values = undo_rope_permutation(values, config["num_attention_heads"])
    elif "attn_k." in tensor.name:
        values = undo_rope_permutation(values, config["num_key_value_heads"])
    return np.ascontiguousarray(values)


def _config(field: Field, head_dim: int) -> dict[str, Any]:
    """config.json, all but ``tie_word_embeddings``.

    ``rope_theta`` stands at the top level: inside ``rope_parameters`` alone, where transformers 5
    would put it, mlx-lm overlooks it and silently uses 10,000.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        **{name: field(key) for name, key in SIZES.items()},
        "head_dim": head_dim,
        "rms_norm_eps": _shortest(field(EPS)),
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def _shortest(value: float) -> float:
    """The decimal that was meant by a float32: 9.999999747378752e-06 was 1e-05."""
    import numpy as np

    return float(str(np.float32(value)))


# -- Turns the tokenizer inside a GGUF file into tokenizer.json and tokenizer_config.json ----------

CONTROL_TOKEN = 3  # in ``tokenizer.ggml.token_type``: a token that is never text


def write_tokenizer(directory: Path, field: Callable[[str], Any], max_length: int) -> None:
    """Write both files. ``field`` looks up an entry of the GGUF file's metadata.

    The split is SmolLM's: digits one by one, then GPT-2's words (llama.cpp ``llama-vocab.cpp``,
    ``LLAMA_VOCAB_PRE_TYPE_SMOLLM``); the tokens are byte-level BPE.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = field("tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": field("tokenizer.chat_template"),
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
