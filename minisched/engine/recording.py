"""What an engine's phases leave in the trace beside their slices: counters, waits and edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote

from ..core import Output, Request, ScheduleBatch
from ..devices.base import NO_LABEL, Device, Label
from ..scheduler import Scheduler
from ..trace import Slice
from ..worker import Step


@dataclass
class Recording:
    """Nothing is read or written where the device's recorder keeps nothing."""

    scheduler: Scheduler
    device: Device
    delivered_by: dict[str, int] = field(default_factory=dict)  # live request -> process slice id,
    known_by: dict[str, int] = field(default_factory=dict)  # also when a step has taken the token
    counted: dict[str, int] = field(default_factory=dict)  # counters as they were recorded last

    def arrival(self, messages: Iterable[object]) -> Label:
        """Whose coming a receive slice belongs to."""
        if not self.device.recorder.is_on:
            return NO_LABEL
        return Label(rids=tuple(item.name for item in messages if isinstance(item, Request)))

    def count(self) -> None:
        """Record the counters that have changed."""
        recorder = self.device.recorder
        if not recorder.is_on:
            return
        for name, value in self._counters().items():
            if self.counted.get(name) != value:
                self.counted[name] = value
                recorder.counter(name, value)

    def wait(self, start: int, label: Label) -> None:
        """A slice for the time since ``start``, in which the host was blocked: it is not work."""
        recorder, end = self.device.recorder, self.device.now()
        if end > start:
            wait = Slice(
                recorder.new_id(), "host", "wait", start, end, label.step, label.mode, label.rids
            )
            recorder.slice(wait)

    def must_wait(self, batch: ScheduleBatch, reason: str, op: str) -> None:
        """Mark that an op of a step has to wait, and for what (``checks/causes.py``)."""
        self.device.recorder.mark("wait", step=batch.step, reason=reason, op=op)

    def tokens(self, step: int, outputs: Iterable[Output]) -> None:
        """Mark that a step has come back, and which tokens clients hear because of it.

        ``tokens`` are in the order of ``rids``, in which spaces are ``%20``; both are empty if
        nobody hears any. Step 0 stands for what another scheduler has computed (``pd``). By these
        marks two files can be compared (``checks/identity.py``); with eight requests one
        has 140 bytes, a sixtieth of what the file has for a step.
        """
        recorder = self.device.recorder
        if not recorder.is_on:
            return
        heard = [output for output in outputs if output.token is not None]
        if step or heard:
            tokens = " ".join(str(output.token) for output in heard)
            rids = " ".join(quote(output.rid) for output in heard)
            recorder.mark("tokens", step=step, rids=rids, tokens=tokens)

    def delivered(self, outputs: Iterable[Output], process: int) -> None:
        """Remember which process slice gave each live request its newest token."""
        if not self.device.recorder.is_on:
            return
        for output in (output for output in outputs if not output.namesake):
            if output.finish_reason:
                self.delivered_by.pop(output.rid, None)
                self.known_by.pop(output.rid, None)
            else:
                self.delivered_by[output.rid] = self.known_by[output.rid] = process

    def tokens_by_host(self, step: Step, prepare: int) -> None:
        """An edge to ``prepare`` for each row whose input tokens came over the host.

        Of the rows with a token that is not the host's some are given an old one of its.
        """
        edge, batch = self.device.recorder.edge, step.batch
        others = step.edges.inputs if step.edges else []
        elsewhere = {item.row for item in others}
        for at, row in enumerate(batch.rows if self.delivered_by else ()):
            is_known = None not in row.ids and at not in elsewhere
            if is_known and row.req.rid in self.delivered_by:
                edge("token", self.delivered_by.pop(row.req.rid), prepare)
        for item in others:
            if item.is_old and (source := self.known_by.get(batch.rids[item.row], 0)):
                edge("token", source, prepare)
                item.source = source, prepare

    def _counters(self) -> dict[str, int]:
        scheduler = self.scheduler
        cached = scheduler.page_cache.evictable_size if scheduler.page_cache else 0
        return {
            "waiting": len(scheduler.waiting_queue),
            "running": len(scheduler.running_batch),
            "kv used": scheduler.num_used_tokens,
            "kv cached": cached * scheduler.config.page_size,
            "new token ratio": round(1000 * scheduler.new_token_ratio.current),
        }
