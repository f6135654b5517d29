"""A Llama on torch with paged KV, bitwise the same for every batch, chunk and loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..devices.base import Array, Buffer, Device
from .adjust_torch import adjust
from .forward_batch import ForwardBatch
from .llama_torch_attention import ROWS, Group, PagedKV
from .llama_torch_groups import bytes_each, make_groups
from .llama_torch_layers import llama_step
from .llama_torch_weights import place, read_weights
from .logprobs_torch import logprobs
from .sampling_torch import choose
from .tokenizer import Tokenizer
from .weights import AUTO, choose_dtype, read_config

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

    def logprobs(self, logits: Tensor, at: Tensor, tokens: Tensor, top: int) -> Tensor:
        """How likely tokens are, by some of the logits."""
        return logprobs(logits, at, tokens, top)

    def sample(self, logits: Array, batch: ForwardBatch) -> Array:
        """One token for each row of logits, [num_samples]."""
        return choose(adjust(logits, batch.adjustments), batch.sampling)


def script(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a function so that it runs without the interpreter lock; shapes stay free.

    torch calls this deprecated in favour of ``torch.compile``, whose step is twice as slow on the
    CPU and takes half a minute to compile.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled: Callable[..., Tensor] = torch.jit.script(function)
        return compiled
