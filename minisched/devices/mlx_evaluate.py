"""Hands arrays to MLX to be computed, for one thread at a time.

Within MLX a thread waits until fewer pieces of work are left than when it began to wait (MLX
#2047). Of two such threads each adds to what the other one counts, and both wait for ever: so it
went with two devices that were open together.
"""

from __future__ import annotations

from threading import Lock

import mlx.core as mx

_alone = Lock()


def evaluate(*arrays: mx.array) -> None:
    """Compute them now (``mlx.core.eval``)."""
    with _alone:
        mx.eval(*arrays)


def evaluate_async(*arrays: mx.array) -> None:
    """Let them be computed (``mlx.core.async_eval``)."""
    with _alone:
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]
