"""The token that was in flight at a preemption, counted as the first of the next life."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="late_token_of_retracted",
    title="A preempted request's late token is taken for its next",
    chapter="what the scheduler believes",
    references=(
        "vLLM #38624",
        "vLLM #48245",
    ),
    symptom="A request that was preempted says the same token twice when it goes on.",
    here="Step 5 is in flight with b in it when b is preempted: everything that was computed of "
    "it is forgotten, and it is to begin again with the four tokens that are known. Step 5 comes "
    "back with 16. Nobody asks under which lease it ran, so it is appended as b's fourth token. "
    "But b's length was set before: it begins again with four positions and computes the fourth "
    "token once more. b says 16, 16.",
    cure="#38624 (closed) wanted to set the discard flag and clear the placeholders wherever a "
    "request is preempted, and not only where the cache is reset. #48245 let the token be "
    "delivered and counted at once. Here a row counts only under the lease that it was launched "
    "with; for the loops after vLLM (keep_stale_outputs), stale output is delivered and moves the "
    "length too.",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [
                Request("a", [4], SamplingParams(max_new_tokens=5)),
                Request("b", [4], SamplingParams(max_new_tokens=5)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(
                rules="sglang",
                kv_tokens=9,
                max_running_requests=2,
                disable_radix_cache=True,
                schedule_conservativeness=0.0,
            ),
        ),
        "vllm_async",
        "prev_sampled",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler.process",
            healthy="if req.lease is not lease:",
            bug="if req.finished:",
        ),
    ),
)
