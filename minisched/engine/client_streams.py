"""A buffer between the loop and each client that reads: of a limited length."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from itertools import chain

from ..core import FinishReason, Output

LIMIT = 1024  # outputs that a client may leave unread


class ReaderStopped(RuntimeError):
    """A client has left so much unread that it is taken for gone."""


class ClientStreams:
    """What each client has yet to read; ``hear`` is the engine's ``on_output`` and never blocks.

    A client that does not read costs nobody else anything: the loop never waits for it, and when
    ``limit`` outputs are unread its request is aborted, what is unread is dropped, and in its place
    stands the end, with the reason. Clients read on threads of their own (in SGLang each has a
    queue without a limit: ``managers/tokenizer_manager.py:ReqState.out_list``).

    Raises:
        ValueError: ``limit`` is less than 1.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"limit is {limit}, but it must be at least 1.")
        self.limit = limit
        self._unread: dict[str, deque[deque[Output]]] = {}  # of each request that has had the id
        self._changed = threading.Condition()

    def hear(self, output: Output) -> None:
        """Keep an output for its client; a refused namesake's is not in the stream of its id.

        (Whoever sent that request finds the reason in its ``error``.)

        Raises:
            ReaderStopped: there are ``limit`` already; an end is always kept.
        """
        if output.namesake:
            return
        with self._changed:
            lives = self._unread.setdefault(output.rid, deque())
            if not lives or (lives[-1] and lives[-1][-1].finish_reason):
                lives.append(deque())
            unread = lives[-1]
            is_full = len(unread) >= self.limit and not output.finish_reason
            if is_full:
                why = f"its reader left {self.limit} outputs unread."
                output = Output(output.rid, None, FinishReason.ABORT, why)
                unread.clear()
            unread.append(output)
            self._changed.notify_all()
        if is_full:
            raise ReaderStopped(f"it left {self.limit} outputs unread")

    def num_unread(self, rid: str) -> int:
        """How many outputs a client has yet to read."""
        return sum(map(len, self._unread.get(rid, ())))

    def read(self, rid: str) -> Iterator[Output]:
        """A client's outputs, each as soon as it is there, to the end of its request. Blocks."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: any(self._unread.get(rid, ())))
                lives = self._unread[rid]
                output = lives[0].popleft()
                if output.finish_reason:
                    lives.popleft()
                if not lives:
                    del self._unread[rid]
            yield output
            if output.finish_reason:
                return

    def read_now(self, rid: str) -> list[Output]:
        """What is there for a client by now; does not block."""
        with self._changed:
            return list(chain.from_iterable(self._unread.pop(rid, ())))
