"""A bug's case told: in lines of words, and as an object for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checks.case import Case
from ..checks.case_text import case_text, changed
from ..core import Request, SamplingParams
from ..scheduler import SchedulerConfig

ALWAYS = ("kv_tokens", "page_size", "max_running_requests")  # the sizes that every case has


def in_words(case: Case) -> list[str]:
    """A line for the loop, and one each for what comes when, and for how much room there is."""
    relay = f", relay {case.relay}" if case.relay else ""
    lines = [line for line in case_text(case) if not line.startswith("costs")]
    return [f"loop {case.loop}{relay}, on {case.device}", *lines]


def as_json(case: Case) -> dict[str, Any]:
    """The case as an object; what is as by default is left out, but for lengths and sizes."""
    workload, config = case.workload, case.workload.config
    return {
        "loop": case.loop,
        "relay": case.relay,
        "options": {name: plain(value) for name, value in case.options.items()},
        "requests": [request_json(request) for request in workload.requests],
        "arrivals": list(workload.arrivals),
        "aborts": {str(turn): rid for turn, rid in sorted(workload.aborts.items())},
        "eos_ids": sorted(workload.eos_ids),
        "sizes": {name: getattr(config, name) for name in ALWAYS}
        | {name: plain(value) for name, value in changed(config, SchedulerConfig()).items()},
    }


def request_json(request: Request) -> dict[str, Any]:
    """A request; ``limit`` is the most tokens that it produces."""
    wishes = changed(request.params, SamplingParams())
    return {
        "rid": request.rid,
        "prompt_len": len(request.prompt),
        "prompt": list(request.prompt),
        "limit": request.params.max_new_tokens,
        "priority": request.priority,
        "params": {k: plain(value) for k, value in wishes.items() if k != "max_new_tokens"},
    }


def plain(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
