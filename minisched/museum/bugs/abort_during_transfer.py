"""An aborted request that stays known for as long as a transfer holds its memory."""

from __future__ import annotations

from ...checks.judge import Case
from ...checks.workload import Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..shared_edits import RELEASED_KEEPS_ITS_PAGES

EXHIBIT = Exhibit(
    name="abort_during_transfer",
    title="Aborted while its KV is on the way",
    chapter="who owns memory",
    references=("vLLM #33377",),
    symptom="Under load, with async scheduling and a KV connector, aborted requests free their "
    "blocks twice (vLLM #33377).",
    here="b has a page on the decode side, and waits for its KV, when it is aborted. Its page "
    "has to stay: the network may write to it. So b stays known until the prefill side has "
    "answered. Then the transfer ends: page 4 is let go, and as b has ended it is free. But "
    "whoever hears of the end asks only whether b is known, and takes it for a request that is "
    "to start. Its first token is its last one, b ends for the second time, and page 4 and its "
    "row are freed again.",
    cure="A request used to be skipped if it was gone; #33377 asks whether it has finished, as "
    "one that waits for a transfer has finished and is not gone. Here nobody is known who has "
    "ended: the hold is on the lease, not on the request.",
    law="leak",
    says="freed twice",
    case=Case(
        Workload(
            [
                Request("a", [13], SamplingParams(max_new_tokens=3)),
                Request("b", [2], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={3: "b"},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1),
        ),
        "pd",
        "pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.prealloc:DecodeScheduler._finish",
            healthy="    return super()._finish(req, reason, token, error)\n",
            bug="""\
    lease, output = req.lease, super()._finish(req, reason, token, error)
    if lease is not None and lease.num_transfers:  # known until its memory can be freed
        self.live[req.rid], req.lease = req, lease
    return output
""",
        ),
        RELEASED_KEEPS_ITS_PAGES,
    ),
)
