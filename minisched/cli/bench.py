"""``minisched bench``: measures one part, prints its table, and with ``--keep`` writes it.

Only the chosen part is imported, because parts need different libraries.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from ..bench.figures import BenchCall, BenchPart, as_json, cells, save
from ..bench.overlap import ArmStopped
from ..bench.peers.peer import PeerError, version_in, version_of
from ..defaults import MOST_REQUESTS
from ..devices.registry import load
from ..loops.run import RunStopped
from .exit import complain
from .layout import JSON, print_json, say_table, work_progress
from .options import setting

PARTS = ("overlap", "generation", "host", "cuda")


def bench(
    part: str = typer.Argument(help=", ".join(PARTS) + "."),
    device: str | None = setting(None, "thread, cuda or mlx."),
    model: str | None = setting(None, "As compare takes it."),
    dtype: str | None = setting(None, "As compare takes it."),
    requests: int | None = setting(None, "How many requests.", least=1, most=MOST_REQUESTS),
    max_new_tokens: int | None = setting(None, "Tokens that each produces.", least=1, most=100_000),
    repeat: int | None = setting(
        None,
        "Interleaved repetitions.",
        shown="5, or 3 of generation",
        least=1,
        most=1000,
    ),
    nano_vllm: Path | None = setting(None, "A checkout of nano-vllm, for host."),
    keep: bool = setting(False, "Write the table under traces/bench."),
    json: bool = JSON,
) -> int:
    """Measure one part, and print its table."""
    if part not in PARTS:
        raise ValueError(f"unknown part {part!r}; the parts are {', '.join(PARTS)}.")
    found: Any = load(f"minisched.bench.{part}", "PART", "torch", f"bench {part}")
    measured: BenchPart = found
    repetitions = repeat or measured.repetitions
    try:
        with work_progress() as work:
            work.at("warming up")
            call = BenchCall(part, device, model, requests, max_new_tokens, repetitions,
                             nano_vllm, dtype, work.at)  # fmt: skip
            figures = measured.measure(call)
    except (ArmStopped, RunStopped, PeerError) as error:
        return complain(f"bench {part} stopped: {error}", 1)  # without a table
    # A table names its run: the options and the date.
    date = datetime.now(UTC).date().isoformat()
    asked = {**call.options, "repetitions": repetitions, "date": date}
    peers = {}  # peers that are not installed here
    if part == "host":
        wheels = ("vllm", "sglang")
        peers = {name: version_of(f"minisched.fidelity.{name}", name) for name in wheels}
        peers |= {"nano-vllm": version_in(nano_vllm)} if nano_vllm else {}
    document = as_json(figures, peers, asked)
    if json:
        print_json(document)
    else:
        rows = document["rows"]
        reasons = sorted({
            f"{'Not measured' if row['median'] is None else row['name']}: {row['reason']}."
            for row in rows if row.get("reason")
        })  # fmt: skip
        heads = ("what", ">median", ">min", ">max", "unit", "aim", "met")
        say_table(heads, [cells(row)[:-1] for row in rows], "\n".join(reasons))
    # Options that make it another measurement are in the name of its table.
    given = [f"{name}-{Path(str(value)).name}" for name, value in call.options.items()]
    few = [f"repeat-{repetitions}"] if repetitions < measured.repetitions else []
    for path in save("-".join([part, *given, *few]), document, Path.cwd()) if keep else ():
        print(f"written: {path}", file=sys.stderr)
    return 0
