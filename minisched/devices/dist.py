"""Several processes, each a *rank* with a device of its own, joined by torch.distributed.

How it is used. Rank 0 is the program; every other rank does what rank 0 tells it to::

    with join() as ranks:              # under torchrun, from its environment variables
    with started(2) as ranks:          # without torchrun: this process is rank 0 and starts rank 1
        with ranks.calling(part, *args):       # each other rank runs ``part(ranks, *args)``
            ranks.send(1, "kv", value, tensors)
            message = ranks.receive(1, "done")

``part`` is a function of a module (it goes by name), and values are what pickle takes. A message
goes to one rank under a tag, over gloo; those of one tag come in order. Tensors lie on the other
rank's device when they have come: over NCCL where every rank has a GPU of its own, else through the
host's memory. ``all_gather`` is for what all ranks do alike, each from one thread.

Every wait has an end. Each rank beats four times in ``deadline`` seconds, whatever it computes.
If one dies, its connections close; if one stalls, or a link does, nothing comes for ``deadline``
seconds. In both cases every call here, on every other rank, raises ``RankLost`` with a sentence.
``receive`` also raises it for a message that is overdue by itself, unless it is ``patient``: then
it waits as long as the other rank lives. Before all have met, one that says nothing is given up
after ``GATHERING`` seconds, and one that ``started`` has started and that ends is noticed at once.

What each rank records has ids that no other rank gives out (``rank_device``). A message carries
the id of a signal which the sender *said* and the receiver *waited* for, so both ends are paired in
the program from which races are found, and ``sent_by``, the slice that sent it. ``compare_clocks``
measures how far the others' clocks are from rank 0's, and ``gather`` brings what they have
recorded into rank 0's recorder, on its clock.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import monotonic, perf_counter_ns, sleep
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what is lost, is said here

import torch
import torch.distributed as dist
from torch import Tensor

from ..trace import Recorder
from ..trace.ranks import ClockOffset, absorb, rank_recorder, renamed
from ..trace.recorder import Events, NullRecorder
from .base import RankLost as RankLost
from .base import reason_of
from .thread import ThreadDevice, TorchDevice

DEADLINE = 30.0  # seconds
GATHERING = 60.0  # seconds until all ranks are there: each has to import torch first
BEATS = 4  # in a deadline
BEAT, GOODBYE = "beat", "goodbye"  # tags of what nobody receives
LOOK = 0.02  # seconds between two looks at who is there
ROUND_TRIPS = 100  # of each measurement of clocks
COLLECTIVES = 1 << 40  # ids of signals from here on are those of collectives, alike on all ranks


class WrongRanks(ValueError):
    """There are no ranks, or not as many as are wanted; one sentence."""


@dataclass(frozen=True)
class Message:
    """What has come from another rank; it is after ``signal``, and slice ``sent_by`` sent it."""

    tag: str
    value: Any = None
    tensors: list[Tensor] = field(default_factory=list)
    signal: int = 0
    sent_by: int = 0


# -- The ranks, as one of them sees the others -----------------------------------------------------


class Ranks:
    """This process among the others (``torch.distributed`` has been initialized).

    ``recorder`` is that of the run which is on, from ``begin`` to ``gather``.
    """

    def __init__(self, rank: int, size: int, deadline: float = DEADLINE) -> None:
        self.rank, self.size, self.deadline = rank, size, deadline
        self.others = [other for other in range(size) if other != rank]
        self.recorder: Recorder = NullRecorder()
        self.offsets: dict[int, ClockOffset] = {}  # of each rank; rank 0 alone knows them
        self.lost: RankLost | None = None
        self.news = threading.Condition()  # whoever waits for anything hears of it here
        self.gone: set[int] = set()  # who has said goodbye
        self.processes: list[subprocess.Popen[bytes]] = []  # the others, if this one started them
        self._where = torch.device("cpu")
        if torch.cuda.is_available():
            self._where = torch.device("cuda", torch.cuda.current_device())
        self._inbox: defaultdict[tuple[int, str], deque[Message]] = defaultdict(deque)
        self._num_collectives = 0
        self._is_closed = threading.Event()
        self._wait = timedelta(seconds=deadline)
        with self._bounded("the ranks have not come together"):
            self.group = dist.new_group(None, self._wait, "gloo")
            self._messages = dist.new_group(None, self._wait, "gloo")
            self._direct: Any = None  # the group that tensors go over, if not in their message
            if torch.cuda.is_available() and torch.cuda.device_count() >= size:
                self._direct = dist.new_group(None, self._wait, "nccl")
        self._locks = {other: threading.Lock() for other in self.others}
        self._last_sent = dict.fromkeys(self.others, monotonic())
        self._threads = [
            threading.Thread(target=work, args=(other,), name=f"{name} rank {other}", daemon=True)
            for other in self.others
            for work, name in ((self._listen, "hears"), (self._beat, "tells"))
        ]
        for thread in self._threads:
            thread.start()

    # -- messages

    def send(
        self, to: int, tag: str, value: Any = None, tensors: Sequence[Tensor] = (), after: int = 0
    ) -> None:
        """Send a message; when this returns, the other rank has it, and tensors may be changed.

        What this lane did so far comes before it, or, with ``after``, that signal was said already.

        Raises:
            RankLost: the other rank, or any one, is lost.
        """
        program = self.recorder.program
        if not after:
            after = program.new_id()
            program.say(after)
        self._put(to, Message(tag, value, list(tensors), after, program.op))

    def receive(self, source: int, tag: str, patient: bool = False) -> Message:
        """Wait for the next message; what this lane does from now on comes after its sending.

        Raises:
            RankLost: a rank is lost, or nothing of the kind has come in ``deadline`` seconds.
        """
        queue = self._inbox[source, tag]
        with self.news:
            self.news.wait_for(
                lambda: queue or self.lost or source in self.gone,
                None if patient else self.deadline,
            )
            if not queue:
                has_ended = source in self.gone
                late = f"{tag!r} has not come in {self.deadline:g} s"
                self._lose(source, f"it has ended without sending {tag!r}" if has_ended else late)
                self.check()
            message = queue.popleft()
        self.recorder.program.wait(message.signal)
        return message

    def poll(self, source: int, tag: str) -> Message | None:
        """The next message, if it is there.

        Raises:
            RankLost: a rank is lost.
        """
        self.check()
        return self.receive(source, tag) if self.has_come(source, tag) else None

    def has_come(self, source: int, tag: str) -> bool:
        """Whether there is a message to receive."""
        return bool(self._inbox.get((source, tag)))

    def sleep_until_news(self, seconds: float, is_awake: Callable[[], bool]) -> None:
        """Sleep until anything comes, somebody notifies ``news``, or for ``seconds``.

        Not at all, if ``is_awake`` says so by now.

        Raises:
            RankLost: a rank is lost.
        """
        with self.news:
            if not (self.lost or is_awake()):
                self.news.wait(seconds)
        self.check()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor of this shape, in the order of ranks: all of them call it in turn.

        Raises:
            RankLost: a rank is lost, or one has not called it in ``deadline`` seconds.
        """
        self.check()
        self._num_collectives += 1
        program, first = self.recorder.program, COLLECTIVES + self._num_collectives * self.size
        program.say(first + self.rank)
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._bounded("a rank has not come to exchange its part"):
            dist.all_gather(parts, tensor, self.group)
        for other in self.others:
            program.wait(first + other)
        return parts

    def check(self) -> None:
        """Hear of a loss.

        Raises:
            RankLost: a rank is lost.
        """
        if self.lost is not None:
            raise self.lost

    # -- rank 0 tells the others what to do

    def call(self, part: Callable[..., None], *args: Any) -> None:
        """Rank 0: let every other rank run ``part(ranks, *args)``, and go on meanwhile.

        Raises:
            RankLost: a rank is lost.
        """
        for other in self.others:
            self.send(other, "call", (part, args))

    @contextmanager
    def calling(self, part: Callable[..., None], *args: Any) -> Iterator[None]:
        """The same for as long as this lasts: if it goes wrong here, all hear of it, and end.

        Raises:
            RankLost: a rank is lost.
        """
        self.call(part, *args)
        try:
            yield
        except RankLost:
            raise  # which each hears by itself
        except Exception as error:
            self.close(error)
            self.lost = RankLost(f"rank {self.rank} has gone wrong before: {reason_of(error)}.")
            raise

    def serve(self) -> None:
        """Every other rank: do what rank 0 says, until it says goodbye.

        What goes wrong in a part is told to all other ranks, which lose this one by it.

        Raises:
            RankLost: a rank is lost.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is rank 0's to handle
        while True:
            try:
                told = self.receive(0, "call", patient=True).value
            except RankLost:
                if 0 in self.gone:
                    return  # it went wrong there, between two parts, and was told there
                raise
            if told is None:
                return
            part, args = told
            part(self, *args)

    # -- clocks

    def compare_clocks(self) -> None:
        """All ranks, one after the other: how far each clock is from rank 0's, as far as known.

        Rank 0 sends its time and gets the other's back, 100 times. The clock was read between both
        ends of a round trip, so of the shortest the middle is off by half of it at most.

        Raises:
            RankLost: a rank is lost.
        """
        mine = torch.zeros(1, dtype=torch.int64)
        with self._bounded("clocks could not be compared"):
            if self.rank:
                for _ in range(ROUND_TRIPS):
                    dist.recv(mine, 0, self.group)
                    mine[0] = perf_counter_ns()
                    dist.send(mine, 0, self.group)
                return
            for other in self.others:
                trips: list[tuple[int, int]] = []  # round trip, offset
                for _ in range(ROUND_TRIPS):
                    sent = perf_counter_ns()
                    dist.send(mine, other, self.group)
                    dist.recv(mine, other, self.group)
                    come = perf_counter_ns()
                    trips.append((come - sent, (sent + come) // 2 - int(mine)))
                trip, offset = min(trips)
                found = ClockOffset(offset, trip // 2 + 1)
                known = self.offsets.get(other)
                self.offsets[other] = known.then(found) if known else found

    # -- the end

    def close(self, error: BaseException | None = None) -> None:
        """Say goodbye and let go of everything; the others end too."""
        if self._is_closed.is_set():
            return
        if self.rank == 0 and error is None and self.lost is None:
            for other in self.others:
                with suppress(RankLost):
                    self.send(other, "call")
        self._is_closed.set()
        reason = "" if error is None else f"{type(error).__name__}: {reason_of(error)}".rstrip(".")
        for other in self.others:  # one that has said its own is still waiting for this
            if self.lost is None:
                with suppress(RankLost):
                    self._put(other, Message(GOODBYE, reason))
        for thread in self._threads:  # one that waits for a lost rank does so no longer than this
            thread.join(self.deadline)
        with suppress(Exception):  # what is lost can't be taken apart in order
            dist.destroy_process_group()

    def __enter__(self) -> Ranks:
        global _current
        _current = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        global _current
        _current = None
        self.close(error)

    # -- the wire

    def _put(self, to: int, message: Message) -> None:
        self.check()
        if to in self.gone and message.tag != GOODBYE:
            self._lose(to, "it has ended")
            self.check()
        # a clone, since of a view all that it is a view of would be sent
        told = [part.to("meta") if self._direct else part.detach().cpu().clone()
                for part in message.tensors]  # fmt: skip
        with self._locks[to], self._bounded("can't be told anything", to):
            dist.send_object_list([replace(message, tensors=told)], to, self._messages)
            for part in message.tensors if self._direct else ():
                there = part.detach().to(self._where).contiguous()  # NCCL sends from a GPU alone
                dist.isend(there, to, self._direct).wait(self._wait)  # with an end: it blocks, too
            self._last_sent[to] = monotonic()

    def _beat(self, to: int) -> None:
        """A thread for each other rank: let it know that this one lives."""
        pause = self.deadline / BEATS
        with suppress(RankLost):
            while not self._is_closed.wait(pause / 2) and to not in self.gone:
                if monotonic() - self._last_sent[to] > pause / 2:
                    self._put(to, Message(BEAT))

    def _listen(self, source: int) -> None:
        """A thread for each other rank: take in what it sends, as soon as it comes."""
        come: list[Any] = [None]
        with suppress(RankLost):
            while source not in self.gone and self.lost is None:
                with self._bounded("can't be heard any more", source):
                    dist.recv_object_list(come, source, self._messages)
                    (message,) = come
                    tensors = [self._here(part, source) for part in message.tensors]
                self._take(source, replace(message, tensors=tensors))

    def _here(self, part: Tensor, source: int) -> Tensor:
        """A tensor of a message on this rank's device; of one on its way there is but the shape."""
        if not part.is_meta:
            return part.to(self._where)
        tensor = torch.empty(part.shape, dtype=part.dtype, device=self._where)
        dist.irecv(tensor, source, self._direct).wait(self._wait)
        return tensor

    def _take(self, source: int, message: Message) -> None:
        with self.news:
            if message.tag == GOODBYE:
                self.gone.add(source)
            elif message.tag != BEAT:
                self._inbox[source, message.tag].append(message)
            self.news.notify_all()
        if message.tag == GOODBYE and message.value:
            self._lose(source, message.value)

    @contextmanager
    def _bounded(self, what: str, other: int | None = None) -> Iterator[None]:
        """What torch raises in here means that a rank is lost.

        Raises:
            RankLost: one is.
        """
        try:
            yield
        except (RuntimeError, ValueError) as error:  # a DistError is one
            late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            why = f"nothing came in {self.deadline:g} s" if late else "its connection is closed"
            if other in self.gone:
                why = "it has ended"
            if not (self._is_closed.is_set() and other in self.gone):
                self._lose(other, f"{what}: {why}" if other is None else why)
            self.check()
            raise RankLost(f"rank {self.rank} is closed.") from error

    def _lose(self, other: int | None, why: str) -> None:
        """Note the first loss, and wake whoever waits."""
        who = "a rank is lost" if other is None else f"rank {other} is lost"
        with self.news:
            if self.lost is None:
                self.lost = RankLost(f"{who}, as rank {self.rank} sees it: {why}.")
            self.news.notify_all()


# -- Who they are: from torchrun's environment, or started here ------------------------------------

_current: Ranks | None = None


def current() -> Ranks:
    """The ranks that this process is among.

    Raises:
        WrongRanks: it is alone.
    """
    if _current is None:
        raise WrongRanks(
            "device 'dist' needs several ranks: start the command with 'torchrun --nproc-per-node "
            "2 -m minisched ...', or give it --nproc 2."
        )
    return _current


def rank_here() -> int | None:
    """Which rank torchrun has made of this process; None: it has not."""
    return int(os.environ["RANK"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else None


def join(deadline: float = DEADLINE) -> Ranks:
    """Be one of the ranks that torchrun, or ``started``, has started; others are waited for.

    Raises:
        WrongRanks: neither has started this process, or it alone.
        RankLost: the others have not come in ``GATHERING`` seconds, or one of them is lost since.
    """
    rank = rank_here()
    if rank is None:
        return current()  # raises
    size = int(os.environ["WORLD_SIZE"])
    if size < 2:
        raise WrongRanks(f"device 'dist' needs at least 2 ranks, but there is {size}.")
    wait = timedelta(seconds=GATHERING)
    try:
        store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=wait))
    except RuntimeError as error:
        raise RankLost(f"rank {rank} has not met the others.") from error
    return meet(rank, size, deadline, store)


def meet(
    rank: int,
    size: int,
    deadline: float,
    store: dist.Store,
    processes: Sequence[subprocess.Popen[bytes]] = (),
) -> Ranks:
    """Wait until each has said that it is here, and no longer than ``deadline`` for what follows.

    A rank that this one has started, and that ends instead, is noticed at once.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    start, names = monotonic(), [f"here {at}" for at in range(size)]
    try:
        store.set(names[rank], "")
        while not store.check(names):
            for at, process in enumerate(processes, 1):
                if (status := process.poll()) is not None:
                    raise RankLost(f"rank {at} has ended before all had met (status {status}).")
            if monotonic() > start + GATHERING:
                missing = [at for at, name in enumerate(names) if not store.check([name])]
                who = ", ".join(map(str, missing))
                raise RankLost(f"rank {rank} has not met rank {who} in {GATHERING:g} s.")
            sleep(LOOK)
        wait = timedelta(seconds=deadline)
        dist.init_process_group("gloo", rank=rank, world_size=size, timeout=wait, store=store)
    except RankLost:
        raise
    except (RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0].rstrip(".")
        raise RankLost(f"rank {rank} has met the others, and lost them ({said}).") from error
    return Ranks(rank, size, deadline)


@contextmanager
def started(size: int, deadline: float = DEADLINE) -> Iterator[Ranks]:
    """Without torchrun: this process is rank 0, and starts the others on this machine.

    They end when this is left, and are killed if they do not. ``ranks.processes`` has them.

    Raises:
        WrongRanks: ``size`` is below 2.
        RankLost: one of them has not come in ``GATHERING`` seconds, or ended before.
    """
    if size < 2:
        raise WrongRanks(f"device 'dist' needs at least 2 ranks, but --nproc is {size}.")
    if dist.is_initialized():
        raise WrongRanks("this process is among ranks already, and can't start others.")
    wait = timedelta(seconds=GATHERING)
    store = dist.TCPStore("127.0.0.1", 0, size, True, wait, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": str(threads_each(size)),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    command = [sys.executable, "-m", "minisched.devices.dist", str(deadline)]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(1, size)
    ]
    patience = 0.0  # for their ends: who has met nobody has nothing to end
    try:
        with meet(0, size, deadline, store, processes) as ranks:
            ranks.processes, patience = processes, deadline
            yield ranks
    finally:
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
            process.kill()
            process.wait()


def threads_each(size: int) -> int:
    """How many threads a rank computes with, where all are on this machine."""
    return max(1, (os.cpu_count() or 1) // size)


# -- A rank's device, and what all of them have recorded -------------------------------------------


def rank_device(recorder: Recorder | None = None) -> TorchDevice:
    """A device of this rank: streams of a GPU where there is one, else threads.

    Raises:
        WrongRanks: this process is alone.
    """
    ranks = current()
    recorder = recorder or rank_recorder(ranks.rank, ranks.size)
    device: TorchDevice
    if torch.cuda.is_available():
        from .cuda import CudaDevice

        device = CudaDevice(recorder)
    else:
        device = ThreadDevice(recorder, torch_threads=threads_each(ranks.size))
    device.name = "dist"
    return device


def needs(ranks: Ranks, count: int, what: str) -> None:
    """Look whether there are enough of them.

    Raises:
        WrongRanks: there are not.
    """
    if ranks.size < count:
        raise WrongRanks(f"loop {what!r} needs {count} ranks, but there are {ranks.size}.")


def begin(ranks: Ranks, device: TorchDevice, is_new: bool = True) -> None:
    """All ranks, before a run: wait for the others, and compare clocks.

    A device that ``is_new``, of which nothing is recorded yet, starts its time at 0.

    Raises:
        RankLost: a rank is lost.
    """
    ranks.recorder = NullRecorder()
    for other in ranks.others if ranks.rank == 0 else ():
        ranks.receive(other, "ready", patient=True)
    if ranks.rank:
        ranks.send(0, "ready")
    ranks.offsets.clear()
    ranks.compare_clocks()
    if is_new:
        device.opened = perf_counter_ns()
    ranks.recorder = device.recorder


def gather(ranks: Ranks, device: TorchDevice, name: Callable[[str], str] = str) -> None:
    """All ranks, after a run: what the others have recorded comes into rank 0's recorder.

    Their times are put on rank 0's clock, and a mark for each says how surely. ``name`` says what a
    rank's lanes and resources are called there.

    Raises:
        RankLost: a rank is lost.
    """
    ranks.recorder = NullRecorder()  # what follows is no part of the run
    ranks.compare_clocks()
    if ranks.rank:
        ranks.send(0, "recorded", (device.opened, renamed(device.recorder.events, name)))
        return
    for other in ranks.others:
        opened, events = ranks.receive(other, "recorded").value
        assert isinstance(events, Events)
        offset, error = ranks.offsets[other]
        shift = ClockOffset(opened + offset - device.opened, error)
        absorb(device.recorder, other, events, shift)


def main() -> None:
    """A rank that ``started`` has started."""
    try:
        with join(float(sys.argv[1])) as ranks:
            ranks.serve()
    except RankLost as lost:
        print(f"minisched: {lost}", file=sys.stderr)
        os._exit(1)  # threads of torch may wait for the lost rank still


if __name__ == "__main__":
    from minisched.devices import dist as module  # as the parts of a run know it

    module.main()
