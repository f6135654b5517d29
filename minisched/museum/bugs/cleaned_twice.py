"""Two clean-ups of one sequence, and neither asks whether there is anything left to clean."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import RELEASED_KEEPS_ITS_PAGES, Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="cleaned_twice",
    title="Two clean-ups free the same id",
    chapter="who owns memory",
    references=("MindIE-LLM #42",),
    symptom="With layers on two machines (edge and cloud) and asynchronous scheduling, the pool "
    "of cache ids holds the same id twice, and two sequences share one (MindIE-LLM #42).",
    here="Two books are kept, and each is cleaned when a ends. a's only step comes back, and the "
    "plugin's post-processing finds the end. The clean-up for that is told at once and frees row "
    "1 and page 1. Then the result goes on to the scheduler, which knows nothing of it, ends a, "
    "and frees both again. They are among the free ones twice: b gets page 1 for its second "
    "position, and is to get it for its third one, too.",
    cure="The edge drops the clean-up request and leaves it to post-processing; only the cloud, "
    "which never sees the end of text, obeys it (7360e68). Here a lease is released once, and "
    "then lists no pages; where a step in flight still names it, closing it twice is closing it "
    "once.",
    law="leak",
    says="2 times among the free ones",
    case=Case(
        Workload(
            [
                Request("a", [10], SamplingParams(max_new_tokens=1)),
                Request("b", [10], SamplingParams(max_new_tokens=2)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=6, max_running_requests=2, disable_radix_cache=True),
        ),
        "mindie_plugin",
        "fill_host",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "loops.mindie_plugin:deliver",
            healthy="    if output.pending is not None:\n",
            bug="""\
    if output.pending is not None:
        for req in output.pending.batch.reqs:
            if req.rid in output.finished and req.lease is not None:  # clean_eos
                engine.scheduler.leases.close(req.lease)
""",
        ),
        RELEASED_KEEPS_ITS_PAGES,
    ),
    points_at=at(
        ("process", 1),
        ("forward", 3),
        says="the clean-up has freed page 1, and the end of a frees it again; step 3 has one of "
        "the two, and the step behind it is to have the other",
    ),
)
