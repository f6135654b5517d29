# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "llama-cpp-python==0.3.36", "gguf==0.19.0", "safetensors==0.8.0", "numpy==2.4.6"
# ]
# ///
"""llama.cpp through llama-cpp-python's C interface: all requests in one batch, as its server does.

The binding's own ``generate`` takes one request after another.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from .peer import Answer, serve

# -- A Llama in Hugging Face's form as a GGUF file without a vocabulary ----------------------------
#
# The order of the q and k rows is that of llama.cpp's ``convert_hf_to_gguf.py``.

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


# -- Generation ------------------------------------------------------------------------------------

BATCH = 2048  # tokens of one call, and below those of one pass: both llama.cpp's own defaults
PASS = 512


class Token(NamedTuple):
    """One token to compute; ``wanted``: the one that follows it is asked for."""

    token: int
    position: int
    sequence: int
    wanted: bool


class Sequences:
    """Room for some requests at once, of so many tokens each; ``close`` it.

    Each has its own part of the KV cache: with one cache for all (``kv_unified``) every request
    goes through the keys of all others too.
    """

    def __init__(self, model: Any, settings: dict[str, Any], count: int, tokens: int) -> None:
        self.binding: Any = import_module("llama_cpp")
        self.numpy: Any = import_module("numpy")
        params = self.binding.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = count * tokens, count, False
        params.n_batch, params.n_ubatch = BATCH, PASS
        params.n_threads = params.n_threads_batch = settings["threads"]
        kinds = import_module("gguf").GGMLQuantizationType
        params.type_k = params.type_v = int(kinds[TYPES[settings["dtype"]]])
        self.context = self.binding.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp has no room for {count} requests of {tokens} tokens")
        self.batch = self.binding.llama_batch_init(BATCH, 0, 1)
        self.vocab_size = self.binding.llama_vocab_n_tokens(
            self.binding.llama_model_get_vocab(model)
        )

    def next_tokens(self, tokens: Sequence[Token]) -> dict[int, int]:
        """Compute at most ``BATCH`` tokens; the likeliest next one of each sequence that wants it.

        Raises:
            RuntimeError: llama.cpp could not.
        """
        batch = self.batch
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at] = token.token, token.position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, token.sequence
            batch.logits[at] = token.wanted
        if code := self.binding.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        return {
            token.sequence: self._likeliest(at) for at, token in enumerate(tokens) if token.wanted
        }

    def _likeliest(self, at: int) -> int:
        logits = self.binding.llama_get_logits_ith(self.context, at)
        return int(self.numpy.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())

    def close(self) -> None:
        """Give the memory back."""
        self.binding.llama_batch_free(self.batch)
        self.binding.llama_free(self.context)


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Convert the model in ``folder`` to ``dtype`` and load it, with so many ``threads``."""
    binding: Any = import_module("llama_cpp")
    params = binding.llama_model_default_params()
    params.use_mmap = False
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        write_gguf(Path(settings["folder"]), file, settings["dtype"])
        model = binding.llama_model_load_from_file(str(file).encode(), params)
    if not model:
        raise RuntimeError("llama.cpp can't load the model")

    def measure(question: Answer) -> Answer:
        """Generate; seconds in all, the mean of the times to a first token, and the tokens."""
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        longest = max(map(len, prompts)) + new_tokens
        sequences = Sequences(model, settings, len(prompts), longest)
        try:
            return generate(sequences, prompts, new_tokens)
        finally:
            sequences.close()

    return measure


def generate(sequences: Sequences, prompts: list[list[int]], new_tokens: int) -> Answer:
    """All prompts, then a step for each new token of all requests."""
    tokens = [
        Token(token, at, row, at == len(prompt) - 1)
        for row, prompt in enumerate(prompts)
        for at, token in enumerate(prompt)
    ]
    outputs: list[list[int]] = [[] for _ in prompts]
    first: dict[int, float] = {}
    begin = time.perf_counter()
    for at in range(0, len(tokens), BATCH):
        for row, token in sequences.next_tokens(tokens[at : at + BATCH]).items():
            first[row] = time.perf_counter() - begin
            outputs[row].append(token)
    for step in range(new_tokens - 1):
        ends = [
            Token(output[-1], len(prompt) + step, row, True)
            for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        ]
        for row, token in sequences.next_tokens(ends).items():
            outputs[row].append(token)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "ttft": sum(first.values()) / len(first), "tokens": outputs}


if __name__ == "__main__":
    serve(start)
