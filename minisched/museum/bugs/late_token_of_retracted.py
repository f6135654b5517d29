"""The token that was in flight at a preemption, counted as the first of the next life."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="late_token_of_retracted",
    title="A preempted request's late token is taken for its next",
    chapter="what the scheduler believes",
    references=("vLLM #38624",),
    symptom="",
    here="",
    cure="",
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
            "scheduler.results:Results.process",
            healthy="if req.lease is not lease:",
            bug="if req.finished:",
        ),
    ),
)
