"""What happens to each message that comes in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..core import Output, Request
from ..devices.base import Device
from ..scheduler import Scheduler
from .dispatcher import AbortReq, FlushCacheReq, Message, TypeBasedDispatcher
from .metrics import Metrics


@dataclass
class Inbox:
    """One handler for each type of message (SGLang ``managers/scheduler.py``, under its names)."""

    scheduler: Scheduler
    device: Device
    metrics: Metrics

    def __post_init__(self) -> None:
        self._request_dispatcher = TypeBasedDispatcher([
            (Request, self.handle_generate_request),
            (AbortReq, self.abort_request),
            (FlushCacheReq, self.flush_cache),
        ])  # fmt: skip

    def process_input_requests(self, messages: Iterable[Message]) -> list[Output]:
        """Hand each message to its handler; what clients are to hear of it."""
        return [output for item in messages for output in self._request_dispatcher(item)]

    def handle_generate_request(self, req: Request) -> list[Output]:
        """Put a request into the waiting queue, or refuse it; sent twice, it counts once.

        That is the door: whatever a client has put into the request, nobody else's run ends by it.
        """
        is_known = req.finished or self.scheduler.live.get(req.name) is req
        outputs = self.scheduler.receive([req])
        if not is_known:
            self.metrics.on_received(req, self.device.now())
        return outputs

    def abort_request(self, message: AbortReq) -> list[Output]:
        """End one request, or all of them."""
        rids = list(self.scheduler.live) if message.abort_all else [message.rid]
        return [output for rid in rids for output in self.scheduler.abort(rid, message.error)]

    def flush_cache(self, message: FlushCacheReq) -> list[Output]:
        """Forget the cached prefixes, if nothing runs; a mark says whether it was done."""
        self.device.recorder.mark("flush cache", done=self.scheduler.flush_cache())
        return []
