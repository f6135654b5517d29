"""``minisched bench generation``: tokens a second, beside the libraries' own generation."""

from __future__ import annotations

from ..bench.generation import generation
from ..bench.rows import Figure
from .bench_call import BenchCall
from .bench_case import check_real_time, find_folder, make_case
from .loop_choice import overlapped_loop


def measure(call: BenchCall) -> list[Figure]:
    """Two loops and the device's own library.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur")
    workload = call.workload()
    check_real_time(workload)
    if workload.model == "hash":
        raise ValueError("generation compares real models, so --model can't be hash.")
    if workload.device == "cuda":
        raise ValueError("generation is measured on --device thread and mlx only.")
    loops = ("serial", overlapped_loop(workload.device))
    case = make_case(workload)
    return generation(case, loops, find_folder(workload), call.repetitions, call.report)
