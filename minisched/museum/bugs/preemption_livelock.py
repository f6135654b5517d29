"""Memory comes back late, so preempting gives nothing now; and so everybody is preempted."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..judge_soon import judge_soon
from ..patch import Edit

EXHIBIT = Exhibit(
    name="preemption_livelock",
    title="Preempting that frees nothing",
    chapter="who owns memory",
    references=("vllm-ascend #16315", "vLLM #49674", "vLLM #49675"),
    symptom="",
    here="",
    cure="",
    law="livelock",
    says="have not ended",
    case=Case(
        Workload(
            [
                Request("a", [1], SamplingParams(max_new_tokens=1)),
                Request("b", [2], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=2, max_running_requests=2, run_first="unified"),
        ),
        "overlap",
        "ring",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "policy.unified:UnifiedBudget._make_room",
            healthy="""\
        if short <= self.leases.pages_returning:
            return False  # they come back by themselves
""",
            bug="",
        ),
        Edit(
            "policy.unified:UnifiedBudget._make_room",
            healthy="""\
        elif self.decode.running_reqs == [req]:
            self.retraction.wait([req])
            return False
""",
            bug="",
        ),
    ),
    judge_by=judge_soon,
)
