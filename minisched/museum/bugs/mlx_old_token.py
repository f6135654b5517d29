"""A chained step on the newest token that the host knows, which is one too old."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="mlx_old_token",
    title="A step on a token that is one too old",
    chapter="tokens on their way",
    references=(
        "tt-metal #47359",
        "SGLang #22416",
    ),
    symptom="The accuracy of an evaluation falls as soon as scheduling is asynchronous. Nothing "
    "crashes, and nothing is slow.",
    here="Step 3 is chained upon step 2 in time, but nobody hands it step 2's token, which is on "
    "the device. It takes the newest one that the host knows, and that is step 1's: 5 stands "
    "where 12 should be. From there on everything is wrong.",
    cure="The step takes the token that is on the device, and not the host's, which is one step "
    "old (tt-metal #47359). SGLang's MLX loop (model_runner.py:decode_batch_start_chained) "
    "feeds a chained step the lazy tokens of the one before. An excerpt in a report on #22416 "
    "calls decode_batch_start(prev.req_ids) there; run statement for statement "
    "(minisched/export/mlx_memory.py), it gives other tokens from the first chained step on.",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [Request("a", [4], SamplingParams(max_new_tokens=3))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1),
        ),
        "mlx_async",
        "chain",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "relay.lazy_chain:LazyChain.bind",
            healthy="places[row.req.rid] if token is None else token",
            bug="row.req.known_tokens(0, row.req.known_len)[-1] if token is None else token",
        ),
    ),
    points_at=at(
        ("sample", 2),
        ("forward", 3),
        says="step 3 runs on step 1's token: nobody handed it what step 2 samples",
    ),
)
