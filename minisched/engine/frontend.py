"""Where requests come from and outputs go: stands in for the HTTP server and its processes."""

from __future__ import annotations

import heapq
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..core import Output, Request
from ..core.sampling import is_short, is_whole, shown
from ..devices.base import Device
from ..memory import flush_cache
from ..scheduler import Scheduler

# -- What clients can ask for, beside a request ----------------------------------------------------


@dataclass(frozen=True)
class AbortReq:
    """Give up one request, or with ``abort_all`` every one that has not ended.

    ``error`` is the reason of an abort that no client asked for. SGLang ``managers/io_struct.py``.
    """

    rid: str = ""
    abort_all: bool = False
    error: str = ""


@dataclass(frozen=True)
class FlushCacheReq:
    """Forget every cached prefix; refused while a request holds memory."""


Message = Request | AbortReq | FlushCacheReq


def handle_message(message: Message, scheduler: Scheduler) -> Request | None:
    """Let the scheduler handle one message; return the request, if it is one that is new.

    A request enters the waiting queue or is refused; if it is sent twice, it counts once. Cached
    prefixes are forgotten if nothing runs, and a mark records the outcome.

    Raises:
        TypeError: it is no message.
    """
    if isinstance(message, Request):
        is_known = message.finished or scheduler.live.get(message.name) is message
        scheduler.receive([message])
        return None if is_known else message
    if isinstance(message, AbortReq):
        for rid in list(scheduler.live) if message.abort_all else [message.rid]:
            scheduler.abort(rid, message.error)
    elif isinstance(message, FlushCacheReq):
        scheduler.recorder.mark("flush cache", done=flush_cache(scheduler.leases))
    else:
        raise TypeError(
            f"a message of type {type(message).__name__} came, but the types handled are "
            "Request, AbortReq, FlushCacheReq."
        )
    return None


NAP = 50_000_000  # nanoseconds; how late Ctrl-C may be noticed while the engine sleeps


def arrival_of(request: Request) -> int:
    """Return a request's arrival time; 0 if the field holds no time."""
    return request.arrival_time if is_short(request.arrival_time) else 0


class Frontend:
    """Requests in order of arrival, other messages of clients, and a callback for every output.

    A collection of ``requests`` is sorted by arrival time, stably. An iterator has to be in that
    order already. Only one request of it is held ahead of the clock, so that a file of any length
    can be replayed. The engine sets ``now``.

    ``on_output`` is called in the loop, which waits for it: a slow reader needs a queue there. If
    it raises, only that output's request is given up.

    What a request holds is judged by the scheduler; an arrival time that is none is as good as 0.

    An iterator that raises, or with times that decrease, ends every live request with a reason. The
    exception is kept as ``failure``, and ``loops/run.py:drive`` raises it when all have ended.

    Raises:
        TypeError: something that was pushed is no request, or an abort names no id and time.
    """

    def __init__(
        self,
        requests: Iterable[Request] = (),
        on_output: Callable[[Output], None] | None = None,
    ) -> None:
        self.on_output = on_output
        self.now: Callable[[], int] = lambda: 0
        self.interrupted = False
        self.failure: Exception | None = None  # of the iterator of requests
        self.has_news = True  # whether a look may find anything, now or later
        self._gave_up = False  # all were aborted since the interrupt
        self._unread: dict[str, AbortReq | None] = {}  # live, but no reader; None: aborted
        self._said: deque[Message] = deque()  # takes effect at the next look
        self._timed_aborts: list[tuple[int, int, str]] = []  # heap of (time, order, request id)
        self._later: list[tuple[int, int, Request]] = []  # heap of (time, order, request)
        self._num_timed = 0
        self._is_streamed = isinstance(requests, Iterator)
        ordered = requests if self._is_streamed else sorted(requests, key=arrival_of)
        self._coming = iter(ordered)
        self._next = next(self._coming, None)  # the one request held ahead of the clock

    def push(self, request: Request, at: int | None = None) -> None:
        """Send one more request, now or at a time on the device's clock.

        Its arrival time becomes that time. Only the loop's own thread may name one.
        """
        if not isinstance(request, Request):
            raise TypeError(f"{shown(request)} was sent, but it must be a Request.")
        request.arrival_time = self.now() if at is None else at
        if at is None:
            self._say(request)
        else:
            self._num_timed += 1
            heapq.heappush(self._later, (at, self._num_timed, request))
            self.has_news = True

    def deliver(self, output: Output) -> None:
        """Deliver an output. If its reader fails, it receives no more, and the request is aborted.

        SGLang does so when a client disconnects (``managers/tokenizer_manager.py:abort_request``).
        If the request ends before the abort is taken, no request is aborted, because another one
        may have its id then. A refused namesake has a client of its own.
        """
        if output.rid in self._unread and not output.namesake:
            if output.finish_reason:
                del self._unread[output.rid]
            return
        assert self.on_output is not None
        try:
            self.on_output(output)
        except Exception as error:  # a client's code; the loop must not end with it
            if not output.finish_reason:
                why = f"{type(error).__name__}: {error}".removesuffix(": ").rstrip(".")
                self._unread[output.rid] = AbortReq(
                    output.rid, error=f"its reader is gone ({why})."
                )
                self.has_news = True

    def abort(self, rid: str, at: int | None = None) -> None:
        """Give up the request that has an id now, or at a time on the device's clock.

        Nothing comes of it where the request has ended, or has not arrived by then.
        """
        if not isinstance(rid, str) or not (at is None or is_whole(at)):
            raise TypeError(
                f"an abort of {shown(rid)} at {shown(at)} was sent, but it must be of an id, which "
                "is a text, at a whole number of nanoseconds, or None for now."
            )
        if at is None:
            self._say(AbortReq(rid))
        else:
            self._num_timed += 1
            heapq.heappush(self._timed_aborts, (at, self._num_timed, rid))
            self.has_news = True

    def flush_cache(self) -> None:
        """Ask for every cached prefix to be forgotten."""
        self._say(FlushCacheReq())

    def _say(self, message: Message) -> None:
        """Queue a message from any thread; it takes effect at the next look."""
        self._said.append(message)
        self.has_news = True

    def interrupt(self) -> None:
        """Give up every request, also those that have not arrived; a stream is left unread."""
        self.interrupted = self.has_news = True

    def take(self, now: int) -> list[Message]:
        """Return everything that has come by ``now``, in order of time.

        At the same time, a request comes before an abort.
        """
        self.has_news = False  # first, because a later message sets it again
        messages: list[Message] = []
        while (arrival := self.next_arrival) is not None and arrival <= now:
            messages += self._aborts_before(arrival)
            messages.append(self._draw())
        messages += self._aborts_before(now + 1)
        while self._said:
            messages.append(self._said.popleft())
        messages += filter(None, self._unread.values())
        self._unread = dict.fromkeys(self._unread)
        if self.interrupted and (messages or not self._gave_up):
            messages += self._give_up()
        if self.next_arrival is not None or self._timed_aborts or self.interrupted:
            self.has_news = True
        return messages

    @property
    def next_arrival(self) -> int | None:
        """When the next request comes, or None.

        A timed abort does not count: without a live request there is nothing to give up.
        """
        streamed = None if self._next is None else arrival_of(self._next)
        later = self._later[0][0] if self._later else None
        return min((time for time in (streamed, later) if time is not None), default=None)

    @property
    def next_message(self) -> int | None:
        """When the next request or timed abort comes, or None."""
        times = [self.next_arrival, *(time for time, _, _ in self._timed_aborts[:1])]
        return min((time for time in times if time is not None), default=None)

    @property
    def is_empty(self) -> bool:
        """Return whether every known request and message has been taken."""
        return self._next is None and not self._said and not self._later

    @property
    def has_ended(self) -> bool:
        """Return whether all requests are aborted, by an interrupt or a failure of their source."""
        return self.interrupted or self.failure is not None

    @property
    def has_said(self) -> bool:
        """Return whether there is a message besides the timed ones."""
        has_no_reader = any(self._unread.values())
        return bool(self._said) or has_no_reader or (self.interrupted and not self._gave_up)

    def sleep(self, device: Device) -> None:
        """Idle until the next request arrives, in naps, because other messages may come earlier."""
        arrival, nap = self.next_arrival, NAP
        while arrival is not None and device.now() < arrival and not self.has_said:
            device.idle_until(min(arrival, device.now() + nap))
            nap *= 1 if device.clock == "wall" else 2  # a virtual year in a few naps

    def _draw(self) -> Request:
        """Return the request that comes next, and hold the one after it.

        If their source fails, no more come, and every live request is aborted with that reason.
        """
        request = self._next
        if self._later and (request is None or self._later[0][0] < arrival_of(request)):
            return heapq.heappop(self._later)[2]
        assert request is not None
        try:
            self._next = next(self._coming, None)
            if (
                self._next is not None
                and is_short(self._next.arrival_time)
                and self._next.arrival_time < arrival_of(request)
            ):
                raise ValueError(
                    f"request {self._next.rid} arrives at {self._next.arrival_time} ns, before the "
                    f"one ahead of it, which arrives at {request.arrival_time} ns; a stream of "
                    "requests must be in order of arrival."
                )
        except Exception as error:  # the caller's code, as a reader is
            self._next, self._coming, self.failure = None, iter(()), error
            why = f"{type(error).__name__}: {error}".removesuffix(": ").rstrip(".")
            self._later.clear()
            self._say(AbortReq(abort_all=True, error=f"the source of requests failed ({why})."))
        return request

    def _aborts_before(self, time: int) -> Iterator[Message]:
        while self._timed_aborts and self._timed_aborts[0][0] < time:
            yield AbortReq(heapq.heappop(self._timed_aborts)[2])

    def _give_up(self) -> Iterator[Message]:
        """Yield the requests that have not arrived, then an abort of every request."""
        self._gave_up = True
        if self._is_streamed:
            self._coming = iter(())
        while self.next_arrival is not None:
            yield self._draw()
        yield AbortReq(abort_all=True)


# -- Ctrl-C as an abort: the loop goes on until every request has ended and every step is back -----


@contextmanager
def abort_on_interrupt(frontend: Frontend) -> Iterator[None]:
    """Let the first Ctrl-C abort all requests, and a second one stop immediately.

    Stopping a loop in the middle would lose the steps it has launched, with the memory they name.
    Only the main thread receives signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(signum: int, frame: object) -> None:
        frontend.interrupt()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
