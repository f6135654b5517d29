"""How a command ends: its exit code, one sentence where something is wrong, and lost output.

0: done, and what was asked holds. 1: tokens differ, or a law is broken. 2: bad input, or a file or
stdout that can't be written. 130: Ctrl-C. 141: nobody reads our output any more, as after
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
ALIKE = (  # one for one where that says it, so that columns stay; all others are ?
    "✓+ ✗x ×x →> ←< ↑^ ↓v …. ·. ≤<= –- −- ─- ━- │| ┃| ǁ| ├+ └+ ┴+ ┬+ ╸- ╺- ◆o ╳X ╱/ ▼v ▶> ◀< "
    "›> ‹< █# ▓% ▒= ░: ▁_ ▂. ▃- ▄= ▅+ ▆* ▇% ╭+ ╮+ ╰+ ╯+"
)
STAND_INS = {pair[0]: pair[1:] for pair in ALIKE.split()}


def complain(sentence: str, code: int) -> int:
    """Say what is wrong on stderr."""
    print(f"minisched: {printable(sentence)}", file=sys.stderr)
    return code


@contextmanager
def guarded_output() -> Iterator[None]:
    """What is printed meanwhile is heard, or the command ends: quietly, or with one sentence.

    What stdout's or stderr's encoding can't show is replaced.

    Raises:
        SystemExit: stdout is closed, or one of them could not be written to.
    """
    before = sys.stdout, sys.stderr
    codecs.register_error("minisched", stand_in)
    if sys.stderr is None:  # else what is printed to it would go to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise SystemExit(complain("stdout is closed, so nothing can be said.", BAD_INPUT))
    out, err = Heard(sys.stdout, "stdout"), Heard(sys.stderr, "stderr")
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield
        out.flush()
        err.flush()
    finally:
        sys.stdout, sys.stderr = before
    if lost := out.lost or err.lost:  # in a thread, which could not end the command
        raise SystemExit(lost)


class Heard:
    """A stream that ends the command where it can't be written to.

    Libraries take such an error for theirs: typer and rich exit with 1 after a broken pipe, and
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
        """Write what is held."""
        try:
            self.stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> NoReturn:
        """End the command; what is still held goes nowhere, or Python would complain at its end."""
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
    """What stands for characters that an encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(STAND_INS.get(character, "?") for character in missing), error.end
