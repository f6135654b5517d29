"""Two clean-ups of one sequence, and neither asks whether there is anything left to clean."""

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
    name="cleaned_twice",
    title="Two clean-ups free the same id",
    chapter="who owns memory",
    references=("MindIE-LLM #42",),
    symptom="",
    here="",
    cure="",
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
)
