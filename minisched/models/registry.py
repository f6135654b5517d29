"""Opens a model by name for the device it is to run on; the hash model for torch and MLX is here.

A Llama's file is read only when one is opened, for it imports its library. The hash model's classes
import theirs as they run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from ..devices.base import Array, Buffer
from ..devices.registry import library, load
from .base import ForwardBatch, Model
from .hash import LOGIT_SCALE, HashModel, P
from .hash import mix as mix_numbers
from .llama import AUTO, find_model

LLAMA = {  # device -> (module, class, extra)
    "thread": ("minisched.models.llama_torch", "LlamaTorch", "torch"),
    "dist": ("minisched.models.llama_torch", "LlamaTorch", "torch"),
    "cuda": ("minisched.models.llama_graphs", "LlamaGraphs", "torch"),
    "mlx": ("minisched.models.llama_mlx", "LlamaMlx", "mlx"),
}

SPLIT_LLAMA = ("minisched.models.llama_tp", "LlamaTP", "torch")


def open_model(name: str, device: str, dtype: str = AUTO, split: bool = False) -> Model:
    """``hash``, ``smollm2``, a directory with a model in Hugging Face's form, or a hub id.

    ``dtype`` is what a real model computes in: ``auto``, which is the checkpoint's own on every
    device (``llama.choose_dtype``), ``float32``, ``bfloat16``, or with torch ``float64``. With
    ``split`` ranks of device ``dist`` can share it (``llama_tp.py``).

    Raises:
        ValueError: the model is unknown, not fetched or incomplete; the device can't run it, or not
            in this dtype; or an extra is missing.
    """
    if split and name == "hash":
        raise ValueError("model 'hash' can't be split over ranks, but a Llama can; name one.")
    if name == "hash":
        if dtype != AUTO:
            raise ValueError(
                f"dtype is {dtype!r}, but model 'hash' computes in whole numbers; real models "
                "have a dtype."
            )
        return hash_class(device)()
    if device not in LLAMA:
        raise ValueError(
            f"model {name!r} can't run on device {device!r}, which only knows 'hash'; "
            f"use --device {' or '.join(LLAMA)}."
        )
    cls = load(*(SPLIT_LLAMA if split else LLAMA[device]), f"model {name!r} on device {device!r}")
    return cast(Model, cls(find_model(name), dtype))


# -- The hash model on torch tensors and on MLX arrays: the same integers as on lists --------------
#
# Every value is below 2**31, so sums and products are exact in int64, and logits, which are hashed
# integers times a constant, are the same float64 everywhere.

mix: Any = mix_numbers  # which does the same with int64 arrays, element by element
Row = tuple[Array, Array, Array]  # its slots, its new positions, and the hidden state at each


class HashTorch(HashModel):
    """Equal to ``HashModel`` in every token, greedy or sampled; a whole batch at a time.

    A batch is laid out as [num_reqs, longest]: each row's positions from 0 on, padded to the
    longest row, or for a longer one where the host only knows how long rows are at most.
    """

    def forward_layer(
        self, layer: int, batch: ForwardBatch, hidden: Any, page_table: Buffer
    ) -> Any:
        """One layer, from hidden states [num_tokens] to hidden states; the first takes the ids."""
        import torch

        kv, new = self.kv[layer], batch.token_rows * self.max_len + batch.positions
        kv[page_table[new]] = mix(hidden, batch.positions)
        end = batch.positions[batch.last][:, None] + 1  # [num_reqs, 1]
        row = batch.token_rows[batch.last][:, None]
        longest = max(p + e for p, e in zip(batch.prefix_lens, batch.extend_lens, strict=True))
        position = torch.arange(longest, device=hidden.device)  # [longest]
        slots = page_table[row * self.max_len + torch.minimum(position, end - 1)]
        sums = mix(kv[slots], position).cumsum(-1)
        tokens = torch.arange(len(hidden), device=hidden.device)
        return sums[torch.searchsorted(batch.last, tokens), batch.positions] % P

    def compute_logits(self, batch: ForwardBatch, hidden: Any) -> Any:
        """Logits [num_logits, vocab] in float64, from exact integers."""
        import torch

        at = batch.logits_at
        state = self.settle(mix(hidden[at], batch.positions[at] + 1))[:, None]
        hashed = mix(state, torch.arange(self.vocab_size, device=hidden.device))
        return hashed.double() * LOGIT_SCALE

    def read_kv(self, slots: list[int]) -> list[Any]:
        """The KV of these slots, [num_layers][num_slots]."""
        return [layer[slots] for layer in self.kv]

    def logprobs(self, logits: Array, at: Array, tokens: Array, top: int) -> Any:
        """How likely tokens are, by some of the logits; float64, as these are."""
        from .sampling_torch import logprobs

        return logprobs(logits, at, tokens, top)

    def sample(self, logits: Array, batch: ForwardBatch) -> Any:
        """One token for each row of logits, [num_samples]."""
        from .sampling_torch import sample

        return sample(logits, batch)


class HashMlx(HashModel):
    """Equal to ``HashModel`` in every token, greedy or sampled; lazy all the way, row by row.

    KV is kept in 32 bits and multiplied in 64. Logits are float64, which MLX has on the CPU only,
    so that is where all of it runs, on a Mac too.
    """

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Array) -> Array:
        """Logits [num_logits, vocab] in float64, from exact integers."""
        import mlx.core as mx

        rows, at = list[Row](), 0
        with mx.stream(mx.cpu):
            for row, start, length in zip(
                batch.rows, batch.prefix_lens, batch.extend_lens, strict=True
            ):
                slots = page_table[row * self.max_len : row * self.max_len + start + length]
                new = slice(at, at + length)
                positions = batch.positions[new].astype(mx.int64)
                rows.append((slots, positions, ids[new].astype(mx.int64)))
                at += length
            for pool in self.kv:
                rows = self._attend(pool, rows)
            states = mx.concatenate([mix(new, positions + 1) for _, positions, new in rows])
            state = self.settle(states[batch.logits_at])[:, None]
            tokens = mx.arange(self.vocab_size, dtype=mx.int64)
            return mix(state, tokens).astype(mx.float64) * LOGIT_SCALE

    def _attend(self, pool: Array, rows: list[Row]) -> list[Row]:
        """One layer: all rows write their new positions, then each reads up to each of them."""
        import mlx.core as mx

        for slots, positions, new in rows:
            pool[slots[positions]] = mix(new, positions).astype(pool.dtype)
        seen: list[Row] = []
        for slots, positions, _ in rows:
            every = mx.arange(slots.size, dtype=mx.int64)
            sums = mx.cumsum(mix(pool[slots].astype(mx.int64), every))  # [row length]
            seen.append((slots, positions, sums[positions] % P))
        return seen

    def logprobs(self, logits: Array, at: Array, tokens: Array, top: int) -> Array:
        """How likely tokens are, by some of the logits; float64, as these are."""
        import mlx.core as mx

        from .sampling_mlx import logprobs

        with mx.stream(mx.cpu):
            return logprobs(logits, at, tokens, top)

    def sample(self, logits: Array, batch: ForwardBatch) -> Array:
        """One token for each row of logits, [num_samples]."""
        import mlx.core as mx

        from .sampling_mlx import sample

        with mx.stream(mx.cpu):
            return sample(logits, batch)


HASH = {"": HashModel, "torch": HashTorch, "mlx": HashMlx}  # by library of the device's arrays


def hash_class(device: str) -> type[HashModel]:
    """The hash model's class in a device's arrays.

    Raises:
        MissingExtra: the library is not installed.
    """
    extra = library(device)
    if extra:  # which its forward imports only when it runs
        wanted_by = f"model 'hash' on device {device!r}"
        load(f"minisched.models.sampling_{extra}", "sample", extra, wanted_by)
    return HASH[extra]


# -- The same model in another process -------------------------------------------------------------


def origin_of(model: Any) -> tuple[Any, ...]:
    """What another process opens the same model from: a class and its arguments.

    Raises:
        ValueError: it is neither a hash model nor a Llama on torch.
    """
    if type(model) is HashTorch:
        return HashTorch, model.vocab_size, model.context_len, model.eos_ids
    if model.dtype and hasattr(model, "directory"):
        return type(model), str(model.directory), model.dtype, model.context_len
    raise ValueError(
        f"model {model.name!r} can't be opened in several processes: the hash model on torch, and "
        "Llamas from a directory can."
    )


@lru_cache(maxsize=1)
def opened_again(origin: tuple[Any, ...]) -> Model:
    """The model that ``origin_of`` told of; the newest one stays open."""
    cls, *given = origin
    return cast(Model, cls(*given))
