"""A Llama on MLX, over a paged KV cache."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..devices.base import Device
from ..devices.mlx_evaluate import evaluate
from .adjust_mlx import adjust
from .equal_extent import Run
from .forward_batch import ForwardBatch
from .llama_mlx_groups import PADDING, make_groups
from .llama_mlx_layers import hidden_states, logits
from .llama_mlx_weights import read_weights
from .logprobs_mlx import logprobs
from .paged_cache_mlx import PagedCache, Window, new_tokens, window_of
from .sampling_mlx import sample
from .tokenizer import Tokenizer
from .weights import AUTO, choose_dtype, read_config

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}


class LlamaMlx:
    """A Llama from a directory in Hugging Face's form (``models/base.py:Model``).

    ``dtype`` is ``auto`` (``weights.choose_dtype``) or one of ``DTYPES``.

    All tokens of a batch are multiplied together, and neighbouring rows that compute equally many
    positions attend together: those that decode, and those that verify drafts; on a CPU, where it
    pays to keep short rows from looking as far as long ones, those of near length. A long prompt
    attends by itself (in SGLang's MLX runner it runs by itself). The step is one lazy graph.

    On the CPU, with the kernels of the stock Linux wheel, logits do not depend on the batch or on
    chunks, not by a bit. On Metal, or with another BLAS, they do.

    Raises:
        ValueError: ``dtype`` is unknown, or the directory does not hold a Llama.
    """

    pad_to = 1

    def __init__(self, directory: str | Path, dtype: str = AUTO) -> None:
        directory = Path(directory)
        config = read_config(directory)
        self.name, self.dtype = directory.name, choose_dtype(directory, dtype, DTYPES, "MLX")
        self.vocab_size = config.vocab_size
        self.context_len = config.max_position_embeddings
        self.eos_ids = config.eos_ids
        self.tokenizer: Any = Tokenizer.from_directory(directory)
        self.weights = read_weights(directory, config, DTYPES[self.dtype])
        self.num_layers = config.num_hidden_layers
        self.kv_shape = (config.num_key_value_heads, config.head_dim)
        self.caches: list[PagedCache] = []
        # positions that rows may look at in vain (make_groups)
        self.padding = None if mx.default_device().type == mx.DeviceType.gpu else PADDING

    def first_layers(self, count: int) -> LlamaMlx:
        """A draft model: the first 1 to ``num_layers`` layers, with the same weights."""
        draft = copy(self)
        draft.num_layers, draft.name = count, f"first {count} layers of {self.name}"
        return draft

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Keys and values of ``num_slots`` positions for every layer that runs."""
        self.max_len = max_len
        dtype = self.weights.embed.dtype
        self.caches = [PagedCache(num_slots, *self.kv_shape, dtype) for _ in range(self.num_layers)]
        evaluate(*(cache.pool for cache in self.caches))

    def forward(self, batch: ForwardBatch, ids: mx.array, page_table: mx.array) -> mx.array:
        """Logits [num_logits, vocab] after each of the tokens that are asked for.

        What depends on positions alone is made here, once for all layers.
        """
        groups = make_groups(batch.prefix_lens, batch.extend_lens, self.padding)
        windows = [self._window(group, batch, page_table) for group in groups]
        slots = page_table[batch.token_rows * self.max_len + batch.positions]
        new = new_tokens(slots, batch.positions, (self.weights.cos, self.weights.sin))
        x = hidden_states(self.weights, self.caches, new, windows, ids)
        return logits(self.weights, x[batch.logits_at])

    def _window(self, group: Run, batch: ForwardBatch, page_table: mx.array) -> Window:
        """What a group's rows attend to."""
        cells = [row * self.max_len for row in batch.rows[group.rows]]
        positions = batch.positions[group.tokens].reshape(-1, group.extend_len)
        width = max(batch.prefix_lens[group.rows]) + group.extend_len
        return window_of(page_table, cells, positions, width, self.kv_shape[0])

    def logprobs(self, logits: mx.array, at: mx.array, tokens: mx.array, top: int) -> mx.array:
        """How likely tokens are, by some of the logits."""
        return logprobs(logits, at, tokens, top)

    def sample(self, logits: mx.array, batch: ForwardBatch) -> mx.array:
        """One token for each row of logits, [num_samples]."""
        return sample(adjust(logits, batch.adjustments), batch.sampling)
