"""``minisched bench generation``: tokens a second, beside the libraries' own generation."""

from __future__ import annotations

from ..bench.figures import Figure
from ..bench.generation import NEW_TOKENS, PARTS, LoadChoice, generation
from .bench import BenchCall, find_folder

LONGEST = 1024  # new tokens: with a prompt of 512 they are in every small model's context


def measure(call: BenchCall) -> list[Figure]:
    """Each library beside its rivals: ``--requests`` at once, each ``--max-new-tokens`` long.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur", "dtype")
    if call.device not in (None, *PARTS):
        raise ValueError(f"--device is {call.device!r}; bench generation knows {', '.join(PARTS)}.")
    if call.model == "hash":
        raise ValueError("generation compares real models, so --model can't be hash.")
    new_tokens = NEW_TOKENS if call.max_new_tokens is None else call.max_new_tokens
    if not 2 <= new_tokens <= LONGEST:
        raise ValueError(f"--max-new-tokens is {new_tokens}, but it must be 2 to {LONGEST}.")
    folder = find_folder(call.workload())
    choice = LoadChoice(call.requests, new_tokens)
    return generation(folder, call.repetitions, call.report, call.device, choice)
