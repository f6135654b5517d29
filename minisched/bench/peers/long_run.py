"""A long run of our own simulator, in a process of its own: the most memory that it ever had."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...core import Request, SamplingParams
from ...devices.profiles import find_profile
from ...export.native import StreamRecorder
from ...replay.replay import FlatMetrics, LengthModel, RecordedTally, play
from ...scheduler import SchedulerConfig
from .serve import Answer, serve

PROMPT, ANSWER = 64, 256  # tokens
RUNNING = 4  # requests at any time
STEP = 6_600_000  # nanoseconds; a little more than a step takes, so that no queue grows
STATUS = Path("/proc/self/status")
MEBIBYTE = 1 << 20


def start(settings: dict[str, Any]) -> Callable[[dict[str, Any]], Answer]:
    """Nothing to set up."""
    return lambda question: run(int(question["steps"]), Path(settings["work"]))


def run(steps: int, folder: Path) -> Answer:
    """MiB and steps of a run of about so many, recorded into a file that goes away again."""
    path = folder / "long.json"
    profile = find_profile("llama8b-h100")
    number = steps * RUNNING // ANSWER
    model = LengthModel(number, number, PROMPT + ANSWER)
    config = SchedulerConfig(max_running_requests=RUNNING, kv_tokens=8192, page_size=16)
    recorder = StreamRecorder(path, "overlap", "sim", "length")
    try:
        played = play(
            "overlap",
            model,
            requests(number),
            config,
            profile.cost,
            tally=RecordedTally(recorder),
            metrics=FlatMetrics(),
        )
        recorder.close()
        size = path.stat().st_size
    finally:
        path.unlink()
    return {
        "mib": most_memory() / MEBIBYTE,
        "steps": played.num_steps,
        "seconds": played.host_seconds,
        "bytes": size,
    }


def requests(number: int) -> Iterator[Request]:
    """Prompts that share nothing, one behind the other, nearly as fast as they can be served."""
    for index in range(number):
        params = SamplingParams(max_new_tokens=ANSWER, ignore_eos=True, seed=index)
        arrival = index * ANSWER // RUNNING * STEP
        yield Request(f"r{index}", (index,) * PROMPT, params, arrival)


def most_memory() -> int:
    """The most bytes that this process has had.

    Linux's ``getrusage`` counts what the parent had when it started us; ``VmHWM`` does not.
    """
    if STATUS.exists():
        lines = STATUS.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    serve(start)
