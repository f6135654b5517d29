"""Pictures in Chinese: a scene's words by a table of patterns (``chinese.toml``).

A text is translated whole, or part by part between its stops, semicolons and commas. A text without
a pattern stays as it is: names of loops, relays and requests, and numbers.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from .scene import Scene

LANGUAGES = ("en", "zh")
KINDS = {"{n}": r"(-?[\d.]+)", "{name}": r"([\w:=-]+)"}
BREAKS = ((". ", "。"), ("; ", "；"), (", ", "，"))
NO_WORDS = ("kind", "data", "fills", "lang")  # fields of a scene's parts


@cache
def patterns() -> list[tuple[re.Pattern[str], str]]:
    """Return the table: each English pattern, and its words."""
    table = tomllib.loads(files(__package__).joinpath("chinese.toml").read_text(encoding="utf-8"))
    found = list[tuple[re.Pattern[str], str]]()
    for pattern, words in table.items():
        for kind, written in KINDS.items():
            pattern = pattern.replace(kind, written)
        found.append((re.compile(pattern), words))
    return found


def in_chinese(words: str) -> str:
    """Return a text in Chinese, as far as the table knows it."""
    for pattern, said in patterns():
        if found := pattern.fullmatch(words):
            return found.expand(said)
    for mark, sign in BREAKS:
        if mark in words:
            return sign.join(map(in_chinese, words.split(mark)))
    if "\n" in words:
        return "\n".join(map(in_chinese, words.split("\n")))
    return words


def in_language(words: str, lang: str) -> str:
    """Return a text in one of ``LANGUAGES``."""
    return in_chinese(words) if lang == "zh" else words


def translated(scene: Scene) -> Scene:
    """Return a scene with all its words in Chinese."""
    found: Scene = translated_part(scene)
    return replace(found, lang="zh")


def translated_part(part: Any) -> Any:
    """Return a part of a scene with its words in Chinese: a text, or anything that contains some.

    Keys of a mapping are kinds, and fields of ``NO_WORDS`` have none.
    """
    if isinstance(part, str):
        return in_chinese(part)
    if isinstance(part, Mapping):
        return {key: translated_part(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return type(part)(map(translated_part, part))
    if is_dataclass(part) and not isinstance(part, type):
        words = {
            field.name: translated_part(getattr(part, field.name))
            for field in fields(part)
            if field.name not in NO_WORDS
        }
        return replace(part, **words)
    return part
