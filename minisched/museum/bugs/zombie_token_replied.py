"""The token of a surplus row, sent to the client after the end of text."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="zombie_token_replied",
    title="A token after the end of text",
    chapter="tokens on their way",
    references=("mini-sglang 20fcd7f",),
    symptom="One token too many: after the end of text comes whatever the surplus row has "
    "sampled. A suspicion about mini-sglang at 20fcd7f, confirmed: LLM.generate returns it in "
    "token_ids. A client of the HTTP server does not see it, as that stops reading at the "
    "message that says finished; but the detokenizer opens a new entry for the request, which "
    "nobody removes.",
    here="Step 1 samples 10, the end of text. Step 2 was launched before the host could know. "
    "When step 2 comes back, the guard that a has finished stands before the free only: a's "
    "memory is not freed again, but token 15 is appended to a's output and sent to its client.",
    cure="Until e7d4f65 mini-sglang passed over a request that had finished before it looked at "
    "the token; since then it looks only at whether to free. Here the row of a request that has "
    "ended is a wasted row: it is counted, and says nothing.",
    suspected_at="mini-sglang 20fcd7f",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [Request("a", [18], SamplingParams(max_new_tokens=2))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=1),
            eos_ids=frozenset({10}),
        ),
        "mini_overlap",
        "token_pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.output_processor:OutputProcessor.late",
            healthy="    if error and self.is_stale(req):\n",
            bug="""\
    if token is not None and req.finished:  # its memory is not freed again, but that is all
        req.append_host(token)
        return [Output(req.rid, token)]
    if error and self.is_stale(req):
""",
        ),
    ),
    points_at=at(
        ("sample", 2),
        ("process", 2),
        says="a ended with step 1; step 2 has its surplus row, and 15 is sent to a's client",
    ),
)
