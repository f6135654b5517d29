"""Whether a chunk was the last one, asked when its result comes back."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="live_last_chunk_flag",
    title="A flag that is read when the result comes back",
    chapter="what the scheduler believes",
    references=("MindIE-LLM #233",),
    symptom="What a prompt's middle chunk samples is delivered as if it were a token of the "
    "answer.",
    here="The prompt of a is computed in two chunks. Step 1 computes the first one, and what it "
    "samples means nothing. While it runs, the scheduler commits the second chunk as step 2, and "
    "from then on a is not in the middle of its prompt any more. Step 1 comes back, somebody asks "
    "now whether it was the last chunk, and the answer is yes: its sample is delivered, and a, "
    "which wanted one token, ends with it.",
    cure="Commit 90669ea takes the flag with the step when it is launched, and reads that. Here "
    "each row of a batch says whether its token counts (deliver), and is never changed.",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [Request("a", [7, 3], SamplingParams(max_new_tokens=1))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=1, chunked_prefill_size=1),
        ),
        "mindie_plugin",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler.process",
            healthy="        elif deliver:\n",
            bug="        elif self.prefill.chunked_req is not req:\n",
        ),
    ),
    points_at=at(
        ("forward", 1),
        ("process", 1),
        says="step 1 computed a chunk that is not the last, but is asked about only when step 2 "
        "has been committed",
    ),
)
