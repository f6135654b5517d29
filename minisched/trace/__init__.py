"""One event schema and one recorder, for every loop on every device."""

from .events import Act, Counter, Edge, Mark, Slice, Trace
from .recorder import NullRecorder, Program, Recorder, Touch

__all__ = [
    "Act",
    "Counter",
    "Edge",
    "Mark",
    "NullRecorder",
    "Program",
    "Recorder",
    "Slice",
    "Touch",
    "Trace",
]
