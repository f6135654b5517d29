"""The lines of a text file with their numbers, or one sentence on why it has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..trace.files import Hear, unheard, unpacked

LONGEST = 16 * 2**20  # bytes of a line; a Mooncake line of a million tokens has a thousandth of it


def numbered_lines(path: Path, hear: Hear = unheard) -> Iterator[tuple[int, str]]:
    """Line number, from 1, and text of every line that is not blank; one line is held at a time.

    The file may be in gzip; ``hear`` is told how many bytes of it were read.

    Raises:
        ValueError: the file can't be read, or a line is no text.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} can't be read: it is read twice, so it must be a regular file.")
    try:
        with unpacked(path, hear) as file:
            for number, raw in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
                if text := as_text(raw, f"{path}, line {number}"):
                    yield number, text
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from error


def as_text(raw: bytes, where: str) -> str:
    """A line's text without the space around it, and without the mark that may open a file.

    Raises:
        ValueError: it is binary, or too long to be a line.
    """
    if len(raw) > LONGEST:
        raise ValueError(f"{where}: it is longer than {LONGEST} bytes, so this is no trace.")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: it is not UTF-8 text, so this is no trace.") from error
    if "\0" in text:
        raise ValueError(f"{where}: it has a zero byte, so this is a binary file and no trace.")
    return text.removeprefix("\ufeff").strip()
