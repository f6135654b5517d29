"""Retraction frees what the host knows of, and forgets what a step in flight has taken."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...loops.overlap import AS_OF_0_5_21
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="retracted_by_known_length",
    title="Retraction with output in flight leaves a page behind",
    chapter="who owns memory",
    references=("SGLang #11981", "SGLang #11970", "SGLang #14972", "SGLang #12224"),
    symptom='"token_to_kv_pool_allocator memory leak detected" when the server is idle (SGLang '
    "#11970): with overlap, each retraction loses what the step in flight had taken. An "
    "allocation that fails with both (#14972) was reported two months later; whether for the same "
    "reason is not known.",
    here="Step 5 is in flight, and has taken page 8 for b's fourth position. Now a needs a page "
    "and b is retracted. What b holds is worked out from the tokens that the host knows: prompt "
    "and three outputs, without the last of them, for which nothing is written yet. These are "
    "three positions, but step 5 writes a fourth. Pages 4 and 6 come back (page 2 is in the "
    "cache), and page 8 belongs to nobody for ever. Without overlap the two lengths are the "
    "same.",
    cure="#11981 mended the retraction; #12224 then gave up working it out: each request counts "
    "the KV it has committed and allocated, wherever that happens. Here a lease lists its pages, "
    "so nobody has to know a length to free them.",
    law="leak",
    says="was retracted",
    case=Case(
        Workload(
            [
                Request("a", [14], SamplingParams(max_new_tokens=4)),
                Request("b", [17], SamplingParams(max_new_tokens=4)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(
                kv_tokens=8, max_running_requests=2, schedule_conservativeness=0.0
            ),
        ),
        "overlap",
        "ring",
        AS_OF_0_5_21,
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "policy.plan:Retraction.retract",
            healthy="    req.restart()\n",
            bug="""\
    if lease is not None:
        del lease.pages[self.leases.allocator.pages_for(req.known_len - 1) :]
    req.restart()
""",
        ),
    ),
)
