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

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from ..core import Request, SamplingParams
from ..devices.cost import Profile
from ..scheduler import SchedulerConfig
from ..trace import Recorder, Trace
from .length import LengthModel
from .play import Played, play
from .prompt import BlockPrompt
from .rounds import rounds_of
from .tally import RecordedTally

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


def run_one(loop: str, profile: Profile, name: str) -> tuple[Played, Trace]:
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


def outcome(name: str, run: Played, trace: Trace) -> Outcome:
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
