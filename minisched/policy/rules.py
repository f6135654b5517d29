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

    newcomer_fits: str = rule(
        "chunk", "What of a newcomer must find memory (run_first unified)?",
        chunk="what of it is computed in its first step",
        sequence="all its tokens: the scheduler_reserve_full_isl of vLLM",
    )  # fmt: skip

    chunk_lacks_pages: str = rule(
        "cut", "What of a prompt's next chunk that memory does not reach for (run_first unified)?",
        cut="it is cut to what there is",
        preempt="its request gives way, as the newest of those who run",
    )  # fmt: skip

    plans_again: str = rule(
        "yes", "Is a step planned again that is empty, because somebody had to give way?",
        yes="yes: there may be room now for whom they gave way to",
        no="no: it stays empty, and nobody is admitted in a step that preempts",
    )  # fmt: skip

    asks_again: str = rule(
        "changed", "When is memory asked for again, once it has been refused?",
        changed="when some has come back, or somebody has come or left",
        every_step="in every step: what the cache has may have grown",
    )  # fmt: skip

    # -- memory ------------------------------------------------------------------------------------

    free_rule: str = rule(
        "lease", "When does the memory of one who has ended go back?",
        lease="when every step that names it has come back",
        deferred="when the ongoing batch does not name it",
        at_once="at once",
    )  # fmt: skip

    prefix_cache: str = rule(
        "radix", "What finds the pages of a prefix?",
        radix="a radix tree; its leaves go whole, the least recently used first",
        blocks="the hash of each page's tokens and of all before them; pages go one by one, in the "
        "order in which they were let go",
    )  # fmt: skip

    prompt_pages: str = rule(
        "settled", "When are a prompt's whole pages shared?",
        settled="when their step has come back",
        scheduled="when their step is planned: the next one in it may read them (with blocks)",
    )  # fmt: skip

    output_pages: str = rule(
        "end", "When are whole pages of outputs shared?",
        end="when their request has ended",
        running="while it runs, so they outlive its preemption",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for item in fields(self):
            answer, answers = getattr(self, item.name), item.metadata["answers"]
            if answer not in answers:
                known = ", ".join(answers)
                raise ValueError(f"rule {item.name} is {answer!r}, but it must be one of {known}.")
        if self.prompt_pages == "scheduled" and self.prefix_cache == "radix":
            raise ValueError(
                "rule prompt_pages is 'scheduled', but then prefix_cache must be 'blocks': a radix "
                "tree cannot take back what a failed step has not written."
            )


RUN_FIRST = tuple(Rules.__dataclass_fields__["run_first"].metadata["answers"])

RULES: Mapping[str, Rules] = {
    "sglang": Rules(),
    "mini-sglang": Rules(),
    "vllm": Rules(
        run_first="unified", newcomer_fits="sequence", chunk_lacks_pages="preempt",
        plans_again="no", asks_again="every_step", free_rule="at_once", prefix_cache="blocks",
        prompt_pages="scheduled", output_pages="running",
    ),
    "nano-vllm": Rules(
        newcomer_fits="sequence", asks_again="every_step", free_rule="at_once",
        prefix_cache="blocks", output_pages="running",
    ),
    "minisched": Rules(),
}  # fmt: skip
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
