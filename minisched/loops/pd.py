"""PD separation: prompts on one device, decoding on another, and KV sent from here to there.

A long prompt delays the requests that decode in the same batch. So SGLang
(``disaggregation/prefill.py`` and ``decode.py``) has two engines and a link between them. Each has
a device, KV memory, a scheduler, a loop and a clock of its own. Both receive every request:

1. Reserve. The decode side finds pages for the prompt, and sends their slots (``reserved``).
2. Prefill. The prompt has waited for that on the other side, which computes it chunk by chunk.
3. Send. After a step's result, the KV of that step goes over the link, in whole pages.
4. Poll. Once a turn the prefill side looks for transfers that ended, and releases their pages.
5. Decode. With the last part comes the first token (``transferred``). Clients receive it only now,
   and the request joins the running requests.

On both sides pages are held until no transfer reads or writes them, also after an ``abort``.
``scheduler/pd.py`` decides which requests run on each side.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

from ..core import Lease, Logprobs, NoBatch, Outputs, Request, ScheduleBatch
from ..devices.base import NO_LABEL, Device, Label, Op
from ..devices.cost import MICROSECOND
from ..devices.sim import Deadlock, SimDevice
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..engine.metrics import Metrics
from ..features.logprobs import logprobs_of
from ..memory import self_check
from ..models.base import slots_of
from ..scheduler import SchedulerConfig
from ..scheduler.pd import DecodeScheduler, Prefilled, PrefillScheduler
from ..trace.recorder import SideRecorder
from ..worker import Step
from ..worker.recording import KV
from .design import Turns, design, line_of
from .run import RunSetup, wire

# -- The two loops: ``overlap`` on each side, and once a turn the messages of the other side


def pd_prefill(engine: PrefillEngine) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``disaggregation/prefill.py:event_loop_overlap_disagg_prefill``."""
    result_queue: deque[Step] = deque()
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


def pd_decode(engine: DecodeEngine) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``disaggregation/decode.py:event_loop_overlap_disagg_decode``."""
    result_queue: deque[Step] = deque()
    last_batch: ScheduleBatch | NoBatch = NoBatch.IDLE
    while True:
        engine.recv_requests()
        engine.process_decode_queue()
        batch = engine.get_next_batch_to_run()
        if batch:
            delay = engine.must_delay_sample(batch)
            result_queue.append(engine.run_batch(batch, delay_sample=delay))
        if last_batch:
            engine.process_batch_result(result_queue.popleft())
        elif not batch:
            engine.on_idle()
        if batch and (delayed := result_queue[-1]).delay_sample_func is not None:
            engine.update_vocab_mask(delayed)
            engine.launch_batch_sample_if_needed(delayed)
        last_batch = batch
        yield batch


# -- The messages between the sides, by a request's room -------------------------------------------


@dataclass
class RoomMessage:
    """A message about one request; ``word`` is one of three.

    Decode to prefill: ``reserved`` (KV can go to these ``slots``; SGLang ``send_metadata``) or
    ``abort`` (the client gave the request up). Prefill to decode, once for every request:
    ``transferred``, with the request's whole KV and its first ``token`` (SGLang
    ``MetadataBuffers``). Without a token it has failed. A reader of a message has waited for
    ``after``: a signal, or the transfer that brings the message.
    """

    word: str
    room: str
    slots: Sequence[int] = ()
    token: int | None = None
    error: str = ""
    after: int = 0  # the id of a signal or a slice
    logprobs: Logprobs | None = None  # if wanted: the token's and the prompt's


@dataclass
class Mailbox:
    """Messages, each with its time of arrival."""

    _heap: list[tuple[int, int, RoomMessage]] = field(default_factory=list)
    _num_posted: int = 0

    def post(self, time: int, message: RoomMessage) -> None:
        """Send a message that arrives at ``time``."""
        self._num_posted += 1
        heapq.heappush(self._heap, (time, self._num_posted, message))

    def take(self, reader: Device) -> list[RoomMessage]:
        """Return the messages that have arrived, in order of time."""
        messages = []
        while self._heap and self._heap[0][0] <= reader.now():
            messages.append(heapq.heappop(self._heap)[2])
            reader.recorder.wait(messages[-1].after)
        return messages

    @property
    def next_time(self) -> int | None:
        """The time at which the next message arrives, or None."""
        return self._heap[0][0] if self._heap else None


# -- The link between them -------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """The network. A message takes ``latency`` nanoseconds. A transfer takes that plus its bytes
    over ``bytes_per_second``; transfers follow each other.

    The default is a tenth of a link of 400 Gbit/s and 50 us, because ``SIM_COST`` is as much
    slower. A slot has 32 KiB: 16 layers of 8 KV heads of 64 dimensions, keys and values, two bytes
    each.

    Raises:
        ValueError: a number is outside its limits.
    """

    latency: int = 500 * MICROSECOND
    bytes_per_second: int = 5 * 10**9
    slot_bytes: int = 32 * 1024

    def __post_init__(self) -> None:
        for name, least in (("latency", 0), ("bytes_per_second", 1), ("slot_bytes", 0)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} is {value}, but it must be at least {least}.")

    def cost(self, num_slots: int) -> int:
        """Return the nanoseconds of a transfer of ``num_slots`` slots."""
        return self.latency - (-num_slots * self.slot_bytes * 10**9 // self.bytes_per_second)


@runtime_checkable
class KVModel(Protocol):
    """A model with KV that can be copied, in addition to ``models/base.py:Model``."""

    def read_kv(self, slots: list[int]) -> list[Any]:
        """Return the KV of these slots: lists or arrays, [num_layers][num_slots] and others."""
        ...

    def write_kv(self, slots: Sequence[int], values: list[Any]) -> None:
        """Put KV into these slots."""
        ...


# -- Both sides: receive, send, and sleep without work ---------------------------------------------


@dataclass
class SideEngine(Engine):
    """An engine with a mailbox. ``is_waiting``: its last turn had no work."""

    mailbox: Mailbox = field(default_factory=Mailbox)
    other: Mailbox = field(default_factory=Mailbox)  # the other side's
    link: Link = field(default_factory=Link)
    is_waiting: bool = False

    @property
    def next_event(self) -> int | None:
        """The time of the next message or end of an op that this side knows of, or None."""
        if self.frontend.has_said:
            return self.device.now()
        op_end = cast(SimDevice, self.device).next_event
        times = (self.frontend.next_message, self.mailbox.next_time, op_end)
        return min((time for time in times if time is not None), default=None)

    @property
    def has_ended(self) -> bool:
        """True if every request has ended here, and nothing is in flight or held."""
        return self.is_done and not self.scheduler.leases.returning

    @property
    def is_asleep(self) -> bool:
        """True if a turn would do nothing."""
        event = self.next_event
        return self.is_waiting and (event is None or event > self.device.now())

    def say(self, message: RoomMessage) -> None:
        """Send a message to the other side."""
        recorder = self.device.recorder
        message.after = recorder.new_id()
        recorder.say(message.after)
        self.other.post(self.device.now() + self.link.latency, message)

    def get_next_batch_to_run(self) -> ScheduleBatch | NoBatch:
        """Let the scheduler commit a batch; without a request to run, that costs no time."""
        batch: ScheduleBatch | NoBatch = NoBatch.WAIT
        scheduler = self.scheduler
        if (
            scheduler.waiting_queue
            or scheduler.running_batch
            or scheduler.prefill.chunked_req
            or scheduler.batches_in_flight
        ):
            batch = super().get_next_batch_to_run()
        self.is_waiting = not (batch or scheduler.batches_in_flight)
        return batch

    def on_idle(self) -> None:
        """Look for leaks, unless a request can still have a row.

        More free rows than the table has are no leak. ``Pair`` moves the clock, because it knows
        both sides.
        """
        leases = self.scheduler.leases
        rows_taken = leases.table.size - leases.table.available_size
        nobody_has_one = not (self.scheduler.live or leases.returning)
        if rows_taken == 0 or (rows_taken > 0 and nobody_has_one):
            self_check(self.scheduler.leases)


# -- The decode side: reserves pages, waits for KV, decodes, and answers the clients ---------------


@dataclass
class DecodeEngine(SideEngine):
    """An engine that receives KV."""

    scheduler: DecodeScheduler

    @property
    def has_ended(self) -> bool:
        """True if the prefill side also has answered every request and knows of every abort."""
        scheduler = self.scheduler
        return super().has_ended and not (scheduler.unanswered or scheduler.given_up)

    def process_decode_queue(self) -> None:
        """Read the prefill side's messages, send it aborts, reserve pages and send their slots."""
        if messages := self.mailbox.take(self.device):
            self.hear(messages)
        while self.scheduler.given_up:
            room = self.scheduler.given_up.popleft()
            self.say(RoomMessage("abort", room))
        reserved = self.scheduler.pop_preallocated()
        if not reserved:
            return
        label = Label(rids=tuple(req.rid for req, _ in reserved))
        with self.device.host("send", self.cost.host.get("send", 0), label):
            for req, lease in reserved:
                slots = slots_of(lease.pages, self.scheduler.config.page_size)[: len(req.prompt)]
                self.say(RoomMessage("reserved", req.admission.bootstrap_room, slots))
        self.recording.count()

    def hear(self, messages: Sequence[RoomMessage]) -> None:
        """Take in KV that has arrived, and stream its tokens to the clients."""
        asked = [self.scheduler.unanswered.get(message.room) for message in messages]
        label = Label(rids=tuple(req.rid for req in asked if req is not None and not req.finished))
        with self.device.host("receive", self.cost.host.get("receive", 0), label):
            for message in messages:
                self.scheduler.answered(
                    message.room, message.token, message.error, message.logprobs
                )
        self.recording.count()
        self._stream_output(self.scheduler.take_outputs())
        for message, req in zip(messages, asked, strict=True):
            if req is not None and not req.finished:
                self.recording.delivered_by[req.rid] = message.after  # its next step builds on


# -- The prefill side: computes prompts and sends their KV -----------------------------------------


@dataclass
class KVSender:
    """The transfers of one request to the decode side (SGLang ``disagg_kv_sender``)."""

    to_slots: Sequence[int] = ()  # once the decode side has reserved them
    sent_len: int = 0  # positions
    transfers: list[tuple[Op, Lease]] = field(default_factory=list)  # that are not over
    done: Prefilled | None = None
    is_unwanted: bool = False
    error: str = ""  # of a transfer
    has_sent_all: bool = False


@dataclass
class PrefillEngine(SideEngine):
    """An engine that sends KV. ``senders`` has an entry for each request without an answer.

    On this side a request's id is its room.
    """

    scheduler: PrefillScheduler
    senders: dict[str, KVSender] = field(default_factory=dict)
    inflight: dict[str, KVSender] = field(default_factory=dict)  # disagg_prefill_inflight_queue
    target: DecodeEngine | None = None  # the engine that receives the transfers

    @property
    def has_ended(self) -> bool:
        """True if every request has its answer, and every transfer has arrived."""
        return super().has_ended and not (self.senders or self.inflight)

    @property
    def is_asleep(self) -> bool:
        """True if a turn would do nothing, also because no transfer has ended since the last."""
        ended = any(op.query() for item in self.inflight.values() for op, _ in item.transfers)
        return super().is_asleep and not ended

    def pop_bootstrapped(self) -> None:
        """Read the decode side's messages: slots for KV, and aborts."""
        for message in self.mailbox.take(self.device):
            sender = self.senders.get(message.room)
            if sender is None:
                continue  # it has been answered
            if message.word == "reserved":
                sender.to_slots = message.slots
                self.scheduler.bootstrapped(message.room)
            else:
                sender.is_unwanted = True
                self.scheduler.abort(message.room)

    def process_batch_result(self, step: Step) -> None:
        """Process a step, and send the chunks that it computed."""
        super().process_batch_result(step)
        page_size = self.scheduler.config.page_size
        for row in step.batch.rows:
            if not row.deliver and row.req.lease is row.lease:
                end = row.end // page_size * page_size
                self.send_kv_chunk(row.req.rid, row.lease, end, step.batch.step)

    def send_kv_chunk(
        self, rid: str, lease: Lease, end: int, step: int, last: RoomMessage | None = None
    ) -> None:
        """Send what is settled since ``step`` and not sent; chunks are whole pages.

        Meanwhile the lease is held. For the ``last`` part it is already, as the request has ended;
        that arrives with its KV, unless a transfer before it fails.
        """
        sender = self.senders[rid]
        if last is None:
            if end <= sender.sent_len:
                return
            self.scheduler.hold(lease)
        part = slice(sender.sent_len, end)
        slots = slots_of(lease.pages, self.scheduler.config.page_size)[part]
        label, recorder = Label(step, rids=(rid,)), self.device.recorder
        with self.device.host("send", self.cost.host.get("send", 0), label) as send:
            num_bytes = len(slots) * self.link.slot_bytes
            recorder.mark("kv transfer", rid=rid, slots=len(slots), bytes=num_bytes)
            before = [op for op, _ in sender.transfers]
            op = self.device.thread("kv transfer").launch(
                self.copy_kv, rid, slots, sender.to_slots[part], last, *before,
                name="transfer", cost=self.link.cost(len(slots)), label=label,
            )  # fmt: skip
            if last is not None:
                last.after = op.slice_id
        recorder.edge("launch", send, op.slice_id)
        sender.transfers.append((op, lease))
        sender.sent_len = end
        self.inflight[rid] = sender

    def copy_kv(
        self,
        rid: str,
        slots: list[int],
        to_slots: Sequence[int],
        last: RoomMessage | None,
        *before: None,
    ) -> None:
        """The lane ``kv transfer``: read this side's KV memory, and write the other's.

        A real copy reads and writes its bytes at any time until it ends. Here all of it happens at
        the end, so a page that either side releases too early is sure to be found.
        """
        assert self.target is not None
        now, there = self.device.now(), cast(SimDevice, self.target.device)
        here, theirs = self.device.recorder, cast(SideRecorder, there.recorder)
        here.touch("read", KV, slots, rid)
        with theirs.acting(*here.here()):  # this lane writes; where, is that side's to name
            theirs.touch("write", KV, to_slots, rid)
        values = cast(KVModel, self.worker.model).read_kv(slots)
        write = partial(cast(KVModel, self.target.worker.model).write_kv, to_slots, values)
        if now > there.now():
            there.at(now, write)
        else:
            write()  # its host is in the middle of a turn and could not have looked before
        if last is not None:
            self.other.post(now, last)

    def process_disagg_prefill_inflight_queue(self) -> None:
        """Poll: release what has been sent; send the last part of each computed prompt."""
        while self.scheduler.done:
            done = self.scheduler.done.popleft()
            sender = self.inflight[done.req.rid] = self.senders[done.req.rid]
            sender.done = done
        for rid, sender in list(self.inflight.items()):
            for op, lease in [item for item in sender.transfers if item[0].query()]:
                sender.transfers.remove((op, lease))
                sender.error = sender.error or (f"transfer failed: {op.error}" if op.error else "")
                self.scheduler.let_go(lease)
                self.is_waiting = False  # there is memory again
            if sender.done is not None:
                self.send_last(sender, sender.done)
            if not sender.transfers:
                del self.inflight[rid]
            self.recording.count()

    def send_last(self, sender: KVSender, done: Prefilled) -> None:
        """Send the last part with the first token, or an error without one; once per request."""
        rid, lease = done.req.rid, done.lease
        is_lost = done.token is None or sender.is_unwanted or bool(sender.error)
        if not is_lost and not sender.has_sent_all:
            assert lease is not None
            sender.has_sent_all = True
            last = RoomMessage("transferred", rid, token=done.token)
            if done.req.params.return_logprob:
                req = done.req
                last.logprobs = logprobs_of(req)
            self.send_kv_chunk(rid, lease, len(done.req.prompt), lease.last_step, last)
        if sender.transfers:
            return  # some of it is on its way
        if not sender.has_sent_all or sender.error:
            self.say(RoomMessage("transferred", rid, error=sender.error or done.error))
        if not sender.has_sent_all and done.token is not None and lease is not None:
            self.scheduler.let_go(lease)
            self.is_waiting = False
        del self.senders[rid]

    def _stream_output(self, outputs: Outputs, label: Label = NO_LABEL, process: int = 0) -> None:
        """Count outputs, without cost: this side has no clients."""
        self.metrics.on_outputs(outputs, self.device.now())


# -- The load balancer: every request goes to both sides -------------------------------------------


def give_rooms(requests: Sequence[Request], config: SchedulerConfig) -> list[Request]:
    """Return the accepted requests, each with a room: its id, plus a number if the id repeats.

    Rooms of a client or of an earlier run are dropped.
    """
    taken = [req for req in {id(req): req for req in requests}.values() if not config.refusal(req)]
    for req in requests:
        req.admission.bootstrap_room = ""
    given = set[str]()
    for req in taken:
        req.admission.bootstrap_room, number = req.rid, 1
        while req.admission.bootstrap_room in given:
            number += 1
            req.admission.bootstrap_room = f"{req.rid} ({number})"
        given.add(req.admission.bootstrap_room)
    return taken


def for_prefill(req: Request) -> Request:
    """Return a request for the prefill side: it ends with its first token."""
    params, room = replace(req.params, max_new_tokens=1), req.admission.bootstrap_room
    prompt = Request(room, req.prompt, params, req.arrival_time, priority=req.priority)
    prompt.sampling_key = req.sampling_key  # also where an id repeats
    return prompt


# -- The pair of them, and its two clocks ----------------------------------------------------------


class Pair:
    """Both engines, each on a device of its own; ``device`` is the decode side's.

    Each side has all the memory of ``config``. The prefill side gets no request that the decode
    side refuses.

    The clocks advance conservatively. The side with the earlier clock takes a turn, or sleeps
    without work, but never past the moment at which the other one could still send a message. A
    side reads messages only at the beginning of a turn, so none comes too late. For the same reason
    the prefill side has a request before each message about it.

    Raises:
        ValueError: the model's KV can't be copied, or an option is outside its limits.
    """

    def __init__(self, setup: RunSetup, **link: int) -> None:
        device, made = setup.device, Link(**link)
        there = SimDevice(SideRecorder(device.recorder, "prefill"))
        device.recorder = SideRecorder(device.recorder, "decode")
        if not isinstance(setup.model, KVModel):
            raise ValueError(
                f"loop 'pd' copies KV, but model {setup.model.name!r} has none that can be read."
            )
        self.decode = cast(DecodeEngine, wire(setup, DecodeScheduler, DecodeEngine))
        accepted = give_rooms(setup.requests, self.decode.scheduler.config)
        prompts = [for_prefill(req) for req in accepted]
        spec = replace(setup.spec, overrun=0, settings={})  # each prompt ends with its first token
        setup = replace(
            setup,
            spec=spec,
            device=cast(Device, there),
            model=copy(setup.model),
            frontend=Frontend(prompts),
        )
        self.prefill = cast(PrefillEngine, wire(setup, PrefillScheduler, PrefillEngine))
        self.prefill.senders = {req.rid: KVSender() for req in prompts}
        self.prefill.link = self.decode.link = made
        self.prefill.target = self.decode
        self.prefill.other, self.decode.other = self.decode.mailbox, self.prefill.mailbox
        self.sides: list[tuple[SideEngine, Turns]] = [
            (self.prefill, pd_prefill(self.prefill)),
            (self.decode, pd_decode(self.decode)),
        ]
        for side, turns in self.sides:
            side.device.recorder.line = line_of(turns)

    @property
    def is_done(self) -> bool:
        """True if every request has ended, and nothing is in flight or held on either side."""
        return self.prefill.has_ended and self.decode.has_ended

    def turn(self) -> None:
        """Advance the side with the earlier clock.

        Raises:
            Deadlock: both sleep, and nothing could wake them.
        """
        if self.decode.frontend.interrupted and not self.prefill.frontend.interrupted:
            self.prefill.frontend.interrupt()
        for side, _ in self.sides:
            side.device.idle_until(side.device.now())  # what ends at this moment has ended
        (behind, turns), (ahead, _) = sorted(
            self.sides, key=lambda item: (item[0].device.now(), item[0].is_asleep)
        )
        if not behind.is_asleep:
            next(turns)
            return
        limit: int | None = ahead.device.now()  # its next message is not earlier
        if limit == behind.device.now():
            limit = ahead.next_event  # both sleep
        times = [time for time in (behind.next_event, limit) if time is not None]
        if not times:
            raise Deadlock("both sides of pd wait for each other, and no message is on its way")
        behind.device.idle_until(min(times))

    @property
    def metrics(self) -> Metrics:
        """Return the decode side's metrics, with the prefill side's figures of the prompts."""
        metrics, prompts = self.decode.metrics, self.prefill.metrics
        by_room = {item.rid: item for item in prompts.ended}
        for item in metrics.ended:
            if item.room in by_room:
                item.scheduled = by_room[item.room].scheduled
                item.cached_tokens = by_room[item.room].cached_tokens
        metrics.admitted_tokens = prompts.admitted_tokens
        metrics.cached_tokens = prompts.cached_tokens
        return metrics


def whole_run(setup: RunSetup, **link: int) -> Metrics:
    """Run requests through both sides until the last one has ended (``Design.whole_run``)."""
    pair = Pair(setup, **link)
    while not pair.is_done:
        pair.turn()
    for side, _ in pair.sides:
        self_check(side.scheduler.leases)
    return pair.metrics


design(
    "pd",
    follows="SGLang disaggregation/prefill.py and decode.py",
    relays=("pool", "ring", "prev_sampled", "request_state", "fill_device"),
    depth=2,
    overrun=1,
    settings={"disable_radix_cache": True},  # of the decode side, as in the original
    second_writer=True,
    whole_run=whole_run,
    lanes={"prefill host": pd_prefill, "decode host": pd_decode},
    refuses={
        "other relays": "a relay that runs ahead and needs no prompt on the device: a request "
        "comes to the decode side with its KV, and nothing copies its prompt there",
        "real devices": "it needs two devices with clocks of their own",
        "beam search": "it is refused in SGLang too (beam_search/coordinator.py)",
        "NGRAM": "it is a limit of minisched and not of the original: this decode side does not "
        "wait for the tokens after which drafts are looked up",
        **dict.fromkeys(
            ("NGRAM_GPU", "STANDALONE"),
            "it is a limit of minisched and not of the original: the transfer has the target's KV "
            "alone, and SGLang's sends what the draft model has computed along with it",
        ),
    },
)(pd_decode)
