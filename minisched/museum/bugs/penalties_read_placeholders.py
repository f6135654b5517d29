"""Penalties over a history in which a placeholder stands for the newest token."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="penalties_read_placeholders",
    title="Penalties that read -1",
    chapter="tokens on their way",
    references=("vLLM #27878", "vLLM #26467", "vLLM #27910", "vLLM #52461", "SGLang #8056"),
    symptom="",
    here="",
    cure="",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [Request("a", [4], SamplingParams(max_new_tokens=3, frequency_penalty=2.0))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=8, max_running_requests=1),
        ),
        "vllm_async", cost=SIM_COST,
    ),
    edits=(
        Edit(
            "worker.sampling_info:_lacks",
            healthy='return "penalty" if missing > late_penalties else ""',
            bug='return ""',
        ),
        Edit(
            "worker.sampling_info:output_before",
            healthy="""\
    if wanted > len(output):
        raise RuntimeError(
            f"penalties of {req.rid} read {wanted} tokens, but the host knows only "
            f"{len(output)}: the loop had to wait."
        )
""",
            bug="""\
    output += [-1] * (wanted - len(output))
""",
        ),
    ),
)  # fmt: skip
