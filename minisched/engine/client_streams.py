"""A buffer between the loop and each client that reads: of a limited length."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

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
        self._unread: dict[str, deque[Output]] = {}
        self._changed = threading.Condition()

    def hear(self, output: Output) -> None:
        """Keep an output for its client.

        Raises:
            ReaderStopped: there are ``limit`` already; an end is always kept.
        """
        with self._changed:
            unread = self._unread.setdefault(output.rid, deque())
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
        return len(self._unread.get(rid, ()))

    def read(self, rid: str) -> Iterator[Output]:
        """A client's outputs, each as soon as it is there, to the end of its request. Blocks."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unread.get(rid))
                output = self._unread[rid].popleft()
                if output.finish_reason:
                    del self._unread[rid]
            yield output
            if output.finish_reason:
                return

    def read_now(self, rid: str) -> list[Output]:
        """What is there for a client by now; does not block."""
        with self._changed:
            return list(self._unread.pop(rid, ()))
