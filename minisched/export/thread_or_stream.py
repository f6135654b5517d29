"""SGLang's two ways to overlap, side by side: a table in which every figure is counted in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ..checks.overlap import device_busy, host_busy, intersection, length, union
from ..devices.base import Device, Event
from ..devices.cost import MILLISECOND
from ..devices.sim import SimDevice, SimEvent, SimOp, SimStream, Vector, VectorArrays
from ..engine.frontend import Frontend
from ..loops.design import find_loop
from ..loops.run import drive, fresh, make_engine
from ..models.hash import HashModel
from ..trace import Slice, Trace
from .layout import settled
from .recipes import LAUNCH, MASK, SAMPLING, a_bit_of_everything, cost_of
from .tables import filled, table

# -- A simulated device that counts: what is shipped, who waits for what, and what stays alive -----

INTEGER = 8  # bytes of a token id, a KV slot or a position, which are 64-bit integers on torch


class CountingArrays(VectorArrays):
    """Counts each array that is made of the host's integers: a transfer to the device."""

    def __init__(self) -> None:
        self.transfers: Counter[str] = Counter()  # by the thread that ships
        self.bytes_shipped = 0
        self.shipper = "host"

    def asarray(self, values: Sequence[int]) -> Vector:
        """A vector of ``values``; an empty one needs no transfer."""
        if values:
            self.transfers[self.shipper] += 1
            self.bytes_shipped += INTEGER * len(values)
        return super().asarray(values)


class CountingThread(SimStream):
    """Counts the waits in its queue, and what it ships."""

    def __init__(self, device: CountingSim, name: str) -> None:
        super().__init__(device, name, is_thread=True)
        self.counting = device

    def wait(self, op: Event) -> None:
        """Hold back what follows."""
        self.counting.thread_waits[kind_of(op)] += 1
        super().wait(op)

    def _finish(self, op: SimOp) -> None:
        self.counting.xp.shipper = self.name
        super()._finish(op)
        self.counting.xp.shipper = "host"


class CountingSim(SimDevice):
    """``SimDevice`` with counters; it runs exactly as that one does."""

    xp: CountingArrays

    def __init__(self) -> None:
        super().__init__()
        self.xp = CountingArrays()
        self.host_waits: Counter[str] = Counter()  # how often the host was blocked, by what for
        self.thread_waits: Counter[str] = Counter()  # waits in a thread's queue, by what for

    def thread(self, name: str) -> SimStream:
        """The thread of that name."""
        return self._lanes.setdefault(name, CountingThread(self, name))

    def run_until_done(self, op: SimEvent) -> None:
        """Let time pass; if there was something to wait for, it was a sync point."""
        if not op.done:
            self.host_waits[kind_of(op)] += 1
        super().run_until_done(op)


def kind_of(op: Event) -> str:
    """What is waited for, without the step's number."""
    return op.name.rstrip("0123456789 ")


# -- One run of an overlap loop on a device that counts, and the figures that can be read off it


@dataclass(frozen=True)
class CountedRun:
    """One run: its trace, and the device that counted."""

    trace: Trace
    device: CountingSim

    @property
    def num_steps(self) -> int:
        """Steps that ran."""
        return len(self.named("forward"))

    def per_step(self, number: float) -> str:
        """A number divided by the steps of the run."""
        return f"{number / self.num_steps:.2f}"

    def named(self, name: str) -> list[Slice]:
        """Every slice of that name."""
        return [item for item in self.trace.slices if item.name == name]


def count(loop: str, has_masks: bool, fast: int = 1) -> CountedRun:
    """Run the workload that every loop is compared on, on a device ``fast`` times as fast."""
    recipe, device, model = a_bit_of_everything(loop), CountingSim(), HashModel()
    frontend = Frontend([fresh(request) for request in recipe.requests])
    cost = cost_of(loop, has_masks, fast)
    engine = make_engine(loop, cast(Device, device), model, recipe.config, frontend, cost)
    drive(find_loop(loop).start(engine, delay_sample=has_masks), engine)
    return CountedRun(device.recorder.trace(loop, device.name, model.name, device.clock), device)


def lanes(run: CountedRun, name: str) -> str:
    """Where slices of that name lie."""
    return ", ".join(sorted({item.lane for item in run.named(name)})) or "-"


def hidden(run: CountedRun, name: str) -> str:
    """How much of a phase the device was busy for."""
    phase = union(run.named(name))
    busy = length(intersection(phase, device_busy(run.trace)))
    return f"{100 * busy / length(phase):.0f} %" if phase else "-"


def logits_wait(run: CountedRun) -> str:
    """Milliseconds a step from the end of its forward pass to its sampling: logits lie about."""
    ends = {item.step: item.end for item in run.named("forward")}
    waits = sum(item.start - ends[item.step] for item in run.named("sample"))
    return run.per_step(waits / MILLISECOND)


def settled_step(run: CountedRun) -> str:
    """Milliseconds a settled decode step takes."""
    steps = settled(run.trace)
    return f"{(steps[-1].start - steps[0].start) / (len(steps) - 1) / MILLISECOND:.2f}"


def blocked(run: CountedRun) -> str:
    """Milliseconds a step that the scheduler was blocked for."""
    waits = sum(item.duration for item in run.trace.on("host") if item.name == "wait")
    return run.per_step(waits / MILLISECOND)


def by_name(run: CountedRun, counts: dict[str, int]) -> str:
    """Counts a step, each with what was counted."""
    shown = [f"{name} {run.per_step(number)}" for name, number in sorted(counts.items())]
    return ", ".join(shown) or "none"


def host_work(run: CountedRun) -> str:
    """Milliseconds a step that any host thread works."""
    return run.per_step(length(host_busy(run.trace)) / MILLISECOND)


FAST = 4  # how many times as fast the second device is
COLUMNS = {  # heading -> loop, and whether every request has a mask
    "stream": ("overlap", False),
    "thread": ("overlap_thread", False),
    "stream, with masks": ("overlap", True),
    "thread, with masks": ("overlap_thread", True),
}


ROWS: dict[str, Callable[[CountedRun], str]] = {
    "a settled decode step (ms)": settled_step,
    "host threads busy (ms a step)": host_work,
    "the forward pass is launched on": lambda run: lanes(run, "launch"),
    "sampling is launched on": lambda run: lanes(
        run, "launch sample" if run.named("launch sample") else "launch"),
    "the mask is built on": lambda run: lanes(run, "mask"),
    "the device works during so much of that": lambda run: hidden(run, "mask"),
    "host to device: transfers a step, by who ships": lambda run: by_name(
        run, run.device.xp.transfers),
    "host to device: bytes a step": lambda run: run.per_step(run.device.xp.bytes_shipped),
    "sync points that block the scheduler, a step": lambda run: by_name(
        run, run.device.host_waits),
    "the scheduler is blocked (ms a step)": blocked,
    "sync points of the thread, a step": lambda run: by_name(run, run.device.thread_waits),
}  # fmt: skip
ROWS_WHEN_FAST: dict[str, Callable[[CountedRun], str]] = {
    "a settled decode step (ms)": settled_step,
    "logits wait for their sampling (ms a step)": logits_wait,
    "the device works during so much of building the mask": lambda run: hidden(run, "mask"),
}


def thread_or_stream() -> str:
    """The comparison as a markdown page, the same every time."""
    runs = {heading: count(*column) for heading, column in COLUMNS.items()}
    fast = {heading: count(*column, FAST) for heading, column in COLUMNS.items()}
    shipped = ROWS["host to device: bytes a step"]
    figures = {
        "launch": LAUNCH / MILLISECOND,
        "sampling": SAMPLING / MILLISECOND,
        "mask": MASK / MILLISECOND,
        "fast": FAST,
        "masked_stream": shipped(runs["stream, with masks"]),
        "masked_thread": shipped(runs["thread, with masks"]),
        "table": table_of(ROWS, runs),
        "table_when_fast": table_of(ROWS_WHEN_FAST, fast),
    }
    return filled("thread_or_stream", {name: str(figure) for name, figure in figures.items()})


def table_of(rows: dict[str, Callable[[CountedRun], str]], runs: dict[str, CountedRun]) -> str:
    """A markdown table with a column for each run."""
    lines = ([title, *map(figure, runs.values())] for title, figure in rows.items())
    return table(["", *runs], lines)
