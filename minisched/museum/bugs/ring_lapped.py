"""A FutureMap ring that the chunks of a prompt lap, while a placeholder waits to be read."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...loops.overlap import AS_OF_0_5_21
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="ring_lapped",
    title="A ring that laps a token nobody has read yet",
    chapter="tokens on their way",
    references=(
        "SGLang #13713",
        "SGLang #13916",
        "sglang-jax #1487",
        "sglang-jax #1504",
        "SGLang #25862",
    ),
    symptom="Accuracy falls under load: GSM8K from 0.955 to 0.700 with 64 requests at a time "
    "(sglang-jax #1487). Nothing crashes, and one request alone is always right.",
    here="The ring has 3 x 2 future slots. Step 1 computes a's prompt, and slot 1 is to hold a's "
    "token. Prompts run first, so a waits while steps 2 to 7 compute b's prompt in six chunks. "
    "Each chunk takes a slot for a token that nobody wants: 2 to 6, and then 1 again. The host "
    "has known a's token since step 1 came back, but step 8 still sends the placeholder -1, and "
    "finds b's token in slot 1.",
    cure="#13713 made the ring as long as all chunks of all running prompts need, and #13916 the "
    "buffer longer once more. #25862 put an end to it: each request has one cell of its own, at "
    "its row of the request table. Here a token that the host knows is sent as itself, so nobody "
    "reads the slot of a step that has come back.",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [
                Request("a", [7], SamplingParams(max_new_tokens=2)),
                Request("b", [5, 1, 6, 9, 2, 1], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=11, max_running_requests=2, chunked_prefill_size=1),
        ),
        "overlap",
        "ring",
        AS_OF_0_5_21,
        cost=SIM_COST,
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
    points_at=at(
        ("sample", 7),
        ("forward", 8),
        says="step 7 stores b's token in future slot 1, where a's still waits to be read; step 8 "
        "reads it for a",
    ),
)
