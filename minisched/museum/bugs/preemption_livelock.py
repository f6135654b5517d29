"""Memory comes back late, so preempting gives nothing now; and so everybody is preempted."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...loops.overlap import AS_OF_0_5_21
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="preemption_livelock",
    title="Preempting that frees nothing",
    chapter="who owns memory",
    references=("vllm-ascend #16315", "vLLM #49674", "vLLM #49675", "vLLM #45357", "vLLM #48245"),
    symptom="Throughput falls to 0 tokens a second and stays there: every request is preempted, "
    "queued and admitted, for ever (vllm-ascend #16315). It came with the cure of vLLM #45357, "
    "by which freed blocks wait for the steps in flight.",
    here="a and b fill the pool with their prompts in step 1. a wants a page for its next token. "
    "There is none, so b, the newest, is preempted. But b's page waits for step 1, the pool is "
    "as full as before, and so a is preempted too. Step 1 comes back: both have lost their "
    "memory, its tokens are dropped, both pages are free. a and b are admitted again, and step 2 "
    "is step 1 once more. Without overlap nothing is in flight, and b's page would come back at "
    "once.",
    cure="#49675 asks before it preempts whether the victim's blocks are fenced, and if so stops "
    "and waits for the steps in flight. Here nobody is preempted while what is on its way back "
    "is enough, and the last one who runs preempts nobody, but waits. With vLLM's rule of "
    "#48245, by which late tokens are delivered, the same edits only waste work.",
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
        AS_OF_0_5_21,
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
        elif list(self.decode.running_reqs) == [req]:
            self.retraction.wait([req])
            return False
""",
            bug="",
        ),
    ),
    points_at=at(
        ("forward", 1),
        ("forward", 2),
        says="step 2 is step 1 once more: behind each, both are preempted, and its tokens are "
        "dropped",
    ),
)
