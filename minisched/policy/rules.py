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

    # -- who is admitted ---------------------------------------------------------------------------

    ask_again: str = rule(
        "left", "When is the queue asked again that memory or rows have refused (batch_is_full)?",
        left="when somebody who runs has left",
        every_step="at every step: what the cache has may have grown",
    )  # fmt: skip
    reserves: str = rule(
        "ratio", "What is kept back for those who run?",
        ratio="a share of what they may still say (new_token_ratio): who then finds no memory is "
        "retracted",
        rest="all that they may still say (mini-sglang, inflight_tokens): nobody is retracted",
        prompt="nothing; who comes needs pages for its prompt alone (nano-vllm)",
    )  # fmt: skip
    budget_counts: str = rule(
        "pages", "In what is the budget of a step paid?",
        pages="in whole pages",
        tokens="in tokens (mini-sglang)",
    )  # fmt: skip
    chunk_ends: str = rule(
        "page", "Where does a chunk end that is not the last?",
        page="with a page, as only whole pages can be shared",
        anywhere="anywhere, also within a page, so that the whole budget is used (mini-sglang)",
    )  # fmt: skip
    who_is_cut: str = rule(
        "anybody", "Whose prompt may be cut to what is left of the budget?",
        anybody="whoever comes when the rest is too small for it, the last of a batch",
        first="the first of a batch; the next one that does not fit whole waits (nano-vllm)",
    )  # fmt: skip
    too_long_alone: str = rule(
        "admitted", "What becomes of one whom the rules refuse though nobody else is there?",
        admitted="it runs alone: it fits, or it would not have been received",
        refused="it waits, and with it everybody behind it (SGLang); nothing may ever change that",
    )  # fmt: skip
    victim: str = rule(
        "fewest_outputs", "Who loses its memory when those who decode run out of it?",
        fewest_outputs="who has said least; among equals the longest prompt",
        newest="who began to decode last (nano-vllm)",
    )  # fmt: skip
    retracted_waits: str = rule(
        "behind", "Where does one wait who has lost its memory?",
        behind="behind all who wait, as if it came now",
        old_place="in its old place, ahead of all who came later",
    )  # fmt: skip

    # -- memory ------------------------------------------------------------------------------------

    free_rule: str = rule(
        "lease", "When does the memory of one who has ended go back?",
        lease="when every step that names it has come back",
        deferred="when the ongoing batch does not name it",
        at_once="at once",
    )  # fmt: skip
    evicts: str = rule(
        "ahead", "How much of the cache goes when memory is short?",
        ahead="a page more for every request of a step, where pages hold several tokens; and once "
        "somebody is retracted, until those who stay have room for 20 steps each",
        lacking="only what the next step lacks",
    )  # fmt: skip
    enters_cache: str = rule(
        "settled", "What of a request may enter the prefix cache?",
        settled="what a step has come back with: what a failed one has not written is never shared",
        launched="all that is launched (SGLang): a chunk once the next step is scheduled, and of "
        "one who ends the last token, too, if a step in flight computes it",
        known="all of whose tokens the host knows (mini-sglang), though its step may still run",
    )  # fmt: skip
    chunks_enter: str = rule(
        "each", "When does a chunk of a prompt enter the prefix cache?",
        each="each by itself",
        whole_prompt="with the last one, when all of the prompt has come back (mini-sglang)",
    )  # fmt: skip
    edges_end: str = rule(
        "prompt", "Where does an edge of the tree end?",
        prompt="where prefixes part, and where a prompt ends: its outputs can be given up alone",
        parting="where prefixes part (mini-sglang)",
    )  # fmt: skip
    length_frees: str = rule(
        "last_token", "When does one let go of its memory who ends by length?",
        last_token="when its last token has come back",
        last_launch="a step before, while the step of that token runs (mini-sglang's overlap); "
        "only with free_rule=at_once, as by the others memory waits for that step",
    )  # fmt: skip
    split_counts: str = rule(
        "both", "Which half of an edge counts as just used when a walk ends within it?",
        both="both (SGLang), and the upper one as newly made",
        neither="neither (mini-sglang)",
    )  # fmt: skip
    waiting_prefixes: str = rule(
        "refreshed", "Do prefixes that somebody waits for count as used, where the order of the "
        "queue does not look at the cache anyway?",
        refreshed="at every 32nd pass through the queue, where the least recently used goes first",
        stale="only once their request is asked",
    )  # fmt: skip

    prefix_cache: str = rule(
        "radix", "What finds the pages of a prefix?",
        radix="a radix tree; its leaves go whole, the least recently used first",
        blocks="the hash of each page's tokens and of all before them; pages go one by one, in the "
        "order in which they were let go",
    )  # fmt: skip

    block_line: str = rule(
        "hashed_last", "Which block is found of those with the same tokens, and which goes first "
        "(prefix_cache blocks)?",
        hashed_last="the first is found; those without a hash go before all others (vLLM)",
        one_line="the newest is found, and the others never again; all go in the order in which "
        "they were let go (nano-vllm)",
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


ONE_BUDGET = {
    "reserves": "prompt",
    "budget_counts": "tokens",
    "chunk_ends": "anywhere",
    "who_is_cut": "anybody",
    "too_long_alone": "refused",
}
"""How prompts are admitted under one budget, whatever the other answers are."""


def rules_of_admission(rules: Rules) -> Rules:
    """Return the rules with the answers that one budget decides, where they ask for one."""
    return replace(rules, **ONE_BUDGET) if rules.run_first == "unified" else rules


def answers(name: str) -> tuple[str, ...]:
    """Return the words that answer a question."""
    return tuple(Rules.__dataclass_fields__[name].metadata["answers"])


RUN_FIRST, FREE_RULES = answers("run_first"), answers("free_rule")

RULES: Mapping[str, Rules] = {
    "sglang": Rules(),
    "mini-sglang": Rules(
        ask_again="every_step",
        reserves="rest",
        budget_counts="tokens",
        chunk_ends="anywhere",
        evicts="lacking",
        chunks_enter="whole_prompt",
        edges_end="parting",
        split_counts="neither",
        waiting_prefixes="stale",
    ),
    "vllm": Rules(
        run_first="unified",
        ask_again="every_step",
        free_rule="at_once",
        prefix_cache="blocks",
        prompt_pages="scheduled",
        output_pages="running",
        retracted_waits="old_place",
        evicts="lacking",
        waiting_prefixes="stale",
    ),
    "nano-vllm": Rules(
        ask_again="every_step",
        reserves="prompt",
        budget_counts="tokens",
        chunk_ends="anywhere",
        who_is_cut="first",
        victim="newest",
        retracted_waits="old_place",
        free_rule="at_once",
        prefix_cache="blocks",
        block_line="one_line",
        output_pages="running",
        evicts="lacking",
        waiting_prefixes="stale",
    ),
}
"""By system."""


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
UNWRITTEN = (
    "a step that fails has not written it, and whoever found it would read what is not there"
)
DELIBERATE: Mapping[str, Mapping[str, Deliberate]] = {
    "sglang": {
        "free_rule": RACE,
        "enters_cache": Deliberate("launched", UNWRITTEN),
        "too_long_alone": Deliberate("refused", "it would wait for ever, and all behind it"),
    },
    "mini-sglang": {
        "free_rule": RACE,
        "enters_cache": Deliberate("known", UNWRITTEN),
        "length_frees": Deliberate("last_launch", "the step of its last token still reads it"),
    },
}
"""By system and rule; all else is as in the original, and ``minisched fidelity`` holds it to it."""


def chunk_problem(rules: Rules, size: int, page_size: int, is_mixed: bool) -> str:
    """Return why the rules forbid chunks of ``size`` tokens (-1: no limit), or nothing."""
    if rules.chunk_ends == "page" and size != -1 and size % page_size:
        return (
            f"chunked_prefill_size is {size}, but it must be a multiple of the page size, "
            f"{page_size}: only whole pages can be shared."
        )
    if is_mixed and size == -1:
        return "enable_mixed_chunk needs chunks, but chunked_prefill_size is -1 (no limit)."
    if is_mixed and rules.run_first != "prefill":
        return (
            f"enable_mixed_chunk adds decodes to prompts that run first, but run_first is "
            f"{rules.run_first!r}; it must be 'prefill'."
        )
    return ""
