"""How much memory a run gets, where no option says so."""

from __future__ import annotations

from ..core import Request
from ..models.base import Model
from ..scheduler import SchedulerConfig
from .scheduler_options import SchedulerOptions

MOST_RUNNING = 16  # requests that run at once, unless an option says otherwise
MOST_CELLS = 2**24  # of the KV pool, and of the page table


def make_config(
    scheduler: SchedulerOptions, model: Model, requests: list[Request]
) -> SchedulerConfig:
    """Room for every request that may run at once, unless options say otherwise.

    Rows of the page table are as long as the longest request, because real models pay for them; a
    request beyond the model's context is refused, and named, by the scheduler. Admission wants a
    page more than each request needs, and one that stays over.

    Raises:
        ValueError: the options ask for more memory than a run here should take.
    """
    page = scheduler.page_size or 1
    running = scheduler.max_running_requests or min(MOST_RUNNING, len(requests))
    lengths = [min(request.max_device_len, model.context_len) for request in requests]
    drafts = scheduler.make_config(kv_tokens=page).num_draft_tokens  # which may lie behind the end
    pages = sorted(-(-(length + drafts) // page) + 1 for length in lengths)
    config = scheduler.make_config(
        max_running_requests=running,
        kv_tokens=(sum(pages[-running:]) + 1) * page,
        context_len=max(lengths),
    )
    cells = max(config.num_slots, config.max_running_requests * config.context_len)
    if cells > MOST_CELLS:
        raise ValueError(
            f"the KV pool or the page table would have {cells} cells, more than {MOST_CELLS}; "
            "lower --kv-tokens, --page-size or --max-running-requests."
        )
    return config
