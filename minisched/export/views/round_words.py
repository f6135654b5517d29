"""What one must know to follow the numbers of admission: the reserve, and the results' names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...trace import Mark
from .marks import number, word
from .rounds import Round

RESULTS = {  # SGLang's AddReqResult, as far as a refusal has it
    "NO_TOKEN": "no KV memory for it, or no row",
    "OTHER": "another limit, such as the prompt tokens of one batch",
}
RESERVE = (
    "memory falls also by a page in reserve, there again in the next round, and by a cached "
    "prefix: it is locked",
    "memory later falls also by the tokens that a request may still produce",
)


def explained(rounds: Sequence[Round]) -> Iterator[str]:
    """What must be known to check the numbers, as far as it occurs: the reserve, the results."""
    if any(keeps_reserve(mark) for one in rounds for mark in one.admits):
        yield from RESERVE
    refuses = [event for one in rounds for event in one.events if event.name == "refuse"]
    results = {word(event, "result") for event in refuses}
    for result, meaning in RESULTS.items():
        if result in results:
            yield f"{result} (SGLang's AddReqResult): {meaning}"


def keeps_reserve(mark: Mark) -> bool:
    """Whether an admission follows SGLang's budget; a unified one has one number for two each."""
    total, now, inputs, chunk = (
        number(mark, name) for name in ("rem_total", "cur_rem", "rem_input", "rem_chunk")
    )
    return total != now or inputs != chunk
