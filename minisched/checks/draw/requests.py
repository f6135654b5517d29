"""Random requests: short, alike at their beginning, and with every wish that a request can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ...core import Request, SamplingParams
from ..faults.in_step import STEP_FAULTS
from ..tokens.oracle import tokens_alone
from ..workload import Failure, Workload

SHARED = (7, 7, 11, 2, 7, 7, 11, 5, 3, 3)  # prompts begin with some of it, so that prefixes recur
GIVEN_UP_AFTER = (0, 1, 1, 2, 3, 4, 5, 7, 9, 20)  # turns: it waits, is in chunks, runs, has ended
WISHES = ("none", "none", "history", "grammar", "everything")


@dataclass(frozen=True)
class Letters:
    """The tokens that requests are made of, and those that may end one."""

    vocab_size: int
    stops: tuple[frozenset[int], ...]
    eos: tuple[frozenset[int], ...]


PLAIN = Letters(
    19,
    (frozenset(), frozenset({3}), frozenset({5, 6})),
    (frozenset(), frozenset({2}), frozenset({2, 7})),
)
"""Few tokens, so that those which end a request come up by chance."""
FEW = Letters(3, (frozenset(), frozenset({2})), (frozenset(), frozenset({2})))
"""So few that a draft is often right."""

NAN = float("nan")
ODD: dict[str, tuple[Any, ...]] = {
    "rid": ("", 7, None, ["r0"], "\ud800"),
    "prompt": (None, "text", [], ["a"], [1.5], [True], [[1]], [NAN], [10**400], [-1], 3),
    "params": (None, {"max_new_tokens": 4}),
    "priority": ("x", None, NAN, True, 2**70),
    "max_new_tokens": ("5", None, 2.5, True, 0, 10**400, 2**62),
    "temperature": ("hot", NAN, 10**400, True, -1),
    "top_k": (1.5, 0, True, 10**30),
    "top_p": (NAN, "1", 0),
    "seed": ("s", None, 10**400),
    "stop_token_ids": ([5], {5.0}, {True}, None),
    "ignore_eos": ("no", 0, None),
    "presence_penalty": (NAN, "1", 10**400),
    "repetition_penalty": (0, True, None),
    "logit_bias": ({"a": 1}, {1: NAN}, {True: 1}, {10**400: 1}, [(1, 2.0)], None),
    "regex": (5, "(", "\ud800"),
    "stop": ("x", (3,), ("",), ("\ud800",), None),
    "return_logprob": ("no", 1),
    "top_logprobs_num": (1.5, 2, -3),
    "logprob_start_len": ("0", -2, 10**400),
}
"""What a field must not hold, of a request or of its ``params``."""


def draw_odd(rng: Random, requests: Sequence[Request]) -> tuple[str, Request]:
    """A request that may have to be refused, and whom nobody else may notice; and of what kind.

    It has an id that was given out before (``id``), or a field holds what it must not (``field``).
    """
    like = rng.choice(requests)
    odd = Request("odd", like.prompt, like.params, priority=like.priority)
    if rng.random() < 0.5:
        return "id", Request(rng.choice(requests).rid, odd.prompt, odd.params)
    name = rng.choice(sorted(ODD))
    change = {name: rng.choice(ODD[name])}
    if name in SamplingParams.__dataclass_fields__:
        change = {"params": replace(odd.params, **change)}
    return "field", replace(odd, **change)


def draw_requests(rng: Random, letters: Letters, wishes: str, logprobs: bool) -> list[Request]:
    """One to six requests; with ``wishes`` or ``logprobs`` about half of them have some."""
    return [
        Request(
            f"r{number}",
            prompt := draw_prompt(rng, letters),
            draw_params(rng, letters, wishes, len(prompt) if logprobs else 0),
            priority=rng.randrange(4),
        )
        for number in range(rng.randint(1, 6))
    ]


def several(requests: Sequence[Request], least: int) -> list[Request]:
    """The requests, and if they are too few, more of the same, that begin with another token."""
    found = list(requests)
    while len(found) < least:
        like = found[len(found) - len(requests)]
        prompt = [*like.prompt[1:], like.prompt[0]]
        found.append(Request(f"r{len(found)}", prompt, like.params, priority=like.priority))
    return found


def follow_up(
    rng: Random, workload: Workload, earlier: Request, like: Request, context_len: int
) -> Request | None:
    """The request with a prompt that goes on from an earlier one's answer; None if that is long."""
    own = list(like.prompt[-rng.randint(1, 3) :])
    prompt = [*earlier.prompt, *tokens_alone(workload, earlier), *own]
    room = context_len - len(prompt)
    if room < 1:
        return None
    params = replace(like.params, max_new_tokens=min(like.params.max_new_tokens, room))
    return Request(like.rid, prompt, params, priority=like.priority)


def draw_aborts(rng: Random, workload: Workload) -> dict[int, str]:
    """By turn who is given up: nobody in two workloads of five, at every stage of its life."""
    aborts = {}
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        at = rng.randrange(len(workload.requests))
        turn = workload.arrivals[at] + rng.choice(GIVEN_UP_AFTER)
        aborts[turn] = workload.requests[at].rid
    return aborts


def draw_failures(rng: Random, workload: Workload) -> tuple[Failure, ...]:
    """In one workload of three, one or two steps that go wrong.

    One computes a part of a prompt, one a token of an answer, and every other one is wasted: it
    computes the last token of an answer, with which its request has ended.
    """
    found = []
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
        req = rng.choice(workload.requests)
        first, last = len(req.prompt), len(req.prompt) + len(tokens_alone(workload, req)) - 1
        position = rng.choice((rng.randrange(first), rng.randint(first - 1, last), last, last))
        found.append(Failure(req.rid, position, rng.choice(list(STEP_FAULTS))))
    return tuple(found)


def draw_prompt(rng: Random, letters: Letters) -> list[int]:
    """Up to 18 tokens, of which the first may be other prompts' too."""
    shared = SHARED[: rng.choice((0, 0, 3, 6, 10))]
    own = [rng.randrange(letters.vocab_size) for _ in range(rng.randint(1, 8))]
    return [token % letters.vocab_size for token in shared] + own


def draw_params(rng: Random, letters: Letters, wishes: str, logprobs_of: int) -> SamplingParams:
    """How one request samples; ``logprobs_of`` is the length of a prompt that may want them."""
    params = SamplingParams(
        temperature=rng.choice((0.0, 0.0, 0.7, 1.5)),
        top_k=rng.choice((-1, -1, 1, 4)),
        top_p=rng.choice((1.0, 1.0, 0.8)),
        seed=rng.randrange(10),
        max_new_tokens=rng.randint(1, 9),
        stop_token_ids=rng.choice(letters.stops),
        ignore_eos=rng.random() < 0.5,
    )
    if wishes in ("history", "everything"):
        params = replace(params, **draw_history(rng, letters))
    if wishes in ("grammar", "everything") and rng.random() < 0.5:
        params = replace(params, regex=draw_regex(rng, letters, rng.randint(1, 5)))
    if logprobs_of and rng.random() < 0.5:
        top, start = rng.choice((0, 1, letters.vocab_size)), rng.randrange(-1, logprobs_of)
        params = replace(params, return_logprob=True, top_logprobs_num=top, logprob_start_len=start)
    return params


def draw_history(rng: Random, letters: Letters) -> dict[str, Any]:
    """Penalties, biases and stop strings.

    A byte of a string is a token here, and tokens are few, so that strings are said by chance.
    """
    tokens = range(letters.vocab_size)
    biased = {rng.choice(tokens): rng.choice((-100.0, -2.5, 0.1, 3.0)) for _ in range(3)}
    strings = ["".join(chr(rng.choice(tokens)) for _ in range(rng.randint(1, 2))) for _ in range(2)]
    return {
        "frequency_penalty": rng.choice((0.0, 0.0, 0.4, 2.0, -1.5)),
        "presence_penalty": rng.choice((0.0, 0.0, 0.3, 1.9, -1.0)),
        "repetition_penalty": rng.choice((1.0, 1.0, 1.3, 2.0, 0.6)),
        "logit_bias": dict(list(biased.items())[: rng.randrange(4)]),
        "stop": tuple(strings[: rng.randrange(3)]),
    }


def draw_regex(rng: Random, letters: Letters, leaves: int) -> str:
    """A regex over the first bytes, with so many ranges of them."""
    if leaves == 1:
        low = rng.randrange(letters.vocab_size)
        high = min(low + rng.randrange(10), letters.vocab_size - 1)
        part = rf"[\x{low:02x}-\x{high:02x}]"
    else:
        left = rng.randrange(1, leaves)
        a, b = draw_regex(rng, letters, left), draw_regex(rng, letters, leaves - left)
        part = a + b if rng.random() < 0.5 else f"(?:{a}|{b})"
    return (
        part if rng.random() < 0.5 else f"(?:{part}){rng.choice(('*', '+', '?', '{2}', '{1,3}'))}"
    )
