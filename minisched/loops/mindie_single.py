"""A proposal: one pipeline in place of MindIE's two layers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..worker import GenerationBatchResult
from .mindie_placeholder_ledger import PlaceholderLedger, reconcile, sample_delayed

DEPTH = 2


def mindie_single(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """A single main pipeline; there is no upstream design. Each ``yield`` ends one turn.

    One queue of (future, batch as it was at launch), one ledger, one place where the two are
    reconciled, tokens that go from step to step on the device, and a flush that is asked for.
    This is vLLM's shape. A step takes max(d, h, c, (d + h + c) / 2). The ledger knows how many
    tokens are on their way, so a length stop is foreseen and wastes no row; only a stop token does.
    A step that needs a token in flight for its mask is sampled when that is reconciled.
    """
    ledger = PlaceholderLedger(DEPTH, engine.device.recorder)
    in_flight: deque[GenerationBatchResult] = deque()
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        ledger.clear_terminated()
        if batch:
            delay = engine.must_delay_sample(batch)
            in_flight.append(engine.run_batch(batch, delay_sample=delay))
            ledger.prepare_next_schedule(batch)
            sample_delayed(engine, ledger, in_flight)
            if len(in_flight) == DEPTH:  # the device has its next step: time for the oldest
                reconcile(engine, ledger, in_flight.popleft())
        elif in_flight:
            flush(engine, ledger, in_flight)
        else:
            engine.on_idle()
        yield batch


def flush(
    engine: Engine, ledger: PlaceholderLedger, in_flight: deque[GenerationBatchResult]
) -> None:
    """Reconcile all that is in flight: nothing can be scheduled before."""
    while in_flight:
        reconcile(engine, ledger, in_flight.popleft())
