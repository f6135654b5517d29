"""Faults of who asks: giving up at any moment, Ctrl-C, and a reader that is not there any more."""

from __future__ import annotations

from typing import Any, ClassVar

from ...core import Output
from ...engine.engine import Engine
from ...engine.frontend import ClientStreams, ReaderStopped
from ..workload import Workload
from .fault import EVERYBODY, Fault, wrap


class Aborted(Fault):
    """A request is given up after the ``at``-th turn, or output: twice, and one that nobody has."""

    name: ClassVar[str] = "abort"

    def prepare(self, workload: Workload) -> None:
        """Choose one."""
        self.rid = workload.requests[self.pick % len(workload.requests)].rid

    def put_in(self, engine: Engine) -> None:
        """Every other time it is a client that says so while it is told something."""
        self.says_it_at_once = bool(self.pick // 7 % 2)
        self.client = engine
        if self.says_it_at_once:
            wrap(engine.frontend, "on_output", self.around)

    def around(self, on_output: Any, output: Output) -> None:
        """In the middle of a turn."""
        on_output(output)
        self.look()

    def each_turn(self, engine: Engine) -> None:
        """Between two turns."""
        if engine is self.client and not self.says_it_at_once:
            self.look()

    def look(self) -> None:
        """Give up, if it is time."""
        if self.is_due():
            self.hit(self.rid)
            for rid in (self.rid, "nobody", self.rid):
                self.client.frontend.abort(rid)


class CtrlC(Fault):
    """Ctrl-C after the ``at``-th turn."""

    name: ClassVar[str] = "Ctrl-C"

    def put_in(self, engine: Engine) -> None:
        """The side that clients talk to hears it."""
        self.client = engine

    def each_turn(self, engine: Engine) -> None:
        """As the handler of the signal does."""
        if engine is self.client and self.is_due():
            self.hit(*EVERYBODY)
            engine.frontend.interrupt()


class ReaderRaises(Fault):
    """A client's callback raises from the ``at``-th output on."""

    name: ClassVar[str] = "reader raises"
    is_silent: ClassVar[bool] = True

    def put_in(self, engine: Engine) -> None:
        """Between the engine and its clients."""
        wrap(engine.frontend, "on_output", self.around)

    def around(self, on_output: Any, output: Output) -> None:
        """Raise for one request."""
        if self.is_due():
            self.hit(output.rid)
        if self.may_end(output.rid):
            raise self.error()
        on_output(output)

    def error(self) -> Exception:
        """What it raises."""
        return ConnectionResetError("the client has gone")


class PipeCloses(ReaderRaises):
    """The one stream to which everything is written closes at the ``at``-th output."""

    name: ClassVar[str] = "pipe closes"

    def hit(self, *rids: str) -> None:
        """Everybody is written to it."""
        super().hit(*EVERYBODY)

    def error(self) -> Exception:
        """As the operating system says it."""
        return BrokenPipeError(32, "Broken pipe")


class ReaderStops(Fault):
    """A client reads no more: what is for it is kept, up to ``at`` outputs, and then it is over."""

    name: ClassVar[str] = "reader stops reading"
    is_silent: ClassVar[bool] = True

    def prepare(self, workload: Workload) -> None:
        """Choose one that will hear more than is kept, and then its end, if there is such a one."""
        requests = workload.requests
        able = [req for req in requests if req.params.max_new_tokens >= self.at + 2] or requests
        self.rid = able[self.pick % len(able)].rid

    def put_in(self, engine: Engine) -> None:
        """Clients read from streams of a limited length."""
        self.streams = ClientStreams(limit=self.at)
        wrap(engine.frontend, "on_output", self.around)

    def around(self, on_output: Any, output: Output) -> None:
        """All read at once, but for one."""
        try:
            self.streams.hear(output)
        except ReaderStopped:
            self.hit(output.rid)
            raise
        if output.rid != self.rid:
            for heard in self.streams.read_now(output.rid):
                on_output(heard)
        else:
            self.num_chances += 1
            on_output(output)
