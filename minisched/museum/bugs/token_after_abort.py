"""A token that was in flight when its request was aborted, and is delivered all the same."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..judge_aborts import judge_aborts
from ..patch import Edit

EXHIBIT = Exhibit(
    name="token_after_abort",
    title="A token after the abort",
    chapter="tokens on their way",
    references=("SGLang #34112", "SGLang #34149"),
    symptom="",
    here="",
    cure="",
    law="abort",
    says="after it was aborted",
    case=Case(
        Workload(
            [Request("a", [7], SamplingParams(max_new_tokens=1))],
            arrivals=[0],
            aborts={1: "a"},
            config=SchedulerConfig(kv_tokens=2, max_running_requests=1),
        ),
        "overlap",
        "ring",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler.abort",
            healthy="    return [self._finish(req, FinishReason.ABORT, error=error)] if req else []\n",
            bug="""\
    if req and req.num_output_placeholders:  # later, with the token that is on its way
        req.to_finish = FinishReason.ABORT
        return []
    return [self._finish(req, FinishReason.ABORT, error=error)] if req else []
""",
        ),
        Edit(
            "scheduler.results:Results.process",
            healthy="            req.append_host(token)\n",
            bug="""\
            req.append_host(token)
            if to_finish := vars(req).get("to_finish"):
                outputs.append(self._finish(req, to_finish, token))
                continue
""",
        ),
    ),
    judge_by=judge_aborts,
)
