"""PD separation on two processes: the decode side is rank 0, whom clients hear; prefill is rank 1.

Each side is the engine of ``pd.py`` with a scheduler, a device and a clock of its own, and a
mailbox whose other end is in the other process. What is sent when, and what each side makes of it,
is the same as on one virtual clock. What is left for this file is what a clock did there: a side
with nothing to do sleeps until a message comes, and a run ends when both have said their last.

KV goes in two halves, each on a lane of its own. On the prefill side ``kv transfer`` reads the
pages and sends them; that slice ends when the other rank has them all. On the decode side
``kv recv`` takes them as they come, and writes them to the pages that were reserved. Between both
is an arrow. A request's last part brings its first token, as there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..core import Request
from ..devices.base import Device
from ..devices.dist import Ranks, begin, current, gather, needs
from ..devices.thread import TorchDevice
from ..engine.engine import NAP
from ..engine.metrics import Metrics
from ..trace import Slice
from ..worker.recording import KV
from .design import Turns, line_of
from .pd import (
    DecodeEngine,
    KVModel,
    Link,
    Mailbox,
    PrefillEngine,
    RoomMessage,
    SideEngine,
    decode_side,
    join_metrics,
    pd_decode,
    pd_prefill,
    prefill_side,
)
from .run import RunSetup, setup_of

DECODE, PREFILL = 0, 1  # ranks
WORD, KV_PART = "pd", "pd kv"  # tags of messages
AT_ONCE = 10**18  # bytes per second: the link is a real one, and nothing is added to what it takes
POLL = 0.0005  # seconds until a side looks again whether a transfer has ended


class RankMailbox(Mailbox):
    """A mailbox that is read here and filled by the other rank, or the other way round."""

    def __init__(self, ranks: Ranks, other: int) -> None:
        super().__init__()
        self.ranks, self.rank = ranks, other
        self.here = deque[RoomMessage]()  # what this rank's own threads have said
        self.has_ended = False  # the other side has said its last

    def post(self, time: int, message: RoomMessage) -> None:
        """Send a message to the other rank."""
        self.ranks.send(self.rank, WORD, message, after=message.after)

    def take(self, reader: Device) -> list[RoomMessage]:
        """What has come by now."""
        messages: list[RoomMessage] = []
        while self.here:
            messages.append(self.here.popleft())
            reader.recorder.program.wait(messages[-1].after)
        while (come := self.ranks.poll(self.rank, WORD)) is not None:
            if come.value is None:
                self.has_ended = True
            else:
                messages.append(come.value)
        return messages

    @property
    def next_time(self) -> int | None:
        """Now, if there is a message."""
        return 0 if self.here or self.ranks.has_come(self.rank, WORD) else None


# -- KV: read and sent by one rank, taken and written by the other ---------------------------------


@dataclass
class RankPrefillEngine(PrefillEngine):
    """The prefill side on a rank of its own."""

    def copy_kv(
        self,
        rid: str,
        slots: list[int],
        to_slots: Sequence[int],
        last: RoomMessage | None,
        *before: None,
    ) -> None:
        """The lane ``kv transfer``: read this side's KV memory and send it."""
        self.device.recorder.program.touch("read", KV, slots, rid)
        values = cast(KVModel, self.worker.model).read_kv(slots)
        mailbox = cast(RankMailbox, self.other)
        mailbox.ranks.send(mailbox.rank, KV_PART, (rid, to_slots, last), values)


@dataclass
class KVReceiver:
    """A thread of the decode side, the lane ``kv recv``: what has come goes to its pages."""

    engine: DecodeEngine
    ranks: Ranks
    error: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._work, name="kv recv", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            while self._receive():
                pass
        except Exception as error:  # the decode side waits for it, and must hear of it
            self.error = error
            with self.ranks.news:
                self.ranks.news.notify_all()

    def _receive(self) -> bool:
        device, mailbox = self.engine.device, cast(RankMailbox, self.engine.mailbox)
        program, op = device.recorder.program, device.recorder.new_id()
        program.enter("kv recv", op)
        come = self.ranks.receive(PREFILL, KV_PART, patient=True)
        if come.value is None:
            return False
        start = device.now()
        rid, to_slots, last = come.value
        program.call(op)
        with program.inside("kv recv", op):
            cast(KVModel, self.engine.worker.model).write_kv(to_slots, come.tensors)
            program.touch("write", KV, to_slots, rid)
        device.recorder.slice(Slice(op, "kv recv", "recv", start, device.now(), 0, "", (rid,)))
        device.recorder.edge("recv", come.sent_by, op)
        if last is not None:
            last.after = op
            with self.ranks.news:
                mailbox.here.append(last)
                self.ranks.news.notify_all()
        return True


# -- Either side's run: turns while there is something to do, and sleep ----------------------------


def drive_side(ranks: Ranks, side: SideEngine, turns: Turns, receiver: KVReceiver | None) -> None:
    """Turn one side until its last request has ended, and both have said so.

    Raises:
        RankLost: the other side is lost.
    """
    mailbox = cast(RankMailbox, side.mailbox)
    side.device.recorder.line = line_of(turns)
    told = False

    def is_awake() -> bool:
        return mailbox.next_time is not None or side.frontend.has_said

    while not side.has_ended:
        if receiver is not None and receiver.error is not None:
            raise receiver.error
        if side.frontend.interrupted and not told and receiver is not None:
            told = True
            ranks.send(PREFILL, "interrupt")
        if receiver is None and ranks.poll(DECODE, "interrupt"):
            side.frontend.interrupt()
        if not side.is_asleep:
            next(turns)
            continue
        event, now = side.next_event, side.device.now()
        sleep = NAP if event is None else min(NAP, event - now)
        busy = isinstance(side, PrefillEngine) and any(
            item.transfers for item in side.inflight.values()
        )
        ranks.sleep_until_news(min(sleep / 1e9, POLL if busy else 1.0), is_awake)
    side.scheduler.leases.self_check()
    if receiver is None:
        ranks.send(DECODE, KV_PART)
    ranks.send(mailbox.rank, WORD)
    while not mailbox.has_ended:
        ranks.sleep_until_news(NAP / 1e9, is_awake)
        mailbox.take(side.device)
    if receiver is not None:
        receiver.thread.join(ranks.deadline)


def be_side(ranks: Ranks, device: TorchDevice, side: str) -> None:
    """Begin, under a side's name from now on."""
    begin(ranks, device)
    device.recorder = ranks.recorder = device.recorder.of_side(side)


def whole_run(setup: RunSetup, **link: int) -> Metrics:
    """Rank 0: run requests through both sides until the last one has ended.

    Raises:
        ValueError: the model's KV can't be copied, or the link is given a speed.
        RankLost: a rank is lost.
    """
    ranks, device = current(), cast(TorchDevice, setup.device)
    needs(ranks, 2, "pd")
    if link:
        raise ValueError(
            f"{', '.join(link)} of loop 'pd' is for the simulated link, but on device 'dist' the "
            "link is a real one."
        )
    with ranks.calling(other_rank, setup.for_others()):
        be_side(ranks, device, "decode")
        decode, prompts = decode_side(setup, Link(0, AT_ONCE))
        decode.mailbox = decode.other = RankMailbox(ranks, PREFILL)
        ranks.send(PREFILL, "prompts", prompts)
        drive_side(ranks, decode, pd_decode(decode), KVReceiver(decode, ranks))
        theirs = ranks.receive(PREFILL, "metrics").value
        gather(ranks, device)
    return join_metrics(decode.metrics, theirs)


def other_rank(ranks: Ranks, given: tuple[Any, ...]) -> None:
    """Rank 1: compute prompts and send their KV; a rank behind it has nothing to do.

    Raises:
        RankLost: a rank is lost.
    """
    with setup_of(*given) as setup:
        device, model = cast(TorchDevice, setup.device), cast(KVModel, setup.model)
        if ranks.rank != PREFILL:
            begin(ranks, device)
            gather(ranks, device)
            return
        be_side(ranks, device, "prefill")
        prompts: list[Request] = ranks.receive(DECODE, "prompts").value
        made = prefill_side(setup, prompts, Link(0, AT_ONCE), RankPrefillEngine)
        made.mailbox = made.other = RankMailbox(ranks, DECODE)
        made.link = Link(0, AT_ONCE, sum(part.nbytes for part in model.read_kv([0])))
        drive_side(ranks, made, pd_prefill(made), None)
        ranks.send(DECODE, "metrics", made.metrics)
        gather(ranks, device)
