"""A FutureMap ring that the chunks of a prompt lap, while a placeholder waits to be read."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="ring_lapped",
    title="A ring that laps a token nobody has read yet",
    chapter="tokens on their way",
    references=(
        "SGLang #13713", "SGLang #13916", "sglang-jax #1487", "sglang-jax #1504", "SGLang #25862",
    ),
    symptom="Accuracy falls under load, and with long prompts: GSM8K from 0.955 to 0.700 at 64 "
    "requests at a time (sglang-jax #1487). Nothing crashes.",
    here="The ring has 3 x 2 slots. Step 1 computes the first chunk of the long prompt b and takes "
    "slot 1; ... ",
    cure="",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [
                Request("a", [7], SamplingParams(max_new_tokens=2)),
                Request("b", [5, 1, 6, 9, 2, 1], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 1],
            aborts={},
            config=SchedulerConfig(kv_tokens=16, max_running_requests=2, chunked_prefill_size=1),
        ),
        "overlap", "ring", cost=SIM_COST,
    ),
    edits=(
        Edit(
            "relay.future_map:FutureMapRing.bind",
            healthy="""\
        -row.lease.future_slot if token is None else token
        for row in batch.rows
""",
            bug="""\
        -row.lease.future_slot if at >= batch.num_extend_reqs else token
        for at, row in enumerate(batch.rows)
""",
        ),
    ),
)  # fmt: skip
