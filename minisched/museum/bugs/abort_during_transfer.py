"""An aborted request that stays known for as long as a transfer holds its memory."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import ENDED_KEEPS_ITS_LEASE, RELEASED_KEEPS_ITS_PAGES, Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="abort_during_transfer",
    title="Aborted while its KV is on the way",
    chapter="who owns memory",
    references=("vLLM #33377",),
    symptom="Under load, with async scheduling and a KV connector, aborted requests free their "
    "blocks twice (vLLM #33377).",
    here="a has pages 1 and 2 on the decode side. The KV of the first chunk of its prompt has "
    "come, that of the second has not, when a is aborted. The pages have to stay: the network "
    "may write to them. So a stays known until the prefill side has answered. It answers: the "
    "pages are let go, and as a has ended they are free. But whoever hears the answer asks only "
    "whether a is known, and takes it for a request that is to start. Its first token is its "
    "last one, a ends for the second time, and the pages and row 1 are freed again.",
    cure="A request used to be skipped if it was gone; #33377 asks whether it has finished, as "
    "one that waits for a transfer has finished and is not gone. The same is asked here. And the "
    "hold is on the lease, not on the request, which lets go of its lease when it ends.",
    law="leak",
    says="page 1 was freed twice",
    case=Case(
        Workload(
            [Request("a", [13, 13], SamplingParams(max_new_tokens=1))],
            arrivals=[0],
            aborts={1: "a"},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=1, chunked_prefill_size=1),
        ),
        "pd",
        "pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.pd:DecodeScheduler.answered",
            healthy="    if req is None or req.finished:\n",
            bug="    if req is None:\n",
        ),
        ENDED_KEEPS_ITS_LEASE,
        RELEASED_KEEPS_ITS_PAGES,
    ),
    points_at=at(
        ("transfer", 2),
        ("receive", 0, 3),
        says="a was aborted while step 2's KV was on its way; the answer frees page 1, and then "
        "starts a, which ends again: page 1 is freed once more",
    ),
)
