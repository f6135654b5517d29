"""A chained step on the newest token that the host knows, which is one too old."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="mlx_old_token",
    title="A step on a token that is one too old",
    chapter="tokens on their way",
    references=("tt-metal #47359",),
    symptom="",
    here="",
    cure="",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [Request("a", [4], SamplingParams(max_new_tokens=3))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=8, max_running_requests=1),
        ),
        "mlx_async", "chain", cost=SIM_COST,
    ),
    edits=(
        Edit(
            "relay.lazy_chain:LazyChain.bind",
            healthy="places[row.req.rid] if token is None else token",
            bug="row.req.known_tokens(0, row.req.known_len)[-1] if token is None else token",
        ),
    ),
)  # fmt: skip
