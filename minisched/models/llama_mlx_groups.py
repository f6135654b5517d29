"""Which rows of a batch attend together on MLX: neighbours of one extent and of near length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .equal_extent import Run, equal_extents

PADDING = 256  # positions: these take as long in all layers as another group does


def make_groups(
    prefix_lens: Sequence[int], extend_lens: Sequence[int], padding: int | None
) -> Iterator[Run]:
    """Those with one extent (``equal_extent.py``), in groups that look at little in vain.

    A group attends as far as its longest row reaches: what its shorter rows read beyond their ends
    is at most ``padding`` positions, all together. None is for a GPU, which is better off with few
    large groups. The bits are the same.
    """
    for run in equal_extents(extend_lens):
        if padding is None:
            yield run
        else:
            yield from _of_near_length(run, prefix_lens[run.rows], padding)


def _of_near_length(run: Run, prefix_lens: Sequence[int], padding: int) -> Iterator[Run]:
    first = total = longest = 0
    for at, length in enumerate(prefix_lens):
        widest = max(longest, length)
        if widest * (at + 1 - first) - (total + length) > padding:
            yield _part(run, first, at)
            first, total, widest = at, 0, length
        total, longest = total + length, widest
    yield _part(run, first, len(prefix_lens))


def _part(run: Run, first: int, end: int) -> Run:
    """Some of a run's rows."""
    rows = slice(run.rows.start + first, run.rows.start + end)
    begin = run.tokens.start
    tokens = slice(begin + first * run.extend_len, begin + end * run.extend_len)
    return Run(rows, tokens, run.extend_len)
