"""The chunked-prefill guide's case: a document of 100,000 tokens beside 20 short requests.

The guide names those sizes, chunks of 2,048 tokens and three results, with how long a round (0.3 s)
and the whole prompt (15 s) take. Whatever else a simulation needs comes from elsewhere:

- a short request is the median one of Azure's conversation trace (2023): 1,020 tokens of prompt
  and 129 of answer; the document's answer is as long;
- they come as often as there, 5.5 a second, so one every 180 ms, the first at time 0;
- the document comes after one second: six of the others are there already, 14 come later;
- the machine is the default profile of ``replay``, with its own KV pool; pages of 16 tokens.

Other choices were tried (all at once, one every 100, 250 or 500 ms, 200 tokens of prompt and 100 of
answer): they move the figures, but not what becomes of the three claims.

``peak_tokens``, the most tokens computed in one step, stands for the peak of activation memory,
which is proportional to it. Weights and KV cache are the same with every setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

from ..core import Request, SamplingParams
from ..devices.profiles import Profile
from ..scheduler import SchedulerConfig
from ..trace import Recorder, Trace
from .replay import LengthModel, RecordedTally, ReplayedRun, Rounds, play, rounds_of
from .trace_file import BlockPrompt

# -- What the chunked-prefill guide claims for a long document, beside what the simulation gives


@dataclass(frozen=True)
class Claim:
    """One sentence of the guide. ``gain`` is how many times better an outcome is than another."""

    about: str
    words: str
    least: float  # the gain that the words mean at least
    gain: Callable[[Outcome, Outcome], float]  # of the second over the first
    show: Callable[[Outcome], str]  # the figure that it is about
    why: str  # what decides it


CLAIMS = (
    Claim(
        "TTFT of the others", "15 s -> 0.5 s", 30.0,
        lambda plain, other: plain.mean_ttft / max(1, other.mean_ttft),
        lambda outcome: f"{outcome.mean_ttft / 1e9:.2f} s",
        "A prompt that is computed in chunks goes first in every prefill batch and takes the whole "
        "chunk, so whoever comes after the document is admitted with its last chunk at the "
        "earliest. Mixing gives tokens of the chunk to those who decode already, not to newcomers; "
        "they would need a share of each chunk.",
    ),
    Claim(
        "throughput", "2-3 x", 2.0,
        lambda plain, other: other.tokens_per_second / plain.tokens_per_second,
        lambda outcome: f"{outcome.tokens_per_second:.0f} tokens/s",
        "The same tokens are computed, and every chunk reads the weights and what came before it "
        "once more. Mixing saves the decode steps that a chunk takes along, no more than that.",
    ),
    Claim(
        "peak memory", "-60 %", 1 / 0.4,
        lambda plain, other: plain.peak_tokens / other.peak_tokens,
        lambda outcome: f"{outcome.peak_tokens:,} tokens a step",
        "A step computes no more than a chunk, and its tokens stand for the memory that "
        "activations take; weights and KV cache are as large as before.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim against one setting."""

    claim: Claim
    before: Outcome
    after: Outcome

    @property
    def gain(self) -> float:
        """How many times better it is with the setting."""
        return self.claim.gain(self.before, self.after)

    @property
    def holds(self) -> bool:
        """Whether the gain is at least what was claimed."""
        return self.gain >= self.claim.least


def verdicts(outcomes: Sequence[Outcome]) -> list[ClaimVerdict]:
    """Every claim against every setting but the first, which the others are measured by."""
    plain, *others = outcomes
    return [ClaimVerdict(claim, plain, other) for claim in CLAIMS for other in others]


# -- The chunked-prefill guide's scenarios A, B and C: which prompts are cut, and into how many ----
#
# The guide says how long prompt and answer are, how large a chunk is, and how many rounds that
# makes. In A (its sections 5.2, 5.4 and 7.2) ten requests decode beside the paper and chunks are
# mixed, so that each takes ten tokens less of the prompt. In B and C nobody is there but the
# request. Where the ten come from is not said: here each has a prompt of ten tokens, comes first,
# and decodes until the paper is done. Pictures are tokens like others: no model looks at them.

AT = 200_000_000  # nanoseconds: when the request comes; whoever is beside it decodes by then
MEANWHILE = 400  # tokens of theirs until then, at most
BESIDE_PROMPT = 10  # tokens


@dataclass(frozen=True)
class GuideCase:
    """One scenario, with what the guide says comes of it."""

    letter: str
    about: str
    prompt: int  # tokens
    answer: int
    chunk: int
    beside: int  # requests that decode meanwhile, in mixed chunks
    claimed: Mapping[str, int]  # the guide's figures: rounds, first, last, steps
    why: str  # where they are off, or what follows


GUIDE_CASES = {
    "long-paper": GuideCase(
        "A", "A paper of 150,000 tokens", 150_000, 2000, 2048, 10,
        MappingProxyType({"rounds": 73, "first": 2038, "last": 1500, "steps": 2073}),
        "150,000 / 2,038 is 73.6, so there is a 74th chunk, and it has what 73 leave: 1,226. "
        "(Without the ten it is 73.2 chunks of 2,048, and the 74th has 496.) The last chunk gives "
        "the first token; 1,999 decodes follow.",
    ),
    "many-pictures": GuideCase(
        "B", "50 pictures of 1,000 tokens each", 50_000, 500, 4096, 0,
        MappingProxyType({"rounds": 12}),
        "50,000 / 4,096 is 12.2, so there is a 13th chunk. That 500 tokens are to be answered "
        "changes nothing: only the prompt is cut.",
    ),
    "long-answer": GuideCase(
        "C", "A prompt of 10 tokens", 10, 7500, 2048, 0,
        MappingProxyType({"rounds": 1}),
        "The prompt fits into a chunk, so nothing is cut: one step for it, and a decode for each "
        "token but the first. Here chunks and mixing gain nothing; steps that are short on the "
        "host, and overlap, do.",
    ),
}  # fmt: skip


def guide_case(case: GuideCase, loop: str, profile: Profile) -> Rounds:
    """Replay one scenario.

    Raises:
        ValueError: the loop is unknown, or is none that can be replayed.
    """
    longest = case.prompt + (case.beside + 1) * (case.answer + MEANWHILE + BESIDE_PROMPT)
    config = SchedulerConfig(
        kv_tokens=max(profile.kv_tokens, longest),
        max_running_requests=256,
        context_len=longest,
        chunked_prefill_size=case.chunk,
        enable_mixed_chunk=case.beside > 0,
    )
    reqs = [
        guide_request(f"d{n}", n, BESIDE_PROMPT, case.answer + MEANWHILE, 0)
        for n in range(1, case.beside + 1)
    ]
    reqs.append(guide_request(RID, 0, case.prompt, case.answer, AT))
    recorder = Recorder()
    model = LengthModel(len(reqs), len(reqs), longest)
    play(loop, model, iter(reqs), config, profile.cost, tally=RecordedTally(recorder))
    return rounds_of(recorder.trace(loop, "sim", model.name, "virtual"), RID)


RID = "request"


def guide_request(rid: str, number: int, prompt: int, answer: int, arrival: int) -> Request:
    """A request whose prompt is like no other's, and which answers with so many tokens."""
    params = SamplingParams(max_new_tokens=answer, ignore_eos=True, seed=number)
    return Request(rid, BlockPrompt((number,), prompt, prompt), params, arrival)


DOCUMENT, SHORT, OUTPUT = 100_000, 1_020, 129  # tokens
NUM_OTHERS = 20
EVERY, DOCUMENT_AT = 180_000_000, 1_000_000_000  # nanoseconds
SETTINGS: dict[str, dict[str, int | bool]] = {
    "not chunked": {"chunked_prefill_size": -1},
    "chunked": {"chunked_prefill_size": 2048},
    "mixed chunks": {"chunked_prefill_size": 2048, "enable_mixed_chunk": True},
}


@dataclass(frozen=True)
class Outcome:
    """One setting's results; virtual time in nanoseconds."""

    name: str
    mean_ttft: int  # of the others
    worst_ttft: int  # of the others
    document_ttft: int
    mean_round: int  # from one step with a part of the document to the next
    longest_pause: int  # between two tokens of one of the others
    tokens_per_second: float  # answers of all, from the first arrival to the last token
    peak_tokens: int  # computed in one step
    steps: int


def long_document(loop: str, profile: Profile) -> list[Outcome]:
    """The case under each of ``SETTINGS``.

    Raises:
        ValueError: the loop is unknown.
    """
    return [outcome(name, *run_one(loop, profile, name)) for name in SETTINGS]


def run_one(loop: str, profile: Profile, name: str) -> tuple[ReplayedRun, Trace]:
    """One run under one of ``SETTINGS``."""
    longest = DOCUMENT + OUTPUT
    config = SchedulerConfig(
        kv_tokens=profile.kv_tokens,
        page_size=16,
        max_running_requests=256,
        context_len=longest,
        **SETTINGS[name],  # type: ignore[arg-type]
    )
    model = LengthModel(NUM_OTHERS + 1, NUM_OTHERS + 1, longest)
    recorder = Recorder()
    played = play(loop, model, requests(), config, profile.cost, tally=RecordedTally(recorder))
    return played, recorder.trace(loop, "sim", model.name, "virtual")


def requests() -> Iterator[Request]:
    """All 21 requests in order of arrival; no two share a prefix."""
    document = document_request("document", 0, DOCUMENT, DOCUMENT_AT)
    others = [
        document_request(f"r{n}", n, SHORT, (n - 1) * EVERY) for n in range(1, NUM_OTHERS + 1)
    ]
    return iter(sorted([document, *others], key=lambda req: req.arrival_time))


def document_request(rid: str, number: int, length: int, arrival: int) -> Request:
    """A request whose prompt is like no other's."""
    params = SamplingParams(max_new_tokens=OUTPUT, ignore_eos=True, seed=number)
    return Request(rid, BlockPrompt((number,), length, length), params, arrival)


def outcome(name: str, run: ReplayedRun, trace: Trace) -> Outcome:
    """What a run comes to."""
    ended = {metrics.rid: metrics for metrics in run.metrics.ended}
    document = ended.pop("document")
    ttfts = [metrics.ttft_ns or 0 for metrics in ended.values()]
    return Outcome(
        name,
        mean_ttft=sum(ttfts) // len(ttfts),
        worst_ttft=max(ttfts),
        document_ttft=document.ttft_ns or 0,
        mean_round=rounds_of(trace, "document").mean_ns,
        longest_pause=max(chain.from_iterable(metrics.itls for metrics in ended.values())),
        tokens_per_second=run.metrics.throughput,
        peak_tokens=run.peak_tokens,
        steps=run.num_steps,
    )
