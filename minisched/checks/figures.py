"""The figures of a run's metrics, counted a second time; and the times of messages between sides.

``Metrics`` counts where tokens are delivered and batches are committed. The observer here counts at
the frontend and at the scheduler, on the virtual clock of ``sim``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from ..core import FinishReason, Lease, Output, Request, ScheduleBatch
from ..engine.engine import Engine
from ..engine.frontend import AbortReq, Message, arrival_of
from ..engine.metrics import Metrics, RequestMetrics
from ..loops.pd import RoomMessage, SideEngine

FULL = FinishReason.STOP, FinishReason.LENGTH  # of requests with all of their tokens
Heard = Mapping[Request, Sequence[Output]]
"""The outputs of each request, in order."""


class Timed(NamedTuple):
    """A message that comes at a time: a request precedes an abort of the same time."""

    time: int
    is_abort: bool
    what: str


def timed(messages: Iterable[Message], aborts: Iterator[int], said: Set[int]) -> list[Timed]:
    """Return the messages with a time, up to the first without one; ``aborts`` has theirs."""
    found = list[Timed]()
    for message in messages:
        if id(message) in said:
            break
        if isinstance(message, Request):
            found.append(Timed(arrival_of(message), False, f"the request {message.name}"))
        elif isinstance(message, AbortReq) and not (message.error or message.abort_all):
            found.append(Timed(next(aborts), True, f"the abort of {message.rid}"))
    return found


class Figures:
    """Observes one engine of a run: when outputs are delivered, what is admitted, retractions."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.times: dict[int, int] = {}  # by output: when its client received it
        self.kept: list[Output] = []  # so that no output has the id of an earlier one
        self.leases = set[Lease]()  # with a step
        self.admitted = self.cached = 0  # tokens of all admissions
        self.retractions = Counter[Request]()
        self.arrivals: dict[Request, int] = {}  # times, when a message brought it first
        self.scheduled: dict[Request, int] = {}  # time of the first step with its prompt
        self.too_early: list[str] = []  # messages of ``pd`` that arrive before they are sent
        if isinstance(engine, SideEngine):
            self.watch_mailbox(engine)
        frontend, scheduler = engine.frontend, engine.scheduler
        take, on_output, on_commit, retract = (
            frontend.take, frontend.on_output, scheduler.on_commit, scheduler.retraction.retract,
        )  # fmt: skip

        def taken(now: int) -> list[Message]:
            """Record when each request was sent, and check the order of what has a time."""
            aborts, said = sorted(frontend._timed_aborts), {*map(id, frontend._said)}
            messages = take(now)
            times = iter([time for time, _, _ in aborts])
            self.judge_order(timed(messages, times, said), frontend.next_message, now)
            for message in messages:
                if isinstance(message, Request):
                    arrival = max(arrival_of(message), engine.metrics.started)
                    self.arrivals.setdefault(message, min(arrival, engine.device.now()))
            return messages

        def heard(output: Output) -> None:
            """Record the time of an output, and deliver it."""
            self.times[id(output)] = engine.device.now()
            self.kept.append(output)
            if on_output is not None:
                on_output(output)

        def committed(batch: ScheduleBatch) -> None:
            """Count the prompts with their first step under a lease."""
            for at in range(batch.num_extend_reqs):
                self.scheduled.setdefault(batch.reqs[at], engine.device.now())
                if batch.leases[at] not in self.leases:
                    self.admitted += batch.reqs[at].known_len
                    self.cached += batch.starts[at]
                    self.leases.add(batch.leases[at])
            if on_commit is not None:
                on_commit(batch)

        def retracted(req: Request, reason: str) -> None:
            """Count the retractions of a request."""
            self.retractions[req] += 1
            retract(req, reason)

        if on_output is not None:
            frontend.on_output = heard
        frontend.take = taken  # type: ignore[method-assign]
        scheduler.on_commit = committed
        scheduler.retraction.retract = retracted  # type: ignore[method-assign]

    def judge_order(self, times: Sequence[Timed], next_time: int | None, now: int) -> None:
        """Check that messages come in the order of their times, and none of them late."""
        for before, after in pairwise(times):
            if after[:2] < before[:2]:
                self.too_early.append(
                    f"{after.what} of {after.time} ns is taken after {before.what} of "
                    f"{before.time} ns"
                )
        if next_time is not None and next_time <= now:
            self.too_early.append(f"a message of {next_time} ns is not taken at {now} ns")

    def watch_mailbox(self, engine: SideEngine) -> None:
        """Compare the time of each message's arrival with the clock of the side that sends it."""
        post = engine.other.post

        def posted(time: int, message: RoomMessage) -> None:
            """Record a message that takes less than the link's latency; KV has taken it before."""
            brings_kv = message.token is not None
            least = engine.device.now() + (0 if brings_kv else engine.link.latency)
            if time < least:
                self.too_early.append(
                    f"the message {message.word!r} of {message.room} arrives at {time} ns, but "
                    f"the link brings it at {least} ns at the earliest"
                )
            post(time, message)

        engine.other.post = posted  # type: ignore[method-assign]

    def find(self, heard: Heard) -> Iterator[str]:
        """Yield each figure of the engine's metrics that differs; ``heard`` is of its clients."""
        metrics = self.engine.metrics
        for what, counted, found in (
            ("admitted tokens", metrics.admitted_tokens, self.admitted),
            ("cached tokens", metrics.cached_tokens, self.cached),
        ):
            if counted != found:
                yield f"the metrics count {counted} {what}, but the steps had {found}"
        if not self.times:
            return
        times = [self.times[id(it)] for it in self.kept if it.token is not None]
        if metrics.output_tokens != len(times):
            yield f"the metrics count {metrics.output_tokens} tokens, but clients got {len(times)}"
        if times and metrics.last_output != times[-1]:
            yield f"the last token came at {times[-1]} ns, but is counted at {metrics.last_output}"
        usages, had = defaultdict[str, list[object]](list), defaultdict[str, list[object]](list)
        for usage in metrics.ended:
            if usage.first_token is not None:
                usages[usage.rid].append(measured(usage))
        for req, outputs in heard.items():
            at = [self.times[id(it)] for it in outputs if it.token is not None]
            if at:
                end, reason = self.times[id(outputs[-1])], outputs[-1].finish_reason
                gaps = [after - before for before, after in pairwise(at)]
                arrival, scheduled = self.arrivals.get(req), self.scheduled.get(req)
                had[req.name].append((
                    arrival, scheduled, at[0], at[-1], gaps, end, reason, self.retractions[req],
                ))  # fmt: skip
        for rid in had:
            if sorted(map(str, usages[rid])) != sorted(map(str, had[rid])):
                words = "arrival, first step, first token, last token, gaps, end, its reason, "
                words += "retractions"
                yield f"{rid} is counted with {usages[rid]} ({words}), but had {had[rid]}"
        for name, total in totals(metrics).items():
            if (counted := getattr(metrics, name)) != total:
                yield f"the metrics have {name} {counted}, but their requests have {total}"


def totals(metrics: Metrics) -> dict[str, object]:
    """Return the figures of all requests that have ended, from those of each."""
    ended, tokens = metrics.ended, [it for it in metrics.ended if it.first_token is not None]
    first = min(it.arrival for it in ended)
    duration = metrics.last_output - first
    return {
        "first_arrival": first,
        "num_finished": sum(it.finish_reason in FULL for it in ended),
        "num_retractions": sum(it.retractions for it in ended),
        "ttft": ranked([(it.first_token or 0) - it.arrival for it in tokens]),
        "itl": ranked([gap for it in ended for gap in it.itls]),
        "queue": ranked([it.scheduled - it.arrival for it in ended if it.scheduled is not None]),
        "throughput": metrics.output_tokens * 1e9 / duration if duration > 0 else 0.0,
    }


def ranked(values: list[int]) -> tuple[int, ...] | None:
    """Return the values that 50, 90 and 99 of 100 values do not exceed; None without any."""
    values = sorted(values)
    return (
        tuple(values[ceil(len(values) * it / 100) - 1] for it in (50, 90, 99)) if values else None
    )


def measured(usage: RequestMetrics) -> tuple[object, ...]:
    """Return the figures of one request that its client could have measured."""
    return (
        usage.arrival, usage.scheduled, usage.first_token, usage.last_token, list(usage.itls),
        usage.end, usage.finish_reason, usage.retractions,
    )  # fmt: skip
