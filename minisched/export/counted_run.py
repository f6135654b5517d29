"""One run of an overlap loop on a device that counts, and the figures that can be read off it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..checks.overlap import device_busy, host_busy, intersection, length, union
from ..devices.base import Device
from ..devices.cost import MILLISECOND
from ..engine.frontend import Frontend
from ..loops.design import find_loop
from ..loops.run import drive, fresh, make_engine
from ..models.hash import HashModel
from ..trace import Slice, Trace
from .counting_sim import CountingSim
from .recipes.recipe import a_bit_of_everything
from .recipes.sglang import cost_of
from .window import settled


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
