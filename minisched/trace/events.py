"""What a run leaves behind: slices on lanes, edges between them, counters and marks.

All times are integer nanoseconds on the run's clock. ``clock`` says whether that clock is
``virtual`` (a simulation: the same run gives the same trace, byte for byte) or ``wall``.

Nobody changes an event. They are not frozen, because making one would then take five times as long,
and a step makes some twenty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

# -- Which side a lane is on: its name says so -----------------------------------------------------
#
# ``host`` is the scheduler's process. Further host lanes end in ``host`` (a second scheduler, such
# as ``decode host``) or in ``thread`` (``worker thread``). A lane on which a forward pass runs is
# ``forward``, ends in it (``decode forward``), or is a pipeline's ``stage 0``, ``stage 1`` and so
# on. Everything else is another stream of the device.


def is_host(lane: str) -> bool:
    """Whether a lane is the host's."""
    return lane.endswith(("host", "thread"))


def is_forward(lane: str) -> bool:
    """Whether forward passes run on a lane; a run has as many devices as it has such lanes."""
    return lane.endswith("forward") or lane.startswith("stage ")


def is_copy(lane: str) -> bool:
    """Whether tokens are copied to the host on a lane."""
    return lane.endswith("copy")


def lane_words(lane: str) -> str:
    """``host``, ``worker thread``, ``copy stream``, ``stage 1``, ``prefill copy``."""
    return lane if " " in lane or is_host(lane) else f"{lane} stream"


Value = str | int | float | bool


@dataclass(slots=True)
class Slice:
    """Something that ran on a lane from ``start`` to ``end``.

    Lanes are ``host`` and one for each stream (``forward``, ``copy``). On the host, ``name`` is
    the phase: receive, schedule, prepare, launch, process, output; or ``wait`` while it is blocked.
    On a stream it is the op: forward, sample, copy, or another one of a design's own (``upload``:
    prompts on their way to the token pool). ``step`` is 0 where no batch is concerned.
    """

    id: int
    lane: str
    name: str
    start: int
    end: int
    step: int = 0
    mode: str = ""  # the batch's forward mode: extend, decode, ...
    rids: tuple[str, ...] = ()
    attrs: dict[str, Value] = field(default_factory=dict)

    @property
    def duration(self) -> int:
        """Nanoseconds from start to end."""
        return self.end - self.start

    @property
    def label(self) -> str:
        """What it is called: ``forward 5``."""
        return f"{self.name} {self.step}" if self.step else self.name


@dataclass(unsafe_hash=True, order=True, slots=True)
class Edge:
    """``dst`` could not start before ``src`` ended, by ids of slices.

    ``kind`` is one of: ``launch`` (host launch to the op's run, which on a wall clock may start
    while the rest of the step is still being launched), ``copy`` (run to copy),
    ``result`` (copy to process), ``token`` (to the step that consumes the token: from sample to
    its forward where the token stays on the device, from process to its prepare where it went
    over the host; it starts where the token really came from, and a mark ``wrong token`` says
    where that is not its request's newest one), ``upload`` (from the copy of prompts to the
    forward pass that reads them).
    """

    src: int
    dst: int
    kind: str


@dataclass(unsafe_hash=True, slots=True)
class Counter:
    """A number that changed: ``waiting``, ``running``, ``kv used`` or ``future slots``."""

    name: str
    time: int
    value: int


@dataclass(slots=True)
class Mark:
    """A moment worth a flag: a wasted row, a retraction, a cleared cache.

    ``during`` is the newest slice of the host's by then, as an ``Act`` has it: where phases cost
    nothing, times do not tell in which of them it was.
    """

    name: str
    time: int
    attrs: dict[str, Value] = field(default_factory=dict)
    during: int = 0


# Nobody changes an act. It is not frozen, because making it would then take 20 times as long.
@dataclass(unsafe_hash=True, slots=True)
class Act:
    """One thing that a lane did; a lane's acts are in its program order.

    ``kind`` is one of: ``launch`` (it queued op ``op``), ``begin`` and ``end`` (of an op, on the
    lane that runs it), ``wait`` (it goes on only after op or signal ``op`` has ended, or was
    said), ``say`` (of a signal), ``read``, ``write`` and ``free`` (cells ``at`` of ``resource``;
    nobody may touch what is freed any more). ``op`` is the id of a slice, or of a signal; of what
    the host touches, the slice in which it did. ``rid`` is the request that it was done for.
    ``during`` is the newest slice of a thread of the host when it launched, waited or said; on a
    virtual clock, where a slice's work becomes true at its end, what comes after that end.
    """

    lane: str
    kind: str
    op: int
    resource: str = ""
    at: str = ""  # cells, as "3-7 9"
    rid: str = ""
    during: int = 0


@dataclass(frozen=True, repr=False)
class Trace:
    """One recorded run. Slices are ordered by (start, end, id), the other events by time.

    ``program`` has the acts of each lane in program order (``recorder.py``). Without it, races
    can't be judged.
    """

    loop: str
    device: str
    model: str
    clock: str  # "virtual" or "wall"
    slices: tuple[Slice, ...]
    edges: tuple[Edge, ...]
    counters: tuple[Counter, ...]
    marks: tuple[Mark, ...]
    program: tuple[Act, ...] = ()
    dtype: str = ""  # of a real model's numbers: "float32", "bfloat16"

    def __repr__(self) -> str:
        what = f"{self.loop} on {self.device} with {self.model}"
        return f"<trace of {what}: {len(self.slices)} slices in {self.end / 1e6:.1f} ms>"

    @property
    def what_ran(self) -> str:
        """Which model on what: ``hash model on sim``, ``smollm2 model on mlx in bfloat16``."""
        return f"{self.model} model on {self.device}" + f" in {self.dtype}" * bool(self.dtype)

    @property
    def clock_words(self) -> str:
        """``simulated time`` or ``measured time``."""
        return "simulated time" if self.clock == "virtual" else "measured time"

    @cached_property
    def end(self) -> int:
        """When the last slice ended, in nanoseconds after the run began."""
        return max((item.end for item in self.slices), default=0)

    def on(self, lane: str) -> tuple[Slice, ...]:
        """The slices of one lane."""
        return tuple(item for item in self.slices if item.lane == lane)
