"""One side of PD separation: an engine that hears messages, and sleeps where it has no work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from ..core import NoBatch, ScheduleBatch
from ..devices.sim import SimDevice
from ..engine.engine import Engine
from .pd_messages import Mailbox, Message


@dataclass
class SideEngine(Engine):
    """What both sides share. ``is_waiting``: the last turn found nothing to do."""

    mailbox: Mailbox = field(default_factory=Mailbox)
    other: Mailbox = field(default_factory=Mailbox)  # the other side's
    latency: int = 0  # of a message
    is_waiting: bool = False

    @property
    def sim(self) -> SimDevice:
        """Its device."""
        return cast(SimDevice, self.device)

    @property
    def next_event(self) -> int | None:
        """When something comes that it could act upon, as far as it knows by itself; or None."""
        if self.frontend.has_said:
            return self.device.now()
        times = (self.frontend.next_message, self.mailbox.next_time, self.sim.next_event)
        return min((time for time in times if time is not None), default=None)

    @property
    def is_asleep(self) -> bool:
        """Whether a turn would do nothing."""
        event = self.next_event
        return self.is_waiting and (event is None or event > self.device.now())

    def get_next_batch_to_run(self) -> ScheduleBatch | NoBatch:
        """Let the scheduler commit a batch; where it has nobody who could run, that is free."""
        batch: ScheduleBatch | NoBatch = NoBatch.WAIT
        if self.has_work:
            batch = super().get_next_batch_to_run()
        self.is_waiting = not (batch or self.scheduler.batches_in_flight)
        return batch

    @property
    def has_work(self) -> bool:
        """Whether the scheduler has anything to look at."""
        scheduler = self.scheduler
        return bool(
            len(scheduler.waiting_queue)
            or scheduler.running_batch
            or scheduler.prefill.chunked_req
            or scheduler.batches_in_flight
        )

    def say(self, message: Message) -> None:
        """Send a message to the other side."""
        program = self.device.recorder.program
        signal = program.new_id()
        program.say(signal)
        self.other.post(self.device.now() + self.latency, message, signal)

    def hear(self) -> list[Message]:
        """What the other side has said, and has arrived."""
        return self.mailbox.take(self.device.now(), self.device.recorder.program)

    def on_idle(self) -> None:
        """Look for leaks, unless somebody may have a row (or too many are free: no leak is that).

        The clock is moved by ``loops/pd.py``, which knows both sides.
        """
        leases = self.scheduler.leases
        rows_taken = leases.table.size - leases.table.available_size
        nobody_has_one = not (self.scheduler.live or leases.returning)
        if rows_taken == 0 or (rows_taken > 0 and nobody_has_one):
            self.scheduler.self_check()
