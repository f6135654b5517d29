"""A surplus row that is processed as if its request were still there."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..shared_edits import ENDED_KEEPS_ITS_LEASE, RELEASED_KEEPS_ITS_PAGES

EXHIBIT = Exhibit(
    name="kv_freed_twice",
    title="Nobody asks whether the request has finished",
    chapter="who owns memory",
    references=("SGLang #22416",),
    symptom="",
    here="",
    cure="",
    law="leak",
    says="freed twice",
    case=Case(
        Workload(
            [Request("a", [1], SamplingParams(max_new_tokens=1))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=2, max_running_requests=1, disable_radix_cache=True),
        ),
        "overlap",
        "ring",
        cost=SIM_COST,
    ),
    edits=(
        ENDED_KEEPS_ITS_LEASE,
        Edit(
            "scheduler.results:Results.process",
            healthy="req.known_len == req.max_device_len",
            bug="req.known_len >= req.max_device_len",
        ),
        RELEASED_KEEPS_ITS_PAGES,
    ),
)
