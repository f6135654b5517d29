"""A scheduler on every rank: all hear the same requests, decide alike, and find out if they don't.

With tensor parallelism each rank computes a part of every row, so all must run the same batch in
the same order. Nobody hands batches over: each rank has a scheduler of its own, which decides from
what it has been told and nothing else (SGLang ``managers/scheduler.py``: ``recv_requests`` and
``broadcast_pyobj``; mini-sglang ``scheduler/io.py``). What one rank knows by itself must not count:
its clock, its memory's addresses, how far its device is.

So at the beginning of a turn rank 0 says what has come by its clock, and the others hear no one
else. And when each has decided, all tell each other a digest of the batch: eight bytes, before
anything is launched. If they differ, they tell each other the batches, and every rank stops with
the same sentence (``RanksDisagree``).

That is two messages a turn between any two ranks. A rank that is lost is one more thing to hear of:
every request that is left is given up with that reason, and the loop ends as it always does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

from ..core import Output, Request, ScheduleBatch
from ..devices.base import RankLost
from .engine import Engine
from .frontend import AbortReq, Frontend, Message


class RanksDisagree(RuntimeError):
    """Two ranks have decided differently; one sentence says in which step, who, and what."""


class RankMessage(Protocol):
    """Something that another rank has sent."""

    @property
    def value(self) -> Any:
        """What it is."""


class RankGroup(Protocol):
    """What a scheduler needs of the others (``devices/dist.py``).

    Each call raises ``RankLost`` when a rank is gone, or can't be heard any more.
    """

    rank: int
    size: int
    others: list[int]

    def send(self, to: int, tag: str, value: Any = None) -> None:
        """Send a message; those of one tag come in order."""

    def receive(self, source: int, tag: str, patient: bool = False) -> RankMessage:
        """Wait for the next one; if ``patient``, for as long as the other rank lives."""


def exchange(ranks: RankGroup, tag: str, value: Any) -> list[Any]:
    """What every rank has to say, in their order: all of them call it in turn.

    Raises:
        RankLost: a rank is, or one has not come to say it.
    """
    for other in ranks.others:
        ranks.send(other, tag, value)
    said = {other: ranks.receive(other, tag).value for other in ranks.others}
    return [said.get(rank, value) for rank in range(ranks.size)]


class BroadcastFrontend(Frontend):
    """Rank 0's requests and aborts, heard by every rank at the same turn.

    ``received`` are the requests that came in here: on other ranks they are copies of rank 0's.
    ``lost`` is why everybody was given up, if a rank is lost.
    """

    def __init__(
        self,
        ranks: RankGroup,
        requests: Iterable[Request] = (),
        on_output: Callable[[Output], None] | None = None,
    ) -> None:
        super().__init__(() if ranks.rank else requests, on_output)
        self.ranks, self.received = ranks, list[Request]()
        self.lost: RankLost | None = None
        self._nobody_comes = False  # as far as rank 0 knew when it spoke last

    def take(self, now: int) -> list[Message]:
        """What has come by rank 0's clock; its own clock is nobody else's affair."""
        messages = [] if self.ranks.rank else super().take(now)
        try:
            if self.lost is None:
                messages = self._broadcast(messages)
        except RankLost as lost:
            self.lost = lost
            left = [item for item in self._give_up() if isinstance(item, Request)]
            messages += [*left, AbortReq(abort_all=True, error=str(lost))]
        self.received += [item for item in messages if isinstance(item, Request)]
        return messages

    def _broadcast(self, messages: list[Message]) -> list[Message]:
        if self.ranks.rank:
            messages, self._nobody_comes = self.ranks.receive(0, "requests", patient=True).value
            return messages
        self._nobody_comes = super().is_empty
        for other in self.ranks.others:
            self.ranks.send(other, "requests", (messages, self._nobody_comes))
        return messages

    @property
    def is_empty(self) -> bool:
        """Whether nobody was to come when rank 0 spoke last: all ranks end at the same turn."""
        return super().is_empty if self.lost else self._nobody_comes


# -- Whether all have decided the same -------------------------------------------------------------


def described(batch: ScheduleBatch | None) -> dict[str, Any]:
    """What all ranks must have in common, by what it is called; first what comes first to mind."""
    if batch is None:
        return {"the batch": "none"}
    return {
        "the batch": f"step {batch.step}, {batch.mode.value}",
        "the requests": batch.rids,
        "the number of prompts": batch.num_extend_reqs,
        "the first positions": batch.starts,
        "the tokens": batch.ids,
        "the rows of the request table": [lease.row for lease in batch.leases],
        "the new pages": batch.new_pages,
        "what is delivered": batch.delivers,
    }


def digest(batch: ScheduleBatch | None) -> bytes:
    """Eight bytes, the same in every process."""
    return blake2b(repr(described(batch)).encode(), digest_size=8).digest()


def difference(step: int, batches: Sequence[dict[str, Any]]) -> str:
    """Who differs from rank 0, and in what; the first of each."""
    for rank, batch in enumerate(batches):
        for what in {**batches[0], **batch}:
            mine, other = (item.get(what, "none") for item in (batches[0], batch))
            if mine != other:
                return (
                    f"rank {rank} disagrees with rank 0 in step {step}: {what} is "
                    f"{in_words(other)} on rank {rank}, and {in_words(mine)} on rank 0."
                )
    raise AssertionError("two digests differ, but the batches don't")


def in_words(value: Any) -> str:
    """A part of a batch; of a long one its beginning."""
    if isinstance(value, tuple | list) and value and all(isinstance(it, str | int) for it in value):
        value = " ".join(map(str, value))
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


LONGEST = 60  # characters


@dataclass
class TPEngine(Engine):
    """An engine of several that decide alike (SGLang ``managers/tp_worker.py``).

    ``frontend`` must be a ``BroadcastFrontend``.
    """

    ranks: RankGroup = field(kw_only=True)

    def recv_requests(self) -> None:
        """Take in what has arrived on rank 0: every turn of every rank asks."""
        self.frontend.has_news = True
        super().recv_requests()

    def on_idle(self) -> None:
        """Only rank 0 may sleep until somebody comes: the others wait for its word."""
        if self.ranks.rank == 0:
            super().on_idle()
        elif self.is_done:
            self.scheduler.leases.self_check()

    def _scheduled(self, batch: ScheduleBatch | None) -> None:
        self.agree(batch)
        super()._scheduled(batch)

    def agree(self, batch: ScheduleBatch | None) -> None:
        """Hold what was decided against the other ranks.

        A lost rank is heard of at the next turn; what is launched till then fails by it.

        Raises:
            RanksDisagree: one has decided differently. All of them raise it.
        """
        try:
            if len(set(exchange(self.ranks, "digest", digest(batch)))) > 1:
                step = batch.step if batch else self.scheduler.step + 1
                everybody = exchange(self.ranks, "batch", described(batch))
                raise RanksDisagree(difference(step, everybody))
        except RankLost:
            return
