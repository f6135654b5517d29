"""A row that is handed on while a step in flight still reads and writes it."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="row_reused_in_flight",
    title="A row that gets a new owner while a forward reads it",
    chapter="who owns memory",
    references=("mini-sglang #89", "mini-sglang e7d4f65", "mini-sglang 20fcd7f"),
    symptom="A prompt is answered as if it said something else, once in a while, when somebody's "
    "end of text comes just before. A suspicion about mini-sglang at 20fcd7f, confirmed: since "
    "e7d4f65 a request's row is free as soon as its end is read.",
    here="Step 1 samples 10, the end of text, but step 2 is in flight with a surplus row for a: "
    "its forward reads position 1 of row 1 of the token pool, and its sample writes position 2. "
    "Row 1 is free when step 1 has been processed, and b gets it. Its prompt is copied to "
    "positions 0 to 2 on the scheduler's stream, and nothing lets that wait for step 2 on the "
    "engine's stream. Here the copy comes first, a's late token overwrites the last token of b's "
    "prompt, and b's answer is wrong.",
    cure="mini-sglang before e7d4f65 freed nobody whom the ongoing batch names "
    "(finished_reqs.difference(ongoing_reqs)); #89 argued about a race like it and was closed. "
    "Here that rule is called deferred, and what is used is the lease: memory goes back when "
    "every step that names it has come back. On one stream the early free would be harmless: see "
    "row_reuse_on_one_stream.",
    suspected_at="mini-sglang 20fcd7f",
    law="race",
    says="writes what sample of step 2",
    case=Case(
        Workload(
            [
                Request("a", [18], SamplingParams(max_new_tokens=2)),
                Request("b", [7, 3, 5], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1, free_rule="deferred"),
            eos_ids=frozenset({10}),
        ),
        "mini_overlap",
        "token_pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "memory.pool:deferred",
            healthy="    return not (is_ongoing and lease.last_step == pool.launched_step)\n",
            bug="    return True\n",
        ),
    ),
)
