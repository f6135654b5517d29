"""Which tokens of a batch attend together on torch: all that can, or as many as fit a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from .equal_extent import equal_extents
from .llama_torch_attention import BLOCK, Group

CACHE = 3 << 19  # bytes of KV gathered at once: with what is computed of it, a core's cache
QUERIES = 64  # positions of a prompt that attend together, for the same reason


def bytes_each(keys: Tensor) -> int | None:
    """Bytes of a position's keys and values, in one layer of keys [layers, slots, kv_heads, d].

    None on a GPU.
    """
    return 2 * keys[0, 0].nbytes if keys.device.type == "cpu" else None


def make_groups(
    prefix_lens: Sequence[int], extend_lens: Sequence[int], bytes_each: int | None
) -> list[Group]:
    """How rows attend: those with one extent together (``equal_extent.py``).

    On a processor with caches only so many attend at once that what they gather and compute stays
    in one; ``bytes_each`` are those of a position's KV. None is for a GPU, which is better off with
    few large groups. Each group looks as far as its longest row, or its part of a prompt, reaches;
    further, where the host only knows how long a row is at most. The bits are the same.
    """
    groups: list[Group] = []
    for run in equal_extents(extend_lens):
        prefixes = prefix_lens[run.rows]
        whole = Group(run.tokens.start, len(prefixes), run.extend_len, 0)
        if bytes_each is None:
            groups.append(_look(whole, prefixes))
        elif len(prefixes) == 1:
            groups += _parts_of_a_prompt(whole, prefixes[0])
        else:
            groups += _few_rows(whole, prefixes, CACHE // bytes_each)
    return groups


def _parts_of_a_prompt(whole: Group, prefix_len: int) -> Iterator[Group]:
    for at in range(0, whole.extend_len, QUERIES):
        part = whole._replace(
            first=whole.first + at, extend_len=min(QUERIES, whole.extend_len - at)
        )
        yield _look(part, [prefix_len + at])


def _few_rows(whole: Group, prefix_lens: Sequence[int], positions: int) -> Iterator[Group]:
    count = max(1, positions // _look(whole, prefix_lens).window)
    for at in range(0, whole.num_rows, count):
        prefixes = prefix_lens[at : at + count]
        first = whole.first + at * whole.extend_len
        yield _look(whole._replace(first=first, num_rows=len(prefixes)), prefixes)


def _look(group: Group, prefix_lens: Sequence[int]) -> Group:
    """The group with a window that covers its longest row."""
    end = max(prefix_lens) + group.extend_len
    return group._replace(window=-(-end // BLOCK) * BLOCK)
