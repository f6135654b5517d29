"""How one request wants its tokens chosen, and when it wants to stop."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .sampling_types import shown, wrong_type

COLDEST = 1e-3  # a lower temperature is greedy but for rounding, and divides logits to infinity
HOTTEST = sys.float_info.max  # a whole number may be larger, and be no float
HIGHEST_PENALTY = 2.0
HIGHEST_BIAS = 100.0  # it decides alone, beside any logit; OpenAI's limit, as vLLM's


@dataclass(frozen=True)
class SamplingParams:
    """The sampling options of one request (SGLang ``sampling/sampling_params.py``).

    ``temperature`` 0 is greedy. ``top_k`` -1 keeps the whole vocabulary; ``top_p`` keeps the
    smallest set of tokens whose probability reaches it. ``seed`` makes a sampled request
    repeatable: its tokens depend on the seed, the request and the position, never on the batch.

    What reads the tokens before: ``frequency_penalty``, ``presence_penalty`` and
    ``repetition_penalty`` (1: none), a grammar (``regex`` or ``json_schema``, a text), and ``stop``
    strings. ``logit_bias`` adds to single tokens' logits and reads nothing.

    ``return_logprob`` wants the log-probability of every output token, and of those of the prompt
    from ``logprob_start_len`` on (-1: none of them), with the ``top_logprobs_num`` most likely
    tokens at each place (``logprobs.py``). The first of the prompt's has none, as in SGLang. Such a
    request is never in a mixed batch.

    >>> SamplingParams(temperature=0.8, top_p=0.9, seed=7).is_greedy
    False
    >>> SamplingParams(top_p=2).problem()
    'top_p is 2, but it must be above 0 and at most 1.'
    """

    temperature: float = 0.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 32
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    regex: str | None = None
    json_schema: str | None = None
    stop: tuple[str, ...] = ()
    return_logprob: bool = False
    top_logprobs_num: int = 0
    logprob_start_len: int = -1

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature <= 0.0 or self.top_k == 1

    @cached_property
    def has_penalties(self) -> bool:
        """Whether the tokens before change which one comes next, beside the model's own view."""
        return (self.frequency_penalty, self.presence_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def has_grammar(self) -> bool:
        """Whether the output has to follow a grammar."""
        return self.regex is not None or self.json_schema is not None

    @property
    def has_wishes(self) -> bool:
        """Whether a step has more to do for it than to sample a token."""
        history = self.has_grammar or self.has_penalties
        return history or bool(self.logit_bias) or self.return_logprob

    def problem(self) -> str | None:
        """One sentence on what is wrong with these options, or None."""
        if problem := wrong_type(self):
            return problem
        if self.max_new_tokens <= 0:
            return f"max_new_tokens is {self.max_new_tokens}, but it must be at least 1."
        if self.temperature != 0.0 and not COLDEST <= self.temperature <= HOTTEST:
            return (
                f"temperature is {shown(self.temperature)}, but it must be 0 or from {COLDEST} on."
            )
        if self.top_k != -1 and self.top_k < 1:
            return f"top_k is {self.top_k}, but it must be at least 1, or -1 for no limit."
        if not 0.0 < self.top_p <= 1.0:
            return f"top_p is {shown(self.top_p)}, but it must be above 0 and at most 1."
        if self.regex is not None and self.json_schema is not None:
            return "regex and json_schema are both given, but an output can follow only one."
        return self._problem_of_history() or self._problem_of_logprobs()

    def _problem_of_logprobs(self) -> str | None:
        count, start = self.top_logprobs_num, self.logprob_start_len
        if count < 0:
            return f"top_logprobs_num is {count}, but it must be at least 0."
        if start < -1:
            return f"logprob_start_len is {start}, but it must be at least 0, or -1 for none."
        if self.return_logprob or (count == 0 and start == -1):
            return None
        name, value = ("top_logprobs_num", count) if count else ("logprob_start_len", start)
        return f"{name} is {value}, but it needs return_logprob, which is off."

    def _problem_of_history(self) -> str | None:
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            if not -HIGHEST_PENALTY <= value <= HIGHEST_PENALTY:
                return f"{name} is {shown(value)}, but it must be between -2 and 2."
        if not COLDEST <= self.repetition_penalty <= HIGHEST_PENALTY:  # it divides logits as well
            return (
                f"repetition_penalty is {shown(self.repetition_penalty)}, "
                f"but it must be between {COLDEST} and 2."
            )
        for token, bias in self.logit_bias.items():
            if not -HIGHEST_BIAS <= bias <= HIGHEST_BIAS:
                return (
                    f"logit_bias is {shown(bias)} for token {shown(token)}, "
                    "but it must be between -100 and 100."
                )
        if "" in self.stop:
            return "stop is '', but a stop string must have at least one character."
        return None
