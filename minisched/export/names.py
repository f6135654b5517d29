"""Texts by number, so that a page carries each of them once."""

from __future__ import annotations


class Names(dict[str, int]):
    """Numbers texts in the order in which they are first asked for; 0 is the empty text."""

    def __init__(self) -> None:
        super().__init__({"": 0})
        self.groups: list[list[int]] = [[]]  # lists of texts, 0 is the empty one
        self._known: dict[tuple[str, ...], int] = {(): 0}

    def number(self, text: str) -> int:
        """The place of ``text`` in the page's list of names."""
        return self.setdefault(text, len(self))

    def group(self, texts: tuple[str, ...]) -> int:
        """The place of several texts in the page's list of groups."""
        if texts not in self._known:
            self._known[texts] = len(self.groups)
            self.groups.append([self.number(text) for text in texts])
        return self._known[texts]
