"""What the workers of ``test_workers.py`` do, in a module that a new process loads at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

KILLER = 37


def squared(item: int) -> int:
    return item * item


def squared_or_dead(item: int) -> int:
    if item == KILLER:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def dead_once(folder: Path, item: int) -> int:
    """The first worker that gets a certain item dies of it; the second one does not."""
    sign = folder / "dead"
    if item == KILLER and not sign.exists():
        sign.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def refusing(item: int) -> int:
    if item == KILLER:
        raise ZeroDivisionError(f"item {item}")
    return item


def ignores_interrupt(item: int) -> bool:
    """Whether this process ignores Ctrl-C."""
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN
