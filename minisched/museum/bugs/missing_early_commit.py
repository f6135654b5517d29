"""A step whose mask is built before the token in front of it was committed."""

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
    name="missing_early_commit",
    title="A result that nobody takes in before the next step",
    chapter="what the scheduler believes",
    references=("SGLang #25361", "SGLang #24082"),
    symptom="On the decode side of PD separation, with speculation and a grammar, masks lack the "
    "newest tokens, and results pile up in their queue: event_loop_overlap_disagg_decode lacks a "
    "guard that SGLang's ordinary overlap loop has (SGLang #25361).",
    here="The guard is taken out of the ordinary loop. Step 2 would be one with drafts and a "
    "grammar, and needs step 1's token for its mask: overlap is off for it. So step 1's result is "
    "to be taken in before step 2 is launched, and not after it. The part before is missing. Step "
    "2's mask is built without step 1's token; and as every step turns overlap off for the next "
    "one, nobody takes anything in. When nothing is left to launch, one result is taken, and the "
    "rest stays in the queue for ever.",
    cure="Where overlap is off for a batch, the pending result is popped and processed before that "
    "batch is launched, so that its mask is built from every token in front and the queue is "
    "empty: #24082, which was merged; #25361 was closed.",
    law="livelock",
    says="every request must end",
    case=Case(
        Workload(
            [Request("a", [7], SamplingParams(max_new_tokens=1, regex="[abc]+"))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(
                kv_tokens=3,
                max_running_requests=1,
                speculative_algorithm="NGRAM_GPU",
                speculative_num_draft_tokens=1,
            ),
            vocab_size=100,
        ),
        "overlap",
        "pool",
        AS_OF_0_5_21,
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "loops.overlap:overlap",
            healthy="""\
            engine.process_batch_result(result_queue.popleft())
        if batch:
""",
            bug="""\
        if batch:
""",
        ),
    ),
    points_at=at(
        ("launch", 2),
        ("copy", 2),
        says="step 2 is launched before step 1's result is taken in, and its own result is never "
        "taken in",
    ),
)
