"""``minisched bench``: measures one part, prints its table and keeps it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bench.arm import ArmStopped
from ..bench.kept import keep
from ..bench.peers.environment import PEERS
from ..bench.rows import Figure, as_json
from ..bench.scheduling.nano_vllm import version_of
from ..loops.run import RunStopped
from .bench_call import BenchCall
from .bench_parts import find_part
from .exit import complain
from .layout import Fitted


def run_bench(call: BenchCall, as_json_only: bool) -> int:
    """Measure one part, print its table, keep it under ``traces/bench``; returns the exit code.

    It is 1 where a loop stopped: then there is no table.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    measure = find_part(call.part)
    if call.repetitions < 1:
        raise ValueError(f"--repeat is {call.repetitions}, but it must be at least 1.")
    try:
        with Console(stderr=True).status("warming up") as status:
            figures = measure(replace(call, report=status.update))
    except (ArmStopped, RunStopped) as error:
        return complain(f"bench {call.part} stopped: {error}", 1)
    document = as_json(figures, peer_versions(call), asked(call))
    written = keep(name_of(call), document, Path.cwd())
    if as_json_only:
        print(json.dumps(document))
        return 0
    Console(emoji=False).print(Fitted(table(figures)))
    for path in written:
        Console(stderr=True).print(f"written: {path}", highlight=False)
    return 0


def name_of(call: BenchCall) -> str:
    """The table's name: a run of a part of a part does not take the place of the whole."""
    given = [f"{name}-{Path(str(value)).name}" for name, value in options_of(call).items()]
    few = [f"repeat-{call.repetitions}"] if call.repetitions < BenchCall.repetitions else []
    return "-".join([call.part, *given, *few])


def asked(call: BenchCall) -> dict[str, Any]:
    """What the command line said, and when: a table says which run it is of."""
    today = datetime.now(UTC).date().isoformat()
    return {**options_of(call), "repetitions": call.repetitions, "date": today}


def options_of(call: BenchCall) -> dict[str, Any]:
    """What was asked for besides the part."""
    options = {
        "device": call.device, "model": call.model, "dtype": call.dtype, "requests": call.requests,
        "max-new-tokens": call.max_new_tokens,
    }  # fmt: skip
    return {name: value for name, value in options.items() if value is not None}


def peer_versions(call: BenchCall) -> dict[str, str]:
    """Versions of the peers that a part is measured beside and that are not installed here."""
    found = {}
    for name in {"generation": ["llama-cpp"], "host": ["vllm", "sglang"]}.get(call.part, []):
        package, _, version = [*PEERS[name].alone, *PEERS[name].needed][0].partition("==")
        found[package] = version
    if call.nano_vllm:
        found["nano-vllm"] = version_of(call.nano_vllm)
    return found


def table(figures: list[Figure]) -> Table:
    """Medians with their spread, and whether they are where they should be."""
    reasons = sorted(
        {
            f"{'Not measured' if item.median is None else item.name}: {item.reason}."
            for item in figures
            if item.reason
        }
    )
    result = Table(caption=Text("\n".join(reasons)) if reasons else None)
    for column in ("what", "median", "min", "max", "unit", "aim", "met"):
        result.add_column(column, justify="right" if column in ("median", "min", "max") else "left")
    for item in figures:
        values = (item.median, item.min, item.max)
        numbers = ("-" if value is None else f"{value:.2f}" for value in values)
        bound = "at most" if item.at_most else "at least"
        aim = "" if item.aim is None else f"{bound} {item.aim:g}"
        met = {None: "", True: "yes", False: "no"}[item.met]
        result.add_row(Text(item.name), *numbers, item.unit, aim, met)  # a name is no markup
    return result
