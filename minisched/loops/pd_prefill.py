"""The prefill side of PD separation: it computes prompts and sends their KV away."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..core import Lease, Logprobs, NoBatch, Output, Request, ScheduleBatch
from ..core.model_worker_batch import slots_of
from ..devices.base import NO_LABEL, Label
from ..scheduler.transfer import Prefilled, PrefillScheduler
from ..worker import GenerationBatchResult
from .pd_kv_transfer import KVSender, KVTransfer
from .pd_messages import Abort, Computed, Metadata, Transferred
from .pd_side import SideEngine


def pd_prefill(engine: PrefillEngine) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``disaggregation/prefill.py:event_loop_overlap_disagg_prefill``."""
    result_queue: deque[GenerationBatchResult] = deque()
    last_batch: ScheduleBatch | NoBatch = NoBatch.IDLE
    while True:
        engine.recv_requests()
        engine.pop_bootstrapped()
        batch = engine.get_next_batch_to_run()
        if batch:
            result_queue.append(engine.run_batch(batch))
        if last_batch:
            engine.process_batch_result(result_queue.popleft())
        elif not batch:
            engine.on_idle()
        engine.process_disagg_prefill_inflight_queue()
        last_batch = batch
        yield batch


@dataclass
class PrefillEngine(SideEngine):
    """An engine that sends. ``senders`` has one for each request that is not answered yet.

    Here a request's id is the room that the decode side knows it by.
    """

    scheduler: PrefillScheduler
    senders: dict[str, KVSender] = field(default_factory=dict)
    inflight: dict[str, KVSender] = field(default_factory=dict)  # disagg_prefill_inflight_queue
    transfer: KVTransfer | None = None  # given by loops/pd.py once there are two sides

    @property
    def is_asleep(self) -> bool:
        """Whether a turn would do nothing: no transfer has ended that it has not noticed."""
        ended = any(op.query() for item in self.inflight.values() for op, _ in item.transfers)
        return super().is_asleep and not ended

    def pop_bootstrapped(self) -> None:
        """Hear where KV may go, and of whom nobody wants to hear any more."""
        for message in self.hear():
            sender = self.senders.get(message.room)
            if sender is None:
                continue  # it has been answered
            if isinstance(message, Metadata):
                sender.to_slots = message.slots
                self.scheduler.bootstrapped(message.room)
            elif isinstance(message, Abort):
                sender.is_unwanted = True
                self.scheduler.abort(message.room)

    def process_batch_result(self, pending: GenerationBatchResult) -> None:
        """Process a step, and send the chunks that it has computed."""
        super().process_batch_result(pending)
        page_size = self.scheduler.config.page_size
        for row in pending.batch.rows:
            if not row.deliver and row.req.lease is row.lease:
                end = row.end // page_size * page_size
                self.send_kv_chunk(row.req.rid, row.lease, end, pending.batch.step)

    def process_disagg_prefill_inflight_queue(self) -> None:
        """Let go of what has been sent, and send or give up what is done."""
        for done in self.scheduler.take_done():
            sender = self.inflight[done.req.rid] = self.senders[done.req.rid]
            sender.done = done
            if done.token is not None and not self.scheduler.prealloc_first:
                self.say(Computed(done.req.rid))
        for rid, sender in list(self.inflight.items()):
            self._let_go(sender)
            if sender.done is not None:
                self._go_on(rid, sender, sender.done)
            if not sender.transfers and (sender.done is None or rid not in self.senders):
                del self.inflight[rid]
            self._observe()

    def send_kv_chunk(
        self, rid: str, lease: Lease, end: int, step: int, last: Transferred | None = None
    ) -> None:
        """Send what is settled since ``step`` and not sent; chunks are whole pages.

        Meanwhile the lease is held. For the ``last`` part it is already, as the request has ended.
        """
        sender = self.senders[rid]
        assert self.transfer is not None
        if last is None:
            if sender.to_slots is None or end <= sender.sent_len:
                return
            self.scheduler.leases.hold(lease)
        assert sender.to_slots is not None
        part = slice(sender.sent_len, end)
        slots = slots_of(lease.pages, self.scheduler.config.page_size)[part]
        label = Label(step, rids=(rid,))
        with self.device.host("send", self.cost.host.get("send", 0), label) as send:
            before = [op for op, _ in sender.transfers]
            op = self.transfer.launch(label, slots, sender.to_slots[part], last, before)
        self.device.recorder.edge("launch", send, op.slice_id)
        sender.transfers.append((op, lease))
        sender.sent_len = end
        self.inflight[rid] = sender

    def _let_go(self, sender: KVSender) -> None:
        for op, lease in [item for item in sender.transfers if item[0].query()]:
            sender.transfers.remove((op, lease))
            sender.error = sender.error or (f"transfer failed: {op.error}" if op.error else "")
            self.scheduler.leases.let_go(lease)
            self.is_waiting = False  # there is memory again

    def _go_on(self, rid: str, sender: KVSender, done: Prefilled) -> None:
        """The end of a request: its last transfer, or the news that there is none."""
        is_lost = done.token is None or sender.is_unwanted or bool(sender.error)
        if not is_lost and not sender.has_sent_all and sender.to_slots is not None:
            assert done.lease is not None
            sender.has_sent_all = True
            last = Transferred(rid, done.token, logprobs=logprobs_of(done.req))
            self.send_kv_chunk(rid, done.lease, len(done.req.prompt), done.lease.last_step, last)
        if sender.transfers or not (is_lost or sender.has_sent_all):
            return
        if not sender.has_sent_all or sender.error:
            self.say(Transferred(rid, None, sender.error or done.error))
        if not sender.has_sent_all and done.token is not None and done.lease is not None:
            self.scheduler.leases.let_go(done.lease)
            self.is_waiting = False
        del self.senders[rid]

    def _stream_output(
        self, outputs: Sequence[Output], label: Label = NO_LABEL, process: int = 0
    ) -> None:
        """No client hears this side, so it costs nothing."""
        self.metrics.on_outputs(outputs, self.device.now())


def logprobs_of(req: Request) -> Logprobs | None:
    """What the decode side is told of a request's log-probabilities, if it wants any."""
    if not req.params.return_logprob:
        return None
    return Logprobs(req.input_token_logprobs, req.output_token_logprobs)
