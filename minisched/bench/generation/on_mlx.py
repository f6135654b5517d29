"""Generation on MLX, ours beside mlx-lm's ``BatchGenerator``: stock kernels, and OpenBLAS.

Another BLAS can only be put in before a process starts, so ours too runs in a process of its own.
With it, which tokens come no longer depends on the batch by a bit or so (``llama_mlx.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ctypes.util import find_library
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...models.fetch import model_home
from ..machine import cpus
from ..peers.environment import clean_env, environment
from ..peers.peer import Peer, PeerError
from ..rows import Figure, Measure, figure, interleave, not_measured

PEER = "mlx-lm"
AIM = 1.2  # times the tokens a second of the peer
NO_OPENBLAS = "there is no libopenblas on this machine (Debian: apt install libopenblas0-pthread)"


@dataclass(frozen=True)
class Kernels:
    """A BLAS: its library, or None for the wheel's own, and how many threads it gets."""

    name: str
    library: str | None = None
    threads: int = 1

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to have it."""
        own = {"LD_PRELOAD": self.library, "OPENBLAS_NUM_THREADS": str(self.threads)}
        return {**clean_env(), **(own if self.library else {})}  # type: ignore[dict-item]


@dataclass(frozen=True)
class Load:
    """Requests that come at once; each runs to its length."""

    prompt_lens: tuple[int, ...]
    new_tokens: int

    @property
    def name(self) -> str:
        """Batch size, and what is asked for."""
        low, high = min(self.prompt_lens), max(self.prompt_lens)
        asked = f"{low}" if low == high else f"{low} to {high}"
        return f"batch {len(self.prompt_lens)}, prompts of {asked}, {self.new_tokens} new"

    @property
    def question(self) -> dict[str, object]:
        """For the processes: prompts of small token ids that differ from each other."""
        prompts = [
            [100 + (row * 31 + at * 7) % 5000 for at in range(length)]
            for row, length in enumerate(self.prompt_lens)
        ]
        return {"prompts": prompts, "new_tokens": self.new_tokens}


STOCK_LOADS = (Load((512,), 64), Load((64, 64, 128, 256), 64), Load((64,) * 16, 64))
LOADS = (
    Load((256,), 128),
    Load((64, 128, 256, 512), 128),
    Load((64, 128, 256, 512) * 4, 64),
)


def generation_mlx(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
    home: Path | None = None,
) -> list[Figure]:
    """All figures: for each BLAS and load tokens a second and the mean time to first token."""
    return [
        row
        for kernels, loads in choices()
        for row in figures_of(kernels, loads, folder, repetitions, report, home or model_home())
    ]


def choices() -> Iterator[tuple[Kernels, tuple[Load, ...]]]:
    """Each BLAS with its loads; the stock one is so slow that its loads are the smaller ones."""
    yield Kernels("stock kernels"), STOCK_LOADS
    if not sys.platform.startswith("linux"):
        return  # on a Mac the stock kernels are Metal's
    library = find_library("openblas")
    for threads in sorted({1, cpus()}):
        name = f"OpenBLAS, {threads} thread{'s' * (threads > 1)}"
        yield Kernels(name, library or "", threads), LOADS


def figures_of(
    kernels: Kernels,
    loads: tuple[Load, ...],
    folder: Path,
    repetitions: int,
    report: Callable[[str], None],
    home: Path,
) -> list[Figure]:
    """One BLAS; where a process can't start or go on, the reason instead of figures."""
    if kernels.library == "":
        return [missing(kernels, load, NO_OPENBLAS) for load in loads]
    settings = {"folder": str(folder)}
    try:
        with ExitStack() as stack:
            start = partial(Peer, settings=settings, env=kernels.env)
            own = stack.enter_context(start(Path(sys.executable), "own_mlx"))
            peer = stack.enter_context(start(environment(PEER, home, report), "mlx_lm"))
            return [
                row
                for load in loads
                for row in side_by_side(kernels, load, own, peer, repetitions, report)
            ]
    except PeerError as error:
        return [missing(kernels, load, str(error)) for load in loads]


def missing(kernels: Kernels, load: Load, reason: str) -> Figure:
    """The line of a load that was not measured."""
    return not_measured(f"{kernels.name}, {load.name}: minisched / {PEER}", "ratio", reason, AIM)


def side_by_side(
    kernels: Kernels,
    load: Load,
    own: Peer,
    peer: Peer,
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """One load on both, in turn."""
    firsts: dict[str, list[float]] = {"minisched": [], PEER: []}

    def ask(name: str, process: Peer) -> float:
        answer = process.ask(load.question)
        firsts[name].append(1000 * answer["ttft"])
        return len(load.prompt_lens) * load.new_tokens / float(answer["seconds"])

    case = f"{kernels.name}, {load.name}"
    measures: dict[str, Measure] = {
        f"{case}: minisched": partial(ask, "minisched", own),
        f"{case}: {PEER}": partial(ask, PEER, peer),
    }
    speeds = interleave(measures, repetitions, report)
    ours, theirs = speeds.values()
    times = [one / other for one, other in zip(ours, theirs, strict=True)]
    return [
        *(figure(name, taken, "tokens/s") for name, taken in speeds.items()),
        figure(f"{case}: minisched / {PEER}", times, "ratio", AIM),
        *(figure(f"{case}: {name}, TTFT", taken, "ms") for name, taken in firsts.items()),
    ]
