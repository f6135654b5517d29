"""A random workload for a seed, over the product of all axes, with the standard library alone.

``draw`` returns the workload of a seed, the same on every machine. ``designs_for`` returns the
loops that run it, and ``Drawn.on`` the case on one of them. A ``Scale`` contains the values to draw
from: those of ``check``, those of a published system, or longer prompts for a real model.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from random import Random
from typing import Any, TypeVar, cast

from ..core import Request, SamplingParams
from ..core.form import wrong_form
from ..devices.base import Device
from ..devices.cost import MICROSECOND, NO_COST, CostModel
from ..devices.sim import SimDevice
from ..engine.frontend import Frontend
from ..features.beam_search import refused_wish
from ..loops.design import LOOPS, find_loop
from ..loops.run import make_engine
from ..memory.radix_cache import POLICIES as EVICTION_POLICIES
from ..models.hash import HashModel
from ..policy.rules import RUN_FIRST, Rules
from ..policy.systems import RULES
from ..policy.waiting import POLICIES as SCHEDULE_POLICIES
from ..relay import CARRIERS, RELAYS
from ..scheduler import SchedulerConfig
from ..scheduler.config import ALGORITHMS
from .case import FAILURES, Case, Failure, Workload
from .oracle import tokens_alone
from .step_fault import OTHER_OP, POSTPROCESS

DRAFTERS = ("", "", "NGRAM", "", "", "NGRAM_GPU", "", "STANDALONE")  # in a cycle, by seed
THEMES = ("any", "any", "crowded", "crowded", "late prompt", "urgent", "conversation", "alike")
"""The theme of a workload: none; answers that do not fit into memory together; the same with a long
prompt that comes while the others decode; later requests of higher priority; prompts that continue
another request's answer; prompts with one beginning that come at the same time. By chance alone few
workloads retract, preempt, or find pages cached."""
CROWDS = ("crowded", "late prompt")
ODD_SHARE = 1 / 3
WHOLE_SHARE = 1 / 4  # of cases in depth, run once more, as a whole

Card = TypeVar("Card")

# -- The values to draw from -----------------------------------------------------------------------

SHARED = (7, 7, 11, 2, 7, 7, 11, 5, 3, 3)  # the source of common prefixes
SHARED_LENS = {"crowded": (0, 0, 0, 3), "late prompt": (0,), "alike": (6, 10)}  # by theme
CONTEXT_LEN = 32


@dataclass(frozen=True)
class Letters:
    """The tokens of requests, and those that may end one."""

    vocab_size: int
    stops: tuple[frozenset[int], ...]
    eos: tuple[frozenset[int], ...]


PLAIN = Letters(
    19,
    (frozenset(), frozenset({3}), frozenset({5, 6})),
    (frozenset(), frozenset({2}), frozenset({2, 7})),
)
"""A small vocabulary, so that stop tokens come up by chance."""
FEW = Letters(3, (frozenset(), frozenset({2})), (frozenset(), frozenset({2})))
"""So few tokens that a draft is often right."""


@dataclass(frozen=True)
class Scale:
    """The values from which a workload is drawn, each value equally often.

    A theme changes some of them. By default ``check`` draws from these.
    """

    themes: Sequence[str] = THEMES
    letters: Letters = PLAIN  # of workloads without drafts
    wishes: Sequence[str] = ("none", "none", "history", "grammar", "everything")
    num_requests: Sequence[int] = range(1, 7)
    arrivals: Sequence[int] = range(9)  # turns
    beginnings: Sequence[Sequence[int]] = tuple(SHARED[:length] for length in (0, 0, 3, 6, 10))
    prompt_lens: Sequence[int] = range(1, 9)  # tokens after the beginning
    answer_lens: Sequence[int] = range(1, 10)  # tokens at most
    ignore_eos_share: float = 0.5  # of requests
    priorities: Sequence[int] = range(4)
    page_sizes: Sequence[int] = (1, 1, 2, 4)
    chunks: Sequence[int] = (-1, 1, 1, 2, 3, 5)  # pages; -1: no limit
    max_running_requests: Sequence[int] = range(1, 6)
    max_prefill_tokens: Sequence[int] = (3, 8, 99)
    spare_pages: Sequence[int] = (0, 0, 1, 2, 4, 8, 12)  # of memory, besides the longest request
    refused_share: float = 0.1  # of workloads, have a page too few for the longest request
    search_share: float = 1 / 6  # of workloads without drafts, search with beams
    context_len: int = CONTEXT_LEN
    settings: Mapping[str, Any] = field(default_factory=dict)  # not drawn


USUAL = Scale()


# -- A seed ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """The result of a seed: a workload, the costs of steps, and the link of ``pd``."""

    seed: int
    workload: Workload
    cost: CostModel
    link: dict[str, int]
    theme: str  # one of ``THEMES``
    built_by_host: bool = False  # on ``sim``; see ``Case``

    def on(self, design: Variant, device: str = "sim") -> Case:
        """Return the case on one loop, without the features that the loop refuses.

        Every other request with a refused feature keeps it. If a loop has more steps in flight than
        by default, two workloads of three get the settings of ``for_deep``.
        """
        workload, rng = without_refused(self.workload, design, device), Random(f"deep {self.seed}")
        config = workload.config  # with just the room that drafts in flight take
        drafts = config.num_draft_tokens * (design.in_flight - 1)
        room = -(-drafts // config.page_size) * config.page_size
        config = replace(config, kv_tokens=config.kv_tokens + room)
        if design.in_flight > LOOPS[design.loop].in_flight and rng.random() < 0.67:
            config = for_deep(rng, config)
        is_safe = not (workload.failures or config.num_draft_tokens or design.has_two_writers)
        config = with_rare_rules(Random(f"{self.seed} {design.name}"), config, design, is_safe)
        on_sim = device == "sim"
        return Case(
            replace(workload, config=config),
            design.loop,
            design.relay,
            self.link if design.loop == "pd" else design.options,
            self.cost if on_sim else NO_COST,
            device,
            self.built_by_host and on_sim,
            on_sim and Random(f"whole {self.seed} {design.name}").random() < WHOLE_SHARE,
        )


def draw(seed: int, odd: bool = True, rng: Random | None = None, scale: Scale = USUAL) -> Drawn:
    """Return the workload of a seed, the same on every machine.

    Without ``odd`` no request is invalid or sent again, no step fails and no user interrupts. The
    injection of a single fault needs that: it finds its request by the id. ``rng`` draws instead of
    ``Random(seed)``, for example one of Hypothesis' ``st.randoms()``. Then the seed only chooses
    the drafts.
    """
    rng, algorithm = rng or Random(seed), DRAFTERS[seed % len(DRAFTERS)]
    theme, letters = rng.choice(scale.themes), FEW if algorithm else scale.letters
    eos_ids = frozenset[int]() if theme in CROWDS else rng.choice(letters.eos)
    config = draw_config(rng, theme, algorithm, scale)
    workload = Workload([], [], {}, config, eos_ids, letters.vocab_size)
    add_requests(rng, workload, theme, letters, scale)
    workload.config = replace(config, kv_tokens=draw_room(rng, workload, theme, scale))
    stays_crowded = theme == "late prompt"  # with an abort, memory would suffice
    workload.aborts = {} if stays_crowded else draw_aborts(rng, workload)
    workload.flushes = frozenset(rng.randrange(30) for _ in range(rng.choice((0, 0, 0, 3))))
    cost, link, by_host = draw_cost(rng), draw_link(rng), bool(algorithm) and rng.random() < 0.5
    mixes = False
    if odd:
        workload.failures = draw_failures(rng, workload, theme)
        workload.sent_again = draw_sent_again(rng, workload)
        if rng.random() < INTERRUPTED_SHARE and not stays_crowded:
            workload.interrupt = rng.randrange(15)
        if rng.random() <= ODD_SHARE:  # one more request, with an end that must not affect others
            workload.requests.append(draw_odd(rng, workload.requests))
            workload.arrivals.append(rng.randrange(15))
        workload.failures += () if stays_crowded else draw_mask_failure(rng, workload)
        mixes = add_rare(rng, workload, theme)
    if not algorithm and rng.random() < scale.search_share:
        add_beams(rng, workload)
    elif mixes:
        mix_urgent(workload)
    if odd and theme != "late prompt":
        workload.failures += draw_other_op(rng, workload)
    if odd and not stays_crowded and rng.random() < LOST_SHARE:
        req = rng.choice(workload.requests)
        if not wrong_form(req):
            position = rng.randrange(len(req.prompt) + 3)
            workload.failures += (Failure(req.rid, position, INPUTS),)
    if odd and theme not in ("crowded", "conversation"):
        penalize_alone(rng, workload)
    if odd and theme not in (*CROWDS, "conversation"):  # in a crowd no request ends early
        stop_within_answer(rng, workload)
    if odd and stays_crowded and rng.random() < 0.5:
        leave_two(rng, workload)
    if odd and theme == "alike" and workload.config.beam_width > 1:
        spoil_search(rng, workload)
    if odd and rng.random() < FULL_SHARE:
        fill_context(workload)
    return Drawn(seed, workload, cost, link, theme, by_host)


# -- Requests: short, with common prefixes, and with every parameter that a request can have -------


def add_requests(
    rng: Random, workload: Workload, theme: str, letters: Letters, scale: Scale
) -> None:
    """Add requests with their turns of arrival; with a theme, three to six of them.

    A prompt that continues an answer arrives about when that answer has ended. If it would be too
    long, it stays as it was. A late prompt has a short answer, and is computed in chunks: meanwhile
    the others take the memory.
    """
    wishes, rise = rng.choice(scale.wishes), rng.choice((1, 1, 2, 3))
    logprobs = rng.random() < (0.35 if theme == "crowded" else 0.2) and theme != "late prompt"
    pairs = rng.choice((1, 2, 2))  # requests of each priority
    few, several = range(3, 5), range(3, 7)
    usual = scale.num_requests if theme == "any" else several
    count = rng.choice(few if theme == "late prompt" else usual)
    latest = {"crowded": 4, "urgent": 12, "alike": rng.choice((1, 2))}.get(theme)
    turns = range(latest) if latest else scale.arrivals
    arrivals = [0, *(rng.choice(turns) for _ in range(count - 1))]
    arrivals = sorted(arrivals) if theme == "urgent" else arrivals
    for number, turn in enumerate(arrivals):
        req = draw_request(rng, number, letters, theme, wishes, logprobs, scale)
        if theme == "urgent":
            req = replace(req, priority=rise * (number // pairs))
        if theme == "late prompt" and number < count - 1:
            req, turn = replace(req, prompt=req.prompt[-rng.randint(1, 3) :]), 0
        elif theme == "late prompt":
            more = [rng.randrange(letters.vocab_size) for _ in range(18 - len(req.prompt))]
            params = replace(req.params, max_new_tokens=rng.randint(1, 3))
            req, turn = replace(req, prompt=[*req.prompt, *more], params=params), 2
        if theme == "conversation" and number:
            at = rng.randrange(number)
            answered = [
                *workload.requests[at].prompt,
                *tokens_alone(workload, workload.requests[at]),
            ]
            prompt = [*answered, *req.prompt[-rng.randint(1, 3) :]]
            if (room := scale.context_len - len(prompt)) > 0:
                most = min(req.params.max_new_tokens, room)
                req = replace(req, prompt=prompt, params=replace(req.params, max_new_tokens=most))
                turn = workload.arrivals[at] + rng.randint(2, 12)
        workload.requests.append(req)
        workload.arrivals.append(turn)


def draw_request(
    rng: Random, number: int, letters: Letters, theme: str, wishes: str, logprobs: bool,
    scale: Scale = USUAL,
) -> Request:  # fmt: skip
    """Return a request: a prompt with first tokens that may be shared, and its parameters.

    With ``wishes`` or ``logprobs`` about half of the requests have some. In a crowd no request ends
    early, and none ignores EOS: SGLang's rules reserve all memory for such ones.
    """
    is_crowded = theme in CROWDS
    prefix_lens = SHARED_LENS.get(theme)
    shared = SHARED[: rng.choice(prefix_lens)] if prefix_lens else rng.choice(scale.beginnings)
    own_lens = range(1, 1 + rng.choice((6, 14))) if is_crowded else scale.prompt_lens
    own = [rng.randrange(letters.vocab_size) for _ in range(rng.choice(own_lens))]
    prompt = [token % letters.vocab_size for token in shared] + own
    params = SamplingParams(
        temperature=rng.choice((0.0, 0.0, 0.7, 1.5)),
        top_k=rng.choice((-1, -1, 1, 4)),
        top_p=rng.choice((1.0, 1.0, 0.8)),
        seed=rng.randrange(10),
        max_new_tokens=rng.choice(range(6, 11) if is_crowded else scale.answer_lens),
        stop_token_ids=frozenset() if is_crowded else rng.choice(letters.stops),
        ignore_eos=not is_crowded and rng.random() < scale.ignore_eos_share,
    )
    if wishes in ("history", "everything"):
        params = replace(params, **draw_history(rng, letters.vocab_size))
    if wishes in ("grammar", "everything") and rng.random() < 0.5:
        regex = draw_regex(rng, letters.vocab_size, rng.randint(1, 5))
        params = replace(params, regex=f"(?:{regex})*" if is_crowded else regex)
    if logprobs and rng.random() < 0.5:
        top, start = rng.choice((0, 1, letters.vocab_size)), rng.randrange(-1, len(prompt))
        params = replace(params, return_logprob=True, top_logprobs_num=top, logprob_start_len=start)
    return Request(f"r{number}", prompt, params, priority=rng.choice(scale.priorities))


def draw_history(rng: Random, vocab_size: int) -> dict[str, Any]:
    """Return penalties, biases and stop strings.

    Here a byte of a string is a token, and tokens are few, so stop strings come up by chance.
    """
    tokens = range(vocab_size)
    biased = {rng.choice(tokens): rng.choice((-100.0, -2.5, 0.1, 3.0)) for _ in range(3)}
    strings = ["".join(chr(rng.choice(tokens)) for _ in range(rng.randint(1, 2))) for _ in range(2)]
    return {
        "frequency_penalty": rng.choice((0.0, 0.0, 0.4, 2.0, -1.5)),
        "presence_penalty": rng.choice((0.0, 0.0, 0.3, 1.9, -1.0)),
        "repetition_penalty": rng.choice((1.0, 1.0, 1.3, 2.0, 0.6)),
        "logit_bias": dict(list(biased.items())[: rng.randrange(4)]),
        "stop": tuple(strings[: rng.randrange(3)]),
    }


PENALTIES: dict[str, Any] = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}


def penalize_alone(rng: Random, workload: Workload) -> None:
    """Give every second request that has penalties a single one, and one token that is likely.

    So the token repeats, and only this penalty changes what comes after it.
    """
    for at, req in enumerate(workload.requests):
        if wrong_form(req) or rng.random() < 0.5:
            continue
        params, stops = req.params, req.params.stop_token_ids | workload.eos_ids
        if any(getattr(params, name) != none for name, none in PENALTIES.items()):
            single = {**PENALTIES, rng.choice(sorted(PENALTIES)): 2.0}
            likely = rng.choice(sorted({*range(workload.vocab_size)} - stops))
            params = replace(params, **single, logit_bias={likely: 6.0})
            workload.requests[at] = replace(req, params=params)


def stop_within_answer(rng: Random, workload: Workload) -> None:
    """Take a stop string of two or three tokens from every second answer with stop strings.

    The other string is shorter, and in no answer. By chance few answers have two given tokens.
    """
    for at, req in enumerate(workload.requests):
        if wrong_form(req) or not req.params.stop or rng.random() < 0.5:
            continue
        answer = tokens_alone(workload, replace(req, params=replace(req.params, stop=())))
        if len(answer) > 1:
            first = rng.randrange(len(answer) - 1)
            said = "".join(map(chr, answer[first : first + rng.randint(2, 3)]))
            params = replace(req.params, stop=tuple(rng.sample([said, "\x7f"], 2)))
            workload.requests[at] = replace(req, params=params)


def leave_two(rng: Random, workload: Workload) -> None:
    """Leave a late prompt with one request that decodes beside its chunks until memory is short.

    Half of them have one budget and want log-probabilities: the prompt is retracted with its last
    chunks in flight.
    """
    late = max(
        (it for it in workload.requests if not wrong_form(it)), key=lambda it: len(it.prompt)
    )
    first = workload.requests[0]
    first = replace(first, params=replace(first.params, max_new_tokens=14, stop=(), regex=None))
    workload.requests, workload.arrivals = [first, late], [0, 2]
    workload.sent_again = {
        turn: rid for turn, rid in workload.sent_again.items() if rid in (first.rid, late.rid)
    }
    workload.failures = ()
    workload.config = replace(
        workload.config, page_size=1, kv_tokens=late.max_device_len + rng.randint(7, 9),
        chunked_prefill_size=rng.randint(2, 3),
    )  # fmt: skip
    if not workload.config.speculative_algorithm and rng.random() < 0.5:
        params = SamplingParams(
            max_new_tokens=6, ignore_eos=True,
            return_logprob=True, top_logprobs_num=1, logprob_start_len=0,
        )  # fmt: skip
        workload.requests[1] = replace(late, params=params)
        room = len(late.prompt) + len(first.prompt) + rng.randint(6, 7)
        workload.config = replace(
            workload.config, rules="", run_first="unified", enable_mixed_chunk=False, beam_width=1,
            kv_tokens=room, chunked_prefill_size=7, disable_radix_cache=False,
        )  # fmt: skip


def draw_regex(rng: Random, vocab_size: int, leaves: int) -> str:
    """Return a regex over the first bytes, with ``leaves`` ranges of them."""
    if leaves == 1:
        low = rng.randrange(vocab_size)
        high = min(low + rng.randrange(10), vocab_size - 1)
        part = rf"[\x{low:02x}-\x{high:02x}]"
    else:
        left = rng.randrange(1, leaves)
        a, b = draw_regex(rng, vocab_size, left), draw_regex(rng, vocab_size, leaves - left)
        part = a + b if rng.random() < 0.5 else f"(?:{a}|{b})"
    if rng.random() < 0.5:
        return part
    return f"(?:{part}){rng.choice(('*', '+', '?', '{2}', '{1,3}'))}"


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
"""Invalid values, by field of a request or of its ``params``."""


def draw_odd(rng: Random, requests: Sequence[Request]) -> Request:
    """Return a request that may have to be refused, without an effect on the others.

    Its id is in use or was used before, or a field has an invalid value.
    """
    like = rng.choice(requests)
    if rng.random() < 0.5:
        return replace(like, rid=rng.choice(requests).rid)
    name = rng.choice(sorted(ODD))
    change = {name: rng.choice(ODD[name])}
    if name in SamplingParams.__dataclass_fields__:
        change = {"params": replace(like.params, **change)}
    return replace(like, **{"rid": "odd", **change})


# -- Events during the run: aborts, requests sent again, and steps that fail -----------------------

INTERRUPTED_SHARE = 1 / 10
EARLY_SHARE = 1 / 12  # of workloads without drafts that release memory at the last launch
FULL_SHARE = 1 / 2  # of workloads with a request as long as the context
LOST_SHARE = 1 / 8  # of workloads with a step that finds no memory for its inputs
EQUAL_SHARE = {"urgent": 0.7, "crowded": 0.4}  # of workloads with two equal requests, by theme
INPUTS, MASK, TRANSFER = "inputs find no memory", "mask finds no memory", "transfer fails"
OF_HOST = (INPUTS, MASK, TRANSFER, POSTPROCESS)
AT_RUN = [kind for kind in FAILURES if kind not in (*OF_HOST, OTHER_OP)]  # on the device
OTHER_OP_SHARE = 1 / 4  # of workloads with drafts or beams; of the others half as many
UNWRITTEN = ("forward raises", "out of device memory")  # of these, pages of the step stay unwritten
GIVEN_UP_AFTER = (0, 1, 1, 2, 3, 4, 5, 7, 9, 20)  # turns: waiting, in chunks, running, ended


def draw_aborts(rng: Random, workload: Workload) -> dict[int, str]:
    """Return aborts by turn, at every stage of a request; none in two workloads of five."""
    aborts = {}
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        at = rng.randrange(len(workload.requests))
        turn = workload.arrivals[at] + rng.choice(GIVEN_UP_AFTER)
        aborts[turn] = workload.requests[at].rid
    return aborts


def draw_sent_again(rng: Random, workload: Workload) -> dict[int, str]:
    """Return requests that are sent again, by turn: while they are alive, or after their end."""
    found = {}
    for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 1, 2))):
        at = rng.randrange(len(workload.requests))
        turn = workload.arrivals[at] + rng.choice((1, 2, 5, 12, 25))
        found[turn] = workload.requests[at].rid
    return found


STALE, SPOILED = "has a row of a lost lease", "has a row that read a failed page"
READ_OWN = "reads pages that it fills itself"
READ_LATER = "fills pages that a later step reads"
LATE = (READ_LATER, STALE)  # other decisions of the host make a step so
OFTEN_WHEN = {
    **dict.fromkeys(CROWDS, ("", STALE, STALE)),
    "alike": (READ_OWN, READ_OWN, READ_LATER, SPOILED),
    "conversation": ("", "shares cached pages"),
}  # fmt: skip
"""By theme, the steps that fail often; without a theme, a step that computes a position."""


def draw_failures(rng: Random, workload: Workload, theme: str) -> tuple[Failure, ...]:
    """Return one or two failing steps: in most workloads with a theme, in a third of the others.

    One computes a part of a prompt, one a token of an answer. Every other one is wasted: it
    computes the last token of an answer, so its request has already ended. With a theme, many are
    in a step that shares pages or has lost a lease. A quarter of the workloads has a transfer that
    fails on ``pd``.
    """
    found, often = [], OFTEN_WHEN.get(theme, ("",))
    for _ in range(rng.choice((0, 1, 1, 2) if theme in OFTEN_WHEN else (0, 0, 0, 0, 1, 2))):
        req, when = rng.choice(workload.requests), rng.choice(often)
        first, last = len(req.prompt), len(req.prompt) + len(tokens_alone(workload, req)) - 1
        position = rng.choice((rng.randrange(first), rng.randint(first - 1, last), last, last))
        needs_mask = bool(req.params.regex or req.params.has_penalties)
        kind = rng.choice(AT_RUN if when else [*AT_RUN, INPUTS, *[MASK] * 3 * needs_mask])
        if when in LATE and rng.random() < 0.6:
            kind = "copy fails"  # the last moment of a step
        if when == SPOILED:
            found.append(Failure("", 0, "copy fails", READ_LATER))
            kind = rng.choice((kind, "NaN logits"))
        found.append(Failure("", 0, kind, when) if when else Failure(req.rid, position, kind))
    if rng.random() < 0.25:
        found.append(Failure(rng.choice(workload.requests).rid, 0, TRANSFER))
    return tuple(found)


def draw_mask_failure(rng: Random, workload: Workload) -> tuple[Failure, ...]:
    """Return a mask without memory, for a fifth of the workloads with a request that needs one."""
    masked = [
        req
        for req in workload.requests
        if not wrong_form(req) and (req.params.regex or req.params.has_penalties)
    ]
    if not masked or rng.random() > 0.2:
        return ()
    req = rng.choice(masked)
    position = len(req.prompt) - 1 + rng.randrange(3)  # of one of its first three tokens
    return (Failure(req.rid, position, MASK),)


def draw_other_op(rng: Random, workload: Workload) -> tuple[Failure, ...]:
    """Return a failing op that a plain step does not have: of a draft, a search or an upload."""
    config, req = workload.config, rng.choice(workload.requests)
    often = config.speculative_algorithm or config.beam_width > 1
    share = OTHER_OP_SHARE if often else OTHER_OP_SHARE / 2
    if wrong_form(req) or rng.random() > share:
        return ()
    return (Failure(req.rid, len(req.prompt) - 1 + rng.randrange(4), OTHER_OP),)


def add_rare(rng: Random, workload: Workload, theme: str) -> bool:
    """Change a few workloads: timed requests, rare failures, a small budget, equal requests.

    Return whether ``mix_urgent`` may change it, unless it searches with beams.

    It comes last, so that all other draws of a seed stay as they are. Timed requests exclude those
    that are sent again, which have to be known by their turn.
    """
    if rng.random() < 0.1 and not workload.sent_again:
        workload.delay = rng.choice((20, 300)) * UNIT
    config = workload.config
    if theme == "alike" and rng.random() < 0.9:
        if rng.random() < 0.4:
            workload.failures += (Failure("", 0, "NaN logits", SPOILED),)
        together = config.max_prefill_tokens > 8 and not any(workload.arrivals[:2])
        when = READ_OWN if together else READ_LATER
        workload.failures += (Failure("", 0, rng.choice(UNWRITTEN), when),)
    if config.enable_mixed_chunk and theme != "late prompt" and rng.random() < 0.4:
        least = -(-12 // config.page_size) * config.page_size
        chunk, most = max(config.chunked_prefill_size, least), rng.choice((3, 4, 6))
        workload.config = replace(config, chunked_prefill_size=chunk, max_prefill_tokens=most)
    if rng.random() < 0.1:
        req = rng.choice(workload.requests)
        if not wrong_form(req):
            position = len(req.prompt) - 1 + rng.randrange(3)  # of one of its first three tokens
            workload.failures += (Failure(req.rid, position, POSTPROCESS),)
    if rng.random() < 0.1:
        req = rng.choice(workload.requests)
        if not wrong_form(req):
            late = rng.randrange(3)  # 0: in the first chunk
            position = len(req.prompt) - 1 + late if late else 0
            workload.failures += (Failure(req.rid, position, "NaN logits"),)
    if rng.random() < 0.2 and theme in ("any", "urgent"):
        share_long_prefix(rng, workload)
    mixes = False
    if rng.random() < EQUAL_SHARE.get(theme, 0):
        is_more = rng.random() < 0.5
        make_equal(workload, theme, with_logprobs=is_more)
        if theme == "urgent" and is_more:
            preempt_both(workload)
        mixes = theme == "urgent" and not (is_more or config.speculative_algorithm)
    config = workload.config
    if rng.random() < EARLY_SHARE and not config.speculative_algorithm:
        rules = config.rules or f"{rng.choice(SYSTEMS)},{LATE_RULE}"
        if "length_frees" not in rules:
            workload.config = replace(config, rules=rules.replace(LATE_RULE, EARLY_RULE))
    return mixes


def add_beams(rng: Random, workload: Workload) -> None:
    """Let a workload search with beams; most of its requests have no wish that a search refuses.

    A loop that refuses beam search runs the same requests without it (``without_refused``).
    """
    workload.config = replace(workload.config, beam_width=rng.randint(2, 4))
    if rng.random() < 0.7:  # searches run together, and memory is short after a while
        workload.config = replace(
            workload.config, rules="", schedule_conservativeness=0.0, max_running_requests=4
        )
    for at, req in enumerate(workload.requests):
        if not wrong_form(req) and refused_wish(req.params) and rng.random() < 0.9:
            kept = ("max_new_tokens", "stop_token_ids", "ignore_eos")
            params = SamplingParams(**{name: getattr(req.params, name) for name in kept})
            if at % 2:  # a step ends several outputs
                params = replace(params, stop_token_ids=frozenset(range(workload.vocab_size // 3)))
            workload.requests[at] = replace(req, params=params)


def spoil_search(rng: Random, workload: Workload) -> None:
    """Let a search have NaN logits while another one runs that has found its pages cached.

    The other one is computed again, and its steps that have run by then must not count.
    """
    for at, req in enumerate(workload.requests[:3]):
        if not wrong_form(req):
            params = SamplingParams(max_new_tokens=8)
            workload.requests[at] = replace(req, params=params)
            workload.arrivals[at] = min(at, 1)
    first = workload.requests[0]
    position = len(first.prompt) + rng.randint(2, 4)
    others = [it for it in workload.failures if it.kind == POSTPROCESS]
    workload.failures = (Failure(first.rid, position, "NaN logits"), *others)
    workload.aborts, workload.interrupt = {}, None
    workload.config = replace(
        workload.config, rules=f"sglang,{LATE_RULE},{PLANNED}", kv_tokens=96, max_running_requests=4
    )


def share_long_prefix(rng: Random, workload: Workload) -> None:
    """Let the first requests come together with a prefix so long that the others wait for one.

    So do orders that look at the cache. Two of the requests have another prefix, if there are five.
    The prefix has more tokens than such an order looks for, and pages of several tokens have fewer.
    """
    config, size = workload.config, rng.choice((1, 2, 4))
    chunk = config.chunked_prefill_size
    chunk = chunk if chunk == -1 else chunk // config.page_size * size
    for at, req in enumerate(workload.requests[:5]):
        if not wrong_form(req):
            prefix = [(7 * place + at // 3) % workload.vocab_size for place in range(36)]
            workload.requests[at] = replace(req, prompt=[*prefix, *req.prompt[-3:]])
            workload.arrivals[at] = 0
    longest = max(req.max_device_len for req in workload.requests if not wrong_form(req))
    workload.config = replace(
        config, rules="", context_len=3 * CONTEXT_LEN, disable_radix_cache=False,
        schedule_policy=rng.choice(("lpm", "lpm", "dfs-weight")), max_prefill_tokens=99,
        page_size=size, chunked_prefill_size=chunk,
        max_running_requests=rng.randint(1, 2), kv_tokens=(longest + 20 + size) // size * size,
    )  # fmt: skip


def make_equal(workload: Workload, theme: str, with_logprobs: bool) -> None:
    """Let the first two requests come together with prompts of one length, so that they are equal.

    In a crowd the second is retracted, ``with_logprobs`` one that has asked for them. Of urgent
    requests, both have the lowest priority and long answers, and there are two rows. So a later
    request preempts one of two with equal priority.
    """
    one, other = workload.requests[:2]
    params = other.params
    if theme == "crowded" and with_logprobs:
        params = replace(params, return_logprob=True, top_logprobs_num=1, logprob_start_len=-1)
    other = replace(other, prompt=one.prompt[::-1], priority=one.priority, params=params)
    workload.requests[1] = other
    workload.arrivals[:2] = [0, 0]
    if theme == "urgent":
        for at, req in enumerate(workload.requests):
            if at < 2:
                params = replace(req.params, max_new_tokens=9, stop_token_ids=frozenset(), stop=())
                workload.requests[at] = replace(req, params=params, priority=0)
            elif not wrong_form(req):
                workload.requests[at] = replace(req, priority=max(1, req.priority))
                workload.arrivals[at] = max(4, workload.arrivals[at])
        config, size = workload.config, workload.config.page_size
        room = sum(-(-(len(req.prompt) + 9) // size) * size for req in workload.requests[:2])
        workload.config = replace(
            config, max_running_requests=2, priority_scheduling_preemption_threshold=0,
            kv_tokens=max(config.kv_tokens, room),
        )  # fmt: skip


def fill_context(workload: Workload) -> None:
    """Let the longest request fill the context, and with it a row of each table."""
    config = workload.config
    lens = [req.max_device_len for req in workload.requests if not wrong_form(req)]
    longest = max((length for length in lens if length <= config.context_len), default=0)
    workload.config = replace(config, context_len=longest or config.context_len)


def mix_urgent(workload: Workload) -> None:
    """Let an urgent prompt be computed next to the decodes of the requests that are not preempted.

    Memory suffices for all, and no request is aborted or wants log-probabilities.
    """
    for at, req in enumerate(workload.requests):
        if not wrong_form(req):
            params = replace(req.params, return_logprob=False, top_logprobs_num=0)
            workload.requests[at] = replace(req, params=params)
    config, size = workload.config, workload.config.page_size
    workload.aborts = {}
    workload.config = replace(
        config, rules="", run_first="prefill", enable_mixed_chunk=True, max_prefill_tokens=99,
        chunked_prefill_size=-(-16 // size) * size, kv_tokens=config.kv_tokens + 2 * CONTEXT_LEN,
    )  # fmt: skip


def preempt_both(workload: Workload) -> None:
    """Let two urgent requests come together, so that one pass preempts both running requests.

    Until then nothing ends these. Prompts are not cut, and memory suffices for all.
    """
    for at, req in enumerate(workload.requests[:2]):
        params = replace(req.params, ignore_eos=True, regex=None)
        workload.requests[at] = replace(req, params=params)
    workload.arrivals[2:4] = [6 for _ in workload.arrivals[2:4]]
    workload.aborts, workload.failures, workload.interrupt = {}, (), None
    workload.config = replace(
        workload.config, rules="", run_first="prefill", enable_mixed_chunk=False,
        chunked_prefill_size=-1, max_prefill_tokens=99,
        kv_tokens=workload.config.kv_tokens + 2 * CONTEXT_LEN,
    )  # fmt: skip


# -- Settings --------------------------------------------------------------------------------------

DRAFT_MODELS = {"NGRAM": ("",), "NGRAM_GPU": ("",), "STANDALONE": ("hash:10", "hash:7", "hash:0")}
NOT_CHANGED = (
    "run_first", "free_rule", "too_many_tokens", "enters_cache", "prefix_cache", "prompt_pages",
)  # fmt: skip
CHANGES = tuple(  # one answer of one rule each
    f"{rule.name}={answer}"
    for rule in fields(Rules)
    if rule.name not in NOT_CHANGED
    for answer in rule.metadata["answers"]
    if (rule.name, answer) != ("reserves", "prompt")
)


LATE_RULE, EARLY_RULE = "free_rule=lease", "free_rule=at_once,length_frees=last_launch"
"""When memory is released: after the last step that refers to it, or once that is launched."""
SYSTEMS = [name for name, rules in RULES.items() if rules.reserves != "prompt"]

# Rules that reserve all remaining tokens admit few requests together: none shares unwritten pages.
PLANNED = "prefix_cache=blocks,prompt_pages=scheduled,reserves=ratio"


def draw_config(rng: Random, theme: str, algorithm: str, scale: Scale = USUAL) -> SchedulerConfig:
    """Return all settings except the size of memory, which ``draw_room`` fits to the requests.

    In every second workload a loop has its own rules. The others have one system's rules with one
    answer changed. They release memory by the rule ``lease``. A few release it at the last launch,
    which is correct where one stream writes (``without_refused``). No request is refused for ever.
    A radix tree shares nothing that a failing step may have left unwritten. Only loops that wait
    for each step may reserve memory for the prompt alone: with steps in flight, requests could be
    retracted for ever.
    """
    page_size, chunk = rng.choice(scale.page_sizes), rng.choice(scale.chunks)
    run_first, policy = rng.choice(RUN_FIRST), rng.choice(sorted(SCHEDULE_POLICIES))
    may_mix = run_first == "prefill" and chunk != -1 and not algorithm
    system = rng.choice(SYSTEMS)
    system = "sglang" if theme == "late prompt" else system  # mini-sglang reserves all memory
    change = PLANNED if theme == "alike" else rng.choice(CHANGES)
    changed = f"{system},{LATE_RULE},{change}"
    settings: dict[str, Any] = {
        "page_size": page_size,
        "max_running_requests": rng.choice(scale.max_running_requests),
        "disable_radix_cache": rng.random() < 0.25,
        "radix_eviction_policy": rng.choice(sorted(EVICTION_POLICIES)),
        "chunked_prefill_size": chunk if chunk == -1 else chunk * page_size,
        "max_prefill_tokens": rng.choice(scale.max_prefill_tokens),
        "schedule_policy": policy,
        "priority_scheduling_preemption_threshold": rng.choice((0, 0, 1, 2)),
        "schedule_conservativeness": rng.choice((0.0, 0.0, 0.4, 2.0)),
        "random_seed": rng.randrange(10),
        "run_first": run_first,
        "enable_mixed_chunk": may_mix and rng.random() < 0.5,
        "cuda_graph_max_bs": rng.choice((None, None, 0, 2)),
        "late_penalties": not algorithm and rng.random() < 0.25,
        "late_stop_strings": rng.random() < 0.25,
        "context_len": scale.context_len,
        "rules": rng.choice(("", *[changed] * (3 if theme == "alike" else 1))),
    }
    settings |= draw_themed(rng, theme, page_size, bool(algorithm))
    if algorithm:
        settings |= {
            "speculative_algorithm": algorithm,
            "speculative_num_draft_tokens": rng.randint(1, 4),
            "speculative_draft_model_path": rng.choice(DRAFT_MODELS[algorithm]),
        }
    return SchedulerConfig(**{**settings, **scale.settings})


def draw_themed(rng: Random, theme: str, page_size: int, has_drafts: bool) -> dict[str, Any]:
    """Return the settings that a theme changes."""
    if theme == "urgent":
        return {
            "max_running_requests": rng.randint(1, 3),
            "schedule_policy": "priority",
            "priority_scheduling_preemption_threshold": rng.choice((0, 1, 1, 2)),
        }
    if theme == "conversation":
        return {"disable_radix_cache": False}
    several = {"max_running_requests": rng.randint(3, 5)}
    if theme == "alike":
        # whole prompts, so that the second one reads pages of a step in flight, or of its own step
        whole = {"chunked_prefill_size": -1, "enable_mixed_chunk": False}
        most = rng.choice((8, 99, 99))
        return {**several, **whole, "disable_radix_cache": False, "max_prefill_tokens": most}
    if theme == "crowded":
        return {**several, "schedule_conservativeness": 0.0}
    if theme == "late prompt":
        return {
            **several,
            "schedule_conservativeness": 0.0,
            "chunked_prefill_size": -(-rng.randint(3, 7) // page_size) * page_size,
            "max_prefill_tokens": 99,
            "run_first": "prefill",
            "enable_mixed_chunk": not has_drafts,
        }
    return {}


def draw_room(rng: Random, workload: Workload, theme: str, scale: Scale) -> int:
    """Return the tokens of memory: enough for the longest request, or a little more.

    A few workloads have a page less, so the longest request is refused. ``Drawn.on`` adds the room
    for drafts in flight.
    """
    size, spare = workload.config.page_size, rng.choice(scale.spare_pages)
    if theme == "crowded":
        spare = rng.randrange(4)
    elif theme == "late prompt":
        others = len(workload.requests) - 1
        spare = 1 + rng.randint(3 * others, 6 * others) // size
    elif theme == "conversation":
        spare += rng.randrange(8)
    elif rng.random() < scale.refused_share:
        spare = -1
    longest = -(-max(req.max_device_len for req in workload.requests) // size)
    return max(1, longest + spare) * size


def for_deep(rng: Random, config: SchedulerConfig) -> SchedulerConfig:
    """Return settings in which tokens stay unread for long: chunks of prompts precede decodes.

    Rows are few, and memory suffices for all of them. Without these settings few workloads leave a
    row out while steps are in flight. Then a relay that loses the row's token would not be found.
    """
    return replace(
        config,
        run_first="prefill",
        enable_mixed_chunk=False,
        page_size=1,
        chunked_prefill_size=rng.choice((1, 2)),
        max_running_requests=rng.randint(2, 3),
        kv_tokens=config.kv_tokens + 40,
    )


def with_rare_rules(
    rng: Random, config: SchedulerConfig, design: Variant, is_safe: bool
) -> SchedulerConfig:
    """Return settings that in a third of the cases have rules which only some loops may have.

    Rules that reserve memory for a prompt alone need a loop that waits for each step. The rule
    ``deferred`` needs at most two steps in flight. A page may enter the cache before its step has
    returned if it ``is_safe``: no step fails, one stream writes, and no draft is rejected.
    """
    kind, rules = rng.choice((0, 0, 0, 1, 1, 2)), config.rules
    if not rules:  # the loop has its own
        return config
    if kind == 1 and not RELAYS[design.relay].run_ahead:
        rules = f"nano-vllm,{LATE_RULE},{rng.choice(CHANGES)}"
    elif kind == 1 and design.in_flight <= 2:
        rules = rules.replace(LATE_RULE, "free_rule=deferred")
    elif kind == 2 and is_safe and design.loop != "pd":
        rules = f"{rules},enters_cache={rng.choice(('launched', 'known'))}"
    return replace(config, rules=rules)


# -- Less of it: the levels of a lesson ------------------------------------------------------------

LEVELS = ("plain", "stops", "tight", "wishes")
"""The parts of a random workload: memory for all and ends by length; then stop tokens and aborts;
then little memory, pages, chunks, a cache and priorities; then grammars, penalties and sampling."""


def at_level(workload: Workload, level: str) -> Workload:
    """Return the workload without the parts of a higher level, with the loop's own rules.

    Raises:
        ValueError: there is no such level.
    """
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}, but it must be one of {', '.join(LEVELS)}.")
    stops, is_tight = level != "plain", level == "tight"
    config = replace(workload.config, rules="", beam_width=1)
    if level == "wishes":
        return replace(workload, config=config)
    config = replace(config, speculative_algorithm="", speculative_draft_model_path="")
    rows = config.max_running_requests
    roomy = SchedulerConfig(kv_tokens=512, max_running_requests=rows, disable_radix_cache=True)
    requests = []
    for req in workload.requests:
        params = SamplingParams(
            max_new_tokens=req.params.max_new_tokens,
            stop_token_ids=req.params.stop_token_ids if stops else frozenset(),
            ignore_eos=req.params.ignore_eos,
        )
        requests.append(replace(req, params=params, priority=req.priority * is_tight))
    return replace(
        workload,
        requests=requests,
        config=config if is_tight else roomy,
        aborts=workload.aborts if stops else {},
        eos_ids=workload.eos_ids if stops else frozenset(),
        flushes=workload.flushes if is_tight else frozenset(),
        failures=(),
    )


# -- Costs -----------------------------------------------------------------------------------------

UNIT = 100 * MICROSECOND


def draw_cost(rng: Random) -> CostModel:
    """Return costs: the host is slower, the device is slower, or nothing costs time."""
    schedule, small, mask, late = (
        rng.choice(values) * UNIT for values in ((0, 1, 5, 30), (0, 1), (0, 3, 25), (0, 2))
    )
    host = dict.fromkeys(("receive", "prepare", "launch", "output"), small)
    host |= {"schedule": schedule, "process": schedule, "mask": mask, "launch sample": late}
    host |= {"launch eager": 3 * small, "advance step": late, "fill": late, "send": small}
    host["postprocess"] = small
    return CostModel(
        host,
        forward_base=rng.choice((0, 1, 10, 60)) * UNIT,
        forward_per_token=rng.choice((0, 1)) * UNIT,
        sample=rng.choice((0, 2)) * UNIT,
        copy=rng.choice((0, 1, 9)) * UNIT,
        verify=rng.choice((0, 1)) * UNIT,
        draft=rng.choice((0, 3)) * UNIT,
        recv=rng.choice((0, 2)) * UNIT,
        logprobs=rng.choice((0, 2)) * UNIT,
    )


def draw_link(rng: Random) -> dict[str, int]:
    """Return a link's options, from a network without cost to one slower than all the rest."""
    return {
        "latency": rng.choice((0, 1, 20, 300)) * UNIT,
        "bytes_per_second": 10**9,
        "slot_bytes": rng.choice((0, 1, 15)) * UNIT,
    }


# -- The loops of random workloads: each with every relay and option that it has -------------------

OTHER_VALUES = {
    "clear_cache_every": (3,), "depth": (3, 4, 5, 6, 7, 8), "min_tokens": (4,),
    "num_steps": (2, 3),
}  # fmt: skip
"""The values of a loop's numbers besides the default; a boolean option is inverted.

The ring holds four steps in flight; eight are far more than any loop has by default."""

WITH_DEPTH = {"harvest_when_done": 4}
"""Options with little effect at a loop's usual depth: they are tried at this depth, too."""


@dataclass(frozen=True)
class Variant:
    """A loop with a relay and options, with its name on the command line."""

    loop: str
    relay: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return ``LOOP``, ``LOOP:RELAY`` or ``LOOP:RELAY:OPTION=VALUE`` (``loops/design.py``)."""
        if self.relay == LOOPS[self.loop].relays[0] and not self.options:
            return self.loop
        options = (f"{name}={str(value).lower()}" for name, value in self.options.items())
        return ":".join([self.loop, self.relay, *options])

    @property
    def in_flight(self) -> int:
        """Return the largest number of steps that it has in flight."""
        spec = LOOPS[self.loop]
        return replace(spec, options={**spec.options, **self.options}).in_flight

    @property
    def has_two_writers(self) -> bool:
        """Return whether another stream than the steps' writes memory of requests."""
        return LOOPS[self.loop].second_writer or RELAYS[self.relay].gives_every_input

    def refuses(self) -> set[str]:
        """Return the features that it refuses: grammar, penalties, speculation, beam search."""
        refused = set(LOOPS[self.loop].refusals(self.relay))
        return refused if self.relay in CARRIERS else refused | set(ALGORITHMS)


def read_design(name: str) -> Variant:
    """Return the design of a command line's name.

    Raises:
        ValueError: there is no such loop, or the relay or an option does not fit it.
    """
    spec = find_loop(name)
    loop = name.partition(":")[0]
    own = LOOPS[loop].options
    changed = {key: value for key, value in spec.options.items() if own.get(key) != value}
    design = Variant(loop, spec.relays[0], changed)
    check_options(design)
    return design


def other_options(loop: str) -> Iterator[dict[str, Any]]:
    """Yield the options that change a loop's course, few at a time; its spec's own ones stay.

    The options of ``pd`` are those of its link, which ``draw_link`` draws.
    """
    spec = LOOPS[loop]
    for name, item in inspect.signature(spec.run).parameters.items() if not spec.whole_run else ():
        if isinstance(item.default, bool):
            yield {name: not item.default}
            if name in WITH_DEPTH and "depth" not in spec.options:
                yield {"depth": WITH_DEPTH[name], name: not item.default}
        elif isinstance(item.default, int) and name not in spec.options:
            yield from ({name: value} for value in OTHER_VALUES[name])


@cache
def all_designs() -> tuple[Variant, ...]:
    """Return every loop with every relay that fits it, without options and with each of them."""
    found = []
    for loop, spec in LOOPS.items():
        for options in ({}, *other_options(loop)):
            for relay in spec.relays:
                design = Variant(loop, relay, options)
                try:
                    check_options(design)
                except ValueError:
                    continue
                found.append(design)
    return tuple(found)


def check_options(design: Variant) -> None:
    """Let loop and relay check the options, as they do on the first turn.

    Raises:
        ValueError: the options do not fit, with the sentence of the loop or relay.
    """
    if not design.options:
        return
    device, model = cast(Device, SimDevice()), HashModel()
    engine = make_engine(
        design.loop, device, model, SchedulerConfig(), Frontend(), relay=design.relay,
        **design.options,
    )  # fmt: skip
    next(LOOPS[design.loop].start(engine, **design.options))


# -- The designs of one workload, and the changes that make it fit ---------------------------------

CASES_EACH = 12  # cases of a workload, each on another loop, or another variant of a loop
OFTEN = {"vllm_async:ring:depth=3": 4, "vllm_async:ring:depth=4": 8, "vllm_async:pool:depth=8": 2}
"""The number of times that a design occurs in its loop's round, if it is not 1. With four steps in
flight the ring is used to its whole length; with eight, drafts stay unread for long. Few workloads
need that (``for_deep``), so these designs get more of them."""


SEARCH = "search"  # with beams
ONE_BUDGET = "one budget"  # for a late prompt and one request
FITTING = {
    "alike": ("vllm_async", "vllm_async", "overlap_pool_indexed", "pd"),
    "late prompt": ("mixed", "mixed"),
    "crowded": ("vllm_async",),
    "urgent": ("overlap",),
    TRANSFER: ("pd",),
    POSTPROCESS: ("mindie_plugin", "mindie_placeholder"),
    OTHER_OP: ("mini_overlap", "two_batch"),
    INPUTS: ("vllm_async", "overlap_thread", "vllm_pp2"),
    SEARCH: ("overlap", "serial", "multi_step", "overlap_pool_indexed"),
    ONE_BUDGET: ("vllm_async",) * 4,
}
"""By theme, by a failure that only few loops can have, or for a search, loops that reach the rare
situations."""


def designs_for(drawn: Drawn, device: str = "sim") -> list[Variant]:
    """Return the designs of a workload: loops in a cycle by seed, and each loop's variants in turn.

    So a run of consecutive seeds uses every loop and variant equally often. A workload with a
    feature that few loops take runs on several variants of each. Those that fit its theme and its
    failures are added.
    """
    kind, by_loop = drawn.workload.config.speculative_algorithm, dict[str, list[Variant]]()
    for design in all_designs():
        if device in LOOPS[design.loop].devices and kind not in design.refuses():
            by_loop.setdefault(design.loop, []).extend([design] * OFTEN.get(design.name, 1))
    loops, chosen = list(by_loop), dict[str, Variant]()
    rounds, at = divmod(drawn.seed, len(DRAFTERS))  # counts the earlier seeds of this kind
    earlier = rounds * DRAFTERS.count(kind) + DRAFTERS[:at].count(kind)
    for number in range(earlier * CASES_EACH, (earlier + 1) * CASES_EACH):
        turn, at = divmod(number, len(loops))
        design = dealt(by_loop[loops[at]], turn, f"{kind} {loops[at]}")
        chosen[design.name] = design
    needs = [drawn.theme, *(failure.kind for failure in drawn.workload.failures)]
    needs += [SEARCH] if drawn.workload.config.beam_width > 1 else []
    is_late = drawn.theme == "late prompt"
    needs += [ONE_BUDGET] if is_late and drawn.workload.config.run_first == "unified" else []
    for number, loop in enumerate(loop for need in needs for loop in FITTING.get(need, ())):
        if loop in by_loop:
            design = dealt(by_loop[loop], len(DRAFTERS) * drawn.seed + number, f"fits {kind}")
            chosen[design.name] = design
    return list(chosen.values())


def dealt(cards: Sequence[Card], number: int, what: str) -> Card:
    """Return the ``number``-th card of a sequence of shuffled packs.

    Each card comes up once per pack, in no fixed order. So two axes that are dealt this way are
    independent of each other.
    """
    pack, at = divmod(number, len(cards))
    return Random(f"{what} {pack}").sample(list(cards), len(cards))[at]


def without_refused(workload: Workload, design: Variant, device: str = "sim") -> Workload:
    """Return the workload with no refused speculation, and with chunks if the loop needs them.

    Beam search stays where the loop takes it, on ``sim``. Memory is released at the last launch
    only where no second stream writes it. A request with a refused feature is refused. So only
    every other request loses the feature, and a request that every loop refuses stays as it is.
    """
    refused, config, requests = design.refuses(), workload.config, list(workload.requests)
    if config.speculative_algorithm in refused:
        config = replace(config, speculative_algorithm="", speculative_draft_model_path="")
    if design.has_two_writers:
        config = replace(config, rules=config.rules.replace(EARLY_RULE, LATE_RULE))
    if "beam search" in refused or device != "sim":
        config = replace(config, beam_width=1)
    if LOOPS[design.loop].settings.get("enable_mixed_chunk") and config.chunked_prefill_size == -1:
        config = replace(config, chunked_prefill_size=2 * config.page_size)
    lost: dict[str, Any] = {"regex": None} if "grammar" in refused else {}
    if "penalties" in refused:
        lost |= {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
    for at in range(0, len(requests), 2):
        if not wrong_form(req := requests[at]):
            requests[at] = replace(req, params=replace(req.params, **lost))
    return replace(workload, requests=requests, config=config)
