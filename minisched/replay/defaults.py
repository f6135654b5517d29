"""Settings with which every request of a trace can finish."""

from __future__ import annotations

from ..devices.cost import Profile
from ..scheduler import SchedulerConfig
from .trace_file import Survey

CHUNK = 8192  # what SGLang gives GPUs of this class (cli/presets.py: h100)
MAX_RUNNING_REQUESTS = 256  # the largest decode batch that it captures as a graph there
MOST_PAGES = 2**24  # of a pool: the simulation keeps a number for each
MOST_RUNNING = 2**20


def default_settings(survey: Survey, profile: Profile, page_size: int) -> dict[str, int]:
    """Fields of ``SchedulerConfig`` for a trace on a machine, at a page size.

    The KV pool is what the machine has room for; if that is too small for the longest request, as
    much as that takes. Admission wants a page beyond what a request needs, and one that stays over.
    """
    longest_pages = -(-survey.longest // page_size) + 2
    kv_pages = max(profile.kv_tokens // page_size, longest_pages)
    return {
        "page_size": page_size,
        "kv_tokens": kv_pages * page_size,
        "max_running_requests": MAX_RUNNING_REQUESTS,
        "chunked_prefill_size": -(-CHUNK // page_size) * page_size,
        "context_len": survey.longest,
    }


def check_size(config: SchedulerConfig) -> None:
    """Refuse what would fill the memory of the machine that simulates.

    Raises:
        ValueError: the pool or the number of requests is beyond bounds.
    """
    if config.num_pages > MOST_PAGES:
        raise ValueError(
            f"the KV pool would have {config.num_pages} pages, but it may have at most "
            f"{MOST_PAGES}: lower --kv-tokens or raise --page-size."
        )
    if config.max_running_requests > MOST_RUNNING:
        raise ValueError(
            f"--max-running-requests is {config.max_running_requests}, but it may be at most "
            f"{MOST_RUNNING}."
        )
