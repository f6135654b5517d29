"""The questions that the published schedulers answer differently, with all of their answers.

Lengths, leases, budgets and batches are the same code for all systems. Each difference is one field
of ``Rules``: a question, and a word for every published answer. A system is one answer to each
question, in a file of its own (``sglang.py``, ``mini_sglang.py``, ``vllm.py``, ``nano_vllm.py``).
``scheduler/wiring.py`` turns the words into objects of these files. ``minisched fidelity`` runs
each system in lockstep with the original's own code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


def rule(default: str, question: str, **answers: str) -> Any:
    """Make a field of ``Rules``: SGLang's answer, the question, and the meaning of each answer."""
    return field(default=default, metadata={"question": question, "answers": answers})


@dataclass(frozen=True)
class Rules:
    """One answer to every question; the defaults are SGLang's (0.5.23).

    Raises:
        ValueError: there is no such answer; the message lists the answers.
    """

    # -- what runs ---------------------------------------------------------------------------------

    run_first: str = rule(
        "prefill", "What runs first?",
        prefill="prompts, whenever one can be admitted",
        decode="decodes, while any request can decode",
        unified="both, from one budget of tokens",
    )  # fmt: skip

    # -- admission ---------------------------------------------------------------------------------

    ask_again: str = rule(
        "left", "After a refusal for memory or rows (batch_is_full), when is the queue looked at?",
        left="when a running request has released its lease",
        every_step="at every step: the cache may have grown",
    )  # fmt: skip
    reserves: str = rule(
        "ratio", "How much memory is reserved for running requests?",
        ratio="for a share of the tokens that they may still generate (new_token_ratio); if it is "
        "too little, a request is retracted",
        rest="for all tokens that they may still generate (mini-sglang, inflight_tokens): no "
        "request is retracted",
        prompt="none; a new request needs pages for its prompt alone (nano-vllm)",
    )  # fmt: skip
    budget_counts: str = rule(
        "pages", "In which unit is the budget of a step counted?",
        pages="in whole pages",
        tokens="in tokens (mini-sglang)",
    )  # fmt: skip
    chunk_ends: str = rule(
        "page", "Where does a chunk end that is not the last?",
        page="with a page, as only whole pages can be shared",
        anywhere="anywhere, also within a page, so that the whole budget is used (mini-sglang)",
    )  # fmt: skip
    who_is_cut: str = rule(
        "anybody", "Which prompt may be cut to the rest of the budget?",
        anybody="any: the one for which the rest is too small, the last of a batch",
        first="the first of a batch; a later one that does not fit whole waits (nano-vllm)",
    )  # fmt: skip
    too_many_tokens: str = rule(
        "clipped", "What happens to a request with more max_new_tokens than fit?",
        clipped="it gets fewer: what an empty pool holds after its prompt, less the spare page "
        "(SGLang, init_req_max_new_tokens)",
        refused="it is refused on arrival",
    )  # fmt: skip
    victim: str = rule(
        "fewest_outputs", "Which request is retracted when decodes run out of memory?",
        fewest_outputs="the one with the fewest outputs; among equals the longest prompt",
        newest="the one that began to decode last (nano-vllm)",
    )  # fmt: skip
    retracted_waits: str = rule(
        "behind", "Where does a retracted request wait?",
        behind="at the end of the queue, as if it came now",
        old_place="in its old place, before all later ones",
    )  # fmt: skip

    # -- memory ------------------------------------------------------------------------------------

    free_rule: str = rule(
        "at_once", "When is the memory of a finished request released?",
        lease="when every step that refers to it has returned",
        deferred="when the ongoing batch does not refer to it",
        at_once="immediately: the next owner's writes follow on the same stream",
    )  # fmt: skip
    evicts: str = rule(
        "ahead", "How much of the cache is evicted when memory is short?",
        ahead="a page more for each request of a step, where pages hold several tokens; and after "
        "a retraction, until each kept request has room for 20 steps",
        lacking="only what the next step lacks",
    )  # fmt: skip
    enters_cache: str = rule(
        "settled", "What of a request may enter the prefix cache?",
        settled="what a returned step has computed: a failed step's pages are never shared",
        launched="all that is launched (SGLang): a chunk once the next step is scheduled, and a "
        "finished request's last token, too, if a step in flight computes it",
        known="all tokens that the host knows (mini-sglang), though their step may still run",
    )  # fmt: skip
    chunks_enter: str = rule(
        "each", "When does a chunk of a prompt enter the prefix cache?",
        each="when its own step has returned",
        whole_prompt="with the last one, when the whole prompt is computed (mini-sglang)",
    )  # fmt: skip
    edges_end: str = rule(
        "prompt", "Where does an edge of the tree end?",
        prompt="where prefixes part, and where a prompt ends: its outputs can be evicted alone",
        parting="where prefixes part (mini-sglang)",
    )  # fmt: skip
    length_frees: str = rule(
        "last_token", "When does a request that reaches its length close its lease?",
        last_token="when its last token has returned",
        last_launch="a step before, while the step of that token runs (mini-sglang's overlap); "
        "only with free_rule=at_once, because the others wait for that step",
    )  # fmt: skip
    split_counts: str = rule(
        "both", "Which half of an edge counts as just used when a walk ends within it?",
        both="both (SGLang), and the upper one as newly made",
        neither="neither (mini-sglang)",
    )  # fmt: skip
    waiting_prefixes: str = rule(
        "refreshed", "When do the prefixes of waiting requests count as used, if the order of the "
        "queue does not look at the cache?",
        refreshed="at every 32nd pass through the queue, if the least recently used goes first",
        stale="only once their request is offered to the batch",
    )  # fmt: skip

    prefix_cache: str = rule(
        "radix", "What finds the pages of a prefix?",
        radix="a radix tree; whole leaves are evicted, the least recently used first",
        blocks="the hash of each page's tokens and of all before them; single pages are evicted, "
        "in the order of their release",
    )  # fmt: skip

    block_line: str = rule(
        "hashed_last", "Which of several blocks with the same tokens is found, and which is "
        "evicted first (prefix_cache blocks)?",
        hashed_last="the first is found; blocks without a hash are evicted first (vLLM)",
        one_line="only the newest is found; blocks are evicted in the order of their release "
        "(nano-vllm)",
    )  # fmt: skip

    prompt_pages: str = rule(
        "settled", "When are a prompt's whole pages shared?",
        settled="when their step has returned",
        scheduled="when their step is planned: later prompts of it may read them (with blocks)",
    )  # fmt: skip

    output_pages: str = rule(
        "end", "When are whole pages of outputs shared?",
        end="when their request has finished",
        running="while their request runs, so they outlive its preemption",
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
    "budget_counts": "tokens",
    "chunk_ends": "anywhere",
    "who_is_cut": "anybody",
    "too_many_tokens": "refused",
}
"""How prompts are admitted under one budget, whatever the other answers are."""


def rules_of_admission(rules: Rules) -> Rules:
    """Return the rules with the answers that one budget decides, where they ask for one.

    One budget reserves all remaining tokens (``rest``, as TensorRT-LLM does) or none (``prompt``).
    """
    if rules.run_first != "unified":
        return rules
    reserves = "rest" if rules.reserves == "rest" else "prompt"
    return replace(rules, reserves=reserves, **ONE_BUDGET)


def answers(name: str) -> tuple[str, ...]:
    """Return the words that answer a question."""
    return tuple(Rules.__dataclass_fields__[name].metadata["answers"])


RUN_FIRST, FREE_RULES = answers("run_first"), answers("free_rule")


@dataclass(frozen=True)
class Deliberate:
    """An answer of an original that its rules here do not give, and the reason."""

    answer: str
    reason: str


UNWRITTEN = (
    "a failed step has not written it; the original ends with such a step, but here other requests "
    "go on, and one that found it would read garbage"
)


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


SPARED = 2  # positions of a context or a pool that SGLang leaves out


def fitting_tokens(
    rules: Rules, prompt_len: int, asked: int, *, context_len: int, num_slots: int, page_size: int
) -> int:
    """Return how many of the ``asked`` new tokens a request gets (``too_many_tokens``).

    Clipped, it fits with the page that ``Ratio`` has to spare, so alone it never waits. It gets at
    least one token (SGLang ``scheduler.py:init_req_max_new_tokens``).
    """
    if rules.run_first == "unified" or rules.too_many_tokens == "refused":  # see ``ONE_BUDGET``
        return asked
    paged_len = -(-prompt_len // page_size) * page_size
    in_context = min(context_len, num_slots) - SPARED - prompt_len
    in_memory = num_slots - paged_len - page_size - 1
    return min(asked, max(1, min(in_context, in_memory)))
