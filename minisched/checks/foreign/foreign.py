"""Reads traces of other programs: torch.profiler, Nsight Systems; and this one's Chrome export."""

from __future__ import annotations

from pathlib import Path

from ...trace.files import DamagedGzip, Hear, unheard, unpacked
from .chrome import read_chrome
from .nsys import MAGIC, read_nsys
from .trace import Foreign, NotATrace

__all__ = ["Foreign", "NotATrace", "read_foreign"]


def read_foreign(path: Path, hear: Hear = unheard) -> Foreign:
    """The trace in a file of torch.profiler, of Nsight Systems, or of ``export/chrome.py``.

    What a file is, is seen by how it begins, whatever its name; it may be compressed with gzip.
    ``hear`` is told how many bytes were read.

    Raises:
        NotATrace: it is none of them, or damaged; the message is one sentence.
        OSError: it cannot be read.
    """
    try:
        with unpacked(path) as file:
            start = file.read(len(MAGIC))
    except DamagedGzip as error:
        raise NotATrace(f"{path} is no trace: {error.strerror}.") from None
    if start == MAGIC:
        return read_nsys(path, hear)
    if start.lstrip()[:1] in (b"{", b"["):
        return read_chrome(path, hear)
    if path.suffix == ".nsys-rep":
        raise NotATrace(
            f"{path} is a report of Nsight Systems: export it first, with "
            f"nsys export --type sqlite {path.name}."
        )
    raise NotATrace(
        f"{path} is no trace: neither a minisched trace, nor a Chrome trace (JSON, perhaps in "
        "gzip), nor an SQLite export of Nsight Systems."
    )
