"""Reads traces of other programs: torch.profiler, Nsight Systems; and this one's Chrome export."""

from __future__ import annotations

from pathlib import Path

from ...trace.files import DamagedGzip, Hear, unheard, unpacked
from .chrome import read_chrome
from .nsys import MAGIC, read_nsys
from .steps import NoSuchRange
from .trace import Foreign, NotATrace

__all__ = ["Foreign", "NotATrace", "read_foreign"]


def read_foreign(path: Path, step: str = "", hear: Hear = unheard) -> Foreign:
    """The trace in a file of torch.profiler, of Nsight Systems, or of ``export/chrome.py``.

    What a file is, is seen by how it begins, whatever its name; it may be compressed with gzip.
    ``step`` is the name of the ranges that are steps, with ``*`` for any text, and ``hear`` is told
    how many bytes were read.

    Raises:
        NotATrace: it is none of them, or damaged, or has no such range; the message is one
            sentence.
        OSError: it cannot be read.
    """
    try:
        return _read(path, step, hear)
    except NoSuchRange as error:
        raise NotATrace(f"{path}: {error}") from None


def _read(path: Path, step: str, hear: Hear) -> Foreign:
    try:
        with unpacked(path) as file:
            start = file.read(len(MAGIC))
    except DamagedGzip as error:
        raise NotATrace(f"{path} is no trace: {error.strerror}.") from None
    if start == MAGIC:
        return read_nsys(path, step, hear)
    if start.lstrip()[:1] in (b"{", b"["):
        return read_chrome(path, step, hear)
    if path.suffix == ".nsys-rep":
        raise NotATrace(
            f"{path} is a report of Nsight Systems: export it first, with "
            f"nsys export --type sqlite {path.name}."
        )
    raise NotATrace(
        f"{path} is no trace: neither a minisched trace, nor a Chrome trace (JSON, perhaps in "
        "gzip), nor an SQLite export of Nsight Systems."
    )
