"""Tokens a second against the libraries' own generation: same prompts, same weights, same dtype.

Each side is a process of its own (``peers/``). Every ratio is ours over a rival's tokens a second,
by the clock and by CPU time. On a machine with other load the latter is meaningful.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from ctypes.util import find_library
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path

from ..devices.registry import load
from ..sweep.workers import num_cores
from .figures import Ask, BenchCall, BenchPart, Figure, contest, no_peer, peer_asked, ratio
from .peers.ours import ADAPTER
from .peers.peer import Answer

OURS = "minisched"
LENGTHS = (256, 64, 128, 64, 512, *(64,) * 11)  # tokens of prompts, over and over
BATCHES = (1, 16)  # requests; with more sizes a run takes longer than half an hour
LONGEST = 1024  # new tokens: with a prompt of 512 they are in every small model's context
NEW_TOKENS = 64
DTYPES = ("float32", "bfloat16")
SLOWER = "attention gathers KV from its pages, and norms and the rest are many small operations"
NO_BLAS = "there is no libopenblas on this machine (Debian: apt install libopenblas0-pthread)"

# Script and aim of each rival, by the device that both run on. Ours keeps its bits whatever the
# batch looks like; no rival does.
RIVALS: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "thread": {
        ADAPTER: ("ours", 1.0),
        "transformers static": ("transformers_generate", 1.2),
        "transformers continuous": ("transformers_generate", 1.0),
    },
    "mlx": {"mlx-lm": ("mlx_lm", 1.0)},
}


def generation_rows(call: BenchCall) -> list[Figure]:
    """Measure a batch of requests, each ``--max-new-tokens`` long, on the given device or on both.

    MLX on Linux computes with plain loops: each token takes about a tenth of a second. OpenBLAS
    replaces them, and it can only be loaded before a process starts. On a Mac Metal computes.

    Raises:
        ValueError: there are too few or too many tokens.
    """
    new_tokens = NEW_TOKENS if call.max_new_tokens is None else call.max_new_tokens
    if not 2 <= new_tokens <= LONGEST:
        raise ValueError(f"--max-new-tokens is {new_tokens}, but it must be 2 to {LONGEST}.")
    find_model = load("minisched.models.fetch", "find_model", "dev", "bench generation")
    folder = Path(find_model(call.model or "smollm2"))
    rows = []
    for device in [call.device] if call.device else RIVALS:
        env = {}
        if device == "mlx" and sys.platform.startswith("linux"):
            env = {
                "LD_PRELOAD": find_library("openblas") or "",
                "OPENBLAS_NUM_THREADS": str(num_cores()),
            }
        for dtype in DTYPES if device == "thread" else ("",):
            told = {"device": device, "folder": str(folder), "dtype": dtype, "threads": num_cores()}
            scripts = {OURS: "ours", **{name: of for name, (of, _) in RIVALS[device].items()}}
            with ExitStack() as stack:
                sides = {
                    name: no_peer(NO_BLAS) if env.get("LD_PRELOAD") == "" else peer_asked(
                        f"{__package__}.peers.{of}", {**told, "rival": name}, call, stack, env
                    )
                    for name, of in scripts.items()
                }  # fmt: skip
                for batch in [call.requests] if call.requests else BATCHES:
                    title = f"{dtype or device}, batch {batch}, {new_tokens} new"
                    rows += beside(title, sides, device, batch, new_tokens, call)
    return rows


def beside(
    title: str, sides: Mapping[str, Ask], device: str, batch: int, new: int, call: BenchCall
) -> list[Figure]:
    """One load: tokens a second and ratios, times to first token, and the tokens that are ours too.

    Each process answers a question for two tokens first, which is not timed: libraries allocate and
    compile on their first steps. Prompts are small token ids that differ from each other. After a
    near tie that falls otherwise, no tokens need be equal.
    """
    prompts = [
        [100 + (row * 31 + at * 7) % 5000 for at in range(length)]
        for row, length in enumerate(islice(cycle(LENGTHS), batch))
    ]
    answers: dict[str, list[Answer]] = {name: [] for name in sides}

    def tokens_a_second(name: str, ask: Ask) -> float:
        """Ask an arm for its answers; return its tokens a second."""
        if not answers[name]:
            ask({"prompts": prompts, "new_tokens": 2})
        answers[name].append(ask({"prompts": prompts, "new_tokens": new}))
        return batch * new / float(answers[name][-1]["seconds"])

    arms = {name: partial(tokens_a_second, name, ask) for name, ask in sides.items()}
    aims = {name: aim for name, (_, aim) in RIVALS[device].items()}
    rows = contest(title, arms, "tokens/s", aims, call, at_most=False, why=SLOWER)
    whole = {name: of for name, of in answers.items() if len(of) == call.repetitions}
    for name, taken in whole.items():
        rows.append(Figure(f"{title}: {name}, TTFT", [1000 * a["ttft"] for a in taken], "ms"))
        spent = [1000 * a["cpu"] / (batch * new) for a in taken]
        rows.append(Figure(f"{title}: {name}, CPU time a token", spent, "ms"))
        if name != OURS and OURS in whole:
            ours = [1000 * a["cpu"] / (batch * new) for a in whole[OURS]]
            by_cpu = f"{title}: {OURS} / {name}, by CPU time"
            rows.append(ratio(by_cpu, spent, ours, None, at_most=False))
            shares = []
            for one, other in zip(whole[OURS], taken, strict=True):
                both = zip(*(chain(*side["tokens"]) for side in (one, other)), strict=True)
                shares.append(sum(a == b for a, b in both) / (batch * new))
            rows.append(Figure(f"{title}: {name}, tokens equal to ours", shares, "share"))
    return rows


PART = BenchPart(generation_rows, ("device", "model", "requests", "max_new_tokens"), tuple(RIVALS))
