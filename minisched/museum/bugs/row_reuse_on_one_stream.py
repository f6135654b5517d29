"""Row reuse, blamed for wrong tokens: on one stream it is harmless."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Refuted

REFUTED = Refuted(
    name="row_reuse_on_one_stream",
    title="Row reuse, blamed for a tensor's short life",
    references=("SGLang #18803", "SGLang #18746", "SGLang #18744", "SGLang #18958"),
    suspicion="",
    truth="",
    case=Case(
        Workload(
            [
                Request("a", [18], SamplingParams(max_new_tokens=2)),
                Request("b", [7, 3, 5], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1, free_rule="at_once"),
            eos_ids=frozenset({10}),
        ),
        "overlap",
        "pool",
        cost=SIM_COST,
    ),
)
