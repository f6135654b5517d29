"""Options whose text means more than it says: a bias, a file."""

from __future__ import annotations

from pathlib import Path

from ..trace.files import read_text


def read_bias(text: str) -> tuple[int, float]:
    """A token and what is added to its logit, from ``TOKEN=VALUE``.

    Raises:
        ValueError: ``text`` is something else.
    """
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        example = "but it must be TOKEN=VALUE, such as 42=-5.5"
        raise ValueError(f"--logit-bias is {text!r}, {example}.") from None


def read_schema(file: Path) -> str:
    """The text of a JSON schema.

    Raises:
        ValueError: the file can't be read.
    """
    try:
        return read_text(file)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"--json-schema {file} can't be read: {reason}.") from error
