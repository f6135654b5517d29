"""The token of a surplus row, sent to the client after the end of text."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="zombie_token_replied",
    title="A token after the end of text",
    chapter="tokens on their way",
    references=("mini-sglang 20fcd7f",),
    symptom="",
    here="",
    cure="",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [Request("a", [18], SamplingParams(max_new_tokens=2))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=1),
            eos_ids=frozenset({10}),
        ),
        "mini_overlap",
        "token_pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.ending:Endings._late",
            healthy="    if error and self._is_stale(req):\n",
            bug="""\
    if token is not None and req.finished:  # its memory is not freed again, but that is all
        req.append_host(token)
        return [Output(req.rid, token)]
    if error and self._is_stale(req):
""",
        ),
    ),
)
