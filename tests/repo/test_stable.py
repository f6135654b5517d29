"""What is stable is in ``stable.txt``. An item that goes needs a line in CHANGELOG.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

import minisched
from minisched.cli.exit import BAD_INPUT, INTERRUPTED, NOBODY_READS
from minisched.trace.native import COLUMNS, EVENTS, FORMAT, HEADER, OPTIONAL, VERSION

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "repo" / "stable.txt"
DOCUMENTS = {  # the name of a command's document, the command, and how deep its keys are promised
    "compare": ("compare --requests 2 --max-new-tokens 8 --json", 2),
    "check of files": ("check out/overlap.json --json", 4),
    "check of workloads": ("check --workloads 1 --loop overlap --json", 1),
    "run": ("run --requests 2 --max-new-tokens 8 --json", 1),
    "replay": (f"replay {ROOT / 'tests' / 'cli' / 'given' / 'lengths.csv'} --json", 2),
}
OF_A_REQUEST = (  # the other fields are the engine's
    "rid", "prompt", "params", "arrival_time", "priority", "output_ids", "finish_reason", "error",
)  # fmt: skip
Cli = Callable[[str], tuple[int, str, str]]


def names_and_parameters() -> Iterator[str]:
    """Yield the names of the package, with their parameters or fields."""
    for name in minisched.__all__:
        yield f"python {name}"
        item = getattr(minisched, name)
        for parameter in signature(item).parameters:
            if name != "Request" or parameter in OF_A_REQUEST:
                yield f"python {name}({parameter})"


def of_traces() -> Iterator[str]:
    """Yield the version of the trace format, and each field."""
    yield f"trace format {FORMAT!r}, version {VERSION}"
    for name in (*HEADER, *OPTIONAL):
        yield f"trace {name}"
    for name, (kind, _) in EVENTS.items():
        assert [field.name for field in fields(kind)] == [column[0] for column in COLUMNS[kind]]
        yield from (f"trace {name}[].{column[0]}" for column in COLUMNS[kind])


def keys(value: object, depth: int, at: str = "") -> Iterator[str]:
    """Yield the keys of a JSON document; keys that are data, such as ``r0``, are no promise."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if depth and re.fullmatch("[a-z_]+", key):
                yield f"{at}{key}"
                yield from keys(inner, depth - 1, f"{at}{key}.")
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, depth, f"{at.removesuffix('.')}[].")


@pytest.fixture
def stable(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return every stable item that the code has."""
    monkeypatch.chdir(tmp_path)
    codes = (0, 1, BAD_INPUT, INTERRUPTED, NOBODY_READS)
    found = [*names_and_parameters(), *of_traces(), *(f"exit code {code}" for code in codes)]
    cli("compare --requests 2 --max-new-tokens 8")
    for name, (command, depth) in DOCUMENTS.items():
        code, out, err = cli(command)
        assert (code, err) == (0, ""), command
        found += [f"json {name}: {key}" for key in keys(json.loads(out), depth)]
    return list(dict.fromkeys(found))


def changes(kept: list[str], found: list[str], changelog: str) -> list[str]:
    """Return what is wrong; ``- ITEM`` in ``kept`` is an item that the CHANGELOG must name."""
    gone = [line[2:] for line in kept if line.startswith("- ")]
    promised = [line for line in kept if line and not line.startswith(("- ", "#"))]
    return [
        *(f"{one!r} is gone: put '- ' before its line in stable.txt, and name it in CHANGELOG.md"
          for one in promised if one not in found),
        *(f"{one!r} is new: pytest --golden-update adds it to stable.txt"
          for one in found if one not in promised),
        *(f"CHANGELOG.md has no line with `{one}`, which is gone"
          for one in gone if f"`{one}`" not in changelog),
    ]  # fmt: skip


def test_no_stable_item_changes_without_a_line_in_the_changelog(
    stable: list[str], request: pytest.FixtureRequest
) -> None:
    kept = KEPT.read_text("utf-8").splitlines()
    if request.config.option.golden_update:
        kept += [one for one in stable if one not in kept]
        KEPT.write_text("\n".join(kept) + "\n", "utf-8")
    assert not changes(kept, stable, (ROOT / "CHANGELOG.md").read_text("utf-8"))


def test_a_lost_item_and_a_new_one_are_reported() -> None:
    kept = ["# Stable", "exit code 0", "exit code 1", "- exit code 9"]
    assert changes(kept, ["exit code 0", "exit code 1"], "- `exit code 9` is gone.") == []
    lost, new, unnamed = changes(kept, ["exit code 0", "exit code 7"], "")
    assert lost.startswith("'exit code 1' is gone") and new.startswith("'exit code 7' is new")
    assert unnamed == "CHANGELOG.md has no line with `exit code 9`, which is gone"
