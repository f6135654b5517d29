"""Two steps in flight at a preemption, and one of them is thrown away."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import STALE_BY_COUNT, Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="one_frame_discarded",
    title="Exactly one output is discarded",
    chapter="what the scheduler believes",
    references=("vLLM #47900", "vLLM #48245"),
    symptom="EngineCore dies with assert num_output_placeholders >= 0, under memory pressure with "
    "async scheduling: output in flight at a preemption comes back to counters that have begun "
    "anew (vLLM #47900). That pull request throws exactly one output away for it. With more than "
    "two steps in flight, as with pipeline parallelism, that is one too few (vLLM #48245), and the "
    "request repeats or swaps tokens.",
    here="There is no page left for b's next step. As the newest, it is preempted itself, with "
    "steps 3 and 4 in flight. Its output in flight is marked to be thrown away, all of it as "
    "one: what comes back first clears the mark. Step 3 comes back: its token, 16, is thrown "
    "away, and b is free to start again. Step 5 computes what is known of b and samples 16 "
    "again. Step 4 comes back before it. Nothing says that it is from before the preemption, so "
    "its token, 4, is taken for the third, and the 16 behind it for the fourth. With two steps "
    "in flight there is never more than one to throw away, and the flag is right.",
    cure="#47900 (closed, not merged) counted at most one output in flight. #48245, which was "
    "merged, marks everything that is in flight as stale and lets each step that comes back drain "
    "its share; the request is not resumed before. And stale tokens are delivered: they were "
    "computed before anything was taken away.",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [
                Request("a", [8], SamplingParams(max_new_tokens=3)),
                Request("b", [9], SamplingParams(max_new_tokens=5)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(
                rules="sglang",
                kv_tokens=7,
                max_running_requests=2,
                run_first="unified",
            ),
        ),
        "vllm_async",
        "pool",
        {"depth": 3},
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.output_processor:drain",
            healthy="            req.num_stale_output_tokens -= len(ids)\n",
            bug="            req.num_stale_output_tokens = 0\n",
        ),
        STALE_BY_COUNT,
    ),
)
