"""``minisched bench generation``: tokens a second, beside the libraries' own generation."""

from __future__ import annotations

from ..bench.generation.generation import PARTS, generation
from ..bench.rows import Figure
from .bench_call import BenchCall
from .bench_case import find_folder


def measure(call: BenchCall) -> list[Figure]:
    """Each library beside its peers, on loads of its own.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur", "requests", "max_new_tokens")
    if call.device not in (None, *PARTS):
        raise ValueError(f"--device is {call.device!r}; bench generation knows {', '.join(PARTS)}.")
    if call.model == "hash":
        raise ValueError("generation compares real models, so --model can't be hash.")
    folder = find_folder(call.workload())
    return generation(folder, call.repetitions, call.report, call.device)
