"""The prompts of a run: built in, from the command line, or from a file."""

from __future__ import annotations

from pathlib import Path

from ..defaults import go_round
from ..trace.files import read_text


def read_prompts(texts: list[str], file: Path | None, count: int | None) -> list[str]:
    """``count`` prompts, going round again if there are fewer; without ``count``, each once.

    A file holds one prompt a line; empty lines are skipped.

    Raises:
        ValueError: the file can't be read or holds no prompt, or ``count`` is below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"--requests is {count}, but it must be at least 1.")
    prompts = list(texts)
    if file is not None:
        try:
            lines = read_text(file).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ValueError(f"--prompts {file} can't be read: {reason}.") from error
        prompts += [line for line in lines if line.strip()]
        if not prompts:
            raise ValueError(f"--prompts {file} holds no prompt; it needs one a line.")
    for text in prompts:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"--prompt {text!r} is not UTF-8 text.")
    return go_round(prompts, count)
