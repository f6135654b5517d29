"""Log-probabilities from logits on torch tensors, as ``logprobs.py`` has them on lists.

``log_softmax`` treats each row by itself. ``logsumexp`` would not: on the CPU it gives a single
long row to several threads, and adds up their parts in another order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def logprobs(logits: Tensor, at: Tensor, tokens: Tensor, top: int) -> Tensor:
    """How likely each of ``tokens`` [num_places] is, by the logits ``at`` [num_places].

    [num_places, 1 + 2 * top] in float32, or float64 where the logits are: its log-probability,
    those of the ``top`` most likely tokens, and their ids.
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
