"""The functions of Python for the page that checks a dropped file: text in, text out."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path

from minisched.checking import check_runs
from minisched.checks.reading import read_recorded
from minisched.export.scene_svg import to_svg

MIB = 1 << 20
UNPACKED_MIB = 700  # what fits into a browser's memory next to the trace


def ready(_: str = "") -> str:
    """Return when Python and minisched are loaded."""
    return ""


def check(asked: str, tell: Callable[[str], None]) -> str:
    """Check the file ``path`` of a JSON object; ``step`` and ``lane`` are options of the command.

    ``tell`` receives the progress in words. The result has the run as ``title``, the ``rows`` of its
    verdict, and a picture as ``svg``.

    Raises:
        ValueError: the file can't be read or is too large for a browser.
    """
    wanted = json.loads(asked)
    path, told = Path(wanted["path"]), 0
    size = path.stat().st_size

    def hear(read: int) -> None:
        """Tell every 4 MiB how much of the file is read."""
        nonlocal told
        if read - told >= 4 * MIB or read == size:
            told = read
            tell(f"Reading {path.name}: {read / MIB:.0f} of {size / MIB:.0f} MB …")

    try:
        run = read_recorded(path, wanted["step"], hear, wanted["lane"], UNPACKED_MIB)
        tell(f"Judging {path.name} …")
        gc.freeze()  # otherwise the collector searches a million events for cycles repeatedly
        found = check_runs([run._replace(file=path.name)])
        scene = found.scene
    except MemoryError:
        command = f"minisched check {path.name}"
        raise ValueError(
            f"{path.name} is too large for a browser's memory; on your machine: {command}"
        ) from None
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), path.name)) from None
    finally:
        gc.unfreeze()
    [verdict] = found.verdicts
    svg = to_svg(scene) if scene else ""
    return json.dumps({"title": verdict.title, "rows": verdict.as_json(), "svg": svg})
