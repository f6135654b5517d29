"""A request that is aborted, and then ends with the token that was on its way."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="abort_in_flight",
    title="Aborted, and then finished",
    chapter="who owns memory",
    references=("mini-sglang #111", "mini-sglang 20fcd7f"),
    symptom="",
    here="",
    cure="",
    law="leak",
    says="row 1",
    case=Case(
        Workload(
            [Request("a", [18], SamplingParams(max_new_tokens=3))],
            arrivals=[0],
            aborts={2: "a"},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1, disable_radix_cache=True),
            eos_ids=frozenset({15}),
        ),
        "mini_overlap",
        "token_pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.ending:Endings._finish",
            healthy="    lease, req.lease = req.lease, None\n",
            bug="""\
    lease = req.lease
    if reason is not FinishReason.ABORT or req.device_len == req.max_device_len:
        req.lease = None
""",
        ),
    ),
)
