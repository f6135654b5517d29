"""A Llama on torch with paged KV, bitwise the same for every batch, chunk and loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
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
from .sampling_torch import logprobs, sample
from .tokenizer import Tokenizer
from .weights import AUTO, EMBED, choose_dtype, read_config, weight_files

# -- Reads a Llama's tensors into the matrices that ``llama_torch_layers.py`` works on -------------

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

    def joined(kind: str, *parts: str) -> list[Tensor]:
        """For each layer its parts' weights or biases in one, [sum of output sizes, ...]."""
        names = [f"model.layers.{{}}.{part}.{kind}" for part in parts]
        return [
            keep(torch.cat([raw.pop(name.format(index)) for name in names]))
            for index in range(config.num_hidden_layers)
        ]

    def layers(*parts: str) -> list[Tensor]:
        """Matrices [sum of output sizes, input size], or norms [dim]."""
        return joined("weight", *parts)

    def biases(there: bool, *parts: str) -> list[Tensor | None]:
        """Biases [sum of output sizes]."""
        none: list[Tensor | None] = [None] * config.num_hidden_layers
        return [*joined("bias", *parts)] if there else none

    embed = raw[EMBED]
    qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    cos, sin = rope_tables(config, context_len)
    return LlamaWeights(
        embed=embed,
        attention_norm=torch.stack(layers("input_layernorm")),
        qkv=layers(*qkv),
        qkv_bias=biases(config.qkv_bias, *qkv),
        qk_norm=qk_norms(raw, config),
        out=layers("self_attn.o_proj"),
        out_bias=biases(config.out_bias, "self_attn.o_proj"),
        mlp_norm=torch.stack(layers("post_attention_layernorm")),
        gate_up=layers("mlp.gate_proj", "mlp.up_proj"),
        gate_up_bias=biases(config.mlp_bias, "mlp.gate_proj", "mlp.up_proj"),
        down=layers("mlp.down_proj"),
        down_bias=biases(config.mlp_bias, "mlp.down_proj"),
        final_norm=raw["model.norm.weight"],
        head=keep(embed if config.tie_word_embeddings else raw["lm_head.weight"]),
        cos=cos.to(dtype),
        sin=sin.to(dtype),
        eps=config.rms_norm_eps,
    )


def qk_norms(raw: dict[str, Tensor], config: LlamaConfig) -> list[Tensor | None]:
    """What queries and keys are multiplied by when they are normalized, a row for each head."""
    if not config.qk_norm:
        return [None] * config.num_hidden_layers
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    norms = [
        [raw[f"model.layers.{index}.self_attn.{part}_norm.weight"] for part in "qk"]
        for index in range(config.num_hidden_layers)
    ]
    return [torch.cat([q.expand(heads, -1), k.expand(kv_heads, -1)]) for q, k in norms]


def pack(weight: Tensor) -> Tensor:
    """A matrix [out, in] in the order in which oneDNN reads it, if it can; a vector as it is.

    MKL puts a plain float32 matrix in order at every call, and reads it at a third of the rate.
    A tied head lies in memory twice: rows of it are looked up, too.
    """
    known = weight.dtype in (torch.float32, torch.bfloat16)
    if weight.dim() == 1 or weight.is_mkldnn or not known:
        return weight
    if not torch.backends.mkldnn.is_available():
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


def rope_tables(config: LlamaConfig, context_len: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [context_len, head_dim], in float32 as in transformers."""
    angles = torch.arange(context_len).float()[:, None] * torch.tensor(config.frequencies())
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


# -- Which tokens of a batch attend together on torch: all that can, or as many as fit a cache -----

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
    """How rows attend: those with one extent together (``equal_extent.py``).

    On a processor with caches only so many attend at once that what they gather and compute stays
    in one; ``bytes_each`` are those of a position's KV. None is for a GPU, which is better off with
    few large groups. Each group looks as far as its longest row, or its part of a prompt, reaches;
    further, where the host only knows how long a row is at most. The bits are the same.
    """
    groups: list[Group] = []
    for run in equal_extents(extend_lens):
        prefixes = prefix_lens[run.rows]
        whole = Group(run.tokens.start, len(prefixes), run.extend_len, 0)
        if bytes_each is None:
            groups.append(_look(whole, prefixes))
        elif len(prefixes) == 1:
            groups += _parts_of_a_prompt(whole, prefixes[0])
        else:
            groups += _few_rows(whole, prefixes, CACHE // bytes_each)
    return groups


def _parts_of_a_prompt(whole: Group, prefix_len: int) -> Iterator[Group]:
    for at in range(0, whole.extend_len, QUERIES):
        part = whole._replace(
            first=whole.first + at, extend_len=min(QUERIES, whole.extend_len - at)
        )
        yield _look(part, [prefix_len + at])


def _few_rows(whole: Group, prefix_lens: Sequence[int], positions: int) -> Iterator[Group]:
    count = max(1, positions // _look(whole, prefix_lens).window)
    for at in range(0, whole.num_rows, count):
        prefixes = prefix_lens[at : at + count]
        first = whole.first + at * whole.extend_len
        yield _look(whole._replace(first=first, num_rows=len(prefixes)), prefixes)


def _look(group: Group, prefix_lens: Sequence[int]) -> Group:
    """The group with a window that covers its longest row."""
    end = max(prefix_lens) + group.extend_len
    return group._replace(window=-(-end // BLOCK) * BLOCK)


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
