"""The systems by name: each one's rules and deliberate differences are in its own file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from . import mini_sglang, nano_vllm, sglang, vllm
from .rules import Deliberate, Rules

FILES = {"sglang": sglang, "mini-sglang": mini_sglang, "vllm": vllm, "nano-vllm": nano_vllm}
RULES: Mapping[str, Rules] = {name: file.RULES for name, file in FILES.items()}
DELIBERATE: Mapping[str, Mapping[str, Deliberate]] = {
    name: file.DELIBERATE for name, file in FILES.items()
}
"""By system and rule. All other answers are the original's, as ``minisched fidelity`` checks."""


def find_rules(text: str) -> Rules:
    """Return a system's rules, maybe with answers changed: ``sglang,free_rule=at_once``.

    Raises:
        ValueError: there is no such system, rule or answer.
    """
    system, *changes = text.split(",")
    if system not in RULES:
        known = ", ".join(RULES)
        raise ValueError(f"rules are {system!r}, but they must be those of one of {known}.")
    answers = dict(change.partition("=")[::2] for change in changes)
    for name in answers:
        if name not in Rules.__dataclass_fields__:
            known = ", ".join(Rules.__dataclass_fields__)
            raise ValueError(f"there is no rule {name!r}; the rules are {known}.")
    return replace(RULES[system], **answers)
