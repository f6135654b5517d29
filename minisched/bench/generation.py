"""Tokens a second against the libraries' own generation: same prompts, same weights, same dtype.

One module for each library that computes: ``on_torch.py`` and ``on_mlx.py``. Every ratio is ours
over a rival's tokens a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from ctypes.util import find_library
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

from ..models.fetch import model_home
from .figures import Figure, Measure, cpus, figure, interleave, not_measured
from .peers.environment import clean_env, environment
from .peers.peer import Peer, PeerError

# -- What is asked for in ``bench generation``: some requests at once, each of a fixed length ------

LENGTHS = (256, 64, 128, 64, 512, *(64,) * 11)  # tokens of prompts, over and over
BATCHES = (1, 16)  # requests at once; with more sizes a run takes longer than half an hour
LONGEST = 1024  # new tokens: with a prompt of 512 they are in every small model's context
NEW_TOKENS = 64


@dataclass(frozen=True)
class GenerationLoad:
    """Requests that come at once; each runs to its length."""

    prompt_lens: tuple[int, ...]
    new_tokens: int = NEW_TOKENS

    @property
    def name(self) -> str:
        """Batch size, and what is asked for."""
        low, high = min(self.prompt_lens), max(self.prompt_lens)
        asked = f"{low}" if low == high else f"{low} to {high}"
        return f"batch {len(self.prompt_lens)}, prompts of {asked}, {self.new_tokens} new"

    @property
    def tokens(self) -> int:
        """How many new tokens all requests get."""
        return len(self.prompt_lens) * self.new_tokens

    @property
    def question(self) -> dict[str, object]:
        """For the processes: prompts of small token ids that differ from each other."""
        prompts = [
            [100 + (row * 31 + at * 7) % 5000 for at in range(length)]
            for row, length in enumerate(self.prompt_lens)
        ]
        return {"prompts": prompts, "new_tokens": self.new_tokens}


@dataclass(frozen=True)
class LoadChoice:
    """Which loads to measure; ``batch`` is one batch size instead of those that a part has."""

    batch: int | None = None
    new_tokens: int = NEW_TOKENS

    def loads(
        self, batches: tuple[int, ...] = BATCHES, lengths: tuple[int, ...] = LENGTHS
    ) -> tuple[GenerationLoad, ...]:
        """A load for each batch size, with prompts as long as ``lengths`` says, over and over."""
        chosen = (self.batch,) if self.batch else batches
        return tuple(
            GenerationLoad(tuple(islice(cycle(lengths), batch)), self.new_tokens)
            for batch in chosen
        )


# -- Ours and its rivals, each in a process of its own, on one load after another, in turn ---------

OURS = "minisched"


@dataclass(frozen=True)
class Rival:
    """Who ours is measured beside, and how many times its tokens a second ours should make.

    ``why_missed`` is the known reason, if there is one, where it makes fewer.
    """

    name: str
    environment: str  # in peers/environment.py
    script: str  # in peers/
    aim: float
    why_missed: str = ""


@dataclass(frozen=True)
class Contest:
    """Who takes part, and with what; ``own`` is our script in ``peers/``."""

    name: str  # each row's name begins with it
    own: str
    rivals: tuple[Rival, ...]
    settings: Mapping[str, Any]  # of every process
    env: Mapping[str, str]
    loads: tuple[GenerationLoad, ...]

    def figures(self, repetitions: int, report: Callable[[str], None], home: Path) -> list[Figure]:
        """All figures. Who can't take part gets a reason, and without ours so do all rivals."""
        with ExitStack() as stack:
            processes, reasons = self._start(stack, report, home)
            return [
                row
                for load in self.loads
                for row in ContestLoad(self, load, processes, dict(reasons)).figures(
                    repetitions, report
                )
            ]

    def missing(self, reason: str) -> list[Figure]:
        """The rows of a contest that can't take place."""
        return [
            row
            for load in self.loads
            for row in ContestLoad(self, load, {}, {OURS: reason}).ratios({})
        ]

    def _start(
        self, stack: ExitStack, report: Callable[[str], None], home: Path
    ) -> tuple[dict[str, Peer], dict[str, str]]:
        """The processes, which run until ``stack`` is closed, and why others don't."""
        processes, reasons = {}, {}
        scripts = {OURS: self.own, **{rival.name: rival.script for rival in self.rivals}}
        environments = {rival.name: rival.environment for rival in self.rivals}
        for name, script in scripts.items():
            try:
                wanted = environments.get(name)
                python = environment(wanted, home, report) if wanted else Path(sys.executable)
                report(f"{self.name}: starting {name}")
                started = Peer(python, script, self.settings, self.env)
                processes[name] = stack.enter_context(started)
            except PeerError as error:
                reasons[name] = str(error).rstrip(".")
        return processes, reasons


@dataclass(frozen=True)
class ContestLoad:
    """One load of a contest; ``reasons`` say who does not take part, or breaks off, and why."""

    contest: Contest
    load: GenerationLoad
    processes: Mapping[str, Peer]
    reasons: dict[str, str]
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the rows' names begin with."""
        return f"{self.contest.name}, {self.load.name}"

    def figures(self, repetitions: int, report: Callable[[str], None]) -> list[Figure]:
        """Tokens a second and ratios, times to first token, and the tokens that are ours too.

        Each process answers a question for two tokens first, which is not timed: libraries
        allocate and compile on their first steps.
        """
        for name in self.processes:
            report(f"{self.name}: {name}, warming up")
            self._ask(name, {**self.load.question, "new_tokens": 2})
        self.answers.clear()
        measures: dict[str, Measure] = {
            f"{self.name}: {name}": partial(self._speed, name) for name in self.processes
        }
        interleave(measures, repetitions, report)
        if OURS in self.reasons:
            return self.ratios({})
        done = {name: taken for name, taken in self.answers.items() if name not in self.reasons}
        speeds = {name: [self._per_second(one) for one in taken] for name, taken in done.items()}
        return [
            *(figure(f"{self.name}: {name}", taken, "tokens/s") for name, taken in speeds.items()),
            *self.ratios(speeds),
            *(self._first_tokens(name, taken) for name, taken in done.items()),
            *(self._equal(name, taken) for name, taken in done.items() if name != OURS),
        ]

    def ratios(self, speeds: Mapping[str, Sequence[float]]) -> list[Figure]:
        """How many times each rival's tokens a second ours are, or why nobody knows."""
        rows = []
        for rival in self.contest.rivals:
            name = f"{self.name}: {OURS} / {rival.name}"
            reason = self.reasons.get(OURS) or self.reasons.get(rival.name)
            if reason:
                row = not_measured(name, "ratio", reason, rival.aim)
                rows.append(replace(row, at_most=False))
                continue
            both = zip(speeds[OURS], speeds[rival.name], strict=True)
            row = figure(name, [one / other for one, other in both], "ratio", rival.aim)
            rows.append(row.because(rival.why_missed))
        return rows

    def _speed(self, name: str) -> float:
        self._ask(name, self.load.question)
        taken = self.answers.get(name)
        return self._per_second(taken[-1]) if taken else 0.0

    def _ask(self, name: str, question: Mapping[str, Any]) -> None:
        """Keep the answer; who breaks off is asked no more, and without ours nobody is."""
        if name in self.reasons or OURS in self.reasons:
            return
        try:
            self.answers.setdefault(name, []).append(self.processes[name].ask(question))
        except PeerError as error:
            self.reasons[name] = str(error).rstrip(".")

    def _per_second(self, answer: Mapping[str, Any]) -> float:
        return self.load.tokens / float(answer["seconds"])

    def _first_tokens(self, name: str, answers: Sequence[Mapping[str, Any]]) -> Figure:
        times = [1000 * answer["ttft"] for answer in answers]
        return figure(f"{self.name}: {name}, TTFT", times, "ms")

    def _equal(self, name: str, answers: Sequence[Mapping[str, Any]]) -> Figure:
        """Greedy tokens at the same places: after a near tie that falls otherwise, none need be."""
        shares = [
            equal_share(one["tokens"], other["tokens"])
            for one, other in zip(self.answers[OURS], answers, strict=True)
        ]
        return figure(f"{self.name}: {name}, tokens equal to ours", shares, "share")


def equal_share(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Of all requests' tokens, those that are the same in both."""
    pairs = [
        one == other
        for mine, other_row in zip(ours, theirs, strict=True)
        for one, other in zip(mine, other_row, strict=True)
    ]
    return sum(pairs) / len(pairs)


# -- Generation on torch, ours beside transformers and llama.cpp: the same weights, dtype and cores
#
# Ours keeps its bits whatever the batch looks like; none of the rivals does.

LLAMA_CPP_WINS = (
    "torch's matrix products reach half of the memory's rate (bench limit); on top come attention, "
    "which gathers KV from its pages, and more than a thousand small operations"
)
RIVALS = (
    Rival("transformers static", "transformers", "transformers_static", 1.2),
    Rival("transformers continuous", "transformers", "transformers_continuous", 2.0),
    Rival("llama.cpp", "llama-cpp", "llama_cpp", 1.0, LLAMA_CPP_WINS),
)
DTYPES = ("float32", "bfloat16")


def generation_torch(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None],
    home: Path,
    choice: LoadChoice,
) -> list[Figure]:
    """All figures: each dtype with each load."""
    rows = []
    for dtype in DTYPES:
        settings = {"folder": str(folder), "dtype": dtype, "threads": cpus()}
        contest = Contest(dtype, "own_torch", RIVALS, settings, clean_env(), choice.loads())
        rows += contest.figures(repetitions, report, home)
    return rows


# -- Generation on MLX, ours beside mlx-lm's ``BatchGenerator``: stock kernels, and OpenBLAS -------
#
# Another BLAS can only be put in before a process starts, so ours too runs in a process of its own.
# With it, which tokens come no longer depends on the batch by a bit or so (``llama_mlx.py``).

AIM = 1.2
WHY_MISSED = (
    "about half of a step is OpenBLAS's matrix products, a quarter and more attention, which "
    "gathers KV from its pages"
)
NO_OPENBLAS = "there is no libopenblas on this machine (Debian: apt install libopenblas0-pthread)"


@dataclass(frozen=True)
class Kernels:
    """A BLAS: its library, or None for the wheel's own, and how many threads it gets.

    A library of the name "" is one that this machine lacks.
    """

    name: str
    library: str | None = None
    threads: int = 1
    batches: tuple[int, ...] = BATCHES
    lengths: tuple[int, ...] = LENGTHS

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to have it."""
        if not self.library:
            return clean_env()
        own = {"LD_PRELOAD": self.library, "OPENBLAS_NUM_THREADS": str(self.threads)}
        return {**clean_env(), **own}

    def contest(self, folder: Path, loads: tuple[GenerationLoad, ...]) -> Contest:
        """Ours beside mlx-lm, both with these kernels."""
        rival = Rival("mlx-lm", "mlx-lm", "mlx_lm", AIM, WHY_MISSED if self.library else "")
        settings = {"folder": str(folder)}
        return Contest(self.name, "own_mlx", (rival,), settings, self.env, loads)


def choices() -> list[Kernels]:
    """The stock kernels, and with as many threads as there are CPUs OpenBLAS.

    Where the stock ones are plain loops on the CPU, every token of every request takes about a
    tenth of a second, be it of a prompt or new: so one request shows it all. On a Mac they are
    Metal's, and there is nothing to put in.
    """
    if not sys.platform.startswith("linux"):
        return [Kernels("stock kernels")]
    library, threads = find_library("openblas") or "", cpus()
    return [
        Kernels("stock kernels", batches=(1,), lengths=(64,)),
        Kernels(f"OpenBLAS, {threads} thread{'s' * (threads > 1)}", library, threads),
    ]


def generation_mlx(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None],
    home: Path,
    choice: LoadChoice,
) -> list[Figure]:
    """All figures: each BLAS with each load."""
    rows = []
    for kernels in choices():
        contest = kernels.contest(folder, choice.loads(kernels.batches, kernels.lengths))
        if kernels.library == "":
            rows += contest.missing(NO_OPENBLAS)
        else:
            rows += contest.figures(repetitions, report, home)
    return rows


class GenerationPart(Protocol):
    """Measures one library; rivals' environments are below ``home``."""

    def __call__(
        self,
        folder: Path,
        repetitions: int,
        report: Callable[[str], None],
        home: Path,
        choice: LoadChoice,
    ) -> list[Figure]:
        """All figures of the model in ``folder``."""


PARTS: Mapping[str, GenerationPart] = {"thread": generation_torch, "mlx": generation_mlx}


def generation(
    folder: Path,
    repetitions: int,
    report: Callable[[str], None],
    device: str | None,
    choice: LoadChoice,
) -> list[Figure]:
    """Figures of one device of ``PARTS``, or of all."""
    chosen = [device] if device else list(PARTS)
    return [
        row
        for name in chosen
        for row in PARTS[name](folder, repetitions, report, model_home(), choice)
    ]
