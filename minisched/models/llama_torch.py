"""A Llama on torch with paged KV: the same bits for every batch, chunk and loop.

Batch shape normally changes a float's last bits, because kernels split their sums by shape. Here
no sum has a shape that depends on the batch: linears and attention see rows in multiples of
``ROWS`` (libraries give left-over rows to other kernels). Attention multiplies values in blocks
of ``BLOCK`` positions that are added in order, so a block of mere padding adds
exact zeros. Measured on the CPU with oneDNN (float32, bfloat16) and MKL (float64); elsewhere it is
not claimed.

First comes a step, ``llama_step``: plain torch in the subset that ``torch.jit.script`` compiles, so
that a whole step runs without the interpreter lock. (It can't read postponed annotations of named
tuples, so this file has none.) Then come the groups of tokens that attend together, the order of
weights in memory, and the model around it.
"""

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from ..devices.base import Array, Buffer, Device
from .base import ForwardBatch, equal_extents
from .checkpoint import AUTO, WeightsError, is_plain_llama, read_config
from .pretrained import end_ids, load_pretrained
from .sampling_arrays import logprobs, sample
from .tokenizer import Tokenizer

ROWS = 4
BLOCK = 64
AT_ONCE = 32767  # numbers: one more, and torch may give an elementwise operation to two threads


class PagedKV(NamedTuple):
    """The memory of attention. ``page_table[row * max_len + position]`` is a KV slot."""

    keys: Tensor  # [layers, num_slots, kv_heads, d]
    values: Tensor  # [layers, num_slots, kv_heads, d]
    page_table: Tensor  # [num_rows * max_len]
    max_len: int


class Group(NamedTuple):
    """Neighbouring rows of a batch that compute equally many positions and attend together."""

    first: int  # the group's first token in the flat batch
    num_rows: int
    extend_len: int
    window: int  # positions read: a multiple of BLOCK that covers the longest row


class GroupView(NamedTuple):
    """The cells of a group's KV, and the mask of each token; the same for all layers."""

    cells: Tensor  # [num_rows * kv_heads * window] index into [num_slots * kv_heads]
    mask: Tensor  # [num_rows * kv_heads, m, window]: 0, or -inf for hidden positions


def pad_rows(x: Tensor, rows: int = ROWS) -> Tensor:
    """Return ``x`` [..., m, d] with rows of zeros added until m is a multiple of ``rows``."""
    return F.pad(x, [0, 0, 0, -x.size(-2) % rows])


def look(
    group: Group,
    kv: PagedKV,
    positions: Tensor,
    token_rows: Tensor,
    rep: int,
    sliding_window: int = 0,
) -> GroupView:
    """Read a group's part of the page table; ``rep`` query heads share a KV head.

    A ``sliding_window`` of 0 is none: each token attends to all positions up to its own.
    """
    tokens = slice(group.first, group.first + group.num_rows * group.extend_len)
    at = positions[tokens].view(group.num_rows, group.extend_len, 1)
    row = token_rows[tokens].view(group.num_rows, group.extend_len)[:, :1]
    seen = torch.arange(group.window, device=at.device)
    slots = kv.page_table[row * kv.max_len + torch.minimum(seen, at[:, -1])]  # [num_rows, window]
    kv_heads = kv.keys.size(2)
    heads = torch.arange(kv_heads, device=at.device).view(-1, 1)
    is_hidden = seen > at
    if sliding_window > 0:
        is_hidden = is_hidden | (seen <= at - sliding_window)
    hidden = torch.zeros_like(seen, dtype=kv.keys.dtype).masked_fill(is_hidden, float("-inf"))
    mask = pad_rows(hidden.repeat_interleave(rep, 1)).repeat_interleave(kv_heads, 0)
    return GroupView((slots.unsqueeze(1) * kv_heads + heads).flatten(), mask)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return ``torch.bmm(a, b)``, with each row of a product the same for any number of rows.

    In bfloat16 oneDNN has another kernel for a single matrix than for several. Its order of
    summation depends on the number of rows, so a single matrix is multiplied twice.
    """
    if a.size(0) == 1 and a.dtype == torch.bfloat16:
        return torch.bmm(a.repeat(2, 1, 1), b.repeat(2, 1, 1))[:1]
    return torch.bmm(a, b)


def scores(q: Tensor, k: Tensor, block: int = BLOCK) -> Tensor:
    """Return products [b, m, window] of q [b, m, d] and k [b, window, d].

    In float64 they are computed in blocks, because MKL's order of summation depends on the width.
    """
    if k.dtype != torch.float64:
        return multiply(q, k.transpose(1, 2))
    b, m, d = q.size()
    blocks = k.size(1) // block
    parts = torch.bmm(q.repeat_interleave(blocks, 0), k.view(-1, block, d).transpose(1, 2))
    return parts.view(b, blocks, m, block).transpose(1, 2).reshape(b, m, -1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float = 0.0,
    block: int = BLOCK,
) -> Tensor:
    """Return masked attention of q [b, m, d] over k [b, window, d] and v [b, window, any].

    Values are summed block by block: one call multiplies all blocks, and their sum is taken in
    order. A ``softcap`` above 0, which a Llama lacks, limits scores to within it.
    """
    b, m, _ = q.size()
    blocks = k.size(1) // block
    found = scores(q * scale, k)
    if softcap > 0:
        found = softcap * torch.tanh(found / softcap)
    weights = (found + mask).softmax(-1)
    weights = weights.view(b, m, blocks, block).transpose(1, 2).reshape(-1, m, block)
    parts = multiply(weights, v.view(b * blocks, block, -1)).view(b, blocks, m, -1).unbind(1)
    out = parts[0]
    for part in parts[1:]:
        out = out + part
    return out


def attend_group(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    view: GroupView,
    group: Group,
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """Return attention of a group's q [num_rows * extend_len, heads, d], as wide as ``values``.

    ``keys`` and ``values`` are one layer's: [num_slots, kv_heads, d], and any width.
    """
    kv_heads, d, width = keys.size(1), keys.size(2), values.size(2)
    split = [group.num_rows, group.extend_len, kv_heads, -1, d]
    by_head = q.view(split).transpose(1, 2)  # [num_rows, kv_heads, extend_len, rep, d]
    k = keys.view(-1, d).index_select(0, view.cells).view(-1, group.window, d)
    v = values.view(-1, width).index_select(0, view.cells).view(-1, group.window, width)
    out = attend(pad_rows(by_head.reshape(k.size(0), -1, d)), k, v, view.mask, scale, softcap)
    out = out[:, : by_head.size(2) * by_head.size(3)]
    out = out.reshape(group.num_rows, kv_heads, group.extend_len, -1, width)
    return out.transpose(1, 2).reshape(q.size(0), -1, width)


def attend_groups(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    new: Tensor,
    groups: list[Group],
    views: list[GroupView],
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """Write a layer's KV into the ``new`` slots; return attention [num_tokens, heads, any].

    Tokens after the last group are padding: they write nothing, and their attention is zero.
    """
    keys.index_copy_(0, new, k[: new.size(0)])
    values.index_copy_(0, new, v[: new.size(0)])
    parts: list[Tensor] = []
    for group, view in zip(groups, views):  # noqa: B905
        tokens = slice(group.first, group.first + group.num_rows * group.extend_len)
        parts.append(attend_group(q[tokens], keys, values, view, group, scale, softcap))
    return F.pad(torch.cat(parts), [0, 0, 0, 0, 0, q.size(0) - new.size(0)])


class LlamaWeights(NamedTuple):
    """Every weight, and what a forward takes from the configuration.

    ``layers`` has by name a list with an entry for each layer; ``dim`` is the hidden size, ``d`` a
    head's, ``width`` that of the MLP. There are ``attention_norm`` and ``mlp_norm`` [dim], ``qkv``
    [(heads + 2 kv_heads) * d, dim], ``out`` [dim, heads * d], ``gate_up`` [2 * width, dim] and
    ``down`` [dim, width]. Matrices may be packed.
    """

    embed: Tensor  # [vocab, dim]
    layers: dict[str, list[Tensor]]
    final_norm: Tensor  # [dim]
    head: Tensor  # [vocab, dim], a matrix
    cos: Tensor  # [context_len, d] of the rotary embedding, for both halves of a head
    sin: Tensor  # [context_len, d]
    eps: float  # of the norms


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
    """Return ``x`` [m, in] times a matrix [out, in] of ``pack``, or a plain one."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x [num_tokens, heads, d] with rotary embedding; cos and sin [num_tokens, 1, d]."""
    half = x.size(-1) // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def silu(x: Tensor, at_once: int = AT_ONCE) -> Tensor:
    """Return SiLU of x [num_tokens, width], a few rows at a time.

    Otherwise torch may split a row between two threads, and computes the ends of a part with
    another exponential.
    """
    rows = max(1, at_once // x.size(1))
    if x.size(0) <= rows:
        return F.silu(x)
    return torch.cat([F.silu(part) for part in x.split(rows)])


class StepView(NamedTuple):
    """The values that all layers of a step share."""

    groups: list[Group]
    views: list[GroupView]  # of each group
    cos: Tensor  # [num_tokens, 1, d]
    sin: Tensor  # [num_tokens, 1, d]
    new: Tensor  # [real] the tokens' own KV slots; the rest is padding


def attention(weights: LlamaWeights, layer: int, kv: PagedKV, step: StepView, x: Tensor) -> Tensor:
    """Return a layer's attention for x [num_tokens, dim], to be added; write the tokens' KV."""
    keys, values, w = kv.keys[layer], kv.values[layer], weights.layers
    kv_heads, d = keys.size(1), keys.size(2)
    heads = w["qkv"][layer].size(0) // d - 2 * kv_heads
    h = F.rms_norm(x, [x.size(1)], w["attention_norm"][layer], weights.eps)
    h = linear(h, w["qkv"][layer])
    qk, v = h.view(x.size(0), -1, d).split([heads + kv_heads, kv_heads], 1)
    q, k = rotate(qk, step.cos, step.sin).split([heads, kv_heads], 1)  # both in one go
    seen = attend_groups(q, k, v, keys, values, step.new, step.groups, step.views, d**-0.5)
    return linear(seen.flatten(1), w["out"][layer])


def mlp(weights: LlamaWeights, layer: int, x: Tensor) -> Tensor:
    """Return a layer's MLP for x [num_tokens, dim], to be added."""
    w = weights.layers
    h = F.rms_norm(x, [x.size(1)], w["mlp_norm"][layer], weights.eps)
    gate, up = linear(h, w["gate_up"][layer]).chunk(2, -1)
    return linear(silu(gate) * up, w["down"][layer])


def logits_of(weights: LlamaWeights, x: Tensor, logits_at: Tensor) -> Tensor:
    """Return logits [num_logits, vocab] after some of the tokens."""
    x = F.rms_norm(x[logits_at], [x.size(1)], weights.final_norm, weights.eps)
    return linear(pad_rows(x), weights.head)[: logits_at.size(0)]


def llama_layers(
    weights: LlamaWeights,
    kv: PagedKV,
    groups: list[Group],
    x: Tensor,
    positions: Tensor,
    token_rows: Tensor,
    first: int,
    end: int,
) -> Tensor:
    """Run x [num_tokens, dim] through layers ``first`` to ``end``, and write the tokens' KV.

    ``positions`` and ``token_rows`` [num_tokens] may be padded at the end; the KV of padding is not
    written.
    """
    kv_heads, d = kv.keys.size(2), kv.keys.size(3)
    rep = weights.layers["qkv"][0].size(0) // d // kv_heads - 2
    cos, sin = weights.cos[positions].unsqueeze(1), weights.sin[positions].unsqueeze(1)
    views = [look(group, kv, positions, token_rows, rep) for group in groups]
    real = groups[-1].first + groups[-1].num_rows * groups[-1].extend_len
    new = kv.page_table[(token_rows * kv.max_len + positions)[:real]]
    step = StepView(groups, views, cos, sin, new)
    for layer in range(first, end):
        x = x + attention(weights, layer, kv, step, x)
        x = x + mlp(weights, layer, x)
    return x


def llama_step(
    weights: LlamaWeights,
    kv: PagedKV,
    groups: list[Group],
    ids: Tensor,
    positions: Tensor,
    token_rows: Tensor,
    logits_at: Tensor,
) -> Tensor:
    """Run one forward pass through all layers, to logits [num_logits, vocab].

    ``logits_at`` [num_logits] selects the ``ids`` [num_tokens] with logits.
    """
    num_layers, x = len(weights.layers["qkv"]), weights.embed[ids]
    x = llama_layers(weights, kv, groups, x, positions, token_rows, 0, num_layers)
    return logits_of(weights, x, logits_at)


@cache
def script(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a function once, so that it runs without the interpreter lock; shapes stay free.

    (``torch.compile``, which torch prefers, makes a step twice as slow on the CPU.)
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled: Callable[..., Tensor] = torch.jit.script(function)
        return compiled


# -- Groups of tokens that attend together: all that can, or as many as fit a cache ----------------

CACHE = 3 << 19  # bytes of KV gathered at a time: with its results, a core's cache
QUERIES = 64  # positions of a prompt that attend together, for the same reason


def bytes_each(keys: Tensor) -> int | None:
    """Return the bytes of a position's keys and values in one layer; None on a GPU.

    ``keys`` are [layers, slots, kv_heads, d].
    """
    return 2 * keys[0, 0].nbytes if keys.device.type == "cpu" else None


def make_groups(
    prefix_lens: Sequence[int], extend_lens: Sequence[int], bytes_each: int | None
) -> list[Group]:
    """Return groups of rows with one extent (``base.equal_extents``).

    On a CPU a group is limited so that its data stays in a cache; ``bytes_each`` is the size of a
    position's KV. None means a GPU, which needs few large groups. A group's window reaches the end
    of its longest row, or of its part of a prompt, by the host's bound. The bits are the same.
    """
    groups: list[Group] = []
    for run in equal_extents(extend_lens):
        first, prefixes, extend_len = run.tokens.start, prefix_lens[run.rows], run.extend_len
        count, most = len(prefixes), extend_len  # rows, and positions of each, at a time
        if bytes_each is not None and count > 1:
            count = max(1, CACHE // bytes_each // window_of(max(prefixes) + extend_len))
        elif bytes_each is not None:
            most = QUERIES
        for row in range(0, len(prefixes), count):
            some = prefixes[row : row + count]
            for at in range(0, extend_len, most):
                length = min(most, extend_len - at)
                start, window = first + row * extend_len + at, window_of(max(some) + at + length)
                groups.append(Group(start, len(some), length, window))
    return groups


def window_of(length: int) -> int:
    """Return ``length`` positions, rounded up to whole blocks."""
    return -(-length // BLOCK) * BLOCK


# -- Weights: taken from transformers' model, and in the order of the library ----------------------

MATRICES = {  # of each layer, with the parts that become one matrix
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
PACKED_FOR = 16  # rows: packed for fewer, oneDNN's order is slow for many


def pack(weight: Tensor) -> Tensor:
    """Return a matrix [out, in] in the order in which oneDNN reads it, if it can.

    MKL reorders a plain float32 matrix at every call, and reads it at a third of the rate. A tied
    head is in memory twice, because its rows are looked up, too.
    """
    known = weight.dtype in (torch.float32, torch.bfloat16) and torch.backends.mkldnn.is_available()
    if weight.is_mkldnn or not known:
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
    return packed


def take_weights(model: Any, context_len: int) -> LlamaWeights:
    """Return the weights of transformers' model, with the angles of ``context_len`` positions."""
    config = model.config
    raw: dict[str, Tensor] = model.state_dict()
    layers: dict[str, list[Tensor]] = {name: [] for name in (*MATRICES, *NORMS)}
    for layer in range(config.num_hidden_layers):
        before = f"model.layers.{layer}."
        for name, parts in MATRICES.items():
            layers[name].append(torch.cat([raw.pop(f"{before}{part}.weight") for part in parts]))
        for name, norm in NORMS.items():
            layers[name].append(raw.pop(f"{before}{norm}.weight"))
    embed = raw["model.embed_tokens.weight"]
    cos, sin = model.model.rotary_emb(embed, torch.arange(context_len)[None])
    return LlamaWeights(
        embed=embed,
        layers=layers,
        final_norm=raw["model.norm.weight"],
        head=embed if config.tie_word_embeddings else raw["lm_head.weight"],
        cos=cos[0],
        sin=sin[0],
        eps=config.rms_norm_eps,
    )


def place(weights: LlamaWeights, where: torch.device) -> LlamaWeights:
    """Return the weights on a device, with matrices packed on the CPU.

    A tied head is packed as a copy, and plain only once.
    """
    if where.type == "cpu":
        packed = {name: list(map(pack, weights.layers[name])) for name in MATRICES}
        return weights._replace(layers={**weights.layers, **packed}, head=pack(weights.head))
    moved: dict[int, Tensor] = {}

    def move(weight: Any) -> Any:
        """Return a weight on the device, each one once; a number stays as it is."""
        if not isinstance(weight, Tensor):
            return weight
        if id(weight) not in moved:
            moved[id(weight)] = (weight.to_dense() if weight.is_mkldnn else weight).to(where)
        return moved[id(weight)]

    placed: LlamaWeights = tree_map(move, weights)
    return placed


# -- The model -------------------------------------------------------------------------------------


class LlamaTorch:
    """A Llama from a directory in Hugging Face's form (``models/base.py:Model``).

    ``dtype`` is ``auto`` (``checkpoint.check_dtype``) or one of ``pretrained.DTYPES``.

    On a CPU a step is one ``torch.jit.script`` call, which needs the interpreter lock only at its
    start and end. Without it, a parallel Python thread hides almost no time. On a GPU it would
    compile kernels of its own, with other last bits.

    Raises:
        ValueError: ``dtype`` is unknown, or the directory does not hold a Llama.
    """

    pad_to = ROWS
    logprobs = staticmethod(logprobs)
    sample = staticmethod(sample)
    scripted = True

    def __init__(
        self, directory: str | Path, dtype: str = AUTO, context_len: int | None = None
    ) -> None:
        self.directory = directory = Path(directory).absolute()
        if not is_plain_llama(read_config(directory)):
            raise WeightsError(
                f"{directory} holds no plain Llama; transformers computes other models."
            )
        model = load_pretrained(directory, dtype)
        config = model.config
        longest: int = config.max_position_embeddings
        self.name, self.dtype = directory.name, str(model.dtype).removeprefix("torch.")
        self.vocab_size: int = config.vocab_size
        self.context_len = min(context_len or longest, longest)
        self.eos_ids = end_ids(model)
        self.tokenizer: Any = Tokenizer.from_directory(directory)
        self.weights = take_weights(model, self.context_len)
        self.num_layers: int = config.num_hidden_layers
        self.kv_shape: tuple[int, int] = (config.num_key_value_heads, config.head_dim)

    def first_layers(self, count: int) -> "LlamaTorch":
        """Return a draft model: the first 1 to ``num_layers`` layers, with the same weights."""
        draft, layers = copy(self), self.weights.layers
        fewer = {name: parts[:count] for name, parts in layers.items()}
        draft.weights = self.weights._replace(layers=fewer)
        draft.num_layers, draft.name = count, f"first {count} layers of {self.name}"
        return draft

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Put weights and KV into the device's memory."""
        where = device.memory("probe", 1).device
        self.weights = place(self.weights, where)
        self.scripted = self.scripted and where.type == "cpu"
        shape = (self.num_layers, num_slots, *self.kv_shape)
        self.keys = torch.zeros(shape, dtype=self.weights.embed.dtype, device=where)
        self.values = torch.zeros_like(self.keys)
        self.max_len = max_len

    def read_kv(self, slots: list[int]) -> list[Tensor]:
        """Return the KV of these slots, [2][layers, num_slots, kv_heads, d]."""
        return [self.keys[:, slots], self.values[:, slots]]

    def write_kv(self, slots: list[int], values: Sequence[Tensor]) -> None:
        """Write KV that was computed elsewhere into these slots."""
        self.keys[:, slots], self.values[:, slots] = values

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """Return logits [num_logits, vocab] in the model's dtype."""
        groups = make_groups(batch.prefix_lens, batch.extend_lens, bytes_each(self.keys))
        where = batch.positions, batch.token_rows, batch.logits_at
        return self.run(groups, ids, *where, page_table)

    def forward_layers(
        self, layers: range, batch: ForwardBatch, hidden: Array, page_table: Buffer
    ) -> Array:
        """Run some layers (``loops/vllm_pp.py:LayeredModel``)."""
        if layers.start == 0:
            hidden = self.weights.embed[hidden]
        groups = make_groups(batch.prefix_lens, batch.extend_lens, bytes_each(self.keys))
        kv, where = PagedKV(self.keys, self.values, page_table, self.max_len), batch.positions
        through = script(llama_layers) if self.scripted else llama_layers
        return through(
            self.weights, kv, groups, hidden, where, batch.token_rows, layers.start, layers.stop
        )

    def compute_logits(self, batch: ForwardBatch, hidden: Array) -> Array:
        """Return logits [num_logits, vocab] in the model's dtype."""
        return logits_of(self.weights, hidden, batch.logits_at)

    def run(
        self,
        groups: list[Group],
        ids: Tensor,
        positions: Tensor,
        token_rows: Tensor,
        logits_at: Tensor,
        page_table: Tensor,
    ) -> Tensor:
        """Run one step on the model's weights and KV."""
        kv = PagedKV(self.keys, self.values, page_table, self.max_len)
        step = script(llama_step) if self.scripted else llama_step
        return step(self.weights, kv, groups, ids, positions, token_rows, logits_at)
