"""The chunked-prefill guide's scenarios A, B and C: which prompts are cut, and into how many.

The guide says how long prompt and answer are, how large a chunk is, and how many rounds that makes.
In A (its sections 5.2, 5.4 and 7.2) ten requests decode beside the paper and chunks are mixed, so
that each takes ten tokens less of the prompt. In B and C nobody is there but the request. Where the
ten come from is not said: here each has a prompt of ten tokens, comes first, and decodes until the
paper is done. Pictures are tokens like others: no model looks at them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..core import Request, SamplingParams
from ..devices.cost import Profile
from ..scheduler import SchedulerConfig
from ..trace import Recorder
from .length import LengthModel
from .play import play
from .prompt import BlockPrompt
from .rounds import Rounds, rounds_of
from .tally import RecordedTally

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
