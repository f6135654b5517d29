"""One event schema and one recorder, for every loop on every device."""

from .events import Counter, Edge, Mark, Slice, Trace
from .recorder import NullRecorder, Recorder

__all__ = ["Counter", "Edge", "Mark", "NullRecorder", "Recorder", "Slice", "Trace"]
