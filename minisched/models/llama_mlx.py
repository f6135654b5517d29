"""A Llama on MLX: mlx-lm's own layers over a paged KV cache."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model

from ..devices.base import Device
from .adjust_mlx import adjust
from .equal_extent import equal_extents
from .forward_batch import ForwardBatch
from .logprobs_mlx import logprobs
from .paged_cache_mlx import PagedCache, Window
from .sampling_mlx import sample
from .tokenizer import Tokenizer
from .weights import read_config


class LlamaMlx:
    """A Llama from a directory in Hugging Face's form (``models/base.py:Model``).

    Neighbouring rows that compute equally many positions run together, [rows, extent] tokens: those
    that decode, and those that verify drafts. A long prompt runs by itself, as each does in
    SGLang's MLX runner. Either way the step is one lazy graph.

    On the CPU, with the kernels of the stock Linux wheel and 32-bit floats, logits do not depend
    on the batch or on chunks, not by a bit. On Metal, or with another BLAS, they do.
    """

    pad_to = 1

    def __init__(self, directory: str | Path) -> None:
        directory = Path(directory)
        config = read_config(directory)
        self.name = directory.name
        self.vocab_size = config.vocab_size
        self.context_len = config.max_position_embeddings
        self.eos_ids = config.eos_ids
        self.tokenizer: Any = Tokenizer.from_directory(directory)
        self.lm: Any = load_model(directory)[0]
        self.num_layers = config.num_hidden_layers
        self.is_tied = config.tie_word_embeddings
        self.kv_shape = (config.num_key_value_heads, config.head_dim)
        self.caches: list[PagedCache] = []

    def first_layers(self, count: int) -> LlamaMlx:
        """A draft model: the first 1 to ``num_layers`` layers, with the same weights."""
        draft = copy(self)
        draft.num_layers, draft.name = count, f"first {count} layers of {self.name}"
        return draft

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Keys and values of ``num_slots`` positions for every layer.

        mlx-lm runs as many layers as it is given caches.
        """
        self.max_len = max_len
        dtype = self.lm.model.norm.weight.dtype
        self.caches = [PagedCache(num_slots, *self.kv_shape, dtype) for _ in range(self.num_layers)]
        mx.eval([(cache.keys, cache.values) for cache in self.caches])

    def forward(self, batch: ForwardBatch, ids: mx.array, page_table: mx.array) -> mx.array:
        """Logits [num_logits, vocab] after each of the tokens that are asked for."""
        ends = [p + e for p, e in zip(batch.prefix_lens, batch.extend_lens, strict=True)]
        hidden = [
            self._run(
                Window.of(
                    page_table, self.max_len, batch.rows[run.rows],
                    batch.positions[run.tokens].reshape(-1, run.extend_len),
                    max(ends[run.rows]),
                ),
                ids[run.tokens].reshape(-1, run.extend_len),
            )
            for run in equal_extents(batch.extend_lens)
        ]  # fmt: skip
        head = self.lm.model.embed_tokens.as_linear if self.is_tied else self.lm.lm_head
        logits: mx.array = head(mx.concatenate(hidden)[batch.logits_at])
        return logits

    def _run(self, window: Window, ids: mx.array) -> mx.array:
        """Rows of equal extent: ``ids`` [rows, extent] to hidden states [rows * extent, dim]."""
        for cache in self.caches:
            cache.window = window
        hidden: mx.array = self.lm.model(ids, self.caches)
        return hidden.flatten(0, 1)

    def logprobs(self, logits: mx.array, at: mx.array, tokens: mx.array, top: int) -> mx.array:
        """How likely tokens are, by some of the logits."""
        return logprobs(logits, at, tokens, top)

    def sample(self, logits: mx.array, batch: ForwardBatch) -> mx.array:
        """One token for each row of logits, [num_samples]."""
        return sample(adjust(logits, batch.adjustments), batch.sampling)
