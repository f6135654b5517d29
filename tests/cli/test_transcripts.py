"""What users read, word by word: ``golden/COMMAND.txt`` is a transcript, played again and compared.

A new ``$`` line in one of them gets its answer from ``pytest tests/cli --golden-update``. Commands
of a file run one after another in a folder with copies of ``given/`` and the golden ``traces``.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from minisched.cli.app import app

HERE = Path(__file__).parent
TRANSCRIPTS = sorted((HERE / "golden").glob("*.txt"))
IN_REAL_TIME = re.compile(
    r"(?<=, in )[\d.]+(?= s\b)|(?<=took )[\d.]+(?= s of real time)|\d+(?= requests each second)"
    r'|(?<="host_seconds": )[\d.]+|(?<="requests_per_second": )[\d.]+|(?<="seconds": )[\d.]+'
)
"""Figures that are never the same, in sentences and in JSON."""


def commands() -> Iterator[tuple[str, Any]]:
    for name, found in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        if hasattr(found, "commands"):
            yield from ((f"{name} {inner}", item) for inner, item in found.commands.items())
        else:
            yield name, found


@pytest.mark.parametrize("file", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transcript_is_what_is_printed(
    file: Path,
    cli: Any,
    golden: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(HERE / "given", tmp_path, dirs_exist_ok=True)
    (tmp_path / "traces").symlink_to(HERE.parents[1] / "traces")
    lines = [line[2:] for line in file.read_text("utf-8").splitlines() if line.startswith("$ ")]
    golden(file.name, "\n".join(played(line, cli) for line in lines))


def played(line: str, cli: Any) -> str:
    """A command line as one sees it: stdout, then stderr, then the exit code where it is not 0.

    ``--json`` is one object, alone in its line; here it is broken, so that one sees what changed.
    """
    program, _, rest = line.partition(" ")
    if program == "cat":
        return f"$ {line}\n{Path(rest).read_text('utf-8')}"
    assert program == "minisched", line
    code, out, err = cli(rest)
    assert "Traceback" not in err
    if "--json" in rest and out:
        assert out.count("\n") == 1
        out = broken(json.loads(out)) + "\n"
    said = [text.rstrip() for text in IN_REAL_TIME.sub("#", out + err).splitlines()]
    return "\n".join([f"$ {line}", *said, *([f"[exit code {code}]"] if code else []), ""])


def broken(value: Any, indent: str = "") -> str:
    """JSON in lines of 100 columns where it can be."""
    short = json.dumps(value, ensure_ascii=False)
    if len(indent + short) < 99 or not isinstance(value, dict | list):
        return short
    inner = indent + "  "
    if isinstance(value, list):
        items = [inner + broken(item, inner) for item in value]
        return "\n".join(["[", ",\n".join(items), indent + "]"])
    items = [f"{inner}{json.dumps(key)}: {broken(item, inner)}" for key, item in value.items()]
    return "\n".join(["{", ",\n".join(items), indent + "}"])


def test_every_command_has_a_transcript_with_its_help_and_an_example_that_parses() -> None:
    names = {name.split()[0] for name, _ in commands()}
    assert {path.stem for path in TRANSCRIPTS} == {"minisched", *names}
    for name, command in commands():
        text = (HERE / "golden" / f"{name.split()[0]}.txt").read_text("utf-8")
        assert f"$ minisched {name} --help\n" in text
        assert command.epilog.startswith(f"Example: minisched {name}")
        words = shlex.split(command.epilog.removeprefix(f"Example: minisched {name}"))
        command.make_context(name, words)  # a bad option would raise
