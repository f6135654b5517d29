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

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ..core import Request, ScheduleBatch
from ..devices.base import RankLost
from .engine import Engine
from .frontend import Message

if TYPE_CHECKING:
    from ..devices.dist import Ranks  # which needs torch


class RanksDisagree(RuntimeError):
    """Two ranks have decided differently; one sentence says in which step, who, and what."""


def exchange(ranks: Ranks, tag: str, value: Any) -> list[Any]:
    """What every rank has to say, in their order: all of them call it in turn.

    Raises:
        RankLost: a rank is, or one has not come to say it.
    """
    for other in ranks.others:
        ranks.send(other, tag, value)
    said = {other: ranks.receive(other, tag).value for other in ranks.others}
    return [said.get(rank, value) for rank in range(ranks.size)]


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
        "the prompt in chunks": batch.chunked_req.rid if batch.chunked_req else "none",
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

    Clients talk to rank 0's ``frontend``; the others have an empty one. ``received`` are the
    requests that came in here: on other ranks they are copies of rank 0's. ``lost`` is why
    everybody was given up, if a rank is lost.
    """

    ranks: Ranks = field(kw_only=True)
    received: list[Request] = field(default_factory=list)
    lost: RankLost | None = None
    nobody_comes: bool = False  # as far as rank 0 knew when it spoke last

    def recv_requests(self) -> None:
        """Take in what has arrived by rank 0's clock; its own is nobody else's affair."""
        messages = self.frontend.take(self.device.now()) if self.frontend.has_news else []
        try:
            if self.lost is None:
                messages = self.broadcast(messages)
        except RankLost as lost:
            self.lost = lost
            messages += self.frontend.give_up(str(lost))
        self.received += [item for item in messages if isinstance(item, Request)]
        self.process_input_requests(messages)

    def broadcast(self, messages: list[Message]) -> list[Message]:
        """Rank 0's messages, on every rank (SGLang ``utils/common.py:broadcast_pyobj``).

        Raises:
            RankLost: a rank is.
        """
        if self.ranks.rank:
            messages, self.nobody_comes = self.ranks.receive(0, "requests", patient=True).value
            return messages
        self.nobody_comes = self.frontend.is_empty
        for other in self.ranks.others:
            self.ranks.send(other, "requests", (messages, self.nobody_comes))
        return messages

    @property
    def is_done(self) -> bool:
        """Whether every request has ended; nobody was to come when rank 0 spoke last.

        So all ranks end at the same turn.
        """
        nobody_comes = self.frontend.is_empty if self.lost else self.nobody_comes
        return nobody_comes and not (self.scheduler.live or self.scheduler.batches_in_flight)

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
