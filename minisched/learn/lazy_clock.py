"""Lazy arrays on a virtual clock: what ``mx.async_eval`` and ``.item()`` cost whom, and when.

What is computed is a graph first; the device begins when somebody hands it over. Here a step takes
the device ``device`` ns, and the host ``BUILD`` ns for its graph and ``host`` ns for its own work
on the token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..devices.base import Label
from ..devices.cost import MILLISECOND
from ..devices.sim import SimDevice, SimOp
from ..models.hash import mix
from ..trace import Trace
from .blame import Mistake
from .simulate import VOCAB

FIRST = 7  # the token that everything begins with
BUILD = 1 * MILLISECOND


def token_after(token: int, position: int) -> int:
    """The model: an exact hash of the token before."""
    return mix(token, position) % VOCAB


@dataclass(eq=False, repr=False)
class LazyToken:
    """A token that nobody may have computed yet; step 1 makes the first one."""

    clock: LazyClock
    source: LazyToken | int
    step: int
    op: SimOp | None = None

    def __repr__(self) -> str:
        return f"lazy token of step {self.step}"

    def item(self) -> int:
        """Block the host until its value is there; hand it over first, if nobody has."""
        return self.clock.read(self)


@dataclass
class LazyClock:
    """One host, one device, and what was built, handed over, read and worked upon."""

    host: int  # nanoseconds
    device: int
    sim: SimDevice = field(default_factory=SimDevice)
    read_steps: list[int] = field(default_factory=list)
    worked_on: list[int] = field(default_factory=list)
    most_in_flight: tuple[int, int] = (0, 0)  # how many, and the newest of them
    read_too_soon: int = (
        0  # the first step whose token was read before the one before was worked on
    )
    newest: int = 0  # the last step that was handed over

    def step(self, token: LazyToken | int) -> LazyToken:
        """Build the graph of the next token.

        Raises:
            Mistake: it is neither the first token nor a lazy one.
        """
        if not isinstance(token, LazyToken) and token != FIRST:
            raise Mistake(f"`step` got {token!r}; it takes the first token, or a lazy one")
        number = token.step + 1 if isinstance(token, LazyToken) else 1
        with self.sim.host("build", BUILD, _label(number)):
            return LazyToken(self, token, number)

    def async_eval(self, token: LazyToken) -> None:
        """Hand a graph over, with all that it is built on; the host goes on at once.

        Raises:
            Mistake: it is no lazy token.
        """
        if not isinstance(token, LazyToken):
            raise Mistake(f"`async_eval` got {token!r}; it takes a lazy token")
        if token.op is not None:
            return
        source = token.source
        if isinstance(source, LazyToken):
            self.async_eval(source)
        args = (source.op if isinstance(source, LazyToken) else source, token.step)
        token.op = self.sim.stream("forward").launch(
            token_after, *args, name="forward", cost=self.device, label=_label(token.step)
        )
        self.newest = max(self.newest, token.step)
        in_flight = self.newest - len(set(self.read_steps))
        self.most_in_flight = max(self.most_in_flight, (in_flight, token.step))

    def read(self, token: LazyToken) -> int:
        """Wait for a value; the time is a slice of the host's, but no work."""
        self.async_eval(token)
        if len(self.worked_on) < token.step - 1:
            self.read_too_soon = self.read_too_soon or token.step
        start = self.sim.now()
        assert token.op is not None
        value: int = token.op.synchronize()
        if self.sim.now() > start:
            self.sim.record("host", "wait", start, _label(token.step), self.sim.recorder.new_id())
        self.read_steps.append(token.step)
        return value

    def host_work(self, token: int) -> None:
        """What the host does with a token: text of it, the client, the next schedule."""
        with self.sim.host("process", self.host, _label(len(self.worked_on) + 1)):
            self.worked_on.append(token)

    def trace(self, name: str) -> Trace:
        """What happened, once everything handed over has run."""
        while (time := self.sim.next_event) is not None:
            self.sim.idle_until(time)
        return self.sim.recorder.trace(name, "sim", "hash", "virtual")


def _label(step: int) -> Label:
    return Label(step, "decode", ("a",))
