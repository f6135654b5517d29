"""The interface of every device: streams to launch on, memory, and a clock for the host.

The loops, the worker and the relays are written against this file and run unchanged on a simulated
device, on threads, on CUDA streams and on MLX's lazy graphs. A step is launched as ops on streams.
An op takes the results of earlier ops as arguments, and the host waits only where it needs a value
itself.
"""

from __future__ import annotations

import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..trace import Recorder, Touch

Array = Any  # Vector on sim, torch.Tensor on thread and cuda, mlx.core.array on mlx
Buffer = Any  # fixed size, indexed by int, slice or Array; read and written in place

WRONG_TOKEN = 1  # initial content of memory: a valid token id, but never the right one


@dataclass(frozen=True)
class Label:
    """The step of a slice, its mode and its requests."""

    step: int = 0
    mode: str = ""
    rids: tuple[str, ...] = ()


NO_LABEL = Label()


class Event:
    """Something that the host, a thread of it or a stream can wait for.

    Each device implements ``_has_ended`` and ``_wait``. A thread that finds the event ended comes
    after it from then on, and the program records that.
    """

    name: str = ""
    slice_id: int
    recorder: Recorder

    def query(self) -> bool:
        """Return whether the op has ended, or the signal is set."""
        if has_ended := self._has_ended():
            self.recorder.wait(self.slice_id)
        return has_ended

    def synchronize(self) -> Any:
        """Block the host, or a thread of it, until then."""
        self._wait()
        self.recorder.wait(self.slice_id)

    def _has_ended(self) -> bool:
        raise NotImplementedError

    def _wait(self) -> None:
        raise NotImplementedError


class Signal(Event):
    """An event that the host sets and a thread of it waits for (``threading.Event``)."""

    def set(self) -> None:
        """Set it; further calls do nothing."""
        raise NotImplementedError


class Op(Event):
    """A launched piece of work: an event to wait for and a handle on its value."""

    value: Any = None
    error: BaseException | None = None

    def synchronize(self) -> Any:
        """Block the host until it has ended and return its value, or raise what it raised."""
        super().synchronize()
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True)
class OrNone:
    """An argument: the value of an op, or None if the op failed.

    (An op that takes ``op`` itself fails with it.) ``op`` was launched earlier on the same stream,
    so it has ended when its value is needed.
    """

    op: Any

    @property
    def slice_id(self) -> int:
        """Return the slice id of the op."""
        return int(self.op.slice_id)

    @property
    def value(self) -> Any:
        """Return the value of the op, or None."""
        return None if self.op.error is not None else self.op.value


def value_of(arg: Any) -> Any:
    """Return the value of an argument, of an op its result. Raise the error of a failed op."""
    if not isinstance(arg, (Op, OrNone)):
        return arg
    if isinstance(arg, Op) and arg.error is not None:
        raise arg.error
    return arg.value


AnyError = TypeVar("AnyError", bound=BaseException)


def without_frames(error: AnyError) -> AnyError:
    """Return an error to keep, without its frames; a note has the place where it was raised.

    A traceback refers to frames, and frames to their variables and callers. They would hold the
    activations of a step that ran out of memory, and the next step would run out of it, too.
    """
    if not getattr(error, "__notes__", None):  # an error that is passed on has a note already
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
    chain: list[BaseException | None] = [error]
    while chain:
        if (each := chain.pop()) is not None:
            each.__traceback__ = None
            chain += {each.__cause__, each.__context__}
    return error


class Stream(Protocol):
    """Runs what is launched on it in order (``torch.cuda.Stream``)."""

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str,
        cost: int = 0,
        label: Label = NO_LABEL,
        touches: Sequence[Touch] = (),
    ) -> Op:
        """Queue ``fn``; an Op among ``args`` is replaced by its value on the device.

        ``touches`` declares its reads and writes of memory that other ops touch, too.
        """

    def wait(self, op: Event) -> None:
        """Start later launches only after ``op`` has ended."""


class Arrays(Protocol):
    """Functions in addition to an array's operators (``+``, ``<``, an index); torch's names."""

    def asarray(self, values: Sequence[int]) -> Array:
        """Return integers on the device."""

    def asarrays(self, *columns: Sequence[int]) -> Sequence[Array]:
        """Return several such arrays, shipped together where that is faster."""

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        """Return ``a`` where the condition holds, and ``b`` elsewhere."""

    def clamp(self, values: Array, min: int) -> Array:
        """Return the values, with ``min`` for each lower one."""

    def mask(self, values: Sequence[bool]) -> Array:
        """Return booleans on the device."""

    def count_equal(self, a: Array, b: Array, width: int, num_rows: int) -> Array:
        """Return 1 + the number of leading equal elements of each of ``num_rows``, [num_rows]."""


class Device(Protocol):
    """A host clock and the streams it feeds."""

    name: str
    clock: str  # "virtual" or "wall"
    built_by_host: bool = False  # ops are built when launched, so their inputs must be known then
    recorder: Recorder
    xp: Arrays
    lifetimes: Sequence[str] = ()  # objects that ended before an op that uses them, if watched

    def now(self) -> int:
        """Return the nanoseconds since the device was opened."""

    def host(
        self, phase: str, cost: int = 0, label: Label = NO_LABEL
    ) -> AbstractContextManager[int]:
        """Record a phase of host work as one slice, and yield the slice's id.

        ``cost`` is its duration on a virtual clock (the body's effects appear at its end), or
        pure-Python work to add on a wall clock.
        """

    def stream(self, name: str) -> Stream:
        """Return the stream of that name, created on first use; its lane has the same name."""

    def thread(self, name: str) -> Stream:
        """Return a second thread of the host, with a queue of calls; its name ends in ``thread``.

        A call's ``cost`` is host work; its effects appear at its end. It may launch ops.
        """

    def signal(self, name: str) -> Signal:
        """Return a new signal, for which a thread can wait as for an op."""

    def memory(self, name: str, size: int) -> Buffer:
        """Return ``size`` integers on the device, each a valid but wrong token at first."""

    def host_memory(self, name: str, size: int) -> Buffer:
        """Return ``size`` integers on the host, the target of a copy (pinned for a GPU)."""

    def copy_to_host(self, dst: Buffer, src: Buffer, size: int) -> Array:
        """Copy the first ``size`` integers, on a stream; the value has ``tolist``."""

    @abstractmethod
    def bring_to_host(self, values: Array) -> Array:
        """Copy an array of any shape to the host, on a stream; the value has ``tolist``."""

    def flush(self, *ops: Op) -> None:
        """Submit the launched ops; only a lazy device needs it (one ``async_eval`` a step)."""
        return

    def clear_cache(self) -> None:
        """Return the library's cached buffers to the system, if it has any; mark the moment."""
        self.recorder.mark("clear cache")

    def count_memory(self) -> None:
        """Record the bytes in use and in the library's cache, where it reports them (MLX)."""
        return

    def idle_until(self, time: int) -> None:
        """Let the host sleep until ``time``."""

    @abstractmethod
    def close(self) -> None:
        """Finish or drop queued work, and end every thread."""


# -- Errors for the user: a step that failed, a run that could not begin ---------------------------

SIGNS = ("out of memory", "can't allocate memory", "unable to allocate", "attempting to allocate")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out; Python, torch and MLX each have their own error for it."""
    if {kind.__name__ for kind in type(error).__mro__} & {"MemoryError", "OutOfMemoryError"}:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in SIGNS)


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's text, or its name; begin with missing memory."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"out of device memory ({line})" if is_out_of_memory(error) else line


@contextmanager
def memory_for(what: str, device: str) -> Iterator[None]:
    """Turn missing memory into one sentence, around the allocations of a whole run.

    Raises:
        ValueError: the device has less memory.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(f"device {device!r} has no memory for {what}; ask for less.") from error
