"""Reads the JSON of a Chrome trace event by event, so that a large one need not be held whole.

A file of 200 MB has 600,000 events. As a list of dictionaries they take ten times the file; one at
a time they take nothing, and whoever reads them keeps what he needs.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from io import BufferedIOBase
from typing import Any

PIECE = 1 << 18  # bytes that are read at once; a value longer than that is read in more
NOT_OVER = 3  # characters at the end with which a number may go on: 1.5e-
SPACE = re.compile(r"[ \t\n\r]*")
EVENTS = "traceEvents"


class Damaged(ValueError):
    """It is not JSON; the message says why, and at which character."""


class JsonEvents:
    """The members of the list ``traceEvents``, or of the whole file where that is a list.

    It can be iterated over once. ``about`` has what else the object holds, as far as it was read;
    ``has_events`` says whether there was such a list.

    Raises:
        Damaged: while iterating.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        self.about: dict[str, Any] = {}
        self.has_events = False
        self._file = file
        self._decoder: codecs.IncrementalDecoder | None = None
        self._text, self._at, self._gone = "", 0, 0  # what is held, and what was before it
        self._decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._whole()
            if self._peek():
                raise self._damage("Extra data")
        except UnicodeDecodeError as error:
            raise Damaged(f"{error.reason} after character {self._gone + self._at}") from None
        except RecursionError:
            raise Damaged("its brackets are nested too deeply") from None

    def _whole(self) -> Iterator[Any]:
        first = self._peek()
        if first == "[":
            yield from self._list()
        elif first != "{":
            self._value()
        elif self._next_is("{", "}"):
            while True:
                name = self._value() if self._peek() == '"' else None
                if name is None:
                    raise self._damage("Expecting property name enclosed in double quotes")
                if self._peek() != ":":
                    raise self._damage("Expecting ':' delimiter")
                self._at += 1
                if name == EVENTS and self._peek() == "[":
                    yield from self._list()
                else:
                    self.about[name] = self._value()
                if not self._goes_on("}"):
                    return

    def _list(self) -> Iterator[Any]:
        self.has_events = True
        if self._next_is("[", "]"):
            while True:
                yield self._value()
                if not self._goes_on("]"):
                    return

    def _next_is(self, opens: str, closes: str) -> bool:
        """Go into a bracket; whether anything is in it."""
        assert self._peek() == opens
        self._at += 1
        if self._peek() != closes:
            return True
        self._at += 1
        return False

    def _goes_on(self, closes: str) -> bool:
        """Whether a comma comes, or else what closes the bracket."""
        found = self._peek()
        if found not in (",", closes):
            raise self._damage("Expecting ',' delimiter")
        self._at += 1
        return found == ","

    def _value(self) -> Any:
        """The value that comes next, whatever it is."""
        self._peek()
        while True:
            try:
                found, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                at, said = error.pos + self._gone, error.msg
                if not self._more():
                    raise Damaged(f"{said} at character {at + 1}") from None
                continue
            is_cut = end + NOT_OVER >= len(self._text) and isinstance(found, int | float)
            if is_cut and self._more():
                continue
            self._at = end
            return found

    def _peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            match = SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read on, twice as much each time that it was not enough; whether there was any more."""
        piece = self._file.read(max(PIECE, len(self._text) - self._at))
        if self._decoder is None:
            encoding = json.detect_encoding(piece)
            self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        text = self._decoder.decode(piece, final=not piece)
        if not piece:
            return False
        self._gone += self._at
        self._text, self._at = self._text[self._at :] + text, 0
        return True

    def _damage(self, what: str) -> Damaged:
        return Damaged(f"{what} at character {self._gone + self._at + 1}")
