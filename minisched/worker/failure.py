"""Why a step failed, in words for who asked for its tokens."""

from __future__ import annotations


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device, or the host, had no memory left: Python, torch and MLX say it each its way."""
    named = {kind.__name__ for kind in type(error).__mro__}
    said = str(error).lower()
    return bool(named & {"MemoryError", "OutOfMemoryError"}) or (
        isinstance(error, RuntimeError) and ("out of memory" in said or "unable to allocate" in said)
    )


def reason_of(error: BaseException) -> str:
    """The first line of what it says, or its name; and that it is about memory, if it is."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"out of device memory ({said})" if is_out_of_memory(error) else said
