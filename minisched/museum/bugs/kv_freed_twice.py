"""A surplus row that is processed as if its request were still there."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...loops.overlap import AS_OF_0_5_21
from ...scheduler import SchedulerConfig
from ..exhibit import ENDED_KEEPS_ITS_LEASE, RELEASED_KEEPS_ITS_PAGES, Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="kv_freed_twice",
    title="Nobody asks whether the request has finished",
    chapter="who owns memory",
    references=("SGLang #22416",),
    symptom="A step behind the end of a request still has a row for it. If nobody asks whether "
    "the request has finished, that row ends it a second time: its KV and its row go back twice, "
    "and the next two requests are given the same memory (a review of SGLang #22416).",
    here="Step 1 samples the only token that a may produce. Step 2 is launched before the host "
    "has read it, so a has a surplus row there. Step 1 comes back: a has finished, and its lease "
    "waits for step 2. Step 2 comes back: pages 1 and 2 and row 1 are freed, and then its row is "
    "taken for one more token of a, which is over its length still. So a ends again, with a "
    "token too many, and the same pages and the same row are freed once more. The free list has "
    "each of them twice now.",
    cure="SGLang passes over every row whose request has finished or was retracted before it "
    "looks at the token (process_batch_result_decode). Here a request gives its lease up when it "
    "ends, and a row counts only under the lease that it was launched with; a released lease "
    "lists no pages, so that freeing it again would free nothing.",
    law="leak",
    says="page 1 was freed twice",
    case=Case(
        Workload(
            [Request("a", [1], SamplingParams(max_new_tokens=1))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=2, max_running_requests=1, disable_radix_cache=True),
        ),
        "overlap",
        "ring",
        AS_OF_0_5_21,
        cost=SIM_COST,
    ),
    edits=(
        ENDED_KEEPS_ITS_LEASE,
        Edit(
            "scheduler.scheduler:Scheduler.process",
            healthy="req.known_len == req.max_device_len",
            bug="req.known_len >= req.max_device_len",
        ),
        RELEASED_KEEPS_ITS_PAGES,
    ),
    points_at=at(
        ("process", 1),
        ("process", 2),
        says="a ends with step 1; step 2's result frees page 1, and then its surplus row ends a "
        "again: page 1 is freed once more",
    ),
)
