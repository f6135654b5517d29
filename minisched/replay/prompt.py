"""A prompt that is never written out: blocks of equal tokens, made into tokens where asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import overload


class BlockPrompt(Sequence[int]):
    """A sequence of ``length`` tokens of which each block repeats one id.

    The scheduler only asks whether tokens are equal, and a block's tokens equal another's exactly
    where their hash ids do: so a block's id can stand for each of its tokens. 100,000 tokens take
    196 ids, and a slice is made at the speed of copying.
    """

    __slots__ = ("block", "ids", "length")

    def __init__(self, ids: tuple[int, ...], length: int, block: int) -> None:
        self.ids = ids  # [ceil(length / block)]
        self.length = length
        self.block = block  # tokens to an id; the last one may have fewer

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        """One token, or a tuple of them."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self.length)
            tokens = self._tokens(start, stop) if step > 0 else self._tokens(stop + 1, start + 1)
            return tokens if step == 1 else tokens[::step]
        if not -self.length <= index < self.length:
            raise IndexError(f"index {index} is outside a prompt of {self.length} tokens")
        return self.ids[index % self.length // self.block]

    def __iter__(self) -> Iterator[int]:
        """Every token, at the speed of ``itertools``: the scheduler looks for the highest."""
        last = self.length - (len(self.ids) - 1) * self.block
        counts = chain(repeat(self.block, len(self.ids) - 1), (last,))
        return chain.from_iterable(map(repeat, self.ids, counts))

    def _tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """The tokens from ``start`` to before ``stop``."""
        if start >= stop:
            return ()
        first, last = start // self.block, (stop - 1) // self.block
        if first == last:
            return (self.ids[first],) * (stop - start)
        tokens = [self.ids[first]] * ((first + 1) * self.block - start)
        for token in self.ids[first + 1 : last]:
            tokens += [token] * self.block
        tokens += [self.ids[last]] * (stop - last * self.block)
        return tuple(tokens)
