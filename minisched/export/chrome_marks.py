"""Which marks a Chrome trace shows: the events, in a lane of their own, and no bookkeeping.

A run of 30 steps has a few dozen marks that a reader looks for (a wait, a retraction, a wasted row,
an end) and many hundreds that say which page went where. Perfetto draws each as an arrowhead and
stacks those of one moment, so that the second kind would bury everything else. They are all in the
trace itself (``LOOP.json``), from which the views draw them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..trace import Mark
from .lane import Lane

EVENTS = Lane("thread_events", "Events", "host")
BOOKKEEPING = frozenset(
    {"kv pool", "row alloc", "row free", "row hold", "row let go", "page alloc",
     "page disown", "page free", "commit", "tokens", "match", "insert", "radix add",
     "radix split", "radix lock", "radix evict", "block add", "block lock", "block evict",
     "kv transfer", "host buffers", "row length",
     "budget", "admit", "queue order", "new token ratio", "grammar", "grammar mask",
     "grammar accept", "future map", "future slots", "token pool", "lazy tokens",
     "placeholder fill", "prev sampled", "ledger", "context", "detokenize"}
)  # fmt: skip


def events_of(marks: Iterable[Mark]) -> list[Mark]:
    """The marks to show; one that nobody has heard of is shown."""
    return [mark for mark in marks if mark.name not in BOOKKEEPING]
