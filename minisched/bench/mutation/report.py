"""What is kept of a mutation run: ``traces/bench/mutation.json`` and ``.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...trace.files import write_whole
from ..kept import FOLDER
from ..rows import as_json
from .mutants import Survivor, Tried
from .sample import LAYERS, figures


def to_json(tried: Tried) -> dict[str, Any]:
    """What ``bench mutation --json`` prints: the rows, and each survivor with its diff."""
    return {
        **as_json(figures(tried.layers), {"mutmut": version()}),
        "seed": tried.seed,
        "layers": [
            {"name": item.name, "mutants": item.population, "tried": item.tried,
             "killed": item.killed}
            for item in tried.layers
        ],
        "timeouts": tried.timeouts,
        "second_look": tried.second_look,
        "left_out": dict(tried.left_out),
        "survivors": [
            {"name": item.mutant.name, "function": item.mutant.function,
             "file": item.mutant.path, "line": item.mutant.line, "diff": item.mutant.diff,
             "unreached": item.unreached, "why": item.why}
            for item in tried.survivors
        ],
        "unexplained": len(tried.unexplained),
    }  # fmt: skip


def version() -> str:
    """mutmut's."""
    from importlib import metadata

    try:
        return metadata.version("mutmut")
    except metadata.PackageNotFoundError:
        return "none"


def to_markdown(tried: Tried) -> str:
    """The table, and the survivors with their reasons."""
    return "\n".join([*table(tried), *remarks(tried), *survivors(tried)]) + "\n"


def table(tried: Tried) -> Iterator[str]:
    """A line for each layer."""
    yield "# Mutation: how many changes of the code the tests see\n"
    yield "| layer | mutants | tried | killed | rate | 95 % interval |"
    yield "|---|--:|--:|--:|--:|---|"
    rows = figures(tried.layers)
    for item, row in zip(tried.layers, rows, strict=False):
        yield f"| {item.name} | {item.population} | {item.tried} | {item.killed} | {rate(row)} |"
    if len(rows) > len(tried.layers):
        sums = [sum(getattr(item, name) for item in tried.layers)
                for name in ("population", "tried", "killed")]  # fmt: skip
        yield f"| all, each layer by its size | {' | '.join(map(str, sums))} | {rate(rows[-1])} |"


def rate(row: Any) -> str:
    """The last two columns."""
    return f"{row.median:.1f} % | {row.min:.1f} to {row.max:.1f} %"


def remarks(tried: Tried) -> Iterator[str]:
    """How it was measured."""
    yield f"\nA random sample of each layer (`--seed {tried.seed}`), with mutmut {version()};"
    yield f"{tried.timeouts} of the killed ran out of time, and {tried.second_look} were seen by"
    yield "the simulator's other tests alone. Not drawn, as no test should see them:"
    yield "; ".join(f"{count} that change {why}" for why, count in tried.left_out.items()) + "."


def survivors(tried: Tried) -> Iterator[str]:
    """Each survivor, by layer."""
    yield f"\n## Survivors: {len(tried.survivors)}, {len(tried.unexplained)} of them unexplained"
    for layer in LAYERS:
        for item in tried.survivors:
            if item.mutant.layer == layer:
                yield from survivor(item)


def survivor(item: Survivor) -> Iterator[str]:
    """Where it is, what it changes, and why it lives."""
    mutant = item.mutant
    yield f"\n`{mutant.function}`, {mutant.path}:{mutant.line}: {item.why or 'unexplained'}"
    if item.unreached:
        yield "(none of the quick tests gets there)"
    yield f"\n```diff\n{mutant.diff}\n```"


def write(tried: Tried, root: Path) -> list[Path]:
    """Both files; gives where they are."""
    folder = root / FOLDER
    texts = {"mutation.json": json.dumps(to_json(tried), indent=1) + "\n",
             "mutation.md": to_markdown(tried)}  # fmt: skip
    for name, text in texts.items():
        write_whole(folder / name, text, with_folders=True)
    return [folder / name for name in texts]
