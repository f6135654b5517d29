"""Any causal model of transformers, with KV in this project's pages.

transformers computes the layers. Each layer calls a registered attention function
(``AttentionInterface``) with its queries, keys and values. The function here, ``paged_attention``,
writes keys and values into slots of the page table, and reads each row's window from there. The
tokens of a batch lie flat in one row, as in transformers' own continuous batching.

Three things make most models exact to the bit on a CPU: attention in blocks
(``llama_torch.attend``), and linears and activations with the same sums for any number of rows
(``make_exact``). A model is refused if its logits over pages are others than alone: for example if
a layer keeps a recurrent state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

from ..devices.base import Array, Buffer, Device
from .base import ForwardBatch
from .checkpoint import AUTO
from .llama_torch import (
    AT_ONCE,
    ROWS,
    Group,
    GroupView,
    PagedKV,
    attend_groups,
    bytes_each,
    linear,
    look,
    make_groups,
    pack,
)
from .pretrained import end_ids, load_pretrained
from .promise import Refused
from .sampling_arrays import logprobs, sample
from .tokenizer import Tokenizer

NAME = "minisched"  # of the attention function in transformers' registry
WITH_KV = {"full_attention", "sliding_attention"}  # types of layers without another state
BY_LONGEST = {"dynamic", "longrope"}  # types of rope that depend on the longest text of a batch
CONTEXT = 2048  # positions of a model that names no number


# -- Attention over pages --------------------------------------------------------------------------


def kv_like(
    kv: dict[int, tuple[Tensor, Tensor]], layer: int, num_slots: int, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a layer's KV; if there is none yet, take zeros in the form of its first tokens' KV."""
    if layer not in kv:
        keys, values = (x.new_zeros(num_slots, *x.shape[1:]) for x in (key, value))
        kv[layer] = keys, values
    return kv[layer]


@dataclass
class PagedStep:
    """The values that all layers of a step share, and the KV of each layer."""

    num_slots: int
    kv: dict[int, tuple[Tensor, Tensor]]  # by layer: keys and values [num_slots, kv_heads, any]
    groups: list[Group]
    batch: ForwardBatch
    page_table: Tensor
    max_len: int
    views: dict[tuple[int, ...], list[GroupView]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look up the slots of the tokens' own KV; padding has none."""
        cells = self.batch.token_rows * self.max_len + self.batch.positions
        self.new = self.page_table[cells[: self.batch.num_tokens]]

    def views_for(self, keys: Tensor, rep: int, sliding_window: int) -> list[GroupView]:
        """Return each group's cells and masks, for all layers with the same heads and window."""
        kind = keys.size(1), rep, sliding_window
        if kind not in self.views:
            kv = PagedKV(keys[None], keys[None], self.page_table, self.max_len)
            at, rows = self.batch.positions, self.batch.token_rows
            self.views[kind] = [look(g, kv, at, rows, rep, sliding_window) for g in self.groups]
        return self.views[kind]


# The step that a thread computes; not every model passes arguments on to its layers.
running: ContextVar[PagedStep] = ContextVar("running")


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Return attention [1, num_tokens, heads, any] of a layer; write the tokens' KV.

    ``query`` is [1, heads, num_tokens, d]; ``key`` and ``value`` are [1, kv_heads, num_tokens, ..].

    Raises:
        ValueError: the layer has attention sinks.
    """
    if more.get("s_aux") is not None:
        raise ValueError("attention sinks are not supported")
    paged = running.get()
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    keys, values = kv_like(paged.kv, module.layer_idx, paged.num_slots, k, v)
    scale = q.size(-1) ** -0.5 if scaling is None else scaling
    views = paged.views_for(keys, q.size(1) // k.size(1), sliding_window or 0)
    out = attend_groups(
        q, k, v, keys, values, paged.new, paged.groups, views, scale, softcap or 0.0
    )
    return out[None], None


AttentionInterface.register(NAME, paged_attention)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)


# -- Layers with the same bits for any number of rows, on a CPU ------------------------------------


class Packed(nn.Module):  # type: ignore[misc]
    """A linear in the order in which oneDNN reads it (``llama_torch.pack``).

    It is called without torch's hooks, which cost as much as a small operation.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = pack(weight.detach().contiguous()), bias

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [.., in] times the matrix [out, in], plus the bias."""
        return linear(x, self.weight, self.bias)


class Merged:
    """Linears with the same input as one matrix, because few large products are faster."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        weights, biases = zip(*((each.weight, each.bias) for each in linears), strict=True)
        self.widths = [len(weight) for weight in weights]
        self.linear = Packed(torch.cat(weights), None if biases[0] is None else torch.cat(biases))
        self.last: tuple[Tensor | None, tuple[Tensor, ...]] = (None, ())

    def part(self, at: int, x: Tensor) -> Tensor:
        """Return the product of linear number ``at``; the first one computes all of them."""
        known, parts = self.last
        if known is not x:
            parts = self.linear(x).split(self.widths, -1)
        self.last = (None, ()) if at == len(parts) - 1 else (x, parts)
        return parts[at]


class Replaced(nn.Module):  # type: ignore[misc]
    """A function instead of a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function of x [.., in], without torch's hooks."""
        return self.function(x)


def by_rows(activation: nn.Module, x: Tensor) -> Tensor:
    """Return the activation of x [.., width], a few rows at a time (``llama_torch.silu``)."""
    if x.numel() <= AT_ONCE:
        return activation(x)
    parts = x.reshape(-1, x.size(-1)).split(max(1, AT_ONCE // x.size(-1)))
    return torch.cat([activation(part) for part in parts]).view(x.shape)


SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # in a module
ACTIVATIONS = tuple({kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()})


def make_exact(module: nn.Module) -> None:
    """Replace linears and activations within a model."""
    for names in SAME_INPUT:
        linears = [getattr(module, name, None) for name in names]
        has_biases = {getattr(each, "bias", None) is not None for each in linears}
        if all(type(each) is nn.Linear for each in linears) and len(has_biases) == 1:
            merged = Merged(linears)
            for at, name in enumerate(names):
                setattr(module, name, Replaced(partial(merged.part, at)))
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, Packed(child.weight, child.bias))
        elif type(child) is Conv1D:  # GPT-2's linear, stored the other way round
            setattr(module, name, Packed(child.weight.T, child.bias))
        elif isinstance(child, ACTIVATIONS):
            setattr(module, name, Replaced(partial(by_rows, child)))
        else:
            make_exact(child)


# -- The model -------------------------------------------------------------------------------------


def context_of(config: Any) -> int:
    """Return the longest text, as far as rotary frequencies depend on positions alone.

    Rope of the types ``BY_LONGEST`` takes other frequencies beyond the length of the training, for
    the whole batch.
    """
    longest: int = getattr(config, "max_position_embeddings", None) or CONTEXT
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") not in BY_LONGEST:
        return longest
    original = getattr(config, "original_max_position_embeddings", None)
    return min(longest, rope.get("original_max_position_embeddings") or original or longest)


class TransformersLM:
    """A causal model of transformers (``models/base.py:Model``), of any architecture with KV alone.

    ``model`` stays as it is: its modules are copied, and their weights are shared until they are
    packed.

    Raises:
        Refused: a layer keeps something other than keys and values, or attends in a way that
            is not supported.
    """

    pad_to = ROWS
    logprobs = staticmethod(logprobs)
    sample = staticmethod(sample)

    def __init__(self, model: Any, tokenizer: Any = None, name: str = "") -> None:
        config = model.config.get_text_config()
        self.name = name or type(model).__name__
        self.tokenizer = tokenizer
        self.vocab_size, self.num_layers = config.vocab_size, config.num_hidden_layers
        self.context_len, self.eos_ids = context_of(config), end_ids(model)
        if others := set(getattr(config, "layer_types", None) or ()) - WITH_KV:
            raise Refused(
                f"{self.name} can't run here: its layers of type {', '.join(sorted(others))} keep "
                "another state than the keys and values of every position; take a model with "
                "attention alone."
            )
        shared = {id(x): x for x in chain(model.parameters(), model.buffers())}
        self.model = deepcopy(model, shared).eval()
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.own_attention = self.model.config._attn_implementation
        self.kv: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def from_directory(cls, directory: str | Path, dtype: str = AUTO) -> TransformersLM:
        """Load a directory in Hugging Face's form.

        Raises:
            ValueError: ``dtype`` is unknown, or the directory does not hold a model that runs.
        """
        directory = Path(directory).absolute()
        model = load_pretrained(directory, dtype)
        return cls(model, Tokenizer.from_directory(directory), directory.name)

    def whole_pass(self, ids: list[int]) -> Tensor:
        """Return the logits [num_ids, vocab] of a text by transformers' own attention."""
        self.model.set_attn_implementation(self.own_attention)
        try:
            with torch.inference_mode():
                inputs = torch.tensor([ids], device=self.model.device)
                logits: Tensor = self.model(inputs, use_cache=False).logits[0]
                return logits
        finally:
            self.model.set_attn_implementation(NAME)

    def first_layers(self, count: int) -> TransformersLM:
        """Return a draft model: the first 1 to ``num_layers`` layers, with the same weights.

        Raises:
            ValueError: the model has no list of ``layers``.
        """
        name = self.model.base_model_prefix
        inner = copy(getattr(self.model, name))
        if not hasattr(inner, "layers"):
            raise ValueError(f"{self.name} has no list of layers, so it can't be cut in two.")
        draft, whole, config = copy(self), copy(self.model), deepcopy(self.model.config)
        config.num_hidden_layers = count
        inner._modules = {**inner._modules, "layers": inner.layers[:count]}
        whole._modules = {**whole._modules, name: inner}
        whole.config = inner.config = config
        draft.model, draft.num_layers = whole, count
        draft.name = f"first {count} layers of {self.name}"
        return draft

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Put the weights into the device's memory; a layer takes KV there in its first step."""
        where = device.memory("probe", 1).device
        self.model = self.model.to(where)
        self.model.set_attn_implementation(NAME)
        if where.type == "cpu":
            with torch.no_grad():
                make_exact(self.model)
        self.num_slots, self.max_len, self.kv = num_slots, max_len, {}

    def read_kv(self, slots: list[int]) -> list[Tensor]:
        """Return the KV of these slots, [2 * layers][num_slots, kv_heads, any]."""
        return [part[slots] for both in self.kv.values() for part in both]

    def write_kv(self, slots: list[int], parts: Sequence[Tensor]) -> None:
        """Write KV that was computed elsewhere into these slots."""
        for layer, (key, value) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            keys, values = kv_like(self.kv, layer, self.num_slots, key, value)
            keys[slots], values[slots] = key, value

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """Return logits [num_logits, vocab] in the model's dtype."""
        each = bytes_each(next(iter(self.kv.values()))[0][None]) if self.kv else None
        groups = make_groups(batch.prefix_lens, batch.extend_lens, each)
        step = PagedStep(self.num_slots, self.kv, groups, batch, page_table, self.max_len)
        running.set(step)
        count = len(batch.logits_at)
        with torch.inference_mode():
            out = self.model(
                input_ids=ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=F.pad(batch.logits_at, (0, -count % ROWS)),
            )
        if missing := self.num_layers - len(self.kv):
            raise Refused(
                f"{self.name} can't run here: {missing} of its {self.num_layers} layers pass no "
                "keys and values to transformers' attention: they compute it on their own, or have "
                "a state."
            )
        return out.logits[0, :count]
