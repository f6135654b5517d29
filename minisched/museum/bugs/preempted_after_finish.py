"""A request that has finished, but not left, is preempted."""

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
    name="preempted_after_finish",
    title="A request that has finished is preempted",
    chapter="who owns memory",
    references=("SGLang #18694", "SGLang #17797"),
    symptom='With priority scheduling the server stops with "Committed KV cache already freed" '
    "(SGLang #17797): a running request of low priority was preempted, and it had finished a "
    "moment before.",
    here="Finishing takes two phases: the result frees a's memory, and the next decode round "
    "takes a out of the running set. Step 1 comes back: a has finished, and page 1 and row 1 are "
    "free. Step 2 was b's prompt, so no decode round has tidied the set up when c comes, with a "
    "higher priority and a wish for more than there is. b is preempted for it, and that is not "
    "enough; so is a, which seems to hold a page: page 1 and row 1 are freed again. c gets page "
    "1, and a, which is back in the queue although it has ended, is to get it as well.",
    cure="#18694 lets preempt_to_schedule pass over whoever has finished: their KV is free "
    "already. Here a request that ends leaves the running set at once, and what it held is "
    "counted as on its way back.",
    law="ownership",
    says="was handed out while its last lease is in use",
    case=Case(
        Workload(
            [
                Request("a", [1], SamplingParams(max_new_tokens=1)),
                Request("b", [3], SamplingParams(max_new_tokens=1)),
                Request("c", [14], SamplingParams(max_new_tokens=2), priority=1),
            ],
            arrivals=[0, 0, 2],
            aborts={},
            config=SchedulerConfig(
                kv_tokens=5,
                max_running_requests=2,
                disable_radix_cache=True,
                schedule_policy="priority",
                rules="minisched",
                priority_scheduling_preemption_threshold=0,
            ),
        ),
        "overlap",
        "ring",
        AS_OF_0_5_21,
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler._finish",
            healthy="    self.decode.remove_req(req)\n",
            bug="",
        ),
        ENDED_KEEPS_ITS_LEASE,
        RELEASED_KEEPS_ITS_PAGES,
    ),
    points_at=at(
        ("process", 1),
        ("schedule", 0, 2),
        ("schedule", 0, 3),
        says="a ends with step 1, which frees page 1; preempting a for step 3 frees it again; "
        "step 3 gets it, and a is to get it, too",
    ),
)
