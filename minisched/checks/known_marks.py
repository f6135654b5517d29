"""What marks of known names have to say, so that whoever reads a file's marks can rely on it.

The README of the folder ``traces`` has the same table. Names that are not in it are free, and so
are more attributes than those.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ..trace.events import Mark, Slice, Value

TEXT, NUMBER, NUMBERS, SIGNED = "text", "number", "numbers", "signed numbers"
TYPES: dict[str, type] = {TEXT: str, NUMBER: int, NUMBERS: str, SIGNED: str}
LISTS = {
    NUMBERS: re.compile(r"[0-9 ]*").fullmatch,
    SIGNED: re.compile(r"(-?[0-9]+( +|$))*").fullmatch,
}
MOST_DIGITS = 4000  # Python reads no longer numbers
MUST_BE = {
    TEXT: "a text",
    NUMBER: "a whole number",
    NUMBERS: "a text of whole numbers, as in '4 5 9'",
    SIGNED: "a text of whole numbers, as in '-1 0 2'",
}
SCALARS = frozenset(Value.__args__)
KNOWN: dict[str, dict[str, str]] = {
    "row alloc": {"row": NUMBER, "rid": TEXT},
    "row free": {"row": NUMBER},
    "row hold": {"row": NUMBER},
    "row let go": {"row": NUMBER},
    "kv pool": {"page_size*": NUMBER},
    "page alloc": {"rid": TEXT, "row": NUMBER, "pages": NUMBERS},
    "page disown": {"pages": NUMBERS},
    "page free": {"pages": NUMBERS},
    "radix add": {"node": NUMBER, "page_ids": NUMBERS},
    "radix split": {"node": NUMBER, "child": NUMBER, "pages": NUMBER},
    "radix evict": {"node": NUMBER},
    "block add": {"pages": NUMBERS},
    "block evict": {"pages": NUMBERS},
    "block lock": {"pages": NUMBERS, "delta": NUMBER},
    "insert": {"rid": TEXT},
    "radix lock": {"node": NUMBER, "delta": NUMBER},
    "commit": {"step": NUMBER, "rows": NUMBERS, "chunks*": NUMBERS},
    "future slots": {"step": NUMBER, "slots": NUMBERS, "reads": NUMBERS},
    "tokens": {"step": NUMBER, "rids": TEXT, "tokens": NUMBERS},
    "stale output": {"step": NUMBER, "rid": TEXT},
    "finish": {"rid": TEXT, "reason": TEXT},
    "refused": {"rid": TEXT},
    "retraction": {"rid": TEXT},
    "stopped": {"error": TEXT},
    "row length": {"page table*": NUMBER, "token pool*": NUMBER},
    "placeholder fill": {"step": NUMBER, "rows": SIGNED},
    "lazy tokens": {"step": NUMBER, "source": NUMBER, "places": NUMBERS},
    "wrong token": {
        "step": NUMBER,
        "rid": TEXT,
        "source": NUMBER,
        "reader": NUMBER,
        "got*": NUMBER,
        "needs*": NUMBER,
    },
    "wait": {"step*": NUMBER, "reason*": TEXT, "op*": TEXT},
    "match": {"rid": TEXT, "prompt_len*": NUMBER},
    "verified": {"drafts": NUMBER, "accepted": NUMBER},
}
"""By mark its attributes, each with its kind; one whose name ends in a star may be left out."""
COMMON = {"side*": TEXT}  # whatever the mark's name


class BadMark(ValueError):
    """What is wrong, in a few words that begin with its place: ``marks[17], a 'finish', ...``."""


def check_slices(slices: Iterable[Slice]) -> None:
    """Look at the attributes of slices: they are numbers and texts.

    Raises:
        BadMark: one is neither.
    """
    for item in slices:
        if item.attrs and not SCALARS.issuperset(map(type, item.attrs.values())):
            raise BadMark(f"slice {item.id} {_wrong_values(item.attrs)}")


def check_marks(marks: Iterable[Mark]) -> None:
    """Look at each mark: it says what its name promises, and is no earlier than its side's last.

    Marks of one name, with attributes of the same names and types, are looked at once; after
    that, only their lists are.

    Raises:
        BadMark: see the README of the folder ``traces``.
    """
    lists: dict[tuple[object, ...], list[tuple[str, str]]] = {}  # by shape: attribute and kind
    newest: dict[Value, tuple[int, int]] = {}  # by side: time and index
    for index, mark in enumerate(marks):
        shape = (mark.name, *mark.attrs, *map(type, mark.attrs.values()))
        wrong = ""
        if shape not in lists:
            wrong = _wrong_values(mark.attrs) or _wrong_kinds(mark)
            lists[shape] = [item for item in _kinds(mark) if item[1] in LISTS]
        wrong = wrong or (_wrong_lists(mark, lists[shape]) if lists[shape] else "")
        side = mark.attrs.get("side", "") if not wrong else ""
        time, before = newest.get(side, (mark.time, index))
        if mark.time < time:
            wrong = wrong or f"is at {mark.time}, before marks[{before}], which is at {time}"
        if wrong:
            article = "an" if mark.name[:1] in tuple("aeiou") else "a"
            raise BadMark(f"marks[{index}], {article} {mark.name!r}, {wrong}")
        newest[side] = mark.time, index


def _kinds(mark: Mark) -> list[tuple[str, str]]:
    """The attributes that a mark has of those that are known, each with its kind."""
    known = {**COMMON, **KNOWN.get(mark.name, {})}
    plain = ((name.removesuffix("*"), kind) for name, kind in known.items())
    return [(name, kind) for name, kind in plain if name in mark.attrs]


def _wrong_values(attrs: dict[str, Value]) -> str:
    """What is wrong with attributes, whatever they are called; empty: nothing."""
    wrong = (name for name, value in attrs.items() if type(value) not in SCALARS)
    for name in wrong:
        return f"has {name} = {_shown(attrs[name])}, but it must be a number or a text"
    return ""


def _wrong_kinds(mark: Mark) -> str:
    """An attribute that is missing, or of another type; empty: none."""
    for name in KNOWN.get(mark.name, {}):
        if name not in mark.attrs and not name.endswith("*"):
            return f"lacks {name!r}"
    for name, kind in _kinds(mark):
        if type(mark.attrs[name]) is not TYPES[kind]:
            return f"has {name} = {_shown(mark.attrs[name])}, but it must be {MUST_BE[kind]}"
    return ""


def _wrong_lists(mark: Mark, lists: list[tuple[str, str]]) -> str:
    """A list that has something else than numbers, or of another length; empty: none."""
    of = mark.attrs
    for name, kind in lists:
        text = str(of[name])
        if not LISTS[kind](text) or (
            len(text) > MOST_DIGITS and max(map(len, text.split()), default=0) > MOST_DIGITS
        ):
            return f"has {name} = {_shown(of[name])}, but it must be {MUST_BE[kind]}"
    if mark.name == "tokens":
        rids, tokens = (len(str(of[name]).split()) for name in ("rids", "tokens"))
        return "" if rids == tokens else f"has {rids} rids, but {tokens} tokens"
    return ""


def _shown(value: object) -> str:
    return json.dumps(value)[:60]
