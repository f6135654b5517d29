"""A sequence that starts again, taken for one that goes on."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="reprefilled_row_filled",
    title="A sequence that starts again, taken for one that goes on",
    chapter="tokens on their way",
    references=("MindIE-LLM #75",),
    symptom="",
    here="",
    cure="",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [
                Request("a", [7, 3], SamplingParams(max_new_tokens=4)),
                Request("b", [5, 1], SamplingParams(max_new_tokens=4)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=7, max_running_requests=2, run_first="unified"),
        ),
        "mindie_plugin", "fill_device", cost=SIM_COST,
    ),
    edits=(
        Edit(
            "relay.placeholder_fill:prepare_masks_for_filling",
            healthy="        if None in ids:\n",
            bug="        if req.rid in place and batch.num_extend_reqs < len(batch.reqs):\n",
        ),
    ),
)  # fmt: skip
