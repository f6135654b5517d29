"""What a request holds of memory, from its admission until nobody can touch it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Lease:
    """A row of the request table and its pages, from admission until nobody can touch them.

    A lease goes back when it is closed (finish, abort, retraction) *and* no launched batch still
    names it. A request that is retracted gets a new lease later, so a token that returns under
    the old one can be told apart.
    """

    row: int  # index into the request-to-token table; row 0 is padding
    rid: str = ""  # whose it is
    pages: list[int] = field(default_factory=list)  # by position; the first ones the cache's
    shared_pages: int = 0  # how many of them belong to the prefix cache
    inserted_pages: int = 0  # how many it has offered to the prefix cache so far
    node: object = None  # where they end in the prefix cache; locked while the lease lives
    sent_pages: int = 0  # how many of them the device's page table lists as they are now
    settled_len: int = 0  # positions whose KV is written for sure: their step has come back
    last_step: int = 0  # the last step launched that names it
    num_chunks: int = 0  # steps that computed a part of its prompt
    retired: list[tuple[int, list[int]]] = field(default_factory=list)  # pages, after which step
    num_transfers: int = 0  # copies of its KV to or from another device that are not over
    is_spoiled: bool = False  # a step that failed was to write what it reads or has shared
    is_released: bool = False  # nobody may read or write its row and pages any more
    future_slot: int = 0  # where a ring FutureMap keeps its newest token
