"""The pieces of a lazy step: ``start`` builds a graph and hands it over, ``finalize`` reads it."""

from __future__ import annotations

from ..core import ForwardMode, ScheduleBatch
from ..engine.engine import Engine
from ..worker import Pending


class MlxModelRunner:
    """SGLang ``hardware_backend/mlx/model_runner.py``, under its names.

    Starting costs the host only the graph; the device begins as soon as it has been handed over.
    Finalizing blocks on the tokens and nothing else. Every ``clear_cache_every`` finalized decode
    steps the library's cached buffers are given back (0: never).
    """

    def __init__(self, engine: Engine, clear_cache_every: int = 256) -> None:
        self.engine = engine
        self.clear_cache_every = clear_cache_every
        self.decodes_finalized = 0

    def start(self, batch: ScheduleBatch) -> Pending:
        """Start a freshly scheduled batch, by what it holds."""
        if batch.mode is ForwardMode.DECODE:
            return self.decode_batch_start(batch)
        if any(row.start > 0 for row in batch.rows):
            return self.extend_start(batch)
        return self.prefill_start(batch)

    def prefill_start(self, batch: ScheduleBatch) -> Pending:
        """Prompts from their first token."""
        return self.engine.run_batch(batch)

    def extend_start(self, batch: ScheduleBatch) -> Pending:
        """A later chunk of a prompt, and prompts that start beside it."""
        return self.engine.run_batch(batch)

    def decode_batch_start(self, batch: ScheduleBatch) -> Pending:
        """One token for each request, from tokens the host knows."""
        return self.engine.run_batch(batch)

    def decode_batch_start_chained(self, batch: ScheduleBatch, previous: Pending) -> Pending:
        """The same requests once more, from the previous step's lazy tokens."""
        return self.engine.run_batch(batch, previous)

    def finalize(self, pending: Pending) -> None:
        """Read a step's tokens and process them, by what the step was."""
        if pending.batch.mode is ForwardMode.DECODE:
            self.decode_batch_finalize(pending)
        elif any(row.start > 0 for row in pending.batch.rows):
            self.extend_finalize(pending)
        else:
            self.prefill_finalize(pending)

    def prefill_finalize(self, pending: Pending) -> None:
        """First tokens of whole prompts."""
        self.engine.process_batch_result(pending)

    def extend_finalize(self, pending: Pending) -> None:
        """First tokens where the last chunk was computed."""
        self.engine.process_batch_result(pending)

    def decode_batch_finalize(self, pending: Pending) -> None:
        """One token for each request, and now and then an empty cache."""
        self.engine.process_batch_result(pending)
        self.decodes_finalized += 1
        if self.clear_cache_every and self.decodes_finalized % self.clear_cache_every == 0:
            self.engine.device.clear_cache()
