"""A request that has finished, but not left, is preempted."""

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
    name="preempted_after_finish",
    title="A request that has finished is preempted",
    chapter="who owns memory",
    references=("SGLang #18694", "SGLang #17797"),
    symptom="",
    here="",
    cure="",
    law="ownership",
    says="was handed out while its last lease is in use",
    case=Case(
        Workload(
            [
                Request("a", [1], SamplingParams(max_new_tokens=1)),
                Request("b", [1], SamplingParams(max_new_tokens=1)),
                Request("c", [14], SamplingParams(max_new_tokens=4), priority=2),
            ],
            arrivals=[0, 2, 3],
            aborts={},
            config=SchedulerConfig(
                kv_tokens=6,
                max_running_requests=2,
                disable_radix_cache=True,
                schedule_policy="priority",
                priority_scheduling_preemption_threshold=0,
                schedule_conservativeness=0.0,
            ),
        ),
        "overlap",
        "ring",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.ending:Endings._finish",
            healthy="    self.decode.remove_req(req)\n",
            bug="",
        ),
        ENDED_KEEPS_ITS_LEASE,
        Edit(
            "policy.decode:DecodeManager.schedule_next_batch",
            healthy="    overrun = self.overrun\n",
            bug="""\
    self.running_reqs = [req for req in self.running_reqs if not req.finished]
    overrun = self.overrun
""",
        ),
        Edit(
            "scheduler.results:Results.process",
            healthy="if req.lease is not lease:",
            bug="if req.finished or req.lease is not lease:",
        ),
        RELEASED_KEEPS_ITS_PAGES,
    ),
)
