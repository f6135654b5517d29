"""Two steps in flight at a preemption, and one of them is thrown away."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..shared_edits import ANY_STEP_SETTLES_IT, STALE_BY_COUNT

EXHIBIT = Exhibit(
    name="one_frame_discarded",
    title="Exactly one output is discarded",
    chapter="what the scheduler believes",
    references=("vLLM #47900", "vLLM #48245"),
    symptom="",
    here="",
    cure="",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [
                Request("a", [8], SamplingParams(max_new_tokens=3)),
                Request("b", [9], SamplingParams(max_new_tokens=5)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(
                kv_tokens=7,
                max_running_requests=2,
                run_first="unified",
            ),
        ),
        "vllm_async",
        "pool",
        {"depth": 3},
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "core.request:Request.restart",
            healthy="self.num_stale_output_tokens = self.num_in_flight_tokens",
            bug="self.num_stale_output_tokens = min(1, self.num_in_flight_tokens)",
        ),
        ANY_STEP_SETTLES_IT,
        STALE_BY_COUNT,
    ),
)
