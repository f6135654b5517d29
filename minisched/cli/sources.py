"""The runs that ``film`` and ``stepper`` show: recorded ones, or new ones of a loop."""

from __future__ import annotations

from pathlib import Path

from ..export.native import read_recorded
from ..export.recipes import a_bit_of_everything
from ..loops.design import LOOPS, find_loop, own_line
from ..own_loops import add_loop
from ..trace import Trace


def run_named(source: str) -> Trace:
    """Return a loop's run of the pictures' usual requests, or the recorded run in a file.

    Raises:
        ValueError: it is neither, or a loop of one's own stops with an error.
    """
    name, path = add_loop(source), Path(source)
    if name.partition(":")[0] not in LOOPS:
        if not (path.suffix or path.exists()):
            raise ValueError(
                f"{source!r} is no loop ({', '.join(LOOPS)}) and no recorded run (.json)."
            )
        return read_recorded(path).trace
    design = find_loop(name)
    try:
        return a_bit_of_everything(name).run()
    except Exception as error:
        if place := own_line(error, design)[0]:
            what = f"{name} stopped with {type(error).__name__}: {error}"
            raise ValueError(f"{what.rstrip('.')}{place}.") from error
        raise
