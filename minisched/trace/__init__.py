"""One event schema and one recorder, for every loop on every device."""

from .events import Counter, Edge, Mark, Slice, Trace
from .program import Act, NullProgram, Program, Touch
from .recorder import NullRecorder, Recorder

__all__ = [
    "Act",
    "Counter",
    "Edge",
    "Mark",
    "NullProgram",
    "NullRecorder",
    "Program",
    "Recorder",
    "Slice",
    "Touch",
    "Trace",
]
