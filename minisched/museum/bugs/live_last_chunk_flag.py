"""Whether a chunk was the last one, asked when its result comes back."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="live_last_chunk_flag",
    title="A flag that is read when the result comes back",
    chapter="what the scheduler believes",
    references=("MindIE-LLM #233",),
    symptom="",
    here="",
    cure="",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [Request("a", [7, 3], SamplingParams(max_new_tokens=1))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=8, max_running_requests=1, chunked_prefill_size=1),
        ),
        "mindie_plugin", cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.results:Results.process",
            healthy="        elif deliver:\n",
            bug="        elif not (self.prefill.chunked_req and self.prefill.chunked_req.req is req):\n",
        ),
    ),
)  # fmt: skip
