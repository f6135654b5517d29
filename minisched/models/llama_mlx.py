"""A Llama on MLX: mlx-lm's own layers over a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model

from ..devices.base import Device
from .forward_batch import ForwardBatch
from .paged_cache_mlx import PagedCache, Window
from .sampling_mlx import sample
from .tokenizer import Tokenizer
from .weights import read_config


class LlamaMlx:
    """A Llama from a directory in Hugging Face's form (``models/base.py:Model``).

    Decoding rows run together, [num_reqs, 1] tokens; of other batches each row runs by itself,
    [1, extent], as SGLang's MLX runner does. Either way the step is one lazy graph.

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
        self.is_tied = config.tie_word_embeddings
        self.kv_shape = (config.num_key_value_heads, config.head_dim)
        self.caches: list[PagedCache] = []

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Keys and values of ``num_slots`` positions for every layer."""
        self.max_len = max_len
        dtype = self.lm.model.norm.weight.dtype
        self.caches = [PagedCache(num_slots, *self.kv_shape, dtype) for _ in self.lm.layers]
        mx.eval([(cache.keys, cache.values) for cache in self.caches])

    def forward(self, batch: ForwardBatch, ids: mx.array, page_table: mx.array) -> mx.array:
        """Logits [num_reqs, vocab] after each row's last token."""
        if batch.is_decode:
            return self._run(page_table, batch.rows, batch.prefix_lens, ids[:, None])
        logits, at = [], 0
        for row, start, length in zip(
            batch.rows, batch.prefix_lens, batch.extend_lens, strict=True
        ):
            logits.append(self._run(page_table, [row], [start], ids[None, at : at + length]))
            at += length
        return mx.concatenate(logits)

    def _run(
        self, page_table: mx.array, rows: Sequence[int], starts: Sequence[int], ids: mx.array
    ) -> mx.array:
        """Rows of equal extent: ``ids`` [rows, extent] to logits [rows, vocab]."""
        window = Window.of(page_table, self.max_len, rows, starts, ids.shape[1])
        for cache in self.caches:
            cache.window = window
        last = self.lm.model(ids, self.caches)[:, -1]
        head = self.lm.model.embed_tokens.as_linear if self.is_tied else self.lm.lm_head
        logits: mx.array = head(last)
        return logits

    def sample(self, logits: mx.array, batch: ForwardBatch) -> mx.array:
        """One token a row, [num_reqs]."""
        return sample(logits, batch.sampling)
