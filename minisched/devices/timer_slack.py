"""How exactly a thread wakes: Linux lets timed waits last up to 0.05 ms longer, to save power.

Whoever wants the interpreter waits for it in such steps (``sys.setswitchinterval``), so that a
stream's thread got it from a busy host after 0.07 ms where 0.02 were asked for, two dozen times in
a decode step.
"""

from __future__ import annotations

import ctypes

SET_TIMERSLACK = 29  # of prctl
LEAST = 1  # nanosecond; 0 stands for what is usual


def wake_on_time() -> None:
    """Let the thread that calls wake as exactly as Linux can; elsewhere nothing happens."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(SET_TIMERSLACK, ctypes.c_ulong(LEAST), *(ctypes.c_ulong(0) for _ in range(3)))
