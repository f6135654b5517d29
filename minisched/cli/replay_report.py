"""What ``replay`` says to people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .layout import Fitted


def print_report(console: Console, result: dict[str, Any], format: str) -> None:
    """A table of the clients' times, and the rest in sentences; ``result`` is the JSON object."""
    console.print(Fitted(times_table(result)))
    for sentence in sentences(result, format):
        console.print(sentence)


def times_table(result: dict[str, Any]) -> Table:
    """Percentiles of the clients' times."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("virtual ms")
    for name in result["ttft_ms"]:
        table.add_column(name, justify="right")
    for title, key in (("TTFT", "ttft_ms"), ("ITL", "itl_ms"), ("queue", "queue_ms")):
        cells = ["-" if value is None else f"{value:.1f}" for value in result[key].values()]
        table.add_row(title, *cells)
    return table


def sentences(result: dict[str, Any], format: str) -> Iterator[str]:
    """Everything else."""
    yield (
        f"{result['finished']} of {result['requests']} requests ({format}) finished in "
        f"{result['makespan_ns'] / 1e9:.1f} s of virtual time: {result['steps']} steps of the loop "
        f"{result['loop']}, policy {result['policy']}, {result['tokens_per_second']:.0f} tokens/s."
    )
    yield (
        f"The cache gave {100 * result['cache_hit_rate']:.1f} % of the tokens, requests lost their "
        f"memory {result['retractions']} times, and the device was busy "
        f"{100 * result['device_busy']:.1f} % of the time (profile {result['profile']}, "
        f"{result['kv_tokens']} KV slots in pages of {result['page_size']})."
    )
    yield (
        f"The simulation took {result['host_seconds']:.1f} s of real time, "
        f"{result['requests_per_second']:.0f} requests each second."
    )
