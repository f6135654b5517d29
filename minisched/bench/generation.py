"""Tokens a second against the libraries' own generation: same prompts, same weights, same dtype.

Each side is a process of its own (``peers/``). Every ratio is ours over a rival's tokens a second.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from ctypes.util import find_library
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ..devices.registry import load
from ..models.fetch import model_home
from .figures import BenchCall, BenchPart, Figure, Measure, contest, cpus, figure
from .peers.peer import Answer, Peer, PeerError

OURS = "minisched"
LENGTHS = (256, 64, 128, 64, 512, *(64,) * 11)  # tokens of prompts, over and over
BATCHES = (1, 16)  # requests at once; with more sizes a run takes longer than half an hour
LONGEST = 1024  # new tokens: with a prompt of 512 they are in every small model's context
NEW_TOKENS = 64
DTYPES = ("float32", "bfloat16")
SLOWER = "attention gathers KV from its pages, and norms and the rest are many small operations"

# Script and aim of each rival, by the device that both run on. Ours keeps its bits whatever the
# batch looks like; no rival does.
RIVALS: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "thread": {
        "transformers static": ("transformers_generate", 1.2),
        "transformers continuous": ("transformers_generate", 2.0),
    },
    "mlx": {"mlx-lm": ("mlx_lm", 1.2)},
}


def generation_rows(call: BenchCall) -> list[Figure]:
    """Requests at once, each ``--max-new-tokens`` long, on the device named or on both.

    Another BLAS can only be put under MLX before a process starts. Where its stock kernels are
    plain loops on the CPU, every token takes about a tenth of a second, be it of a prompt or new:
    so OpenBLAS is put in. On a Mac they are Metal's, and there is nothing to put in.

    Raises:
        ValueError: there are too few or too many tokens.
    """
    new_tokens = NEW_TOKENS if call.max_new_tokens is None else call.max_new_tokens
    if not 2 <= new_tokens <= LONGEST:
        raise ValueError(f"--max-new-tokens is {new_tokens}, but it must be 2 to {LONGEST}.")
    find_model = load("minisched.models.llama", "find_model", "dev", "bench generation")
    folder = Path(find_model(call.model or "smollm2"))
    rows = []
    for device in [call.device] if call.device else RIVALS:
        for dtype in DTYPES if device == "thread" else ("",):
            settings = {"device": device, "folder": str(folder), "dtype": dtype, "threads": cpus()}
            env = {}
            if device == "mlx" and sys.platform.startswith("linux"):
                blas = find_library("openblas") or ""
                env = {"LD_PRELOAD": blas, "OPENBLAS_NUM_THREADS": str(cpus())}
            with ExitStack() as stack:
                sides = {
                    name: start(script, {**settings, "rival": name}, env, call, stack)
                    for name, script in scripts(device).items()
                }
                for batch in [call.requests] if call.requests else BATCHES:
                    prompts = list(islice(cycle(LENGTHS), batch))
                    title = f"{dtype or device}, batch {batch}, {new_tokens} new"
                    rows += beside(title, sides, device, prompts, new_tokens, call)
    return rows


def scripts(device: str) -> dict[str, str]:
    """Ours and its rivals on a device, each with its script in ``peers/``."""
    return {OURS: "ours", **{name: script for name, (script, _) in RIVALS[device].items()}}


def start(
    script: str,
    settings: Mapping[str, Any],
    env: Mapping[str, str],
    call: BenchCall,
    stack: ExitStack,
) -> Peer | str:
    """A side that runs as long as the stack; or why it can't be had."""
    if "LD_PRELOAD" in env and not env["LD_PRELOAD"]:
        return "there is no libopenblas on this machine (Debian: apt install libopenblas0-pthread)"
    module = f"{__package__}.peers.{script}"
    try:
        return stack.enter_context(Peer.start(module, settings, model_home(), call.report, env))
    except PeerError as error:
        return str(error)


def beside(
    title: str,
    sides: Mapping[str, Peer | str],
    device: str,
    prompt_lens: Sequence[int],
    new_tokens: int,
    call: BenchCall,
) -> list[Figure]:
    """One load: tokens a second and ratios, times to first token, and the tokens that are ours too.

    Each process answers a question for two tokens first, which is not timed: libraries allocate and
    compile on their first steps. Prompts are small token ids that differ from each other.
    """
    prompts = [
        [100 + (row * 31 + at * 7) % 5000 for at in range(length)]
        for row, length in enumerate(prompt_lens)
    ]
    answers: dict[str, list[Answer]] = {name: [] for name in sides}

    def arm(name: str, peer: Peer) -> Measure:
        def tokens_a_second() -> float:
            if not answers[name]:
                peer.ask({"prompts": prompts, "new_tokens": 2})
            answers[name].append(peer.ask({"prompts": prompts, "new_tokens": new_tokens}))
            return len(prompts) * new_tokens / float(answers[name][-1]["seconds"])

        return tokens_a_second

    arms = {n: side if isinstance(side, str) else arm(n, side) for n, side in sides.items()}
    aims = {name: aim for name, (_, aim) in RIVALS[device].items()}
    rows = contest(title, arms, "tokens/s", aims, call, at_most=False, why=SLOWER)
    for name, taken in answers.items():
        if len(taken) == call.repetitions:
            rows.append(figure(f"{title}: {name}, TTFT", [1000 * a["ttft"] for a in taken], "ms"))
        if name != OURS and len(taken) == len(answers[OURS]) == call.repetitions:
            shares = [
                equal_share(one["tokens"], other["tokens"])
                for one, other in zip(answers[OURS], taken, strict=True)
            ]
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


PART = BenchPart(generation_rows, ("device", "model", "requests", "max_new_tokens"), tuple(RIVALS))
