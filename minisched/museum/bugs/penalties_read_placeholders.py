"""Penalties over a history in which a placeholder stands for the newest token."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="penalties_read_placeholders",
    title="Penalties that read -1",
    chapter="tokens on their way",
    references=("vLLM #27878", "vLLM #26467", "vLLM #27910", "vLLM #52461", "SGLang #8056"),
    symptom="Penalties have no effect, or the wrong one, as soon as scheduling is asynchronous "
    "(#27878).",
    here="Step 2 is launched while step 1 runs, so the host does not know step 1's token, and its "
    "list of a's output ends with -1. The penalties of step 2 are worked out from that list at "
    "once, and so are those of step 3, from 5 and -1: nothing is taken off for 12, which so comes "
    "a second time, and something is taken off the last token of the vocabulary, which nobody has "
    "said.",
    cure="#26467 waits, just before sampling, for the copy of the tokens in front, and puts each "
    "token in the place of its -1; #27910 mends that where only some requests of a batch have "
    "penalties. A logits processor that somebody brings along could read -1 for longer (#52461, "
    "open). In SGLang's thread version it may read the output while the scheduler appends to it "
    "(#8056, open). Here the sampling of such a step waits until the host knows the tokens before "
    "it.",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [Request("a", [4], SamplingParams(max_new_tokens=3, frequency_penalty=2.0))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1),
        ),
        "vllm_async",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "worker.sampling_info:_lacks",
            healthy='return "penalty" if missing > late_penalties else ""',
            bug='return ""',
        ),
        Edit(
            "worker.sampling_info:output_before",
            healthy="""\
    if wanted > len(output):
        raise RuntimeError(
            f"penalties of {req.rid} read {wanted} tokens, but the host knows only "
            f"{len(output)}: the loop had to wait."
        )
""",
            bug="""\
    output += [-1] * (wanted - len(output))
""",
        ),
    ),
    points_at=at(
        ("sample", 2),
        ("sample", 3),
        says="step 3 is sampled with penalties over 5 and -1: nobody knew step 2's token when they "
        "were worked out",
    ),
)
