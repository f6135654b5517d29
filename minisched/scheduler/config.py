"""The scheduler's settings, under the names of SGLang's options, and what makes a request bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ..core import Request, SamplingParams
from ..core.fields import setting
from ..core.form import wrong_form
from ..core.logprobs import logprob_problem
from ..core.sampling import shown
from ..memory.radix_cache import POLICIES as EVICTION_POLICIES
from ..policy.rules import FREE_RULES, Rules, chunk_problem, fitting_tokens
from ..policy.systems import RULES, find_rules
from ..policy.waiting import POLICIES as SCHEDULE_POLICIES

ALGORITHMS = ("NGRAM", "NGRAM_GPU", "STANDALONE")
DRAFT_MODELS = (
    "a model's directory or name, 'first_layers:N' for the target's own first N layers, or for the "
    "hash model 'hash:N', which agrees with it on N of 10 tokens"
)


@dataclass(frozen=True)
class SchedulerConfig:
    """Sizes and rules of one scheduler (SGLang ``server_args.py:ServerArgs``).

    The last ten fields are not for users: the model and the loop fill them in.

    Raises:
        ValueError: a setting is outside its limits; the sentence names the value and the limit.
    """

    rules: str = setting(
        "", f"Whose rules: {', '.join(RULES)}; with some changed: sglang,free_rule=at_once.",
        shown="those of the loop's system",
    )  # fmt: skip
    # Memory
    kv_tokens: int = setting(
        1024, "KV slots in all.", shown=""
    )  # max_total_num_tokens, whole pages
    page_size: int = setting(1, "KV slots to a page.", shown="")
    max_running_requests: int = setting(16, "Requests that run at the same time.", shown="")
    disable_radix_cache: bool = setting(False, "Share no prefixes between requests.")
    radix_eviction_policy: str = setting(
        "lru", f"Which prefix is evicted first: {', '.join(EVICTION_POLICIES)}."
    )
    free_rule: str = setting(
        "", f"When a finished request's memory is released: {', '.join(FREE_RULES)}. Only the "
        "first is right with any loop and relay.", shown="by the rules",
    )  # fmt: skip
    # Admission
    chunked_prefill_size: int = setting(
        128, "The most prompt tokens of one step; -1: no limit.", shown="", alias="--chunk"
    )
    max_prefill_tokens: int = setting(16384, "Over this a batch takes no further prompt.")
    schedule_policy: str = setting(
        "fcfs", f"Which request is admitted first: {', '.join(SCHEDULE_POLICIES)}."
    )
    enable_priority_scheduling: bool = setting(
        False, "Higher priorities first, before fcfs or lof."
    )
    priority_scheduling_preemption_threshold: int = setting(
        10, "With priorities: preempt a request that is lower by more than this."
    )
    schedule_conservativeness: float = setting(
        1.0, "Scales the memory kept back for running requests.", shown="1"
    )
    random_seed: int = setting(0, "Of the policy random.")
    # The requests of a step
    run_first: str = setting(
        "", "prefill, decode, or unified: one budget for both.", shown="by the rules"
    )
    enable_mixed_chunk: bool = setting(False, "Decode beside the prompts, in one batch.")
    disable_overlap_schedule: bool = setting(False, "Run the serial loop and no other.")
    cuda_graph_max_bs: int | None = setting(
        None, "Larger decode batches are launched op by op.", shown="no limit"
    )
    # History and speculation
    late_penalties: bool = setting(False, "Penalties do without the newest token; nothing waits.")
    late_stop_strings: bool = setting(False, "A request goes on for a token after its stop text.")
    speculative_algorithm: str = setting(
        "", f"How to draft: {', '.join(ALGORITHMS)}.", shown="no speculation"
    )
    speculative_num_draft_tokens: int = setting(4, "Drafts that a step may carry for a request.")
    speculative_draft_model_path: str = setting("", f"Of STANDALONE: {DRAFT_MODELS}.")
    beam_width: int = setting(1, "Beams of each request; the best one is its output. 1: none.")
    # From the model and the loop
    context_len: int = 1024
    vocab_size: int = 257
    eos_ids: frozenset[int] = frozenset()
    has_logits: bool = True  # without them there are no log-probabilities
    has_tokenizer: bool = False  # whether there is text in which stop strings can be looked for
    run_ahead: bool = False  # see policy/decode.py
    overrun: int = 0
    keep_stale_outputs: bool = False  # see features/stale.py
    refuses: Mapping[str, str] = field(default_factory=dict)  # features that the loop does not have
    draft_slack: int = 0  # positions that drafts may reach past a request's length
    row_len: int = 2**31  # positions in a row of the page table: the context, and what runs past it

    def __post_init__(self) -> None:
        for name in ("page_size", "max_running_requests", "max_prefill_tokens", "context_len"):
            at_least(name, getattr(self, name), 1)
        at_least("kv_tokens", self.kv_tokens, self.page_size, f"one page of {self.page_size}")
        at_least("cuda_graph_max_bs", self.cuda_graph_max_bs or 0, 0)
        at_least("schedule_conservativeness", self.schedule_conservativeness, 0)
        at_least("priority_scheduling_preemption_threshold",
                 self.priority_scheduling_preemption_threshold, 0)  # fmt: skip
        at_least("beam_width", self.beam_width, 1)
        self._check_chunk()
        self._check_speculation()
        one_of("schedule_policy", self.schedule_policy, SCHEDULE_POLICIES)
        if self.enable_priority_scheduling and self.schedule_policy not in ("fcfs", "lof"):
            raise ValueError(
                f"enable_priority_scheduling goes with fcfs and lof, but schedule_policy is "
                f"{self.schedule_policy!r}."
            )
        one_of("radix_eviction_policy", self.radix_eviction_policy, EVICTION_POLICIES)

    @cached_property
    def in_force(self) -> Rules:
        """Return the rules, changed by the other settings.

        Raises:
            ValueError: there is no such system, rule or answer.
        """
        said = {"run_first": self.run_first, "free_rule": self.free_rule}
        return replace(find_rules(self.rules or "sglang"), **{k: v for k, v in said.items() if v})

    def _check_chunk(self) -> None:
        size, is_mixed = self.chunked_prefill_size, self.enable_mixed_chunk
        if size != -1 and size < 1:
            raise ValueError(
                f"chunked_prefill_size is {size}, but it must be at least 1, or -1 for no limit."
            )
        if problem := chunk_problem(self.in_force, size, self.page_size, is_mixed):
            raise ValueError(problem)

    def _check_speculation(self) -> None:
        if self.speculative_algorithm:
            one_of("speculative_algorithm", self.speculative_algorithm, ALGORITHMS)
        if self.speculative_draft_model_path and self.speculative_algorithm != "STANDALONE":
            raise ValueError(
                f"speculative_draft_model_path is {self.speculative_draft_model_path!r}, but only "
                "the speculative_algorithm STANDALONE has a draft model."
            )
        at_least("speculative_num_draft_tokens", self.speculative_num_draft_tokens, 1)
        if self.speculative_algorithm == "NGRAM" and self.enable_mixed_chunk:
            raise ValueError(
                "enable_mixed_chunk does not go with NGRAM: SGLang turns mixed chunks off "
                "(speculative/spec_info.py:supports_mixed_chunk); leave one of them out."
            )
        if self.speculative_algorithm and self.late_penalties:
            raise ValueError(
                "late_penalties does not go with speculation: a step late is several tokens late."
            )

    @cached_property
    def num_draft_tokens(self) -> int:
        """Drafts that a step may carry; 0 without speculation."""
        return self.speculative_num_draft_tokens if self.speculative_algorithm else 0

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out."""
        return self.kv_tokens // self.page_size

    @property
    def num_slots(self) -> int:
        """KV slots that can be handed out, in whole pages."""
        return self.num_pages * self.page_size

    @property
    def prefill_budget(self) -> int:
        """The most prompt tokens of one step."""
        chunk = self.chunked_prefill_size
        return self.max_prefill_tokens if chunk == -1 else min(chunk, self.max_prefill_tokens)

    def new_tokens_of(self, req: Request) -> int:
        """Return the ``max_new_tokens`` of ``req``, less what can't fit (``too_many_tokens``)."""
        return fitting_tokens(
            self.in_force, len(req.prompt), req.params.max_new_tokens,
            context_len=self.context_len, num_slots=self.num_slots, page_size=self.page_size,
        )  # fmt: skip

    def refusal(self, req: Request) -> str | None:
        """Return one sentence on why ``req`` can never run here, or None."""
        return (
            wrong_form(req)
            or outside_the_vocabulary(self, req.prompt)
            or out_of_reach(self, req.params)
            or logprob_problem(req.params, len(req.prompt), self.vocab_size)
            or too_long(self, req)
        )


def at_least(name: str, value: float, limit: int, what: str = "") -> None:
    """Refuse a number that is too small.

    Raises:
        ValueError: it is.
    """
    if not value >= limit:  # as nan is not
        raise ValueError(f"{name} is {value}, but it must be at least {what or limit}.")


def one_of(name: str, value: str, known: object) -> None:
    """Refuse a word that means nothing here.

    Raises:
        ValueError: ``value`` is not among ``known``.
    """
    names = list(known)  # type: ignore[call-overload]
    if value not in names:
        raise ValueError(f"{name} is {value!r}, but it must be one of {', '.join(names)}.")


# -- The door: why a request can never run here, in one sentence that names the value and the limit
#
# Every field of a request is checked here, before other code reads it.


def outside_the_vocabulary(config: SchedulerConfig, prompt: Sequence[int]) -> str | None:
    """Return a sentence if a token of the prompt is outside the model's vocabulary."""
    if not prompt:
        return "the prompt is empty, but it needs at least one token."
    lowest, highest = min(prompt), max(prompt)
    if lowest >= 0 and highest < config.vocab_size:
        return None
    return (
        f"token id {shown(lowest if lowest < 0 else highest)} is outside the vocabulary, "
        f"which ends at {config.vocab_size - 1}."
    )


def out_of_reach(config: SchedulerConfig, params: SamplingParams) -> str | None:
    """Return a sentence on the first option that this loop or this model does not have."""
    for feature, is_wanted in (
        ("grammar", params.has_grammar),
        ("penalties", params.has_penalties),
    ):
        if is_wanted and feature in config.refuses:
            return f"this loop takes no {feature}: {config.refuses[feature]}."
    for token in params.logit_bias:
        if not 0 <= token < config.vocab_size:
            return (
                f"logit_bias is for token {shown(token)}, which is outside the vocabulary: "
                f"it must be between 0 and {config.vocab_size - 1}."
            )
    if params.stop and not config.has_tokenizer:
        stop = shown(params.stop[0])
        return f"stop is {stop}, but a model without a tokenizer has no text to search."
    if params.return_logprob and not config.has_logits:
        return "return_logprob is on, but this model computes no logits to take them from."
    return None


def too_long(config: SchedulerConfig, req: Request) -> str | None:
    """Return a sentence if the request can never have enough memory, or exceeds the context."""
    room = config.num_slots - config.draft_slack
    drafts = f" (and {config.draft_slack} for drafts)" if config.draft_slack else ""
    for limit, what in (
        (config.context_len, f"the context of {config.context_len} tokens"),
        (room, f"the KV pool of {room} slots{drafts}"),
    ):
        if len(req.prompt) + config.new_tokens_of(req) > limit:
            return (
                f"the prompt has {len(req.prompt)} tokens and max_new_tokens is "
                f"{req.params.max_new_tokens}, together more than {what}."
            )
    return None


GIVEN = ("rid", "prompt", "params", "arrival_time", "priority", "admission")
FILLED_BY_A_RUN: dict[str, Any] = {
    item.name: item.default if item.default_factory is MISSING else item.default_factory()
    for item in fields(Request)
    if item.init and item.name not in GIVEN
}


def filled_by_a_run(req: Request) -> str:
    """Return a sentence on the first field with a value that only a run fills in, or ''."""
    for name, default in FILLED_BY_A_RUN.items():
        value = getattr(req, name)
        if type(value) is not type(default) or value != default:
            return (
                f"{name} is {shown(value)}, but a new request has {shown(default)}; tokens to "
                "go on from belong to its prompt."
            )
    return ""
