"""Chooses tokens from logits for a whole batch on torch: the functions of ``sampling.py``.

They have the same names here, and the same results. On the CPU and on a GPU, and without a word to
the host, but for one: a CPU that has looked at too few of the most likely tokens looks again.
``sampling_mlx.py`` is this file's twin.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import SamplingParams
from ..devices.thread import ship
from .base import ForwardBatch
from .sampling import NEVER, UNIT, WORD, Adjustments, changes, threefry, vocab_masks

FIRST_LOOK = 1024  # most likely tokens looked at before the whole vocabulary is sorted


def sample(logits: Tensor, batch: ForwardBatch) -> Tensor:
    """A model's ``sample``: one token for each row of logits, [num_samples]."""
    return choose(adjust(logits, batch.adjustments), batch.sampling)


def gumbel(keys: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Noise [num_reqs, vocab] in float64 for keys and positions [num_reqs, 1]."""
    pairs = torch.arange((vocab_size + 1) // 2, device=keys.device)
    words = torch.stack(threefry((keys >> 32, keys & WORD), (pairs, positions)), -1)
    u = (words.flatten(-2)[:, :vocab_size].double() + 0.5) / 2**32
    return -(-u.log()).log()


def choose(logits: Tensor, sampling: Sequence[tuple[SamplingParams, int, int]]) -> Tensor:
    """One token for each row of ``logits`` [num_reqs, vocab], by its (params, key, position)."""
    tokens = logits.argmax(-1)  # to which NaN is the largest
    is_nan = logits.gather(-1, tokens[:, None])[:, 0].isnan()
    rows = [row for row, (params, _, _) in enumerate(sampling) if not params.is_greedy]
    if rows:
        params, keys, positions = zip(*(sampling[row] for row in rows), strict=True)
        vocab_size = logits.size(-1)
        limits = [min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in params]
        whole = ship([rows, keys, positions, limits], logits.device)
        parts = [[p.temperature for p in params], [p.top_p for p in params]]
        at, key, position, top_k = whole[:, :, None].unbind()  # [num_drawn, 1] each
        temperature, top_p = ship(parts, logits.device, torch.float64)[:, :, None].unbind()
        some = logits[at[:, 0]]
        scaled = some.double() / temperature
        noisy = scaled + gumbel(key, position, vocab_size)
        width, enough = look_at(params, limits, vocab_size, logits.is_cuda)
        if width:
            left = kept(some, scaled, temperature, top_k, top_p, width, enough)
            noisy = noisy.masked_fill(~left, float("-inf"))
        tokens[at[:, 0]] = noisy.argmax(-1)
    return torch.where(is_nan, -1 - tokens, tokens)


def look_at(
    params: Sequence[SamplingParams], limits: Sequence[int], vocab_size: int, on_gpu: bool
) -> tuple[int, bool]:
    """How many of the most likely tokens are put in order, and whether that is surely enough.

    None, if no row leaves any out; with a top-k in every row that has a top-p, as many as the
    largest of them. Without, how many it takes is known only when they are there: on a GPU, where
    the host would have to wait for that, all are put in order.
    """
    pairs = zip(limits, params, strict=True)
    wanted = [limit for limit, each in pairs if limit < vocab_size or each.top_p < 1.0]
    most = max(wanted, default=0)
    if most < vocab_size or on_gpu:
        return most, True
    some = max([FIRST_LOOK, *(limit for limit in wanted if limit < most)])
    return min(some, vocab_size), some >= vocab_size


def kept(
    logits: Tensor,
    scaled: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    width: int,
    enough: bool,
) -> Tensor:
    """Which tokens top-k and then top-p leave, [num_reqs, vocab]; of equals the lower ids stay.

    ``scaled`` are the ``logits`` divided by ``temperature``, which like ``top_k`` and ``top_p`` is
    [num_reqs, 1]; ``top_k`` is the vocabulary size where there is no limit. The ``width`` most
    likely tokens are put in order, as the logits they are: in 16 bits that is soon done. All of
    them, where these are too few; ``width`` must not lie below a real limit.
    """
    vocab_size = logits.size(-1)
    is_all = width == vocab_size
    best = logits.sort(descending=True).values if is_all else logits.topk(width).values
    best = best.double() / temperature  # [num_reqs, width], falling
    free = (top_k == vocab_size) & (top_p >= 1.0)
    ranks = torch.arange(width, device=logits.device)
    reached = whole_numbers(best, best).masked_fill(ranks >= top_k, 0.0).cumsum(-1)
    total = reached[:, -1:]
    if not enough:
        total = torch.where(top_k > width, whole_numbers(scaled, best).sum(-1, True), total)
    wanted = (top_p * total).masked_fill(top_p >= 1.0, float("inf"))
    count = ((reached < wanted).sum(-1, True) + 1).minimum(top_k).masked_fill(free, 1)
    if not enough and bool((count > width).any()):
        return kept(logits, scaled, temperature, top_k, top_p, vocab_size, enough=True)
    cut = best.gather(-1, count - 1)
    above, equal = scaled > cut, scaled == cut
    room = count - above.sum(-1, keepdim=True)
    return free | above | (equal & (equal.cumsum(-1) <= room))


def whole_numbers(scaled: Tensor, best: Tensor) -> Tensor:
    """Probabilities as ``sampling.py`` counts them: ``UNIT`` for the most likely token."""
    return ((scaled - best[:, :1]).exp() * UNIT).floor()


# -- Penalties, biases and masks -------------------------------------------------------------------


def adjust(logits: Tensor, adjustments: Adjustments) -> Tensor:
    """``logits`` [num_samples, vocab] as requests want them; the tensor itself is left alone."""
    if not any(adjustments):
        return logits
    if logits.element_size() < 4:
        logits = logits.float()  # which changes no logit, and lets a small penalty count
    rows, tokens, *values = changes(adjustments)
    if rows:
        at = ship(rows, logits.device), ship(tokens, logits.device)
        repetition, frequency, presence, bias = (
            ship(column, logits.device, logits.dtype) for column in values
        )
        old = logits[at]
        new = torch.where(old > 0, old / repetition, old * repetition)
        logits = logits.index_put(at, new - frequency - presence + bias)
    masks = vocab_masks(adjustments, logits.size(-1))
    if masks:
        masked = ship(list(masks), logits.device)
        allowed = unpack(list(masks.values()), logits.device)[:, : logits.size(-1)]
        logits = logits.index_put((masked,), logits[masked].masked_fill(~allowed, NEVER))
    return logits


def unpack(masks: Sequence[bytes], where: torch.device) -> Tensor:
    """Masks as booleans, [num_masks, 8 * bytes]: bits are made on the device."""
    packed = torch.frombuffer(bytearray(b"".join(masks)), dtype=torch.uint8)
    packed = (packed.pin_memory() if where.type == "cuda" else packed).to(where, non_blocking=True)
    bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=where) & 1
    return bits.bool().view(len(masks), -1)


# -- Log-probabilities -----------------------------------------------------------------------------


def logprobs(logits: Tensor, at: Tensor, tokens: Tensor, top: int) -> Tensor:
    """[num_places, 1 + 2 * top], in float64 where logits are, else in float32.

    ``log_softmax`` treats each row by itself. ``logsumexp`` would not: on the CPU it gives a single
    long row to several threads, and adds up their parts in another order.
    """
    rows = logits[at]
    if rows.element_size() < 4:
        rows = rows.float()
    values = torch.log_softmax(rows, -1)
    columns = [values.gather(-1, tokens[:, None])]
    if top:
        best = most_likely(rows, top)
        columns += [values.gather(-1, best), best.to(values.dtype)]
    return torch.cat(columns, -1)


def most_likely(rows: Tensor, count: int) -> Tensor:
    """The ids of the largest logits, [num_places, count], largest first; of equals the lower first.

    ``topk`` says which logits stay, but of equals it takes any; so ids are chosen by themselves.
    """
    vocab = rows.size(-1)
    cut = rows.topk(count).values[:, -1:]
    above, equal = rows > cut, rows == cut
    room = count - above.sum(-1, keepdim=True)
    inside = above | (equal & (equal.cumsum(-1) <= room))  # count of them in each row
    ranks = torch.arange(vocab, 0, -1, device=rows.device)
    ids = vocab - (inside * ranks).topk(count).values  # rising
    ids = ids.clamp(max=vocab - 1)  # where NaN leaves fewer than ``count``
    order = rows.gather(-1, ids).argsort(descending=True, stable=True)
    return ids.gather(-1, order)
