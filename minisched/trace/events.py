"""The trace of a run: slices on lanes, edges between them, counters and marks.

All times are integer nanoseconds on the run's clock. ``clock`` is ``virtual`` (a simulation: the
same run gives the same trace, byte for byte) or ``wall``. No code changes an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..core.notebook import NotebookOutput
from ..record import Act, Counter, Edge, Mark, Recorder, Slice

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


ALL_TO_ALL = "all to all"  # the lane on which a half of a batch communicates


def is_copy(lane: str) -> bool:
    """Return whether tokens are copied to the host on a lane."""
    return lane.endswith("copy")


def lane_words(lane: str) -> str:
    """Return ``host``, ``worker thread``, ``copy stream``, ``stage 1`` or ``prefill copy``."""
    return lane if " " in lane or is_host(lane) else f"{lane} stream"


# -- The kinds of edges and acts (``record.py`` has the classes) -----------------------------------
#
# An edge: ``dst`` could not start before ``src`` ended. Its kind is one of:
#
# - ``launch``: host launch to the op's run, which on a wall clock may start before the rest of the
#   step is launched;
# - ``copy``: run to copy;
# - ``result``: copy to process;
# - ``token``: to the step that consumes the token, from sample to its forward if the token stays on
#   the device, from process to its prepare if it went over the host. It starts at the token's real
#   source. A mark ``wrong token`` records a source that is not the request's newest token;
# - ``upload``: copy of prompts to the forward pass that reads them.
#
# Acts of one lane are in the lane's program order. Their kind is one of:
#
# - ``launch``: the lane queued op ``op``;
# - ``begin`` and ``end`` of an op, on the lane that runs it;
# - ``wait``: the lane continues only after op ``op`` has ended or signal ``op`` was set;
# - ``say``: the lane set a signal;
# - ``read``, ``write`` and ``free`` of cells ``at`` of ``resource``; freed cells are out of use;
# - ``release`` of cells to a pool: steps up to ``step``, the last one committed, may still use
#   them, and the next owner's write must be ordered after those.
#
# ``op`` is the id of a slice or of a signal; for an access by the host, its slice. ``rid`` is the
# request of the access. ``during`` is the newest slice of the host thread that launched, waited or
# set a signal. On a virtual clock a slice's work takes effect at its end.


@dataclass(frozen=True, repr=False)
class Trace:
    """One recorded run. Slices are ordered by (start, end, id), the other events by time.

    ``program`` has the acts of each lane in program order. Without it, races can't be judged.
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

    @classmethod
    def of(
        cls,
        recorder: Recorder,
        loop: str,
        device: str,
        model: str,
        clock: str,
        dtype: str = "",
        apart: float | None = None,
    ) -> Trace:
        """Return what has been recorded so far, in order."""
        events = {name: tuple(found) for name, found in recorder.in_order(clock).items()}
        return cls(loop, device, model, clock, dtype=dtype, apart=apart, **events)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the picture of its steps and the text, for a notebook."""
        return NotebookOutput.draw(self, repr(self))

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
