"""What each request's client would have measured: queue time, TTFT, ITL, cached tokens."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..engine.metrics import Metrics, RequestMetrics

METRICS = ("prompt_tokens", "cached_tokens", "output_tokens", "queue_ms", "ttft_ms", "itl_ms")


def figures(request: RequestMetrics) -> dict[str, Any]:
    """One request's figures; times in milliseconds, ``itl_ms`` the mean, None for what was not."""
    itls = request.itls
    return {
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.output_tokens,
        "queue_ms": in_ms(request.queue_ns),
        "ttft_ms": in_ms(request.ttft_ns),
        "itl_ms": in_ms(sum(itls) / len(itls)) if itls else None,
        "retractions": request.retractions,
    }


def metrics_json(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """Every request's figures, by id."""
    return {request.rid: figures(request) for request in in_order(metrics)}


def table(metrics: Metrics) -> Table:
    """The same to read."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False)
    result.add_column("request")
    for column in METRICS:
        result.add_column(column.replace("_", " "), justify="right")
    for request in in_order(metrics):
        found = figures(request)
        result.add_row(request.rid, *(as_text(found[column]) for column in METRICS))
    return result


def in_order(metrics: Metrics) -> list[RequestMetrics]:
    """Those that ended, by arrival."""
    return sorted(
        metrics.ended, key=lambda request: (request.arrival, len(request.rid), request.rid)
    )


def in_ms(nanoseconds: float | None) -> float | None:
    """Milliseconds."""
    return None if nanoseconds is None else nanoseconds / 1e6


def as_text(value: float | None) -> str:
    """A cell: a count, a time, or a dash."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"
