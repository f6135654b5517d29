"""Where on each axis a random workload lies, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...core import Request
from ...devices.cost import CostModel
from ...devices.measured_cost import MeasuredCost
from .draw import Drawn


def axes_of(drawn: Drawn) -> dict[str, str]:
    """The value of each axis, but for the loop, of which one workload takes several."""
    config, workload = drawn.workload.config, drawn.workload
    formed = well_formed(drawn)
    params = [req.params for req in formed]
    stops = any(not item.ignore_eos for item in params) and workload.eos_ids
    return {
        "requests": str(len(workload.requests)),
        "odd request": drawn.odd,
        "wishes": drawn.wishes,
        "sampling": "temperature" if any(not item.is_greedy for item in params) else "greedy",
        "log-probabilities": yes_or_no(any(item.return_logprob for item in params)),
        "stop tokens": yes_or_no(any(item.stop_token_ids for item in params)),
        "end of text": yes_or_no(stops),
        "aborts": str(len(workload.aborts)),
        "priorities": str(len({req.priority for req in formed})),
        "flushes": yes_or_no(workload.flushes),
        "arrivals": "at once" if not any(workload.arrivals) else "one after the other",
        "page size": str(config.page_size),
        "pool": pool_of(drawn),
        "running requests": str(config.max_running_requests),
        "radix cache": "off" if config.disable_radix_cache else "on",
        "eviction": config.radix_eviction_policy,
        "run first": config.run_first,
        "schedule policy": config.schedule_policy,
        "chunks": "none" if config.chunked_prefill_size == -1 else "yes",
        "mixed chunks": yes_or_no(config.enable_mixed_chunk),
        "prefill tokens": str(config.max_prefill_tokens),
        "conservativeness": f"{config.schedule_conservativeness:g}",
        "preemption threshold": str(config.priority_scheduling_preemption_threshold),
        "late penalties": yes_or_no(config.late_penalties),
        "late stop strings": yes_or_no(config.late_stop_strings),
        "largest graph": str(config.cuda_graph_max_bs),
        "speculation": config.speculative_algorithm or "none",
        "ops built by": "host" if drawn.built_by_host else "device",
        "costs": "measured" if isinstance(drawn.cost, MeasuredCost) else "by token",
        "slower": slower_side(drawn.cost),
    }


def well_formed(drawn: Drawn) -> list[Request]:
    """Its requests without the one that no scheduler takes."""
    return [req for req in drawn.workload.requests if not req.problem()]


def yes_or_no(value: object) -> str:
    """A condition as a value of an axis."""
    return "yes" if value else "no"


def pool_of(drawn: Drawn) -> str:
    """How many pages there are beyond those of the longest request."""
    config = drawn.workload.config
    longest = max(req.max_device_len for req in well_formed(drawn))
    spare = config.num_pages - -(-longest // config.page_size)
    return "too small" if spare < 0 else "just enough" if spare == 0 else "more"


def slower_side(cost: CostModel) -> str:
    """Whether a decode step with one row takes the host longer, or the device."""
    host, device = sum(cost.host.values()), cost.forward(1) + cost.sample
    return "neither" if host == device else "host" if host > device else "device"


def count_axes(drawn: Iterable[Drawn]) -> dict[str, dict[str, int]]:
    """How many workloads lie where on each axis; the values in order."""
    counts: dict[str, Counter[str]] = {}
    for item in drawn:
        for axis, value in axes_of(item).items():
            counts.setdefault(axis, Counter())[value] += 1
    return {axis: dict(sorted(found.items())) for axis, found in counts.items()}
