"""The scheduler's log, in SGLang's words, so that the guides' ``grep`` recipes work on it.

One of its figures is missing: ``available_gpu_mem``, the GPU's memory besides weights and pool,
because a simulated device has none. ``token usage`` is the use of the pool. ``#running-req`` of a
prefill line counts all running requests, also those that do not decode in this step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO
from weakref import WeakKeyDictionary

from ..core import ForwardMode, Lease, Outputs, Row, ScheduleBatch
from ..scheduler import Scheduler

logger = logging.getLogger("minisched")


class SchedulerLog:
    """One line for each prefill batch, one for every ``decode_log_interval`` decode batches.

    SGLang ``managers/scheduler_metrics_mixin.py``. Each record carries ``device_ns``, the time on
    the device's clock. The engine asks for none unless INFO is enabled.
    """

    def __init__(self, scheduler: Scheduler, now: Callable[[], int]) -> None:
        self.scheduler = scheduler
        self.now = now
        self.decode_log_interval = 40
        self._num_chunks = WeakKeyDictionary[Lease, int]()  # of a prompt under this lease
        self._num_decodes = 0
        self._num_generated_tokens = 0  # since the last decode line ...
        self._last_decode_line = now()  # ... which was at this time
        self._num_by_reason = scheduler.retraction.num_by_reason.copy()
        self._new_token_ratio = scheduler.new_token_ratio.current

    def on_start(self) -> None:
        """The sizes, once."""
        config = self.scheduler.config
        self._info(
            "max_total_num_tokens=%d, chunked_prefill_size=%d, max_prefill_tokens=%d, "
            "max_running_requests=%d, context_len=%d",
            config.num_slots,
            config.chunked_prefill_size,
            config.max_prefill_tokens,
            config.max_running_requests,
            config.context_len,
        )

    def on_schedule(self, batch: ScheduleBatch | None) -> None:
        """Log the retractions of a decision, and the prompts of the new batch."""
        prompts = batch.rows[: batch.num_extend_reqs] if batch and batch.num_extend_reqs else ()
        self._retracted()
        self._new_token_ratio = self.scheduler.new_token_ratio.current
        if prompts:
            self._prefill(prompts)

    def on_processed(self, batch: ScheduleBatch, outputs: Outputs) -> None:
        """Count a processed decode batch, and log every ``decode_log_interval``-th."""
        if batch.mode is ForwardMode.EXTEND:
            return
        self._num_decodes += 1
        self._num_generated_tokens += sum(token is not None for token in outputs.tokens)
        if self._num_decodes % self.decode_log_interval == 0:
            self._decode()

    def _prefill(self, prompts: Sequence[Row]) -> None:
        """Log the state after the commit, without the requests that have just joined."""
        scheduler = self.scheduler
        self._info(
            "Prefill batch. #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, "
            "#running-req: %d, #queue-req: %d",
            len(prompts),
            sum(len(row.ids) for row in prompts),
            sum(
                row.req.admission.hit_len
                for row in prompts
                if row.start == row.req.admission.hit_len
            ),
            scheduler.num_used_tokens / scheduler.config.num_slots,
            len(scheduler.running_batch) - sum(row.deliver for row in prompts),
            len(scheduler.waiting_queue),
        )
        for row in prompts:
            self._num_chunks[row.lease] = self._num_chunks.get(row.lease, 0) + 1
            if self._num_chunks[row.lease] > 1 or not row.deliver:
                self._chunk(row)

    def _chunk(self, row: Row) -> None:
        """How far a prompt is; how many chunks there will be is a guess until the last one."""
        number, total = self._num_chunks[row.lease], row.req.known_len
        chunks_left = -(-(total - row.end) // self.scheduler.config.prefill_budget)
        self._info(
            "Chunked prefill. rid: %s, #done-token: %d, #prompt-token: %d, chunk: %d/%d",
            row.req.rid,
            row.end,
            total,
            number,
            number + chunks_left,
        )

    def _decode(self) -> None:
        scheduler, now = self.scheduler, self.now()
        elapsed = now - self._last_decode_line
        throughput = self._num_generated_tokens * 1e9 / elapsed if elapsed else 0.0
        self._num_generated_tokens, self._last_decode_line = 0, now
        self._info(
            "Decode batch. #running-req: %d, #token: %d, token usage: %.2f, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            len(scheduler.running_batch),
            scheduler.num_used_tokens,
            scheduler.num_used_tokens / scheduler.config.num_slots,
            throughput,
            len(scheduler.waiting_queue),
        )

    def _retracted(self) -> None:
        """Log the new retractions: for lack of memory, or for a request of higher priority."""
        num_by_reason = self.scheduler.retraction.num_by_reason
        new = num_by_reason - self._num_by_reason
        if not new:
            return
        self._num_by_reason = num_by_reason.copy()
        if new["priority"]:
            text = "Priority preemption. Retract requests. #retracted_reqs: %d"
            self._info(text, new["priority"])
        if new["unified"]:
            self._info(
                "KV cache pool is full. Preempt the newest. #retracted_reqs: %d", new["unified"]
            )
        if new["memory"]:
            self._info(
                "KV cache pool is full. Retract requests. #retracted_reqs: %d, "
                "#new_token_ratio: %.4f -> %.4f",
                new["memory"],
                self._new_token_ratio,
                self.scheduler.new_token_ratio.current,
            )

    def _info(self, text: str, *values: object) -> None:
        if logger.isEnabledFor(logging.INFO):
            logger.info(text, *values, extra={"device_ns": self.now()})


class DeviceTimeFormatter(logging.Formatter):
    """``[0.083200] Prefill batch. ...``: seconds on the device's clock."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return f"[{getattr(record, 'device_ns', 0) / 1e9:.6f}] {record.getMessage()}"


@contextmanager
def log_to(stream: TextIO) -> Iterator[None]:
    """Write the log to ``stream`` meanwhile, with the device's times."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(DeviceTimeFormatter())
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
