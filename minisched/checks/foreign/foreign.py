"""Reads traces of other programs: torch.profiler, Nsight Systems; and this one's Chrome export."""

from __future__ import annotations

from pathlib import Path

from .chrome import GZIP, read_chrome
from .nsys import MAGIC, read_nsys
from .steps import NoSuchRange
from .trace import Foreign, NotATrace

__all__ = ["Foreign", "NotATrace", "read_foreign"]


def read_foreign(path: Path, step: str = "") -> Foreign:
    """The trace in a file of torch.profiler, of Nsight Systems, or of ``export/chrome.py``.

    What a file is, is seen by how it begins, whatever its name. ``step`` is the name of the ranges
    that are steps, with ``*`` for any text.

    Raises:
        NotATrace: it is none of them, or damaged, or has no such range; the message is one
            sentence.
        OSError: it cannot be read.
    """
    try:
        return _read(path, step)
    except NoSuchRange as error:
        raise NotATrace(f"{path}: {error}") from None


def _read(path: Path, step: str) -> Foreign:
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start == MAGIC:
        return read_nsys(path, step)
    if start.startswith(GZIP) or start.lstrip()[:1] in (b"{", b"["):
        return read_chrome(path, step)
    if path.suffix == ".nsys-rep":
        raise NotATrace(
            f"{path} is a report of Nsight Systems: export it first, with "
            f"nsys export --type sqlite {path.name}."
        )
    raise NotATrace(
        f"{path} is no trace: neither a minisched trace, nor a Chrome trace (JSON, perhaps in "
        "gzip), nor an SQLite export of Nsight Systems."
    )
