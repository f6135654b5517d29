"""What a replay says: the same figures for a table and for JSON."""

from __future__ import annotations

from typing import Any

from ..engine.metrics import Percentiles
from .play import Played

MILLISECOND = 1e6  # nanoseconds


def as_json(run: Played, num_requests: int, profile: str) -> dict[str, Any]:
    """One replay of ``num_requests`` as a JSON object.

    Times in ``..._ms`` are virtual milliseconds (``null`` where nothing happened), ``makespan_ns``
    is when the last slice ended, ``device_busy`` a share from 0 to 1 of the time since the first
    request came in. ``cache_hit_rate`` is the share of the tokens of all admissions that the
    prefix cache gave. Real are only ``host_seconds``, what the simulation took, and
    ``requests_per_second``, how many requests it got through in each of them.
    """
    metrics, config = run.metrics, run.config
    return {
        "requests": num_requests,
        "finished": metrics.num_finished,
        "ttft_ms": milliseconds(metrics.ttft),
        "itl_ms": milliseconds(metrics.itl),
        "queue_ms": milliseconds(metrics.queue),
        "cache_hit_rate": metrics.cache_hit_rate,
        "retractions": run.num_retractions,
        "device_busy": run.device_busy,
        "makespan_ns": run.tally.end,
        "tokens_per_second": metrics.throughput,
        "steps": run.num_steps,
        "peak_tokens": run.peak_tokens,
        "loop": run.loop,
        "policy": config.schedule_policy,
        "profile": profile,
        "kv_tokens": config.num_slots,
        "page_size": config.page_size,
        "host_seconds": run.host_seconds,
        "requests_per_second": num_requests / run.host_seconds if run.host_seconds else 0.0,
    }


def milliseconds(times: Percentiles | None) -> dict[str, float | None]:
    """Percentiles for JSON."""
    values = times or (None, None, None)
    names = Percentiles._fields
    return {
        name: None if value is None else value / MILLISECOND
        for name, value in zip(names, values, strict=True)
    }
