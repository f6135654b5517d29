"""Models of mlx-lm with layers that keep keys and values, on the page table of this project.

A layer of mlx-lm asks its cache for three things: ``offset`` (the first new position of each row,
which turns queries and keys), ``make_mask``, and ``update_and_fetch`` of new keys and values. So a
cache that writes and reads through the page table is all that paging needs. Rows that compute
equally many positions are one call of the model: all rows of a decode. SGLang's MLX backend runs
mlx-lm's models too, with a contiguous cache for each request (SGLang #22416;
``lessons/site/docs/mlx_caches.md`` compares them).

Layers with another state (Mamba, short convolutions, chunked attention) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from ..devices.base import Device, reason_of
from ..devices.mlx import evaluate
from .base import ForwardBatch, equal_extents
from .checkpoint import AUTO, WeightsError, check_dtype, eos_of, read_config
from .promise import Refused
from .sampling_arrays import logprobs, sample
from .tokenizer import Tokenizer

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
BODIES = ("model", "transformer", "backbone", "gpt_neox", "language_model")  # all but the head
STATES = ("KVCache", "RotatingKVCache")  # mlx-lm's caches that keep keys and values alone
CONTEXTS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
FIVE_AXES = ("gemma2",)  # models with one more axis in their scores, for groups of heads
USUAL_CONTEXT = 2048  # positions, where config.json has no limit; transformers' for a Llama

# -- The cache of a layer --------------------------------------------------------------------------


class PagedRows:
    """Rows of equal extent in one step: the slots that they write and read; for all layers.

    The window covers the longest row, and the mask hides positions after a token. The stock CPU
    kernels add position by position, so a wider window adds zeros at the end and changes no bit.
    """

    def __init__(self, page_table: mx.array, cells: mx.array, at: mx.array, width: int) -> None:
        self.positions = at  # [rows, extent]
        self.offset = at[:, 0]  # [rows]
        self.seen = mx.arange(width)
        self.read = page_table[cells + mx.minimum(self.seen, at[:, -1:])]  # [rows, width]
        self.write = page_table[cells + at].reshape(-1)  # [rows * extent]

    def mask(self, window_size: int | None, axes: int) -> mx.array:
        """Return the visible positions of each token, booleans [rows, 1, extent, width].

        A mask of five ``axes`` has another 1 after the rows, for groups of heads.
        """
        at = self.positions[..., None]
        mask = self.seen <= at
        if window_size is not None:
            mask = mask & (self.seen > at - window_size)
        return mask.reshape(len(mask), *[1] * (axes - 3), *mask.shape[1:])


class PagedCache:
    """One layer's keys and values of all requests, in the slots of the page table."""

    rows: PagedRows  # of the call that is built now

    def __init__(self, num_slots: int, axes: int) -> None:
        self.num_slots, self.axes = num_slots, axes
        self.pools: list[mx.array] = []  # [num_slots, kv_heads, d] of keys and values, once known

    @property
    def offset(self) -> mx.array:
        """Return the first new position of each row."""
        return self.rows.offset

    def make_mask(self, *_: Any, window_size: int | None = None, **__: Any) -> mx.array:
        """Return the mask of a layer; ``window_size`` is that of a sliding window."""
        return self.rows.mask(window_size, self.axes)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, ...]:
        """Write [rows, kv_heads, extent, d], and return [rows, kv_heads, width, d] of each."""
        self.pools = self.pools or [
            mx.zeros((self.num_slots, each.shape[1], each.shape[3]), each.dtype)
            for each in (keys, values)
        ]
        for pool, new in zip(self.pools, (keys, values), strict=True):
            by_token = new.transpose(0, 2, 1, 3)
            pool[self.rows.write] = by_token.reshape(-1, *by_token.shape[2:])
        return tuple(pool[self.rows.read].transpose(0, 2, 1, 3) for pool in self.pools)


# -- The model -------------------------------------------------------------------------------------


class WantedStates:
    """The body of a model, which returns only the states of tokens with wanted logits.

    The head of the model follows. It multiplies by the whole vocabulary, so it should get few rows.
    """

    def __init__(self, body: Any) -> None:
        self.body = body
        self.wanted_at: mx.array | None = None  # [num_logits] among the tokens of the call

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        """Return states [rows, extent, dim], or the wanted ones [1, num_logits, dim]."""
        states: mx.array = self.body(*args, **kwargs)
        if self.wanted_at is None:
            return states
        return states.reshape(1, -1, states.shape[-1])[:, self.wanted_at]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.body, name)


class MlxLm:
    """A model of mlx-lm (``models/base.py:Model``).

    On the CPU, with the kernels of the stock Linux wheel, logits do not depend on the batch or on
    chunks, not by a bit. On Metal, or with another BLAS, they do (``promise.py`` measures it).
    """

    pad_to = 1
    logprobs = staticmethod(logprobs)
    sample = staticmethod(sample)

    def __init__(self, model: Any, tokenizer: Any = None, name: str = "") -> None:
        """Take a loaded model of mlx-lm, which stays as it is.

        Raises:
            Refused: a layer keeps another state than keys and values, or asks its cache for more
                than the three things.
        """
        settings = vars(getattr(model, "args", None) or object)
        self.name = name or str(settings.get("model_type") or type(model).__name__)
        ends = [getattr(tokenizer, f"eos_token_id{s}", None) for s in ("s", "")]  # mlx-lm's: many
        self.context_len, self.eos_ids = context_of(settings), eos_of(ends[0] or ends[1])
        self.tokenizer = tokenizer
        self.num_layers = len(model.layers)
        kept = model.make_cache() if hasattr(model, "make_cache") else [None] * self.num_layers
        for state in kept:
            if state is not None and type(state).__name__ not in STATES:
                raise Refused(
                    f"{self.name} can't run here: a layer keeps mlx-lm's {type(state).__name__}, "
                    "and only keys and values can be paged."
                )
        try:
            logits = model(mx.zeros((1, 1), mx.int32))
            evaluate(logits)  # on this thread also arrays that are no parameters, such as angles
            self.body = next(each for each in BODIES if each in model)
        except Exception as error:  # mlx-lm's model files raise errors of every kind
            raise Refused(f"{self.name} can't run here: {reason_of(error)}.") from error
        self.vocab_size, self.dtype = logits.shape[-1], str(logits.dtype).rpartition(".")[2]
        self.model = copy(model)
        self.model[self.body] = WantedStates(model[self.body])
        self.num_caches = len(kept)
        self.mask_axes = 5 if settings.get("model_type") in FIVE_AXES else 4
        self.caches: list[PagedCache] = []

    @classmethod
    def from_directory(cls, directory: str | Path, dtype: str = AUTO) -> MlxLm:
        """Load a checkpoint as ``mlx_lm.load`` does, also a quantized one.

        Raises:
            ValueError: ``dtype`` is unknown, or mlx-lm can't load or run it.
        """
        directory = Path(directory)
        check_dtype(dtype, DTYPES, "MLX")
        config = read_config(directory)
        try:
            model, loaded = load_model(directory, lazy=True, model_config=flat_rope(config))
            ends = [each.get("eos_token_id") for each in (config, loaded)]
        except SystemExit:  # OLMo's file ends Python
            raise WeightsError(
                f"{directory} can't be loaded by mlx-lm: it lacks a package that this model needs."
            ) from None
        except Exception as error:  # mlx-lm and its model files raise errors of every kind
            reason = reason_of(error).rstrip(". :")
            raise WeightsError(f"{directory} can't be loaded by mlx-lm: {reason}.") from error
        dtypes = {weight.dtype for _, weight in tree_flatten(model.parameters())}
        stored = "bfloat16" if mx.bfloat16 in dtypes else "float32"
        model.set_dtype(DTYPES[stored if dtype == AUTO else dtype])
        if has_plain_loops():
            turn(model)
        evaluate(model.parameters())
        found = cls(model, Tokenizer.from_directory(directory), directory.name)
        found.context_len, found.eos_ids = context_of(config), eos_of(ends[0]) | eos_of(ends[1])
        return found

    def first_layers(self, count: int) -> MlxLm:
        """Return a draft model: the first 1 to ``num_layers`` layers, with the same weights."""
        draft = copy(self)
        draft.num_layers, draft.name = count, f"first {count} layers of {self.name}"
        body = copy(self.model[self.body].body)
        body.layers = body.layers[:count]
        draft.model = copy(self.model)
        draft.model[self.body] = WantedStates(body)
        return draft

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Take a cache for every layer, which gets its memory in the first step."""
        self.max_len = max_len
        self.caches = [PagedCache(num_slots, self.mask_axes) for _ in range(self.num_caches)]

    def forward(self, batch: ForwardBatch, ids: mx.array, page_table: mx.array) -> mx.array:
        """Return logits [num_logits, vocab] after each of the wanted tokens."""
        logits: list[mx.array] = []
        done = 0
        for run in equal_extents(batch.extend_lens):
            cells = mx.array([row * self.max_len for row in batch.rows[run.rows]])[:, None]
            positions = batch.positions[run.tokens].reshape(-1, run.extend_len)
            width = max(batch.prefix_lens[run.rows]) + run.extend_len
            rows = PagedRows(page_table, cells, positions, width)
            for cache in self.caches:
                cache.rows = rows
            first, done = done, done + sum(batch.logit_lens[run.rows])
            # a draft model takes logits where only the device knows (``draft_model.py``)
            self.model[self.body].wanted_at = batch.logits_at[first:done] - run.tokens.start
            inputs = ids[run.tokens].reshape(-1, run.extend_len)
            logits.append(self.model(inputs, cache=self.caches)[0])
        return mx.concatenate(logits) if len(logits) > 1 else logits[0]


# -- A checkpoint as mlx-lm loads it ---------------------------------------------------------------


def flat_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings where mlx-lm reads them: at the top level of config.json.

    transformers 5 writes them to ``rope_parameters``, for some models one set for each type of
    layer.
    """
    rope = config.get("rope_parameters") or {}
    by_type = {name: of for name, of in rope.items() if isinstance(of, dict)}
    rope = by_type.get("full_attention", rope)
    flat = {
        name: rope[name]
        for name in ("rope_theta", "partial_rotary_factor")
        if config.get(name) is None and name in rope
    }
    if config.get("rope_scaling") is None:  # some of mlx-lm's models demand the name, also for none
        is_plain = rope.get("rope_type", "default") == "default"
        flat["rope_scaling"] = None if is_plain else dict(rope)
    if "rope_theta" in by_type.get("sliding_attention", {}):
        flat["rope_local_base_freq"] = by_type["sliding_attention"]["rope_theta"]
    return flat


def context_of(config: Mapping[str, Any]) -> int:
    """Return the number of positions that a model was trained for."""
    places = [config, config.get("text_config") or {}]
    found = (place[name] for place in places for name in CONTEXTS if place.get(name))
    return int(next(found, USUAL_CONTEXT))


def has_plain_loops() -> bool:
    """Return whether MLX computes with the BLAS of its Linux wheel, and not by OpenBLAS."""
    loaded = Path("/proc/self/maps")
    return loaded.exists() and "libopenblas" not in loaded.read_text(encoding="utf-8")


def turn(model: Any) -> None:
    """Put each matrix into the order that halves the time of MLX's Linux BLAS.

    Embeddings are a matrix too, because many models multiply by them at the end.
    """
    for _, layer in model.named_modules():
        if type(layer) in (nn.Linear, nn.Embedding):
            layer.weight = mx.contiguous(layer.weight.T).T
