"""Single keys from a terminal, which is put back as it was however that ends."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

try:
    import termios
    import tty
except ImportError:  # not every platform has terminals of this kind
    TERMIOS = False
else:
    TERMIOS = True

SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|[^\x1b]|\x1b")
NAMES = {
    "\x1b[C": "next", "\x1bOC": "next", " ": "next", "n": "next", "\r": "next", "\n": "next",
    "\x1b[D": "back", "\x1bOD": "back", "b": "back",
    "\x1b[B": "next step", "\x1bOB": "next step", "N": "next step",
    "\x1b[A": "previous step", "\x1bOA": "previous step", "P": "previous step",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[7~": "home",
    "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end", "\x1b[8~": "end",
    "p": "play", "q": "quit", "\x04": "quit",
}  # fmt: skip
TERMINATED = 128 + signal.SIGTERM


def has_keys() -> bool:
    """Whether this platform gives single keys."""
    return TERMIOS


@contextmanager
def single_keys() -> Iterator[None]:
    """Keys come at once and are not echoed; Ctrl-C still interrupts.

    The terminal is restored at the end, after an error, after Ctrl-C and when the process is told
    to end.
    """
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    old = signal.signal(signal.SIGTERM, _terminate)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, old)


def read_keys(seconds: float) -> list[str]:
    """What was pressed, by meaning; after ``seconds`` without a key nothing. Unknown keys are "".

    The end of the input is ``quit``.
    """
    descriptor = sys.stdin.fileno()
    if not select.select([descriptor], [], [], seconds)[0]:
        return []
    pressed = os.read(descriptor, 1024).decode(errors="replace")
    return [NAMES.get(key, "") for key in SEQUENCE.findall(pressed)] or ["quit"]


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)
