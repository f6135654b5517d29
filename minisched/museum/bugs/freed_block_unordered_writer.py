"""A block that is freed under a step in flight, and filled by a network that waits for nobody."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="freed_block_unordered_writer",
    title="A freed block, and a writer that no stream orders",
    chapter="who owns memory",
    references=("vLLM #45357", "vllm-ascend #14055"),
    symptom="",
    here="",
    cure="",
    law="race",
    says="transfer of step",
    case=Case(
        Workload(
            [
                Request("a", [16], SamplingParams(max_new_tokens=2)),
                Request("b", [2], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=1, free_rule="deferred"),
        ),
        "pd",
        "pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "memory.free_rule:deferred",
            healthy="    return not (is_ongoing and lease.last_step == steps.launched)\n",
            bug="    return True\n",
        ),
    ),
)
