"""The tokens and pages between a radix tree's node and its parent."""

from __future__ import annotations

from collections.abc import Sequence


class Edge:
    """Whole pages in a row: the tokens that they hold, and their page ids.

    Both are kept flat (SGLang's ``TreeNode.key`` and ``value``): with a tuple for every page, a
    match at pages of one token takes three times as long. When the front is cut off, what stays
    is not moved: it begins at ``start``, and is copied only once the dead front has outgrown it.
    So a cut costs what is cut, and dead tokens never outnumber live ones.
    """

    __slots__ = ("page_size", "pages", "start", "tokens")

    def __init__(self, tokens: Sequence[int], pages: Sequence[int], page_size: int) -> None:
        self.tokens = tuple(tokens)  # [(start + num_pages) * page_size]
        self.pages = list(pages)  # [start + num_pages]
        self.page_size = page_size
        self.start = 0  # pages at the front that were cut off

    @property
    def num_pages(self) -> int:
        """Pages on the edge."""
        return len(self.pages) - self.start

    @property
    def page_ids(self) -> list[int]:
        """The pages themselves, in order."""
        return self.pages[self.start :]

    @property
    def first_page(self) -> tuple[int, ...]:
        """The tokens of the first page, by which the parent finds this edge."""
        at = self.start * self.page_size
        return self.tokens[at : at + self.page_size]

    @property
    def beginning(self) -> str:
        """The first eight tokens, for the trace; `` …`` where there are more."""
        at = self.start * self.page_size
        more = ["…"] if len(self.tokens) > at + 8 else []
        return " ".join([*map(str, self.tokens[at : at + 8]), *more])

    def shared_pages(self, tokens: Sequence[int], offset: int) -> int:
        """How many pages of the edge ``tokens[offset:]`` begins with.

        Compares blocks that double while they are equal and halve once they differ: at the speed
        of a tuple comparison, and at a cost that grows with the answer, not with the edge.
        """
        size, here = self.page_size, self.start * self.page_size
        end = min(self.num_pages, (len(tokens) - offset) // size)
        done, step = 0, 4
        while done < end:
            stop = min(done + step, end)
            low, high = done * size, stop * size
            theirs = tuple(tokens[offset + low : offset + high])
            if self.tokens[here + low : here + high] == theirs:
                done, step = stop, 2 * step
            elif stop == done + 1:
                break
            else:
                step = (stop - done) // 2
        return done

    def cut(self, num_pages: int) -> Edge:
        """Take that many pages off the front, and return them as an edge of their own."""
        begin, middle, size = self.start, self.start + num_pages, self.page_size
        front = Edge(self.tokens[begin * size : middle * size], self.pages[begin:middle], size)
        self.start = middle
        if middle > self.num_pages:
            self.tokens, self.pages = self.tokens[middle * size :], self.pages[middle:]
            self.start = 0
        return front
