"""Files as this program reads and writes them: out of gzip where packed, whole or not at all."""

from __future__ import annotations

import errno
import gzip
import os
import secrets
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase, BufferedReader, FileIO, RawIOBase
from pathlib import Path
from typing import Any, TextIO

GZIP = b"\x1f\x8b"  # how such a file begins, whatever its name
PIECE = 1 << 18  # bytes of one read from the disk
MIB = 1 << 20
UNPACKED_MIB = 1024  # the most that a file in gzip may unpack to
Hear = Callable[[int], None]  # receives the number of bytes read so far


class DamagedGzip(OSError):
    """A file in gzip that can't be unpacked; ``strerror`` has the reason."""


class UnpackedTooLarge(OSError):
    """A file in gzip that unpacks to more than the limit; ``strerror`` names it and the remedy."""


def unheard(read: int) -> None:
    """Ignore the number of bytes read."""


class HeardFile(FileIO):
    """A file for reading that reports its position after each read."""

    def __init__(self, path: Path, hear: Hear) -> None:
        super().__init__(path, "rb")
        self.hear = hear

    def readinto(self, buffer: Any, /) -> int | None:
        """Fill a buffer, and report the position in the file."""
        count = super().readinto(buffer)
        with suppress(OSError):  # a pipe has no position
            self.hear(self.tell())
        return count


class LimitedGzip(RawIOBase):
    """The content of a file in gzip, up to ``most_mib`` MiB."""

    def __init__(self, inside: gzip.GzipFile, most_mib: int) -> None:
        self.inside, self.most_mib, self.size = inside, most_mib, 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer.

        Raises:
            UnpackedTooLarge: the content exceeds the limit.
        """
        count = self.inside.readinto(buffer)
        self.size += count
        if self.size > self.most_mib * MIB:
            raise UnpackedTooLarge(
                errno.EFBIG,
                f"it unpacks to more than {self.most_mib} MiB; raise that limit (--unpacked-mib), "
                "or unpack the file first",
            )
        return count


@contextmanager
def unpacked(
    path: Path, hear: Hear = unheard, most_mib: int = UNPACKED_MIB
) -> Iterator[BufferedIOBase]:
    """Open a file for reading its bytes; of one in gzip its content, up to ``most_mib`` MiB.

    Raises:
        OSError: it can't be read.
        DamagedGzip: its gzip is damaged.
        UnpackedTooLarge: its content exceeds the limit, raised when that is reached.
    """
    with BufferedReader(HeardFile(path, hear), PIECE) as file:
        if not file.peek(len(GZIP)).startswith(GZIP):
            yield file
            return
        try:
            with gzip.open(file) as inside:
                yield BufferedReader(LimitedGzip(inside, most_mib), PIECE)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = str(error).rstrip(".")
            raise DamagedGzip(errno.EIO, f"its gzip is damaged ({reason})") from error


def read_text(path: Path, named: str = "", most_mib: int = UNPACKED_MIB) -> str:
    """Return the text of a file in UTF-8, perhaps in gzip; ``named`` is the user's name of it.

    Raises:
        ValueError: it can't be read, or is no text; one sentence with the reason.
    """
    try:
        with unpacked(path, most_mib=most_mib) as file:
            return file.read().decode("utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"{named or path} can't be read: {reason}.") from error


def write_whole(path: Path, text: str, named: str = "", with_folders: bool = False) -> None:
    """Write a text in UTF-8 and with Unix line ends; see ``whole_file``.

    ``named`` is the user's name of the file, such as ``--out x.svg``. ``with_folders`` makes its
    parent folders.

    Raises:
        ValueError: it can't be written; one sentence with the reason.
    """
    try:
        if with_folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(text)
    except OSError as error:
        raise ValueError(f"{named or path} can't be written: {error.strerror}.") from error


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """Open a text file that gets its name only when it is whole; a reader sees the old file before.

    It is written next to its place and moved there, so a full disk or an interrupt leaves the old
    file. A pipe, a terminal or ``/dev/null`` can't be replaced and is written to directly. A
    symbolic link stays one.

    Raises:
        OSError: it can't be opened, written, or moved; then nothing is left over.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("x", encoding="utf-8", newline="\n") as file:
            yield file
        if target.exists():
            part.chmod(target.stat().st_mode & 0o7777)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
