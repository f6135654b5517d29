"""A flag to discard an output, set when no output is on its way."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import STALE_BY_COUNT, Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="discard_with_nothing_in_flight",
    title="A discard flag with nothing in flight",
    chapter="what the scheduler believes",
    references=("vLLM #42043", "vLLM #42117", "vLLM #48245"),
    symptom="After pause_generation and the clearing of the cache, every running request lacks "
    "one token: the first one after it is resumed (vLLM #42043). The rest is shifted by one "
    "place.",
    here="The pipeline is drained before each schedule (depth 1), so b is preempted with nothing "
    "in flight. The flag to discard its next output is set all the same. b starts again with "
    "step 5, which samples 5, its fourth token. That is the next output to come, and so it is "
    "thrown away. Step 6 goes on behind it on the device, and b has 7 for its fourth token.",
    cure="#42117 counts what is in flight when it preempts (its output placeholders), and "
    "discards so many: none, if there are none. Later #48245 did away with discarding.",
    law="identity",
    says="b gave [0, 4, 18, 7], alone",
    case=Case(
        Workload(
            [
                Request("a", [16], SamplingParams(max_new_tokens=4)),
                Request("b", [16], SamplingParams(max_new_tokens=5)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(
                kv_tokens=6,
                max_running_requests=2,
                run_first="unified",
            ),
            eos_ids=frozenset({7}),
        ),
        "vllm_async",
        "pool",
        {"depth": 1},
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "core.request:Request.restart",
            healthy="self.num_stale_output_tokens = self.num_in_flight_tokens",
            bug="self.num_stale_output_tokens = 1",
        ),
        STALE_BY_COUNT,
        Edit(
            "policy.waiting:WaitingQueue.add",
            healthy="if req.num_stale_output_tokens:",
            bug="if req.num_in_flight_tokens:",
        ),
        Edit(
            "scheduler.scheduler:Scheduler._came_back",
            healthy="if not req.finished:",
            bug="if not req.finished and req.lease is None:",
        ),
    ),
)
