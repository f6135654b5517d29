"""The trace of a run: slices on lanes, edges between them, counters and marks.

All times are integer nanoseconds on the run's clock. ``clock`` is ``virtual`` (a simulation: the
same run gives the same trace, byte for byte) or ``wall``.

No code changes an event. They are not frozen, because making one would then take five times as
long, and a step makes some twenty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

# -- The side of a lane, by its name ---------------------------------------------------------------
#
# ``host`` is the scheduler's process. Further host lanes end in ``host`` (a second scheduler, such
# as ``decode host``) or in ``thread`` (``worker thread``). A lane on which a forward pass runs is
# ``forward``, ends in it (``decode forward``), or is a pipeline's ``stage 0``, ``stage 1`` and so
# on. Any other lane is another stream of the device.


def is_host(lane: str) -> bool:
    """Return whether a lane is the host's."""
    return lane.endswith(("host", "thread"))


def is_forward(lane: str) -> bool:
    """Return whether forward passes run on a lane; a run has one device for each such lane."""
    return lane.endswith("forward") or lane.startswith("stage ")


def is_copy(lane: str) -> bool:
    """Return whether tokens are copied to the host on a lane."""
    return lane.endswith("copy")


def lane_words(lane: str) -> str:
    """Return ``host``, ``worker thread``, ``copy stream``, ``stage 1`` or ``prefill copy``."""
    return lane if " " in lane or is_host(lane) else f"{lane} stream"


Value = str | int | float | bool


@dataclass(slots=True)
class Slice:
    """Work on a lane from ``start`` to ``end``.

    Lanes are ``host`` and one for each stream (``forward``, ``copy``). On the host, ``name`` is
    the phase: receive, schedule, prepare, launch, process, output; or ``wait`` while it is blocked.
    On a stream it is the op: forward, sample, copy, or an op of one design (``upload``: prompts to
    the token pool). ``step`` is 0 if the slice belongs to no batch.
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
        """Return the nanoseconds from start to end."""
        return self.end - self.start

    @property
    def label(self) -> str:
        """Return its name with its step: ``forward 5``."""
        return f"{self.name} {self.step}" if self.step else self.name


@dataclass(unsafe_hash=True, order=True, slots=True)
class Edge:
    """``dst`` could not start before ``src`` ended, by ids of slices.

    ``kind`` is one of:

    - ``launch``: host launch to the op's run, which on a wall clock may start before the rest of
      the step is launched;
    - ``copy``: run to copy;
    - ``result``: copy to process;
    - ``token``: to the step that consumes the token, from sample to its forward if the token stays
      on the device, from process to its prepare if it went over the host. It starts at the token's
      real source. A mark ``wrong token`` records a source that is not the request's newest token;
    - ``upload``: copy of prompts to the forward pass that reads them.
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

    ``during`` is the host's newest slice, as in ``Act``: if phases cost nothing, times don't show
    in which of them the moment was.
    """

    name: str
    time: int
    attrs: dict[str, Value] = field(default_factory=dict)
    during: int = 0


# No code changes an act. It is not frozen, because making it would then take 20 times as long.
@dataclass(unsafe_hash=True, slots=True)
class Act:
    """One thing that a lane did; a lane's acts are in its program order.

    ``kind`` is one of:

    - ``launch``: the lane queued op ``op``;
    - ``begin`` and ``end`` of an op, on the lane that runs it;
    - ``wait``: the lane continues only after op ``op`` has ended or signal ``op`` was set;
    - ``say``: the lane set a signal;
    - ``read``, ``write`` and ``free`` of cells ``at`` of ``resource``; freed cells are out of use;
    - ``release`` of cells to a pool: steps up to ``step``, the last one committed, may still use
      them, and the next owner's write must be ordered after those.

    ``op`` is the id of a slice or of a signal; for an access by the host, its slice. ``rid`` is the
    request of the access. ``during`` is the newest slice of the host thread that launched, waited
    or set a signal. On a virtual clock a slice's work takes effect at its end.
    """

    lane: str
    kind: str
    op: int
    resource: str = ""
    at: str = ""  # cells, as "3-7 9"
    rid: str = ""
    during: int = 0
    step: int = 0


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
    apart: float | None = None  # by how much its logits move with the batch; None: not measured

    def __repr__(self) -> str:
        what = f"{self.loop} on {self.device} with {self.model}"
        return f"<trace of {what}: {len(self.slices)} slices in {self.end / 1e6:.1f} ms>"

    @property
    def what_ran(self) -> str:
        """Return ``hash model on sim`` or ``smollm2 model on mlx in bfloat16``."""
        return f"{self.model} model on {self.device}" + f" in {self.dtype}" * bool(self.dtype)

    @property
    def promise_words(self) -> str:
        """Return how far the model's logits move with the batch, as a sentence; ``''``: unknown."""
        if self.apart is None:
            return ""
        far = f"move by up to {self.apart:.2g}" if self.apart else "do not move"
        kind = "margin" if self.apart else "exact"
        return f"Its logits {far} with the other requests of a step, as measured: {kind}."

    @property
    def clock_words(self) -> str:
        """Return ``simulated time`` or ``measured time``."""
        return "simulated time" if self.clock == "virtual" else "measured time"

    @cached_property
    def end(self) -> int:
        """Return the end of the last slice, in nanoseconds after the run began."""
        return max((item.end for item in self.slices), default=0)

    def on(self, lane: str) -> tuple[Slice, ...]:
        """Return the slices of one lane."""
        return tuple(item for item in self.slices if item.lane == lane)
