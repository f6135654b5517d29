"""A chained step that takes no slot and advances no length in the scheduler."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="chained_step_not_counted",
    title="A chained step that the scheduler does not count",
    chapter="what the scheduler believes",
    references=("SGLang #30093", "SGLang #30147", "SGLang #33874"),
    symptom="",
    here="",
    cure="",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [Request("a", [7], SamplingParams(max_new_tokens=4))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=8, max_running_requests=1),
        ),
        "mlx_async", "chain", cost=SIM_COST,
    ),
    edits=(),
)  # fmt: skip
