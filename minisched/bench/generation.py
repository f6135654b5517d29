"""Tokens a second against the libraries' own generation: same prompts, same weights, same dtype.

Each arm is a process of its own (``peers/``) with one thread, and the arms take turns. The ratios
are of CPU time a token: that time is meaningful on a machine with other load, too, and with one
thread no CPU time is spent on waiting for another thread.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from ctypes.util import find_library
from functools import partial
from itertools import chain, cycle, islice

from ..models.fetch import NAME
from ..models.registry import find_model
from .figures import (
    Ask,
    BenchCall,
    BenchPart,
    Figure,
    interleave,
    no_peer,
    not_measured,
    peer_asked,
    ratio,
)
from .peers.ours import ADAPTER
from .peers.peer import Answer

OURS = "minisched"
LENGTHS = (64, 16, 32, 16, 128, *(16,) * 11)  # tokens of prompts, over and over
BATCHES = (1, 16)  # requests
LONGEST = 1024  # new tokens: with a prompt of 128 they are in every small model's context
NEW_TOKENS = 32
REPETITIONS = 3  # a machine with other load needs ten minutes for each
DTYPES = ("float32", "bfloat16")
LLAMA_CPP = "llama.cpp, 4 bits"  # for one request of smollm2
NO_BLAS = "there is no libopenblas on this machine (Debian: apt install libopenblas0-pthread)"

# Script of each arm by device, and the least ratio of its CPU time to ours. Ours keeps its bits
# in every batch; no rival does. llama.cpp has other weights, so it has no aim.
ARMS: Mapping[str, Mapping[str, tuple[str, float | None]]] = {
    "thread": {
        OURS: ("ours", None),
        ADAPTER: ("ours", None),
        "transformers static": ("transformers_generate", 1.2),
        "transformers continuous": ("transformers_generate", 1.0),
        LLAMA_CPP: ("llama_cpp", None),
    },
    "mlx": {OURS: ("ours", None), "mlx-lm": ("mlx_lm", 1.0)},
}


def generation_rows(call: BenchCall) -> list[Figure]:
    """Measure a batch of requests, each ``--max-new-tokens`` long, on the given device or on both.

    MLX on Linux computes with plain loops: each token takes about a tenth of a second. OpenBLAS
    replaces them, and it can only be loaded before a process starts. On a Mac Metal computes.

    Raises:
        ValueError: there are too few or too many tokens, or the dtype is unknown.
    """
    new_tokens = NEW_TOKENS if call.max_new_tokens is None else call.max_new_tokens
    if not 2 <= new_tokens <= LONGEST:
        raise ValueError(f"--max-new-tokens is {new_tokens}, but it must be 2 to {LONGEST}.")
    if call.dtype not in (None, *DTYPES):
        raise ValueError(f"--dtype is {call.dtype!r}; bench generation knows {', '.join(DTYPES)}.")
    folder = find_model(call.model or NAME)
    rows = []
    for device in [call.device] if call.device else ARMS:
        env: dict[str, str] = {}
        if device == "mlx" and sys.platform.startswith("linux"):
            env = {"LD_PRELOAD": find_library("openblas") or "", "OPENBLAS_NUM_THREADS": "1"}
        for dtype in [call.dtype] if call.dtype else DTYPES if device == "thread" else DTYPES[:1]:
            told = {"device": device, "folder": str(folder), "dtype": dtype, "threads": 1}
            with ExitStack() as stack:
                sides = {
                    name: no_peer(NO_BLAS) if env.get("LD_PRELOAD") == "" else peer_asked(
                        f"{__package__}.peers.{script}", {**told, "rival": name}, call, stack, env
                    )
                    for name, (script, _) in ARMS[device].items()
                    if name != LLAMA_CPP or not call.model
                }  # fmt: skip
                for batch in [call.requests] if call.requests else BATCHES:
                    title = f"{device}, {dtype}, batch {batch}"
                    some = {n: ask for n, ask in sides.items() if batch == 1 or n != LLAMA_CPP}
                    rows += side_by_side(title, some, device, batch, new_tokens, call)
    return rows


def side_by_side(
    title: str, sides: Mapping[str, Ask], device: str, batch: int, new: int, call: BenchCall
) -> list[Figure]:
    """Measure one load with all arms in turn.

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
    speeds, reasons = interleave(
        arms, call.repetitions, lambda doing: call.report(f"{title}: {doing}")
    )
    rows = [not_measured(f"{title}: {name}", "tokens/s", why) for name, why in reasons.items()]
    whole = {name: taken for name, taken in answers.items() if name not in reasons}
    cpu = {
        name: [1000 * answer["cpu"] / (batch * new) for answer in taken]
        for name, taken in whole.items()
    }
    for name, taken in whole.items():
        rows.append(Figure(f"{title}: {name}", speeds[name], "tokens/s"))
        rows.append(Figure(f"{title}: {name}, TTFT", [1000 * a["ttft"] for a in taken], "ms"))
        rows.append(Figure(f"{title}: {name}, CPU time a token", cpu[name], "ms"))
    for name in [name for name in whole if name != OURS and OURS in whole]:
        aim = ARMS[device][name][1]
        by_cpu = f"{title}: {OURS} / {name}, by CPU time"
        rows.append(ratio(by_cpu, cpu[name], cpu[OURS], aim, at_most=False))
        if ADAPTER in whole and aim:
            by_adapter = f"{title}: {ADAPTER} / {name}, by CPU time"
            rows.append(ratio(by_adapter, cpu[name], cpu[ADAPTER]))
        shares = [
            sum(a == b for a, b in zip(chain(*one["tokens"]), chain(*other["tokens"]), strict=True))
            / (batch * new)
            for one, other in zip(whole[OURS], whole[name], strict=True)
        ]
        rows.append(Figure(f"{title}: {name}, tokens equal to ours", shares, "share"))
    return rows


PART = BenchPart(
    generation_rows, ("device", "model", "dtype", "requests", "max_new_tokens"), tuple(ARMS),
    REPETITIONS,
)  # fmt: skip
