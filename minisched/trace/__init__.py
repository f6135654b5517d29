"""One event schema and one recorder, for every loop on every device."""

from ..record import Act, Counter, Edge, Mark, Recorder, Slice
from .events import Trace
from .recorder import NullRecorder, Touch

__all__ = [
    "Act",
    "Counter",
    "Edge",
    "Mark",
    "NullRecorder",
    "Recorder",
    "Slice",
    "Touch",
    "Trace",
]
