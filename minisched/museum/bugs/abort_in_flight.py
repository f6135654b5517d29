"""A request that is aborted, and then ends with the token that was on its way."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="abort_in_flight",
    title="Aborted, and then finished",
    chapter="who owns memory",
    references=("mini-sglang #111", "mini-sglang 20fcd7f"),
    symptom="A client hangs up while a token is on its way, and that token ends the text. The "
    "row is freed twice, so the next two requests share it. A suspicion about mini-sglang at "
    "20fcd7f, confirmed: the source frees it in both places, and this model of it shows the "
    "double free.",
    here="Step 2 is in flight, and has a in it, when the abort comes in. Aborting takes a out of "
    "the running set and gives its memory up, but does not put it among those that have "
    "finished. Step 2 comes back, and what waited for it is freed: pages 1 and 2 and row 1. Its "
    "token is 15, the end of text, and a is not among the finished, so it finishes: row 1 is "
    "freed again. (Its pages would be too, if a released lease still listed them. A last token "
    "by length does no harm: such a request has left the running set at its launch, where the "
    "abort does not find it.)",
    cure="#111 (open) only queues the abort. After the results are processed, it frees whoever "
    "is in no step in flight and did not finish by itself. Here an abort ends the request as "
    "everything else does: the lease is given up once, and the row that comes back finds that it "
    "is not the request's any more.",
    suspected_at="mini-sglang 20fcd7f",
    law="leak",
    says="row 1",
    case=Case(
        Workload(
            [Request("a", [18], SamplingParams(max_new_tokens=3))],
            arrivals=[0],
            aborts={2: "a"},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1, disable_radix_cache=True),
            eos_ids=frozenset({15}),
        ),
        "mini_overlap",
        "token_pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler._finish",
            healthy="    lease, req.lease = req.lease, None\n",
            bug="""\
    lease = req.lease
    if reason is not FinishReason.ABORT or req.device_len == req.max_device_len:
        req.lease = None
""",
        ),
    ),
    points_at=at(
        ("receive", 0, 1),
        ("process", 2),
        says="a is aborted while step 2 runs; step 2's result frees row 1, and its token ends a "
        "again: row 1 is freed once more",
    ),
)
