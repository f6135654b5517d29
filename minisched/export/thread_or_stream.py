"""SGLang's two ways to overlap, side by side: a table in which every figure is counted in a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from ..checks.overlap import device_busy, host_busy, intersection, length, union
from ..devices.base import Event
from ..devices.cost import MILLISECOND, SIM_COST
from ..devices.sim import SimDevice, SimEvent, SimStream, Vector, VectorArrays
from ..trace import Slice
from .layout import settled
from .recipes import SPLIT, a_bit_of_everything
from .tables import filled, table

# -- A simulated device that counts: what is shipped, and who waits for what -----------------------

INTEGER = 8  # bytes of a token id, a KV slot or a position, which are 64-bit integers on torch


class CountingSim(SimDevice):
    """``SimDevice`` with counters; it runs exactly as that one does."""

    def __init__(self) -> None:
        super().__init__()
        self.xp = CountingArrays(self)
        self.transfers: Counter[str] = Counter()  # to the device, by the thread that ships
        self.bytes_shipped = 0
        self.waits: dict[str, Counter[str]] = defaultdict(Counter)  # of each thread, by what for

    def thread(self, name: str) -> SimStream:
        """The thread of that name."""
        return self._lanes.setdefault(name, CountingThread(self, name, is_thread=True))

    def run_until_done(self, op: SimEvent) -> None:
        """Let time pass; if there was something to wait for, it was a sync point."""
        if not op.done:
            self.count_wait("host", op)
        super().run_until_done(op)

    def count_wait(self, lane: str, op: Event) -> None:
        """A thread waits for something; its step's number does not matter."""
        self.waits[lane][op.name.rstrip("0123456789 ")] += 1


class CountingThread(SimStream):
    """Counts the waits in its queue."""

    def wait(self, op: Event) -> None:
        """Hold back what follows."""
        cast(CountingSim, self.device).count_wait(self.name, op)
        super().wait(op)


class CountingArrays(VectorArrays):
    """Counts each array that is made of the host's integers: a transfer to the device."""

    def __init__(self, device: CountingSim) -> None:
        self.device = device

    def asarray(self, values: Sequence[int]) -> Vector:
        """A vector of ``values``; an empty one needs no transfer."""
        if values:
            self.device.transfers[self.device.recorder.program.lane] += 1
            self.device.bytes_shipped += INTEGER * len(values)
        return super().asarray(values)


# -- What one run of an overlap loop did on such a device, a step ----------------------------------

FAST = 4  # how many times as fast the second device is
COLUMNS = {  # heading -> loop, and whether every request has a mask
    "stream": ("overlap", False),
    "thread": ("overlap_thread", False),
    "stream, with masks": ("overlap", True),
    "thread, with masks": ("overlap_thread", True),
}
SHIPPED = "host to device: bytes a step"
SETTLED, LOGITS, HIDDEN = (  # what is told of the fast device
    "a settled decode step (ms)", "logits wait for their sampling (ms a step)",
    "the device works during so much of building the mask",
)  # fmt: skip


def run_facts(loop: str, has_masks: bool, fast: int = 1) -> dict[str, str]:
    """The workload that every loop is compared on, on a device ``fast`` times as fast."""
    device = CountingSim()
    usual = SPLIT if has_masks or loop == "overlap_thread" else SIM_COST
    cost = replace(
        usual, forward_base=usual.forward_base // fast, sample=usual.sample // fast,
        forward_per_token=usual.forward_per_token // fast, copy=usual.copy // fast,
    )  # fmt: skip
    recipe = replace(a_bit_of_everything(loop, delay_sample=has_masks), cost=cost)
    trace = recipe.play(device).trace
    named: dict[str, list[Slice]] = defaultdict(list)
    for item in trace.slices:
        named[item.name].append(item)
    ends = {item.step: item.end for item in named["forward"]}
    steps, settled_steps, masks = len(named["forward"]), settled(trace), union(named["mask"])
    hidden = length(intersection(masks, device_busy(trace)))

    def per_step(number: float) -> str:
        return f"{number / steps:.2f}"

    def by_name(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {per_step(counts[name])}" for name in sorted(counts)) or "none"

    def lanes(name: str) -> str:
        return ", ".join(sorted({item.lane for item in named[name]})) or "-"

    settled_ns = (settled_steps[-1].start - settled_steps[0].start) / (len(settled_steps) - 1)
    blocked = sum(item.duration for item in trace.on("host") if item.name == "wait")
    logits = sum(item.start - ends[item.step] for item in named["sample"])
    return {
        SETTLED: f"{settled_ns / MILLISECOND:.2f}",
        "host threads busy (ms a step)": per_step(length(host_busy(trace)) / MILLISECOND),
        "the forward pass is launched on": lanes("launch"),
        "sampling is launched on": lanes("launch sample" if "launch sample" in named else "launch"),
        "the mask is built on": lanes("mask"),
        HIDDEN: f"{100 * hidden / length(masks):.0f} %" if masks else "-",
        "host to device: transfers a step, by who ships": by_name(device.transfers),
        SHIPPED: per_step(device.bytes_shipped),
        "sync points that block the scheduler, a step": by_name(device.waits["host"]),
        "the scheduler is blocked (ms a step)": per_step(blocked / MILLISECOND),
        "sync points of the thread, a step": by_name(device.waits["worker thread"]),
        LOGITS: per_step(logits / MILLISECOND),
    }


def thread_or_stream() -> str:
    """The comparison as a markdown page, the same every time."""
    usual, fast = (
        {head: run_facts(*column, times) for head, column in COLUMNS.items()} for times in (1, FAST)
    )
    names = [name for name in usual["stream"] if name != LOGITS]
    return filled(
        "diagrams/thread_or_stream.md",
        launch=SIM_COST.host["launch"] / MILLISECOND,
        sampling=SPLIT.host["launch sample"] / MILLISECOND,
        mask=SIM_COST.host["mask"] / MILLISECOND,
        fast=FAST,
        masked_stream=usual["stream, with masks"][SHIPPED],
        masked_thread=usual["thread, with masks"][SHIPPED],
        table=table_of(names, usual),
        table_when_fast=table_of((SETTLED, LOGITS, HIDDEN), fast),
    )


def table_of(names: Sequence[str], runs: Mapping[str, Mapping[str, str]]) -> str:
    """A markdown table with a column for each run."""
    return table(["", *runs], ([name, *(run[name] for run in runs.values())] for name in names))
