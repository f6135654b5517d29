"""Tokens a second against the libraries' own generation: same prompts, same weights, same dtype.

Each side is a process of its own (``peers/``). Every ratio is ours over a rival's tokens a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from ctypes.util import find_library
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ..models.fetch import model_home
from .figures import Figure, cpus, figure, interleave, not_measured
from .peers.peer import Peer, PeerError

# -- What is asked for: some requests at once, each of a fixed length ------------------------------

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

    def question(self, new_tokens: int) -> dict[str, object]:
        """For the processes: prompts of small token ids that differ from each other."""
        prompts = [
            [100 + (row * 31 + at * 7) % 5000 for at in range(length)]
            for row, length in enumerate(self.prompt_lens)
        ]
        return {"prompts": prompts, "new_tokens": new_tokens}


Choose = Callable[[tuple[int, ...], tuple[int, ...]], list[GenerationLoad]]


def loads(
    batch: int | None, new_tokens: int, batches: tuple[int, ...], lengths: tuple[int, ...]
) -> list[GenerationLoad]:
    """One for each batch size, or for ``batch`` alone; prompts are as long as ``lengths`` say."""
    return [
        GenerationLoad(tuple(islice(cycle(lengths), size)), new_tokens)
        for size in ((batch,) if batch else batches)
    ]


# -- Ours and its rivals, each in a process of its own, on one load after another, in turn ---------

OURS = "minisched"


@dataclass(frozen=True)
class Rival:
    """Who ours is measured beside, and how many times its tokens a second ours should make.

    ``script`` is in ``peers/``. ``why_missed`` is the known reason, if there is one, where ours
    makes fewer.
    """

    name: str
    script: str
    aim: float
    why_missed: str = ""


def contest(
    title: str,
    rivals: Sequence[Rival],
    settings: Mapping[str, Any],
    env: Mapping[str, str],
    loads: Sequence[GenerationLoad],
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """All figures. Who can't take part gets a reason, and without ours so do all rivals.

    ``settings`` and ``env`` are of every process, which is told which rival it is, too; names of
    rows begin with ``title``.
    """
    peers: dict[str, Peer] = {}
    reasons: dict[str, str] = {}
    scripts = {OURS: "ours", **{rival.name: rival.script for rival in rivals}}
    with ExitStack() as stack:
        for name, script in scripts.items():
            module = f"{__package__}.peers.{script}"
            try:
                asked = {**settings, "rival": name}
                started = Peer.start(module, asked, model_home(), report, env)
                peers[name] = stack.enter_context(started)
            except PeerError as error:
                reasons[name] = str(error).rstrip(".")
        return [
            row
            for load in loads
            for row in side_by_side(
                f"{title}, {load.name}", rivals, load, peers, dict(reasons), repetitions, report
            )
        ]


def side_by_side(
    title: str,
    rivals: Sequence[Rival],
    load: GenerationLoad,
    peers: Mapping[str, Peer],
    reasons: dict[str, str],
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """One load: tokens a second and ratios, times to first token, and the tokens that are ours too.

    Each process answers a question for two tokens first, which is not timed: libraries allocate and
    compile on their first steps. ``reasons`` say who does not take part, or breaks off, and why.
    """
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in peers}

    def speed(name: str, new_tokens: int) -> float:
        """Tokens a second; who breaks off is asked no more, and without ours nobody is."""
        if name in reasons or OURS in reasons:
            return 0.0
        try:
            answers[name].append(peers[name].ask(load.question(new_tokens)))
        except PeerError as error:
            reasons[name] = str(error).rstrip(".")
            return 0.0
        return len(load.prompt_lens) * new_tokens / float(answers[name][-1]["seconds"])

    for name in peers:
        report(f"{title}: {name}, warming up")
        speed(name, 2)
        answers[name].clear()
    measures = {f"{title}: {name}": partial(speed, name, load.new_tokens) for name in peers}
    speeds = interleave(measures, repetitions, report)
    done = {} if OURS in reasons else {n: a for n, a in answers.items() if n not in reasons}
    ours = speeds.get(f"{title}: {OURS}", [])
    rows = [figure(f"{title}: {name}", speeds[f"{title}: {name}"], "tokens/s") for name in done]
    for rival in rivals:
        name, theirs = f"{title}: {OURS} / {rival.name}", speeds.get(f"{title}: {rival.name}", [])
        if reason := reasons.get(OURS) or reasons.get(rival.name):
            rows.append(replace(not_measured(name, "ratio", reason, rival.aim), at_most=False))
            continue
        times = [one / other for one, other in zip(ours, theirs, strict=True)]
        rows.append(figure(name, times, "ratio", rival.aim).because(rival.why_missed))
    for name, taken in done.items():
        rows.append(figure(f"{title}: {name}, TTFT", [1000 * a["ttft"] for a in taken], "ms"))
    for name in [name for name in done if name != OURS]:
        both = zip(answers[OURS], answers[name], strict=True)
        shares = [equal_share(one["tokens"], other["tokens"]) for one, other in both]
        rows.append(figure(f"{title}: {name}, tokens equal to ours", shares, "share"))
    return rows


def equal_share(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Of all requests' greedy tokens, those that are the same in both, place by place.

    After a near tie that falls otherwise, none need be.
    """
    pairs = [
        one == other
        for mine, other_row in zip(ours, theirs, strict=True)
        for one, other in zip(mine, other_row, strict=True)
    ]
    return sum(pairs) / len(pairs)


# -- On torch: transformers, with the same weights, dtype and cores ------------------
#
# Ours keeps its bits whatever the batch looks like; the rival does not.

RIVALS = (
    Rival("transformers static", "transformers_generate", 1.2),
    Rival("transformers continuous", "transformers_generate", 2.0),
)
DTYPES = ("float32", "bfloat16")


def generation_torch(
    folder: Path, choose: Choose, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """Each dtype with each load."""
    rows = []
    for dtype in DTYPES:
        settings = {"device": "thread", "folder": str(folder), "dtype": dtype, "threads": cpus()}
        chosen = choose(BATCHES, LENGTHS)
        rows += contest(dtype, RIVALS, settings, {}, chosen, repetitions, report)
    return rows


# -- On MLX: mlx-lm's ``BatchGenerator``, with stock kernels, and with OpenBLAS --------------------
#
# Another BLAS can only be put in before a process starts. With it, which tokens come no longer
# depends on the batch by a bit or so (``models/llama_mlx.py``). Where the stock kernels are plain
# loops on the CPU, every token of every request takes about a tenth of a second, be it of a prompt
# or new: so one request shows it all. On a Mac they are Metal's, and there is nothing to put in.

MLX_LM = Rival("mlx-lm", "mlx_lm", 1.2)
WHY_MISSED = (
    "about half of a step is OpenBLAS's matrix products, a quarter and more attention, which "
    "gathers KV from its pages"
)
NO_OPENBLAS = "there is no libopenblas on this machine (Debian: apt install libopenblas0-pthread)"


def generation_mlx(
    folder: Path, choose: Choose, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """Each BLAS with each load."""
    settings = {"device": "mlx", "folder": str(folder)}
    title, rivals = "stock kernels", (MLX_LM,)
    if not sys.platform.startswith("linux"):
        return contest(title, rivals, settings, {}, choose(BATCHES, LENGTHS), repetitions, report)
    rows = contest(title, rivals, settings, {}, choose((1,), (64,)), repetitions, report)
    library, threads, chosen = find_library("openblas"), cpus(), choose(BATCHES, LENGTHS)
    title = f"OpenBLAS, {threads} thread{'s' * (threads > 1)}"
    rivals = (replace(MLX_LM, why_missed=WHY_MISSED),)
    if library:
        env = {"LD_PRELOAD": library, "OPENBLAS_NUM_THREADS": str(threads)}
        return rows + contest(title, rivals, settings, env, chosen, repetitions, report)
    for load in chosen:
        missing = {OURS: NO_OPENBLAS}
        rows += side_by_side(f"{title}, {load.name}", rivals, load, {}, missing, 1, report)
    return rows


PARTS = {"thread": generation_torch, "mlx": generation_mlx}


def generation(
    folder: Path,
    device: str | None,
    batch: int | None,
    new_tokens: int,
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """Figures of the model in ``folder`` on one device of ``PARTS``, or on all."""
    choose = partial(loads, batch, new_tokens)
    return [
        row
        for name in ([device] if device else PARTS)
        for row in PARTS[name](folder, choose, repetitions, report)
    ]
