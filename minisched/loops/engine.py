"""The steps every loop is made of: receive, schedule, run, process. A loop is their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core import Batch, NoBatch, Output
from ..devices.base import NO_LABEL, Device, Label
from ..devices.cost import NO_COST, CostModel
from ..scheduler import Scheduler
from ..trace import Slice
from ..worker import Pending, Worker
from .frontend import Frontend


@dataclass
class Engine:
    """A scheduler, a worker on a device, and a frontend; each method is one phase of the host.

    The names are SGLang's (``managers/scheduler.py``). A phase is a slice on the host lane and
    costs what the cost model says.
    """

    scheduler: Scheduler
    worker: Worker
    device: Device
    frontend: Frontend
    cost: CostModel = NO_COST
    delivered_by: dict[str, int] = field(default_factory=dict)  # request id -> process slice id

    def recv_requests(self) -> None:
        """Take in what has arrived."""
        requests, aborts = self.frontend.take(self.device.now())
        if not requests and not aborts:
            return
        with self.device.host("receive", self.cost.host.get("receive", 0)):
            outputs = self.scheduler.receive(requests)
            for rid in aborts:
                outputs += self.scheduler.abort(rid)
        self._stream_output(outputs)

    def get_next_batch_to_run(self) -> Batch | NoBatch:
        """Let the scheduler commit a batch."""
        with self.device.host("schedule", self.cost.host.get("schedule", 0)):
            batch = self.scheduler.next_batch()
        self._count()
        return batch

    def chain(self, batch: Batch) -> Batch | None:
        """Let the scheduler commit the same rows once more; a no costs no time."""
        if not self.scheduler.can_chain(batch):
            return None
        with self.device.host("schedule", self.cost.host.get("schedule", 0)):
            chained = self.scheduler.chain(batch)
        self._count()
        return chained

    def run_batch(self, batch: Batch, previous: Pending | None = None) -> Pending:
        """Prepare the inputs and launch the step; returns before the device has run it."""
        label = Label(batch.step, batch.mode.value, batch.rids)
        with self.device.host("prepare", self.cost.host.get("prepare", 0), label) as prepare:
            inputs = self.worker.prepare(batch, previous)
        for row in batch.rows:
            if row.req.rid in self.delivered_by and None not in row.ids:
                self.device.recorder.edge("token", self.delivered_by.pop(row.req.rid), prepare)
        with self.device.host("launch", self.cost.host.get("launch", 0), label) as launch:
            return self.worker.launch(batch, inputs, previous, launched_by=launch)

    def process_batch_result(self, pending: Pending) -> None:
        """Wait for a step's tokens and let the scheduler say what they mean."""
        batch = pending.batch
        label = Label(batch.step, batch.mode.value, batch.rids)
        start = self.device.now()
        result = pending.result()
        self._record_wait(start, label)
        with self.device.host("process", self.cost.host.get("process", 0), label) as process:
            outputs = self.scheduler.process(batch, result)
        self.device.recorder.edge("result", pending.copy.slice_id, process)
        self.delivered_by.update((output.rid, process) for output in outputs)
        self._stream_output(outputs, label)

    def on_idle(self) -> None:
        """Nothing to do until the next request comes."""
        arrival = self.frontend.next_arrival
        if arrival is not None and not self.scheduler.live:
            self.device.idle_until(arrival)

    @property
    def is_done(self) -> bool:
        """Whether every request has ended and nothing is in flight."""
        scheduler = self.scheduler
        return not (self.frontend.inbox or scheduler.live or scheduler.batches_in_flight)

    def _stream_output(self, outputs: Iterable[Output], label: Label = NO_LABEL) -> None:
        with self.device.host("output", self.cost.host.get("output", 0), label):
            for output in outputs:
                self.frontend.on_output(output)

    def _record_wait(self, start: int, label: Label) -> None:
        """A slice for the time the host was blocked: it is not work."""
        recorder, end = self.device.recorder, self.device.now()
        if end > start:
            recorder.slice(
                Slice(
                    recorder.new_id(),
                    "host",
                    "wait",
                    start,
                    end,
                    label.step,
                    label.mode,
                    label.rids,
                )
            )

    def _count(self) -> None:
        scheduler, recorder = self.scheduler, self.device.recorder
        recorder.counter("waiting", len(scheduler.prefill.pending_list))
        recorder.counter("running", len(scheduler.decode.running_reqs))
        free = scheduler.allocator.available_pages
        recorder.counter("kv used", scheduler.config.num_slots - free * scheduler.config.page_size)
