"""How a prompt was computed: its chunks, and when each of them ran, read from a recorded run."""

from __future__ import annotations

from dataclasses import dataclass

from ..trace import Trace


@dataclass(frozen=True)
class Rounds:
    """The rounds of one request's prompt, in order; a round is a step with a chunk of it."""

    chunks: tuple[int, ...]  # prompt tokens of each
    start: int  # virtual nanoseconds: when the first one began on the device
    end: int  # and the last one ended
    num_steps: int  # steps that computed for the request, its decodes included; no wasted ones

    @property
    def mean_ns(self) -> int:
        """From one round to the next, on average."""
        return (self.end - self.start) // len(self.chunks)


def rounds_of(trace: Trace, rid: str) -> Rounds:
    """The rounds of a request that was admitted, and never retracted, in a run of ``trace``."""
    admits = [m for m in trace.marks if m.name == "admit" and m.attrs["rid"] == rid]
    chunks = tuple(int(mark.attrs["extend_len"]) for mark in admits)
    steps = [s for s in trace.slices if s.name == "forward" and rid in s.rids]
    steps.sort(key=lambda item: item.start)
    wasted = sum(m.name == "wasted row" and m.attrs["rid"] == rid for m in trace.marks)
    return Rounds(chunks, steps[0].start, steps[len(chunks) - 1].end, len(steps) - wasted)
