"""A sequence that starts again, taken for one that goes on."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="reprefilled_row_filled",
    title="A sequence that starts again, taken for one that goes on",
    chapter="tokens on their way",
    references=("MindIE-LLM #75",),
    symptom="After a preemption an answer goes wrong: a sequence that was computed anew does not "
    "go on as before.",
    here="Step 1 computes both prompts, and leaves a token for a and one for b on the device. "
    "Memory is short, so b is preempted while step 1 runs; its token is dropped. Step 2 computes "
    "b's prompt anew. Its id is among those of the last step, so its row counts as a hit: the "
    "prompt's token is overwritten by what step 1 sampled for b, and its position is raised by "
    "one.",
    cure="Commit 212297e takes rows that are prompts out of the mask, row by row. Here a row is "
    "filled if its own token is unknown, and a pipeline that has been emptied forgets its last "
    "batch.",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [
                Request("a", [7, 7], SamplingParams(max_new_tokens=1)),
                Request("b", [1], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=2, run_first="unified"),
        ),
        "mindie_plugin",
        "fill_device",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "relay.placeholder_fill:prepare_masks_for_filling",
            healthy="        if None in ids:\n",
            bug="        if req.rid in place:\n",
        ),
        Edit(
            "relay.placeholder_fill:PlaceholderFill.reset",
            healthy="    self.last_sequence_ids = ()\n",
            bug="    pass\n",
        ),
    ),
    points_at=at(
        ("sample", 1),
        ("forward", 2),
        says="step 2 computes b's prompt anew, but takes what step 1 sampled for b in place of the "
        "prompt's token",
    ),
)
