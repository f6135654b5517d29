"""A letter for every phase and op, in the texts for a terminal: the host's small, ops' large."""

from __future__ import annotations

LETTERS = {
    "schedule": "s", "prepare": "p", "fill": "f", "mask": "m", "launch": "l",
    "launch sample": "a", "verify": "v", "wait": "·", "postprocess": "t", "process": "x",
    "output": "o", "send": "n", "receive": "r", "advance step": "e",
    "forward": "F", "sample": "S", "copy": "C", "recv": "R", "transfer": "T", "upload": "U",
    "draft": "D",
}  # fmt: skip
OTHER = "?"


def letter(name: str) -> str:
    """The letter of a phase or op; one that later designs add has none of its own."""
    return LETTERS.get(name, OTHER)


def letters_of(names: list[str]) -> str:
    """What the letters of these names mean, with spaces that hold each entry together."""
    return "   ".join(f"{letter(name)}\N{NO-BREAK SPACE}{name}" for name in dict.fromkeys(names))
