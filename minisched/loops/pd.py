"""PD separation: prompts on one device, decoding on another, and KV sent from here to there."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, groupby
from typing import Any, Protocol, cast

from ..core import Lease, Logprobs, NoBatch, Output, Request, ScheduleBatch
from ..core.batch import slots_of
from ..devices.base import NO_LABEL, Device, Label
from ..devices.cost import MICROSECOND, NO_COST, CostModel
from ..devices.sim import Deadlock, SimDevice, SimOp
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..engine.metrics import Metrics
from ..models.base import Model
from ..scheduler import SchedulerConfig
from ..scheduler.pd import DecodeScheduler, Prefilled, PrefillScheduler
from ..trace import Program
from ..trace.recorder import SideRecorder
from ..worker import GenerationBatchResult
from ..worker.touches import KV
from .design import Design, Turns, design, line_of
from .overlap import NO_LOOKUP, launch_batch_sample_if_needed
from .run import wire

# -- What the two sides of PD separation say to each other, of a request by its room ---------------


@dataclass(frozen=True)
class Metadata:
    """Decode to prefill: pages are reserved, KV may go to these slots (``send_metadata``)."""

    room: str
    slots: list[int]


@dataclass(frozen=True)
class Abort:
    """Decode to prefill: nobody wants it any more."""

    room: str


@dataclass(frozen=True)
class Computed:
    """Prefill to decode: a prompt is computed, and its pages held until somebody wants them."""

    room: str


@dataclass
class Transferred:
    """Prefill to decode, once for every request: all its KV has arrived, or it failed.

    ``token`` None: it failed. ``slice_id``: of the transfer that brought the last of it.
    ``logprobs``, if wanted: the token's and the prompt's (SGLang ``MetadataBuffers``).
    """

    room: str
    token: int | None
    error: str = ""
    slice_id: int = 0
    logprobs: Logprobs | None = None


Message = Metadata | Abort | Computed | Transferred


@dataclass
class Mailbox:
    """Messages, each with the time at which it can be read, and what it comes after.

    That is a signal, or the transfer which brings it: whoever takes it has waited for that.
    """

    _heap: list[tuple[int, int, Message, int]] = field(default_factory=list)
    _num_posted: int = 0

    def post(self, time: int, message: Message, after: int = 0) -> None:
        """Send a message that arrives at ``time``, after the signal or slice of that id."""
        self._num_posted += 1
        heapq.heappush(self._heap, (time, self._num_posted, message, after))

    def take(self, now: int, program: Program) -> list[Message]:
        """What has arrived by now, in order of time; ``program`` is the reader's."""
        messages = []
        while self._heap and self._heap[0][0] <= now:
            _, _, message, after = heapq.heappop(self._heap)
            program.wait(after)
            messages.append(message)
        return messages

    @property
    def next_time(self) -> int | None:
        """When the next message arrives, or None."""
        return self._heap[0][0] if self._heap else None


# -- KV on its way from the prefill device to the decode device, and what the way costs ------------


@dataclass(frozen=True)
class Link:
    """The network. Every message takes ``latency`` nanoseconds, and every transfer that and its
    bytes over ``bytes_per_second``, one transfer after the other.

    By default a link of 400 Gbit/s and 50 us, ten times slower, as ``SIM_COST`` is; a slot has 32
    KiB: 16 layers of 8 KV heads of 64 dimensions, keys and values, two bytes each.

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
        """Nanoseconds that a transfer of so many slots takes."""
        return self.latency - (-num_slots * self.slot_bytes * 10**9 // self.bytes_per_second)


class KVModel(Protocol):
    """What a model must offer beside ``models/base.py:Model``."""

    def read_kv(self, slots: list[int]) -> list[list[int]]:
        """The KV of these slots, [num_layers][num_slots]."""
        ...

    def write_kv(self, slots: list[int], values: list[list[int]]) -> None:
        """Put it into these slots."""
        ...


@dataclass
class KVTransfer:
    """The lane ``kv transfer``: reads one device's KV memory and writes the other's.

    A real copy reads and writes its bytes at any time until it is over. Here all of it happens at
    the end: whoever gives pages away before that, on either side, is sure to be caught.
    """

    link: Link
    source: SimDevice
    source_model: KVModel
    target: SimDevice
    target_model: KVModel
    mailbox: Mailbox  # the decode side's

    def launch(
        self,
        label: Label,
        slots: list[int],
        to_slots: list[int],
        last: Transferred | None,
        before: Sequence[SimOp] = (),
    ) -> SimOp:
        """Queue a transfer; ``last`` arrives with it, unless one of those ``before`` it fails."""
        (rid,) = label.rids
        num_bytes = len(slots) * self.link.slot_bytes
        self.source.recorder.mark("kv transfer", rid=rid, slots=len(slots), bytes=num_bytes)
        op = self.source.thread("kv transfer").launch(
            self._copy, rid, slots, to_slots, last, *before,
            name="transfer", cost=self.link.cost(len(slots)), label=label,
        )  # fmt: skip
        if last is not None:
            last.slice_id = op.slice_id
        return op

    def _copy(
        self,
        rid: str,
        slots: list[int],
        to_slots: list[int],
        last: Transferred | None,
        *before: None,
    ) -> None:
        now = self.source.now()
        self._declare(rid, slots, to_slots)
        write = partial(self.target_model.write_kv, to_slots, self.source_model.read_kv(slots))
        if now > self.target.now():
            self.target.at(now, write)
        else:
            write()  # its host is in the middle of a turn and could not have looked before
        if last is not None:
            self.mailbox.post(now, last, last.slice_id)

    def _declare(self, rid: str, slots: list[int], to_slots: list[int]) -> None:
        """Both are this lane's accesses; where they are is each side's to name."""
        here, there = self.source.recorder.program, self.target.recorder.program
        here.touch("read", KV, slots, rid)
        with there.acting(here.lane, here.op):
            there.touch("write", KV, to_slots, rid)


@dataclass
class KVSender:
    """One request's way to the decode side (SGLang ``disagg_kv_sender``)."""

    to_slots: list[int] | None = None  # None: the decode side has not reserved them yet
    sent_len: int = 0  # positions
    transfers: list[tuple[SimOp, Lease]] = field(default_factory=list)  # that are not over
    done: Prefilled | None = None
    is_unwanted: bool = False
    error: str = ""  # of a transfer
    has_sent_all: bool = False


# -- One side of PD separation: an engine that hears messages, and sleeps where it has no work -----


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


# -- The prefill side of PD separation: it computes prompts and sends their KV away ----------------


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


# -- The decode side of PD separation: clients hear it; it reserves pages, waits for KV, decodes


def pd_decode(engine: DecodeEngine) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``disaggregation/decode.py:event_loop_overlap_disagg_decode``."""
    result_queue: deque[GenerationBatchResult] = deque()
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
        if batch:
            launch_batch_sample_if_needed(engine, result_queue[-1])
        last_batch = batch
        yield batch


@dataclass
class DecodeEngine(SideEngine):
    """An engine that receives KV. A request's first token is heard when its KV has arrived."""

    scheduler: DecodeScheduler

    def process_decode_queue(self) -> None:
        """Hear the prefill side; tell it whom nobody wants, and where KV may go."""
        messages = self.hear()
        if messages:
            asked = [self.scheduler.unanswered.get(message.room) for message in messages]
            live = [req for req in asked if req is not None and not req.finished]
            label = Label(rids=tuple(req.rid for req in live))
            with self.device.host("receive", self.cost.host.get("receive", 0), label):
                outputs = [output for message in messages for output in self._hear(message)]
            self._observe()
            self._stream_output(outputs)
            self._arrived(messages, asked)
        for room in self.scheduler.take_given_up():
            self.say(Abort(room))
        self._preallocate()

    def _hear(self, message: Message) -> list[Output]:
        if isinstance(message, Computed):
            self.scheduler.prefilled(message.room)
        if not isinstance(message, Transferred):
            return []
        return self.scheduler.answered(message.room, message.token, message.error, message.logprobs)

    def _arrived(self, messages: list[Message], asked: list[Request | None]) -> None:
        """Let the trace know which transfer the next step of a request builds upon."""
        for message, req in zip(messages, asked, strict=True):
            if isinstance(message, Transferred) and req is not None and not req.finished:
                self.recording.delivered_by[req.rid] = message.slice_id

    def _preallocate(self) -> None:
        found = self.scheduler.pop_preallocated()
        if not found:
            return
        label = Label(rids=tuple(req.rid for req, _ in found))
        with self.device.host("send", self.cost.host.get("send", 0), label):
            for req, lease in found:
                slots = slots_of(lease.pages, self.scheduler.config.page_size)
                self.say(Metadata(req.bootstrap_room, slots[: len(req.prompt)]))
        self._observe()


@dataclass
class Pair:
    """Two engines, each with its own device, clock and event loop (SGLang ``disaggregation``).

    A load balancer sends every request to both. With ``prealloc_first`` (SGLang) the decode side
    reserves pages for its prompt, then the prefill side computes it, chunk by chunk, and sends the
    KV of each as soon as it is there. Without (vLLM's NIXL connector) it is computed at once, and
    its pages are held until the decode side has room.

    The clocks go forward conservatively: always the side that is behind takes a turn, or sleeps if
    it has nothing to do, and never past the moment at which the other one could still send it
    something. A side hears messages at the beginning of a turn only, so none comes too late.
    """

    prefill: PrefillEngine
    decode: DecodeEngine

    def __post_init__(self) -> None:
        self.turns: dict[str, Turns] = {
            "prefill": pd_prefill(self.prefill),
            "decode": pd_decode(self.decode),
        }
        self.prefill.device.recorder.line = line_of(self.turns["prefill"])
        self.decode.device.recorder.line = line_of(self.turns["decode"])

    @property
    def is_done(self) -> bool:
        """Whether every request has ended, and nothing is in flight or held on either side."""
        held = self.prefill.senders or self.decode.scheduler.leases.returning
        return self.prefill.is_done and self.decode.is_done and not held

    def turn(self) -> None:
        """Let the side that is behind go on.

        Raises:
            Deadlock: both sleep, and nothing could wake them.
        """
        if self.decode.frontend.interrupted and not self.prefill.frontend.interrupted:
            self.prefill.frontend.interrupt()
        sides: list[tuple[str, SideEngine]] = [("prefill", self.prefill), ("decode", self.decode)]
        for _, side in sides:
            side.device.idle_until(side.device.now())  # what ends at this moment has ended
        sides.sort(key=lambda item: (item[1].device.now(), item[1].is_asleep))
        (name, behind), (_, ahead) = sides
        if behind.is_asleep:
            behind.device.idle_until(wake_up(behind, ahead))
        else:
            next(self.turns[name])

    def self_check(self) -> None:
        """Look for leaks on both sides.

        Raises:
            MemoryLeak: there is one.
        """
        self.prefill.scheduler.self_check()
        self.decode.scheduler.self_check()


def wake_up(behind: SideEngine, ahead: SideEngine) -> int:
    """Until when a side without work may sleep."""
    bound = ahead.device.now()
    limit = bound if bound > behind.device.now() else ahead.next_event
    times = [time for time in (behind.next_event, limit) if time is not None]
    if not times:
        raise Deadlock("both sides of pd wait for each other, and no message is on its way")
    return min(times)


# -- Makes the two sides of PD separation, and runs them as one ------------------------------------

RELAYS = ("pool", "ring", "prev_sampled", "fill_device")
REFUSES = {
    "other relays": "a relay that runs ahead on a buffer of sampled tokens alone: a request comes "
    "to the decode side with its KV, and nothing copies its prompt there",
    "real devices": "it needs two devices with clocks of their own",
    "NGRAM": NO_LOOKUP,
    **dict.fromkeys(
        ("NGRAM_GPU", "STANDALONE"),
        "it is a limit of minisched and not of the original: the transfer has the target's KV "
        "alone, and SGLang's sends what the draft model has computed along with it",
    ),
}
PREFILL = Design(
    pd_prefill, RELAYS, depth=2, scheduler=PrefillScheduler, engine=PrefillEngine, refuses=REFUSES
)
DECODE = Design(
    pd_decode, RELAYS, depth=2, overrun=1,
    scheduler=DecodeScheduler, engine=DecodeEngine, refuses=REFUSES,
    settings={"disable_radix_cache": True},  # as in the original, unless it is told otherwise
)  # fmt: skip


def make_pair(
    device: Device,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    frontend: Frontend,
    cost: CostModel = NO_COST,
    relay: str = "",
    prealloc_first: bool = True,
    **link: int,
) -> Pair:
    """Two engines on two devices, wired; ``device`` is the decode side's.

    Each side has all the memory that ``config`` says.

    Raises:
        ValueError: the model's KV can't be copied, or an option is outside its limits.
    """
    if not hasattr(model, "read_kv"):
        raise ValueError(
            f"loop 'pd' copies KV, but model {model.name!r} has none that can be read."
        )
    there = cast(Device, SimDevice(SideRecorder(device.recorder, "prefill")))
    device.recorder = SideRecorder(device.recorder, "decode")
    device.recorder.now = device.now
    decode = cast(DecodeEngine, wire("pd", DECODE, device, model, config, frontend, cost, relay))
    taken = accepted(requests, decode.scheduler.config)
    give_rooms(requests, taken)
    sent = [for_prefill(req) for req in taken]
    theirs = wire("pd", PREFILL, there, copy(model), config, Frontend(sent), cost, relay)
    prefill = cast(PrefillEngine, theirs)
    connect(prefill, decode, Link(**link))
    prefill.senders = {req.rid: KVSender() for req in sent}
    prefill.scheduler.prealloc_first = decode.scheduler.prealloc_first = prealloc_first
    return Pair(prefill, decode)


def connect(prefill: PrefillEngine, decode: DecodeEngine, link: Link) -> None:
    """Give each side the other's mailbox, and the prefill side the way to the other's memory."""
    prefill.other, decode.other = decode.mailbox, prefill.mailbox
    prefill.latency = decode.latency = link.latency
    models = [cast(KVModel, side.worker.model) for side in (prefill, decode)]
    prefill.transfer = KVTransfer(
        link, prefill.sim, models[0], decode.sim, models[1], decode.mailbox
    )


def accepted(requests: Sequence[Request], config: SchedulerConfig) -> list[Request]:
    """Those that the decode side will take: the load balancer sends nobody else to the other.

    One that comes twice counts once.
    """
    each = {id(req): req for req in requests}.values()
    return [req for req in each if not config.refusal(req)]


def give_rooms(requests: Sequence[Request], taken: Sequence[Request]) -> None:
    """Each that is taken a room of its own: its id, which has a number behind it if it is back.

    Nobody else has one, whatever room a client, or a run before this one, has given it.
    """
    for req in requests:
        req.bootstrap_room = ""
    rids = {req.rid for req in taken}
    for rid, same in groupby(sorted(taken, key=lambda req: req.rid), key=lambda req: req.rid):
        numbered = (f"{rid} ({number})" for number in count(2))
        free = (room for room in numbered if room not in rids)
        for req, room in zip(same, chain([rid], free), strict=False):
            req.bootstrap_room = room


def for_prefill(req: Request) -> Request:
    """The same request as the prefill side sees it: it ends with its first token."""
    params, room = replace(req.params, max_new_tokens=1), req.bootstrap_room
    prompt = Request(room, req.prompt, params, req.arrival_time, priority=req.priority)
    prompt.sampling_key = req.sampling_key  # its own, also where its id has come back
    return prompt


def whole_run(
    spec: Design,
    device: Device,
    model: Model,
    requests: Sequence[Request],
    config: SchedulerConfig,
    frontend: Frontend,
    cost: CostModel = NO_COST,
    relay: str = "",
    **options: Any,
) -> Metrics:
    """Run requests through both sides until the last one has ended (``Design.whole_run``)."""
    pair = make_pair(
        device, model, requests, config, frontend, cost, relay or spec.relays[0], **options
    )
    while not pair.is_done:
        pair.turn()
    pair.self_check()
    return joined(pair)


def joined(pair: Pair) -> Metrics:
    """What clients saw, and what the prefill side knows of when their prompts were computed."""
    metrics, prompts = pair.decode.metrics, pair.prefill.metrics
    by_room = {item.rid: item for item in prompts.ended}
    for item in metrics.ended:
        if item.room in by_room:
            item.scheduled = by_room[item.room].scheduled
            item.cached_tokens = by_room[item.room].cached_tokens
    metrics.admitted_tokens, metrics.cached_tokens = prompts.admitted_tokens, prompts.cached_tokens
    return metrics


@design(
    "pd",
    follows="SGLang disaggregation/prefill.py and decode.py",
    relays=RELAYS,
    depth=2,
    overrun=1,
    whole_run=whole_run,
    lanes={"prefill host": pd_prefill, "decode host": pd_decode},
    refuses=REFUSES,
)
def no_turns(engine: Engine, **options: Any) -> Turns:
    """What ``pd`` has in the place of a generator.

    Raises:
        ValueError: always; one engine is not enough.
    """
    raise ValueError("loop 'pd' is two engines, so it runs only as a whole: with compare or run.")
