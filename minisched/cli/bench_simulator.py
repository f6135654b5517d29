"""``minisched bench simulator``: replayed requests a second beside vidur, and memory."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from ..bench.figures import Figure
from ..bench.peers.environment import clean_env, environment
from ..bench.peers.peer import PeerError
from ..bench.simulator import (
    LENGTHS,
    Ask,
    Replays,
    ask_alone,
    make_trace,
    memory,
    open_vidur,
    speed,
)
from ..models.fetch import model_home
from ..trace.files import write_whole
from .bench import BenchCall

AZURE = Path("data/processed_traces/splitwise_conv.csv")  # in a checkout of vidur
REQUESTS = 2000
NO_CHECKOUT = "no checkout of vidur was named by --vidur"


def measure(call: BenchCall) -> list[Figure]:
    """Speed beside vidur, then the memory of long runs.

    The trace is Azure's, as vidur's checkout has it; without one, a made-up trace of its shape.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("device", "model", "max_new_tokens", "nano_vllm", "dtype")
    limit = REQUESTS if call.requests is None else call.requests
    if limit < 1:
        raise ValueError(f"--requests is {limit}, but it must be at least 1.")
    check_vidur(call.vidur)
    with ExitStack() as stack:
        work = Path(stack.enter_context(TemporaryDirectory()))
        write_trace(call.vidur, work / "trace.csv", limit)
        replays = Replays(work / "trace.csv", limit)
        theirs, reason = vidur(stack, call, replays, work)
        try:
            figures = speed(replays, theirs, reason, call.repetitions, call.report)
        except PeerError as error:  # it broke off midway: ours alone
            figures = speed(replays, None, str(error).rstrip("."), call.repetitions, call.report)
        ask = partial(ask_alone, "long_run", Path(sys.executable), clean_env(), work)
        return figures + memory(ask, LENGTHS, call.report)


def check_vidur(folder: Path | None) -> None:
    """Whether a folder is a checkout.

    Raises:
        ValueError: it is not.
    """
    if folder is not None and not (folder / "vidur" / "simulator.py").is_file():
        raise ValueError(f"--vidur {folder} is no checkout of vidur: it lacks vidur/simulator.py.")


def write_trace(folder: Path | None, path: Path, limit: int) -> None:
    """The first requests of Azure's trace, or as many of a made-up one."""
    if folder is None or not (folder / AZURE).is_file():
        make_trace(path, limit)
        return
    with (folder / AZURE).open(encoding="utf-8") as file:
        write_whole(path, "".join(islice(file, limit + 1)))


def vidur(
    stack: ExitStack, call: BenchCall, replays: Replays, work: Path
) -> tuple[Ask | None, str]:
    """What asks vidur, or the reason why nobody can."""
    if call.vidur is None:
        return None, NO_CHECKOUT
    try:
        python = environment("vidur", model_home(), call.report)
    except PeerError as error:
        return None, str(error)
    settings = {"work": str(work), **replays.settings()}
    return open_vidur(stack, call.vidur.resolve(), python, clean_env(), settings)
