"""The end of a command: its exit code, one sentence about an error, and lost output.

0: done, and the checks hold. 1: tokens differ, or a law is violated. 2: bad input, or a file or
stdout that can't be written. 130: Ctrl-C. 141: the reader of our output has ended, as after
``minisched check | head -1``; a shell reports the same of ``git log`` then (128 and SIGPIPE's 13).
"""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO, cast

from ..core.text import printable

NOBODY_READS, BAD_INPUT, INTERRUPTED = 141, 2, 130
GONE = (errno.EPIPE, errno.EINVAL)  # the second is Windows's
ALIKE = (  # replacements of the same width, to keep columns; all others are ?
    "✓+ ✗x ×x →> ←< ↑^ ↓v …. ·. ≤<= –- −- ─- ━- │| ┃| ǁ| ├+ └+ ┴+ ┬+ ╸- ╺- ◆o ╳X ╱/ ▼v ▶> ◀< "
    "›> ‹< █# ▓% ▒= ░: ▁_ ▂. ▃- ▄= ▅+ ▆* ▇% ╭+ ╮+ ╰+ ╯+"
)
STAND_INS = {pair[0]: pair[1:] for pair in ALIKE.split()}


def complain(sentence: str, code: int) -> int:
    """Print an error on stderr, and return the exit code."""
    print(f"minisched: {printable(sentence)}", file=sys.stderr)
    return code


@contextmanager
def guarded_output() -> Iterator[None]:
    """Print output inside the block, or end the command quietly or with one sentence.

    Characters outside of stdout's or stderr's encoding are replaced.

    Raises:
        SystemExit: stdout is closed, or one of them could not be written to.
    """
    before = sys.stdout, sys.stderr
    codecs.register_error("minisched", stand_in)
    if sys.stderr is None:  # otherwise prints to it would go to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise SystemExit(complain("stdout is closed, so there is no output.", BAD_INPUT))
    out, err = Heard(sys.stdout, "stdout"), Heard(sys.stderr, "stderr")
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield
        out.flush()
        err.flush()
    finally:
        sys.stdout, sys.stderr = before
    if lost := out.lost or err.lost:  # lost in a thread, which can't end the command
        raise SystemExit(lost)


class Heard:
    """A stream that ends the command if it can't be written to.

    Libraries handle such an error as their own: typer and rich exit with 1 after a broken pipe, and
    ``logging`` prints a traceback. ``SystemExit`` passes through all of them.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream, self.name, self.lost = stream, name, 0
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="minisched")

    def write(self, text: str) -> int:
        """Write text."""
        try:
            return self.stream.write(text)
        except OSError as error:
            self._lose(error)

    def flush(self) -> None:
        """Write buffered text."""
        try:
            self.stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> NoReturn:
        """End the command, and drop buffered text so that Python can exit quietly."""
        self.lost = NOBODY_READS if error.errno in GONE else BAD_INPUT
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)
        if self.lost == BAD_INPUT and self.name == "stdout":
            complain(f"stdout can't be written: {error.strerror}.", BAD_INPUT)
        raise SystemExit(self.lost)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def stand_in(error: UnicodeError) -> tuple[str, int]:
    """Return replacements for characters that an encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(STAND_INS.get(character, "?") for character in missing), error.end
