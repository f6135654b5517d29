"""A row that is handed on while a step in flight still reads and writes it."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="row_reused_in_flight",
    title="A row that gets a new owner while a forward reads it",
    chapter="who owns memory",
    references=("mini-sglang #89", "mini-sglang e7d4f65", "mini-sglang 20fcd7f"),
    symptom="",
    here="",
    cure="",
    law="race",
    says="writes what sample of step 2",
    case=Case(
        Workload(
            [
                Request("a", [18], SamplingParams(max_new_tokens=2)),
                Request("b", [7, 3, 5], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1, free_rule="deferred"),
            eos_ids=frozenset({10}),
        ),
        "mini_overlap",
        "token_pool",
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
