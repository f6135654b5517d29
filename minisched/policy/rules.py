"""The rules of each system, side by side: where the published schedulers differ, and how.

Lengths, leases, budgets and batches are the same code for all. What differs is a choice here and
there, and each is one field below: a question, and a word for every answer that somebody gives. A
system is one answer to each. ``minisched fidelity`` runs them beside the originals' own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


def rule(default: str, question: str, **answers: str) -> Any:
    """A field of ``Rules``: SGLang's answer, what is asked, and what each answer means."""
    return field(default=default, metadata={"question": question, "answers": answers})


@dataclass(frozen=True)
class Rules:
    """One answer to every question; the defaults are SGLang's (0.5.23).

    Raises:
        ValueError: there is no such answer; the sentence lists those that there are.
    """

    # -- who runs ----------------------------------------------------------------------------------

    run_first: str = rule(
        "prefill", "Who runs first?",
        prefill="prompts, whenever one can be admitted",
        decode="those who decode, while anybody can",
        unified="both, from one budget of tokens",
    )  # fmt: skip

    # -- memory ------------------------------------------------------------------------------------

    free_rule: str = rule(
        "lease", "When does the memory of one who has ended go back?",
        lease="when every step that names it has come back",
        deferred="when the ongoing batch does not name it",
        at_once="at once",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for item in fields(self):
            answer, answers = getattr(self, item.name), item.metadata["answers"]
            if answer not in answers:
                known = ", ".join(answers)
                raise ValueError(f"rule {item.name} is {answer!r}, but it must be one of {known}.")


RUN_FIRST = tuple(Rules.__dataclass_fields__["run_first"].metadata["answers"])

RULES: Mapping[str, Rules] = {
    "sglang": Rules(),
    "mini-sglang": Rules(),
    "vllm": Rules(run_first="unified", free_rule="at_once"),
    "nano-vllm": Rules(),
    "minisched": Rules(),
}
"""By system; ``minisched`` has this project's own answers, where it thinks them better."""


def find_rules(text: str) -> Rules:
    """The rules of a system, or those with some answers changed: ``sglang,free_rule=at_once``.

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


@dataclass(frozen=True)
class Deliberate:
    """Where a preset does not answer as its original does: the original's answer, and why not."""

    answer: str
    reason: str


RACE = Deliberate(
    "at_once", "a step in flight may still write what is given away: a race on two streams"
)
DELIBERATE: Mapping[str, Mapping[str, Deliberate]] = {
    "sglang": {"free_rule": RACE},
    "mini-sglang": {"free_rule": RACE},
}
"""By system and rule; all else is as in the original, and ``minisched fidelity`` holds it to it."""
