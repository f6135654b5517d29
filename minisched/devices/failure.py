"""Why a step failed, or a run could not begin, in words for who asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

SAYINGS = ("out of memory", "can't allocate memory", "unable to allocate", "attempting to allocate")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was no memory left; Python, torch and MLX each say it their own way."""
    if {kind.__name__ for kind in type(error).__mro__} & {"MemoryError", "OutOfMemoryError"}:
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in said for words in SAYINGS)


def reason_of(error: BaseException) -> str:
    """The first line of what it says, or its name; and that it is about memory, if it is."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"out of device memory ({said})" if is_out_of_memory(error) else said


@contextmanager
def memory_for(what: str, device: str) -> Iterator[None]:
    """Where memory is taken, once for the whole run.

    Raises:
        ValueError: there is not so much of it.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(f"device {device!r} has no memory for {what}; ask for less.") from error
