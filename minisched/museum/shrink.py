"""The smallest case that still shows a bug (``checks/shrink.py``)."""

from ..checks.shrink import shrink, simpler

__all__ = ["shrink", "simpler"]
