"""A Llama on torch with paged KV, bitwise the same for every batch, chunk and loop.

A step is ``llama_torch_layers.py:llama_step``; here is the model around it, which of a step's
tokens attend together, and how weights lie in memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..devices.base import Array, Buffer, Device
from .base import ForwardBatch, equal_extents
from .llama_config import LlamaConfig
from .llama_torch_layers import BLOCK, ROWS, Group, LlamaWeights, PagedKV, llama_step
from .registry import AUTO
from .sampling_torch import logprobs, sample
from .tokenizer import Tokenizer
from .weights import EMBED, choose_dtype, read_config, weight_files

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


class LlamaTorch:
    """A Llama from a directory in Hugging Face's form (``models/base.py:Model``).

    ``dtype`` is ``auto`` (``weights.choose_dtype``) or one of ``DTYPES``.

    ``scripted`` makes a step one ``torch.jit.script`` call, which needs the interpreter lock only
    to begin and to end. Without it every tensor operation asks for the lock anew, and a Python
    thread beside it hides almost nothing. The bits are the same. It is for the CPU alone: on a GPU
    it compiles kernels of its own, which compute other last bits from the second call on.

    ``packed`` puts the weights in the order of the CPU's library as they are read, and not later.

    Raises:
        ValueError: ``dtype`` is unknown, or the directory does not hold a Llama.
    """

    pad_to = ROWS
    logprobs = staticmethod(logprobs)
    sample = staticmethod(sample)

    def __init__(
        self,
        directory: str | Path,
        dtype: str = AUTO,
        context_len: int | None = None,
        scripted: bool = True,
        packed: bool = True,
    ) -> None:
        directory = Path(directory)
        config = read_config(directory)
        longest = config.max_position_embeddings
        self.name, self.dtype = directory.name, choose_dtype(directory, dtype, DTYPES, "torch")
        self.vocab_size = config.vocab_size
        self.context_len = min(context_len or longest, longest)
        self.eos_ids = config.eos_ids
        self.tokenizer: Any = Tokenizer.from_directory(directory)
        self.weights = read_weights(directory, config, DTYPES[self.dtype], self.context_len, packed)
        self.num_layers = config.num_hidden_layers
        self.kv_shape = (config.num_key_value_heads, config.head_dim)
        self.step = script(llama_step) if scripted else llama_step

    def first_layers(self, count: int) -> LlamaTorch:
        """A draft model: the first 1 to ``num_layers`` layers, with the same weights."""
        draft, w = copy(self), self.weights
        fewer: dict[str, Any]
        fewer = {name: part[:count] for name, part in w._asdict().items() if type(part) is list}
        fewer |= {name: getattr(w, name)[:count] for name in ("attention_norm", "mlp_norm")}
        draft.weights = w._replace(**fewer)
        draft.num_layers, draft.name = count, f"first {count} layers of {self.name}"
        return draft

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Put weights and KV where the device's memory is."""
        where = device.memory("probe", 1).device
        self.weights = place(self.weights, where)
        if where.type != "cpu":
            self.step = llama_step
        shape = (self.num_layers, num_slots, *self.kv_shape)
        self.keys = torch.zeros(shape, dtype=self.weights.embed.dtype, device=where)
        self.values = torch.zeros_like(self.keys)
        self.max_len = max_len

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """Logits [num_logits, vocab] in the model's dtype."""
        groups = make_groups(batch.prefix_lens, batch.extend_lens, bytes_each(self.keys))
        where = batch.positions, batch.token_rows, batch.logits_at
        return self.run(groups, ids, *where, page_table)

    def run(
        self,
        groups: list[Group],
        ids: Tensor,
        positions: Tensor,
        token_rows: Tensor,
        logits_at: Tensor,
        page_table: Tensor,
    ) -> Tensor:
        """One step on the model's weights and KV; see ``llama_torch_layers.py:llama_step``."""
        kv = PagedKV(self.keys, self.values, page_table, self.max_len)
        return self.step(self.weights, kv, groups, ids, positions, token_rows, logits_at)


def script(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a function so that it runs without the interpreter lock; shapes stay free.

    torch calls this deprecated in favour of ``torch.compile``, whose step is twice as slow on the
    CPU and takes half a minute to compile.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled: Callable[..., Tensor] = torch.jit.script(function)
        return compiled


# -- Which tokens of a batch attend together: all that can, or as many as fit a cache --------------

CACHE = 3 << 19  # bytes of KV gathered at once: with what is computed of it, a core's cache
QUERIES = 64  # positions of a prompt that attend together, for the same reason


def bytes_each(keys: Tensor) -> int | None:
    """Bytes of a position's keys and values, in one layer of keys [layers, slots, kv_heads, d].

    None on a GPU.
    """
    return 2 * keys[0, 0].nbytes if keys.device.type == "cpu" else None


def make_groups(
    prefix_lens: Sequence[int], extend_lens: Sequence[int], bytes_each: int | None
) -> list[Group]:
    """How rows attend: those with one extent together (``base.equal_extents``).

    On a processor with caches only so many attend at once that what they gather and compute stays
    in one; ``bytes_each`` are those of a position's KV. None is for a GPU, which is better off with
    few large groups. Each group looks as far as its longest row, or its part of a prompt, reaches;
    further, where the host only knows how long a row is at most. The bits are the same.
    """
    groups: list[Group] = []

    def add(first: int, prefixes: Sequence[int], extend_len: int) -> None:
        window = -(-(max(prefixes) + extend_len) // BLOCK) * BLOCK
        groups.append(Group(first, len(prefixes), extend_len, window))

    for run in equal_extents(extend_lens):
        first, prefixes, extend_len = run.tokens.start, prefix_lens[run.rows], run.extend_len
        if bytes_each is None:
            add(first, prefixes, extend_len)
        elif len(prefixes) == 1:
            for at in range(0, extend_len, QUERIES):
                add(first + at, [prefixes[0] + at], min(QUERIES, extend_len - at))
        else:
            window = -(-(max(prefixes) + extend_len) // BLOCK) * BLOCK
            count = max(1, CACHE // bytes_each // window)
            for at in range(0, len(prefixes), count):
                add(first + at * extend_len, prefixes[at : at + count], extend_len)
    return groups


# -- Weights ---------------------------------------------------------------------------------------

MATRICES = ("qkv", "out", "gate_up", "down")  # of each layer
PACKED_FOR = 16  # rows: packed for fewer, oneDNN's order is slow for many


def read_weights(
    directory: Path, config: LlamaConfig, dtype: torch.dtype, context_len: int, packed: bool = True
) -> LlamaWeights:
    """Every weight in ``dtype``; a layer's query, key and value become one matrix, gate and up too.

    ``packed`` is for the CPU; a GPU wants them plain.

    Raises:
        WeightsError: there is no weights file. Tensors are checked by ``weights.find_model``.
    """
    keep = pack if packed else plain
    raw: dict[str, Tensor] = {}
    for file in weight_files(directory):
        raw |= {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads

    def joined(kind: str, *parts: str, there: bool = True) -> list[Any]:
        """For each layer its parts' weights or biases in one, [sum of output sizes, ...]; None."""
        names = [f"model.layers.{{}}.{part}.{kind}" for part in parts]
        return [
            keep(torch.cat([raw.pop(name.format(index)) for name in names])) if there else None
            for index in range(config.num_hidden_layers)
        ]

    embed = raw[EMBED]
    qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    norms = [joined("weight", f"self_attn.{part}_norm", there=config.qk_norm) for part in "qk"]
    angles = torch.arange(context_len).float()[:, None] * torch.tensor(config.frequencies())
    angles = torch.cat([angles, angles], -1)  # in float32, as in transformers
    return LlamaWeights(
        embed=embed,
        attention_norm=torch.stack(joined("weight", "input_layernorm")),
        qkv=joined("weight", *qkv),
        qkv_bias=joined("bias", *qkv, there=config.qkv_bias),
        qk_norm=[
            torch.cat([q.expand(heads, -1), k.expand(kv_heads, -1)]) if config.qk_norm else None
            for q, k in zip(*norms, strict=True)
        ],
        out=joined("weight", "self_attn.o_proj"),
        out_bias=joined("bias", "self_attn.o_proj", there=config.out_bias),
        mlp_norm=torch.stack(joined("weight", "post_attention_layernorm")),
        gate_up=joined("weight", "mlp.gate_proj", "mlp.up_proj"),
        gate_up_bias=joined("bias", "mlp.gate_proj", "mlp.up_proj", there=config.mlp_bias),
        down=joined("weight", "mlp.down_proj"),
        down_bias=joined("bias", "mlp.down_proj", there=config.mlp_bias),
        final_norm=raw["model.norm.weight"],
        head=keep(embed if config.tie_word_embeddings else raw["lm_head.weight"]),
        cos=angles.cos().to(dtype),
        sin=angles.sin().to(dtype),
        eps=config.rms_norm_eps,
    )


def pack(weight: Tensor) -> Tensor:
    """A matrix [out, in] in the order in which oneDNN reads it, if it can; a vector as it is.

    MKL puts a plain float32 matrix in order at every call, and reads it at a third of the rate.
    A tied head lies in memory twice: rows of it are looked up, too.
    """
    known = weight.dtype in (torch.float32, torch.bfloat16) and torch.backends.mkldnn.is_available()
    if weight.dim() == 1 or weight.is_mkldnn or not known:
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
    return packed


def plain(weight: Tensor) -> Tensor:
    """A matrix [out, in] in the order in which it was read."""
    return weight.to_dense() if weight.is_mkldnn else weight


def place(weights: LlamaWeights, where: torch.device) -> LlamaWeights:
    """The weights on a device: packed on the CPU, plain elsewhere, and there a tied head once."""
    if where.type == "cpu":
        matrices: dict[str, Any] = {
            name: [pack(part) for part in getattr(weights, name)] for name in MATRICES
        }
        return weights._replace(**matrices, head=pack(weights.head))

    def move(weight: Any) -> Any:
        if isinstance(weight, list):
            return [move(part) for part in weight]
        return plain(weight).to(where) if isinstance(weight, Tensor) else weight

    moved = LlamaWeights(*map(move, weights))
    return moved._replace(head=moved.embed) if weights.head is weights.embed else moved
