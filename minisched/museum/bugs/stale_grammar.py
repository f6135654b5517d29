"""A step whose mask is built before the token in front of it was committed."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="stale_grammar",
    title="A mask from a grammar that lacks the newest token",
    chapter="what the scheduler believes",
    references=("SGLang #25361",),
    symptom="",
    here="",
    cure="",
    law="identity",
    says="its grammar does not allow",
    case=Case(
        Workload(
            [Request("a", [7], SamplingParams(max_new_tokens=6, regex="\x01\x02\x03\x04\x05"))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(
                kv_tokens=40, max_running_requests=1,
                speculative_algorithm="NGRAM_GPU", speculative_num_draft_tokens=1,
            ),
        ),
        "overlap", "pool", cost=SIM_COST,
    ),
    edits=(
        Edit(
            "loops.overlap:overlap",
            healthy="            engine.process_batch_result(result_queue.popleft())\n        if batch:\n",
            bug="        if batch:\n",
        ),
    ),
)  # fmt: skip
