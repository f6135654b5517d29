"""The oracle: each request's tokens and log-probabilities alone, and comparisons of runs with it.

On one device a model computes the same numbers in every schedule, to the last bit. Two devices or
libraries add up a row in another order, or have another exponential. Then they agree within
``OF_HASH``, and in which tokens are the most likely ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple
from zlib import crc32

from ..core import FinishReason, Output, Request, SamplingParams, TokenLogprob
from ..core.form import wrong_form
from ..core.sampling import Grammar
from ..features.logprobs import logprobs_of
from ..grammar import compile_grammar
from ..models.hash import P, mix
from ..trace import Mark, Trace
from .case import Workload

# -- The truth: one request alone, no cache, no batch, no scheduler
#
# It shares the hash itself and the compiled grammar with the engine, and no other code.
#
# Its tokens (``hash_oracle``), their log-probabilities (``logprobs_alone``), and the request as a
# workload has it, which may have to be refused (``alone``).

Refusal = Callable[[Request], str | None]  # the reason of a refusal, in a sentence


class Alone(NamedTuple):
    """The result of a request that runs alone: its tokens, and the reason of its end."""

    tokens: list[int]
    finish_reason: FinishReason
    error: str = ""  # the reason of a refusal


def never(req: Request) -> str | None:
    """Return None: no request has to be refused."""
    return None


def alone(workload: Workload, req: Request, refusal: Refusal = never) -> Alone:
    """Return the result of a request alone, with the workload's settings.

    It is refused if ``refusal`` returns a sentence, or if no output can follow its grammar.
    """
    if problem := refusal(req):
        return Alone([], FinishReason.ERROR, problem)
    vocab_size, eos_ids, config = workload.vocab_size, workload.eos_ids, workload.config
    if config.beam_width > 1:
        return search_alone(req, req.params.max_new_tokens, workload)
    try:
        grammar = grammar_of(req, vocab_size, eos_ids)
    except ValueError as error:
        return Alone([], FinishReason.ERROR, str(error))
    return hash_oracle(
        list(req.prompt), req.params, key_of(req), vocab_size, eos_ids, grammar,
        config.late_penalties, config.late_stop_strings,
    )  # fmt: skip


def key_of(req: Request) -> int:
    """Return the key of a request's draws: 31 bits of its seed, then the CRC-32 of its id."""
    return req.params.seed % 2**31 * 2**32 + crc32(req.rid.encode())


def tokens_alone(workload: Workload, req: Request, truth: Alone | None = None) -> list[int]:
    """Return the tokens of ``alone``; a prefix after an abort or an injected fault of a step."""
    tokens = (truth or alone(workload, req)).tokens
    has_ended_early = req.finish_reason is FinishReason.ABORT or workload.has_failed(req)
    return tokens_so_far(workload, req, tokens) if has_ended_early else tokens


def tokens_so_far(workload: Workload, req: Request, tokens: list[int]) -> list[int]:
    """Return the tokens that a request alone has where it ended early: a prefix, or a best beam."""
    if workload.config.beam_width > 1 and tokens:
        return search_alone(req, len(req.output_ids), workload).tokens
    return tokens[: len(req.output_ids)]


# -- straight from the definitions -----------------------------------------------------------------


def hash_logits(tokens: Sequence[int], vocab_size: int) -> list[float]:
    """Return the hash model's logits after ``tokens``, straight from its definition."""
    lower = upper = 0
    for position, token in enumerate(tokens):
        lower += mix(mix(token, position), position)
        upper += mix(mix(lower % P, position), position)
    hidden = mix(upper % P, len(tokens))
    return [mix(hidden, token) * (10 / P) for token in range(vocab_size)]


def hash_oracle(
    prompt: list[int],
    params: SamplingParams,
    key: int,
    vocab_size: int,
    eos_ids: frozenset[int],
    grammar: Grammar | None = None,
    late_penalties: bool = False,
    late_stop_strings: bool = False,
) -> Alone:
    """Compute all of one request; with a grammar, its mask applies to every position.

    Late penalties and late stop strings do not see the newest token. If the last token that the
    length allows also ends the request, the token is the reason of the end.
    """
    stops = params.stop_token_ids | (frozenset() if params.ignore_eos else eos_ids)
    output: list[int] = []
    while len(output) < params.max_new_tokens:
        tokens, heard = prompt + output, output[:-1] if late_penalties else output
        logits = penalised(hash_logits(tokens, vocab_size), prompt, heard, params)
        if grammar is not None:
            logits = masked(logits, grammar.fill_vocab_mask())
        output.append(drawn_token(logits, params, key, len(tokens)))
        if grammar is not None:
            assert grammar.accept_token(output[-1])
        if output[-1] in stops or (grammar is not None and grammar.is_terminated):
            return Alone(output, FinishReason.STOP)
        if says(output[:-1] if late_stop_strings else output, params.stop):
            return Alone(output, FinishReason.STOP)
    return Alone(output, FinishReason.LENGTH)


def search_alone(
    req: Request, steps: int, workload: Workload, seen: list[list[list[int]]] | None = None
) -> Alone:
    """Return the best output of a beam search alone, or its best beam after fewer ``steps``.

    ``seen`` gets the beams after each step.

    All extensions of all beams are sorted. A search refuses each wish that changes its logits or
    that it would have to follow for each beam.
    """
    params, width, beams = req.params, workload.config.beam_width, [(0.0, list[int]())]
    plain, draws = SamplingParams(), params.temperature > 0 and params.top_k != 1
    if draws or any(getattr(params, name) != getattr(plain, name) for name in NOT_OF_SEARCH):
        return Alone([], FinishReason.ERROR, "beam search takes no")
    stops = params.stop_token_ids | (frozenset() if params.ignore_eos else workload.eos_ids)
    ended = list[tuple[float, list[int]]]()  # score by token, output
    for number in range(1, steps + 1):
        found, longer = list[tuple[float, int, int]](), list[tuple[float, list[int]]]()
        for parent, (score, output) in enumerate(beams):
            logits = hash_logits([*req.prompt, *output], workload.vocab_size)
            norm = max(logits) + math.log(sum(math.exp(it - max(logits)) for it in logits))
            found += ((norm - it - score, parent, token) for token, it in enumerate(logits))
        for cost, parent, token in sorted(found):
            output = [*beams[parent][1], token]
            if token in stops and number < params.max_new_tokens:
                ended.append((-cost / number, output))
            else:
                longer.append((-cost, output))
            if len(longer) == width:
                break
        beams = longer
        if seen is not None:
            seen.append([output for _, output in beams])
    if steps < params.max_new_tokens:
        return Alone(beams[0][1], FinishReason.ABORT)
    ended += [(score / len(output), output) for score, output in beams]
    best = max(ended, key=lambda item: item[0])[1]
    return Alone(best, FinishReason.STOP if best[-1] in stops else FinishReason.LENGTH)


NOT_OF_SEARCH = (
    "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "regex", "stop",
    "return_logprob",
)  # fmt: skip


def drawn_token(logits: list[float], params: SamplingParams, key: int, position: int) -> int:
    """Return the token of a position: the likeliest, or the draw of (key, position).

    The candidates are the ``top_k`` likeliest tokens, then the fewest of them with
    probabilities that reach ``top_p``. A probability is a whole number, of ``UNIT`` for the
    likeliest token. Gumbel noise is added to each candidate's scaled logit; the largest sum wins.
    """
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.temperature == 0:
        return ranked[0]
    scaled = [logit / params.temperature for logit in logits]
    ranked = ranked[: params.top_k] if params.top_k > 0 else ranked
    shares = [float(int(math.exp(scaled[at] - scaled[ranked[0]]) * UNIT)) for at in ranked]
    wanted = params.top_p * sum(shares)
    reached = [share for share in accumulate(shares) if share < wanted]
    candidates = ranked if params.top_p >= 1 else ranked[: len(reached) + 1]
    return max(candidates, key=lambda token: scaled[token] + noise(key, position, token))


UNIT = 2**34


def noise(key: int, position: int, token: int) -> float:
    """Return the Gumbel noise of one token, by the definition of ``threefry_2x32``."""
    words = threefry_2x32(key // 2**32, key % 2**32, token // 2, position)
    return -math.log(-math.log((words[token % 2] + 0.5) / 2**32))


@lru_cache(maxsize=1 << 16)  # the cases of one seed need the same words
def threefry_2x32(key0: int, key1: int, count0: int, count1: int) -> tuple[int, int]:
    """Return Threefry-2x32 with 13 rounds, as in the paper (Salmon and others, SC 2011)."""
    keys = [key0, key1, 0x1BD11BDA ^ key0 ^ key1]
    x0, x1 = (count0 + key0) % 2**32, (count1 + key1) % 2**32
    for nth, bits in enumerate((13, 15, 26, 6, 17, 29, 16, 24, 13, 15, 26, 6, 17), start=1):
        x0 = (x0 + x1) % 2**32
        x1 = (x1 * 2**bits % 2**32 + x1 // 2 ** (32 - bits)) ^ x0
        if nth % 4 == 0:  # a key is added after every fourth round
            x0 = (x0 + keys[nth // 4 % 3]) % 2**32
            x1 = (x1 + keys[(nth // 4 + 1) % 3] + nth // 4) % 2**32
    return x0, x1


def penalised(
    logits: list[float], prompt: list[int], output: list[int], params: SamplingParams
) -> list[float]:
    """Return logits after penalties and biases, straight from their definition."""
    changed = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            factor = params.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        logit -= params.frequency_penalty * output.count(token)
        logit -= params.presence_penalty if token in output else 0.0
        changed.append(logit + params.logit_bias.get(token, 0.0))
    return changed


def says(output: list[int], strings: tuple[str, ...]) -> bool:
    """Return whether the whole output, read as bytes, contains one of the strings.

    An incomplete character at its end does not count, because the next token may complete it.
    """
    text = bytes(token for token in output if token < 256).decode(errors="replace").rstrip("\ufffd")
    return any(string in text for string in strings)


def masked(logits: list[float], mask: bytes) -> list[float]:
    """Return logits in which only the tokens with a bit in the mask can be chosen."""
    bits = int.from_bytes(mask, "little")
    return [logit if bits >> token & 1 else -math.inf for token, logit in enumerate(logits)]


def grammar_of(req: Request, vocab_size: int, eos_ids: frozenset[int]) -> Grammar | None:
    """Return a request's grammar at its start, or None; ValueError if it is invalid."""
    if not req.params.has_grammar:
        return None
    return compile_grammar(req.params, vocab_size, eos_ids, None)


def logprobs_alone(req: Request, vocab_size: int) -> tuple[list[TokenLogprob], list[TokenLogprob]]:
    """Return the log-probabilities of a prompt, from ``logprob_start_len`` on, and of the output.

    They come from the model's own logits, before sampling changes them. The first token of a prompt
    has none. Both lists are empty if the request wants none.
    """
    params, tokens = req.params, [*req.prompt, *req.output_ids]
    if not params.return_logprob:
        return [], []
    first, num_prompt = params.logprob_start_len, len(req.prompt)

    def between(start: int, end: int) -> list[TokenLogprob]:
        """Return the log-probabilities of the tokens from ``start`` to ``end``."""
        return [
            logprob_of(hash_logits(tokens[:at], vocab_size), tokens[at], params.top_logprobs_num)
            for at in range(start, end)
        ]

    of_prompt = []
    if first >= 0:
        of_prompt = [TokenLogprob(None, tokens[first]), *between(first + 1, num_prompt)]
    return of_prompt, between(num_prompt, len(tokens))


def logprob_of(logits: list[float], token: int, top: int) -> TokenLogprob:
    """Return a token's log-probability, and the ``top`` likeliest; of equals the lower id first."""
    highest = max(logits)
    norm = highest + math.log(sum(math.exp(logit - highest) for logit in logits))
    best = sorted(range(len(logits)), key=lambda other: (-logits[other], other))[:top]
    return TokenLogprob(
        logits[token] - norm, token, tuple((logits[other] - norm, other) for other in best)
    )


# -- as a run --------------------------------------------------------------------------------------


def oracle_trace(workload: Workload, refused: Collection[str] = ()) -> Trace:
    """Return each request's result alone, as the trace of a run: a baseline without a scheduler.

    It has only marks ``tokens`` and ``finish``, and neither lanes nor times. ``workload`` is as a
    run has left it. A request that was aborted there, or was in a failed step, gets a prefix. The
    requests in ``refused``, by name, get no token.
    """
    marks = list[Mark]()
    for req in workload.requests:
        truth = alone(workload, req, lambda req: "refused" if req.name in refused else None)
        tokens, reason = tokens_alone(workload, req, truth), truth.finish_reason
        if req.finish_reason is FinishReason.ABORT or workload.has_failed(req):
            reason = req.finish_reason or reason
        told = {"step": 0, "rids": (req.name,) * len(tokens), "tokens": tuple(tokens)}
        marks.append(Mark("tokens", 0, told))
        marks.append(
            Mark("finish", 0, {"rid": req.name, "reason": reason.value, "outputs": len(tokens)})
        )
    return Trace("oracle", "", "hash", "virtual", (), (), (), tuple(marks))


# -- Log-probabilities: those that a request has, and those that its client received ---------------

OF_HASH = {"": 0.0, "torch": 1e-12, "mlx": 1e-6}
"""The tolerance of ``hash`` against the oracle, by library of the device's arrays. Its logits are
exact in float64 everywhere, but MLX computes the exponential in float32
(``models/sampling_arrays.py``)."""


def find_unlike(
    told: Iterable[tuple[Request, Sequence[Output]]],
    vocab_size: int,
    tolerance: float = 0.0,
) -> Iterator[str]:
    """Yield the requests with other log-probabilities than alone, in state or in output.

    After an abort, a refusal or a failure only the received tokens count. The prompt's arrive with
    the first token; before it, only the computed ones are known.
    """
    for req, heard in told:
        if not all(0 <= token < vocab_size for token in req.output_ids):
            continue  # no token that the model has
        known, found = logprobs_of(req)
        has_none = bool(wrong_form(req)) or not (req.output_ids or known)
        of_prompt, of_output = ([], []) if has_none else logprobs_alone(req, vocab_size)
        if not req.output_ids:
            of_prompt = of_prompt[: len(known)]
        every = [
            (f"{req.name}'s prompt has", known, of_prompt),
            (f"{req.name}'s output has", found, of_output),
        ]
        number = 0
        for output in heard:
            truth = list[TokenLogprob]()
            if output.token is not None:
                truth = [*([] if number else of_prompt), *of_output[number : number + 1]]
                number += 1
            told_now = [item for part in output.logprobs or () for item in part]
            every.append((f"{req.name} received with output {number}", told_now, truth))
        for what, found, truth in every:
            if unlike := difference(found, truth, tolerance):
                yield f"{what} {unlike}"


def difference(
    found: Sequence[TokenLogprob], truth: Sequence[TokenLogprob], tolerance: float
) -> str:
    """Return the first difference of two lists, in a token or a log-probability."""
    if len(found) != len(truth):
        return f"{len(found)} log-probabilities and not {len(truth)}"
    for at, (one, other) in enumerate(zip(found, truth, strict=True)):
        mine, theirs = ([(it.logprob, it.token_id), *it.top_logprobs] for it in (one, other))
        alike = len(mine) == len(theirs) and all(
            token == its_token
            and (a == b or (a is not None and b is not None and abs(a - b) <= tolerance))
            for (a, token), (b, its_token) in zip(mine, theirs, strict=True)
        )
        if not alike:
            return f"{mine} at place {at} and not {theirs}"
    return ""


# -- Beams: those of each step ---------------------------------------------------------------------


def find_wrong_beams(trace: Trace, workload: Workload) -> Iterator[str]:
    """Yield the searches that have other beams after a step than alone; a last step has none."""
    marks = [mark.attrs for mark in trace.marks if mark.name == "beams"]
    for req in workload.requests if marks else ():
        if wrong_form(req) or sum(other.rid == req.rid for other in workload.requests) > 1:
            continue
        seen, beams = list[list[list[int]]](), [list[int]()]
        own = [mark for mark in marks if mark["rid"] == req.rid]
        last = req.max_device_len - len(req.prompt) - 1
        search_alone(req, min(last, max((it["length"] for it in own), default=0)), workload, seen)
        for of in (it for it in own if it["length"] <= len(seen)):
            before = [[]] if of["length"] == 1 else beams  # a retracted search begins again
            chosen = zip(of["parents"], of["tokens"], strict=True)
            beams = [[*before[parent], token] for parent, token in chosen]
            if beams != (expected := seen[int(of["length"]) - 1]):
                yield f"after step {of['step']} {req.rid} has the beams {beams}, alone {expected}"
                break


# -- two runs --------------------------------------------------------------------------------------


def largest_difference(baseline: Iterable[Request], others: Iterable[Request]) -> float | None:
    """Return the largest difference of a token's, up to where tokens differ; None without any."""
    truth = {req.rid: req for req in baseline if req.params.return_logprob}
    largest = 0.0
    for req in others:
        if (one := truth.get(req.rid)) is None:
            continue
        mine = [*chain.from_iterable(logprobs_of(one))]
        theirs = [*chain.from_iterable(logprobs_of(req))]
        for a, b in zip(mine, theirs, strict=False):
            if a.token_id != b.token_id:
                break
            if a.logprob is not None and b.logprob is not None:
                largest = max(largest, abs(a.logprob - b.logprob))
    return largest if truth else None
