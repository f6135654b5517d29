"""Ctrl-C as an abort: the loop goes on until every request has ended and every step is back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .frontend import Frontend


@contextmanager
def abort_on_interrupt(frontend: Frontend) -> Iterator[None]:
    """Let the first Ctrl-C abort all requests, and a second one stop at once.

    Stopping a loop in the middle would lose the steps it has launched, with the memory they name.
    Only the main thread hears signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(signum: int, frame: object) -> None:
        frontend.interrupt()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
