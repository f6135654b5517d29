"""The attributes of marks with known names: their types, and their form in a file.

In memory, numbers and names are tuples. They are texts only in a file: ``to_value`` of
``record.py`` writes them, and ``parse`` reads them.

The README of the folder ``traces`` has the same table. Names that are not in it are free, and so
are more attributes than those.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

from ..record import Mark, Slice, Value, to_value

TEXT, TEXTS, NUMBER, NUMBERS, SIGNED = "text", "texts", "number", "numbers", "signed numbers"
POSITIVE, REASON, DELTA = "positive", "reason", "delta"
KINDS: dict[str, tuple[type, str, str]] = {  # type, pattern, and the words for both
    TEXT: (str, "", "a text"),
    TEXTS: (str, "", "a text of names, as in 'a b'"),
    NUMBER: (int, "", "a whole number"),
    NUMBERS: (str, r"[0-9 ]*", "a text of whole numbers, as in '4 5 9'"),
    SIGNED: (str, r"(-?[0-9]+( +|$))*", "a text of whole numbers, as in '-1 0 2'"),
    POSITIVE: (int, r"0*[1-9][0-9]*", "a whole number above 0"),
    REASON: (str, "stop|length|abort|error", "stop, length, abort or error"),
    DELTA: (int, "-?1", "1 or -1"),
}
MOST_DIGITS = 4000  # Python reads no longer numbers
SCALARS = frozenset(Value.__args__)
KNOWN: dict[str, dict[str, str]] = {
    "row alloc": {"row": NUMBER, "rid": TEXT},
    "row free": {"row": NUMBER},
    "row hold": {"row": NUMBER},
    "row let go": {"row": NUMBER},
    "kv pool": {"page_size*": POSITIVE, "pages*": POSITIVE, "rows*": POSITIVE},
    "page alloc": {"rid": TEXT, "row": NUMBER, "pages": NUMBERS},
    "page disown": {"pages": NUMBERS},
    "page free": {"pages": NUMBERS},
    "radix add": {"node": NUMBER, "page_ids": NUMBERS},
    "radix split": {"node": NUMBER, "child": NUMBER, "pages": NUMBER},
    "radix evict": {"node": NUMBER},
    "block add": {"pages": NUMBERS},
    "block evict": {"pages": NUMBERS},
    "block forget": {"pages": NUMBERS},
    "block lock": {"pages": NUMBERS, "delta": DELTA},
    "insert": {"rid": TEXT},
    "radix lock": {"node": NUMBER, "delta": DELTA},
    "commit": {"step": NUMBER, "rows": NUMBERS, "chunks*": NUMBERS},
    "future slots": {"step": NUMBER, "slots": NUMBERS, "reads": NUMBERS},
    "tokens": {"step": NUMBER, "rids": TEXTS, "tokens": NUMBERS},
    "stale output": {"step": NUMBER, "rid": TEXT},
    "last launch": {"rid": TEXT},
    "finish": {"rid": TEXT, "reason": REASON, "outputs*": NUMBER},
    "refused": {"rid": TEXT},
    "clip": {"rid": TEXT, "max_new_tokens": NUMBER},
    "retraction": {"rid": TEXT},
    "stopped": {"error": TEXT},
    "loop source": {"loop": TEXT, "path": TEXT, "first_line": NUMBER, "text": TEXT},
    "row length": {"page table*": NUMBER, "token pool*": NUMBER},
    "placeholder fill": {"step": NUMBER, "rows": SIGNED},
    "lazy tokens": {"step": NUMBER, "source": NUMBER, "places": NUMBERS},
    "wrong token": {"step": NUMBER, "rid": TEXT, "source": NUMBER, "reader": NUMBER,
                    "got*": NUMBER, "needs*": NUMBER},
    "wait": {"step*": NUMBER, "reason*": TEXT, "op*": TEXT},
    "admit": {"rid": TEXT, "extend_len*": NUMBER},
    "match": {"rid": TEXT, "prompt_len*": NUMBER},
    "verified": {"drafts": NUMBER, "accepted": NUMBER},
    "queue order": {"rids*": TEXTS},
    "prev sampled": {"targets*": NUMBERS, "sources*": NUMBERS},
    "token pool": {"rows*": NUMBERS, "uploads*": SIGNED, "starts*": NUMBERS, "ends*": SIGNED,
                   "writes*": SIGNED},
    "request state": {"slots*": NUMBERS, "starts*": NUMBERS, "sent*": NUMBERS},
    "beams": {"step": NUMBER, "rid": TEXT, "length": NUMBER, "rows": NUMBERS, "parents": NUMBERS,
              "tokens": NUMBERS},
    "ledger": {"after": TEXT, "step": NUMBER, "rids": TEXTS, "lengths": NUMBERS, "tokens": SIGNED},
    "context": {"step": NUMBER, "rids": TEXTS, "seq_lens": NUMBERS, "finished": TEXTS},
    "grammar mask": {"allowed*": NUMBERS},
    "grammar accept": {"tokens*": NUMBERS},
}  # fmt: skip
"""Attributes by mark, each with its kind; an attribute with a star may be left out."""
COMMON = {"side*": TEXT}  # of a mark of any name
PARSERS: dict[str, Callable[[str], tuple[Any, ...]]] = {
    NUMBERS: lambda text: tuple(map(int, text.split())),
    SIGNED: lambda text: tuple(map(int, text.split())),
    TEXTS: lambda text: tuple(map(unquote, text.split())),
}
PARSED = {  # by mark: each attribute that is a text in a file, and its parser
    mark: [(it.removesuffix("*"), PARSERS[kind]) for it, kind in attrs.items() if kind in PARSERS]
    for mark, attrs in KNOWN.items()
}


class BadMark(ValueError):
    """A damaged mark; the message begins with its place: ``marks[17], a 'finish', ...``."""


def in_file(mark: Mark) -> dict[str, Value]:
    """Return the attributes of a mark as a file has them."""
    return {name: to_value(value) for name, value in mark.attrs.items()}


def parse(marks: Iterable[Mark]) -> None:
    """Read the texts of marks that a file contains, after ``check_events``."""
    for mark in marks:
        for name, read in PARSED.get(mark.name, ()):
            if name in mark.attrs:
                mark.attrs[name] = read(mark.attrs[name])


def check_events(slices: Iterable[Slice], marks: Iterable[Mark]) -> None:
    """Check that attributes are numbers and texts, and that a mark has those of its name.

    A mark is no earlier than its side's last.

    Raises:
        BadMark: see the README of the folder ``traces``.
    """
    for item in slices:
        if wrong := _wrong_value(item.attrs, {}):
            raise BadMark(f"slice {item.id} {wrong}")
    newest: dict[Value, tuple[int, int]] = {}  # by side: time and index
    for index, mark in enumerate(marks):
        wrong = _wrong_value(mark.attrs, {**COMMON, **KNOWN.get(mark.name, {})})
        if mark.name == "tokens" and not wrong:
            texts = (str(to_value(mark.attrs[name])) for name in ("rids", "tokens"))
            rids, tokens = (len(text.split()) for text in texts)
            wrong = "" if rids == tokens else f"has {rids} rids, but {tokens} tokens"
        side = mark.attrs.get("side", "") if not wrong else ""
        time, before = newest.get(side, (mark.time, index))
        if mark.time < time:
            wrong = wrong or f"is at {mark.time}, before marks[{before}], which is at {time}"
        if wrong:
            article = "an" if mark.name[:1] in tuple("aeiou") else "a"
            raise BadMark(f"marks[{index}], {article} {mark.name!r}, {wrong}")
        newest[side] = mark.time, index


def _wrong_value(attrs: dict[str, Any], known: dict[str, str]) -> str:
    """Return the problem of attributes, some of which are ``known``; empty: there is none."""
    for starred, kind in known.items():
        name, (wanted, pattern, what) = starred.removesuffix("*"), KINDS[kind]
        if name not in attrs:
            if name == starred:
                return f"lacks {name!r}"
            continue
        value = to_value(attrs[name])
        text = str(value) if pattern else ""
        is_long = len(text) > MOST_DIGITS and max(map(len, text.split())) > MOST_DIGITS
        if type(value) is not wanted or is_long or not re.fullmatch(pattern or "", text):
            return f"has {name} = {json.dumps(value)[:60]}, but it must be {what}"
    for name, value in attrs.items():
        if type(to_value(value)) not in SCALARS:
            return f"has {name} = {json.dumps(value)[:60]}, but it must be a number or a text"
    return ""
