"""An input whose memory is handed out again while a kernel has yet to read it."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="tensor_freed_under_kernel",
    title="An input whose memory is handed out while a kernel reads it",
    chapter="streams and buffers",
    references=("SGLang #18744", "SGLang #18958", "SGLang #34076", "SGLang #2070"),
    symptom="",
    here="",
    cure="",
    law="race",
    says="inputs 1: forward reads it",
    case=Case(
        Workload(
            [Request("a", [7], SamplingParams(max_new_tokens=2))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=8, max_running_requests=1),
        ),
        "overlap", "pool", cost=SIM_COST,
    ),
    edits=(
        Edit(
            "worker.batch_record:OverlapWorker.__init__",
            healthy="BatchRecord(self.device.recorder.program)",
            bug="BatchRecord(self.device.recorder.program, slots=1)",
        ),
    ),
)  # fmt: skip
