"""minisched: overlap scheduling for LLM inference, small enough to read, with visual traces."""

__version__ = "0.1.0"
