"""A case told: as one sentence after the other, and as an object for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..checks.judge import Case
from ..core import Request, SamplingParams
from ..scheduler import SchedulerConfig

ENOUGH = {"kv_tokens", "page_size", "max_running_requests"}  # the sizes that every case has


def in_words(case: Case) -> str:
    """What comes when, on what, and with how much room."""
    workload = case.workload
    loop = f"Loop `{case.loop}`" + (f" with relay `{case.relay}`" if case.relay else "")
    loop += "".join(f", {name} = {value!r}" for name, value in case.options.items())
    coming = [
        f"{request_words(request)}, comes in turn {arrival}"
        for request, arrival in zip(workload.requests, workload.arrivals, strict=True)
    ]
    coming += [f"{rid} is aborted in turn {turn}" for turn, rid in workload.aborts.items()]
    if workload.eos_ids:
        coming += [f"the model ends an answer with {listed(workload.eos_ids)}"]
    return f"{loop}. {'; '.join(coming)}. {room(workload.config)}."


def request_words(request: Request) -> str:
    """A request's lengths, and what else it wants."""
    wishes = "".join(
        f", {name} {plain(value)}" for name, value in changed(request.params, SamplingParams())
        if name not in ("max_new_tokens", "ignore_eos")
    )  # fmt: skip
    prompt, limit = len(request.prompt), request.params.max_new_tokens
    priority = f", priority {request.priority}" if request.priority else ""
    return f"{request.rid}: {count(prompt, 'prompt token')}, {limit} to produce{wishes}{priority}"


def room(config: SchedulerConfig) -> str:
    """The sizes, and what is set otherwise than by default."""
    pages = "" if config.page_size == 1 else f" in pages of {config.page_size}"
    rest = "".join(
        f", {name} {value}" for name, value in changed(config, SchedulerConfig())
        if name not in ENOUGH
    )  # fmt: skip
    rows = count(config.max_running_requests, "row")
    return f"There are {count(config.kv_tokens, 'KV slot')}{pages} and {rows}{rest}"


def as_json(case: Case) -> dict[str, Any]:
    """The case as an object; what is as by default is left out, but for lengths and sizes."""
    workload = case.workload
    return {
        "loop": case.loop,
        "relay": case.relay,
        "options": {name: plain(value) for name, value in case.options.items()},
        "requests": [request_json(request) for request in workload.requests],
        "arrivals": list(workload.arrivals),
        "aborts": {str(turn): rid for turn, rid in workload.aborts.items()},
        "eos_ids": sorted(workload.eos_ids),
        "sizes": {
            **{name: getattr(workload.config, name) for name in sorted(ENOUGH)},
            **{name: plain(value) for name, value in changed(workload.config, SchedulerConfig())},
        },
    }


def request_json(request: Request) -> dict[str, Any]:
    """A request; ``limit`` is the most tokens that it produces."""
    params = dict(changed(request.params, SamplingParams()))
    params.pop("max_new_tokens", None)
    return {
        "rid": request.rid,
        "prompt_len": len(request.prompt),
        "prompt": list(request.prompt),
        "limit": request.params.max_new_tokens,
        "priority": request.priority,
        "params": {name: plain(value) for name, value in params.items()},
    }


def changed(given: Any, default: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass that are not as by default."""
    pairs = [(field.name, getattr(given, field.name)) for field in fields(given)]
    return [(name, value) for name, value in pairs if value != getattr(default, name)]


def plain(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def listed(tokens: frozenset[int]) -> str:
    """Tokens in order: ``2 or 7``."""
    return " or ".join(str(token) for token in sorted(tokens))


def count(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"
