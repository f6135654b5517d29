"""Retraction frees what the host knows of, and forgets what a step in flight has taken."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="retracted_by_known_length",
    title="Retraction with output in flight leaves a page behind",
    chapter="who owns memory",
    references=("SGLang #11981", "SGLang #11970", "SGLang #14972"),
    symptom="",
    here="",
    cure="",
    law="leak",
    says="was retracted",
    case=Case(
        Workload(
            [
                Request("a", [14], SamplingParams(max_new_tokens=4)),
                Request("b", [17], SamplingParams(max_new_tokens=4)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(
                kv_tokens=8, max_running_requests=2, schedule_conservativeness=0.0
            ),
        ),
        "overlap",
        "ring",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "policy.retraction:Retraction.retract",
            healthy="    req.restart()\n",
            bug="""\
    if lease is not None:
        del lease.pages[self.leases.allocator.pages_for(req.known_len - 1) :]
    req.restart()
""",
        ),
    ),
)
