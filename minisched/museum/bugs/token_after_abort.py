"""A token that was in flight when its request was aborted, and is delivered all the same."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...loops.overlap import AS_OF_0_5_21
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="token_after_abort",
    title="A token after the abort",
    chapter="tokens on their way",
    references=("SGLang #34112", "SGLang #34149", "SGLang #37295"),
    symptom="A client gives a request up, and gets a token all the same before it hears that it "
    "was aborted (SGLang #34112, #34149).",
    here="Step 1 computes a's prompt, and is in flight when the abort comes in. The abort is "
    "noted and waits for the result. Step 1 comes back: its token is appended first, and only "
    "then somebody looks at the note. The client hears 18, and with it that the request was "
    "aborted. The token is the right one; but whoever ends by an abort is to hear none behind "
    "it.",
    cure="Open. #37295 drops the token from what is shown, after the memory has been released, "
    "as the release counts the output to know what to free. Here an abort ends the request at "
    "once, whatever is in flight; its memory waits for the steps that name it, and what they "
    "bring says nothing any more.",
    law="ends",
    says="although it had ended (abort)",
    case=Case(
        Workload(
            [Request("a", [7], SamplingParams(max_new_tokens=1))],
            arrivals=[0],
            aborts={1: "a"},
            config=SchedulerConfig(kv_tokens=2, max_running_requests=1),
        ),
        "overlap",
        "ring",
        AS_OF_0_5_21,
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler.abort",
            healthy="    req = self.live.get(rid)\n",
            bug="""\
    req = self.live.get(rid)
    if req and req.num_output_placeholders:  # later, with the token that is on its way
        req.to_finish = FinishReason.ABORT
        return []
""",
        ),
        Edit(
            "scheduler.scheduler:Scheduler.process",
            healthy="            req.append_host(token)\n",
            bug="""\
            req.append_host(token)
            if to_finish := vars(req).get("to_finish"):
                outputs.append(self._finish(req, to_finish, token))
                continue
""",
        ),
    ),
    points_at=at(
        ("sample", 1),
        ("process", 1),
        says="step 1 was in flight when a was aborted; its token is appended and delivered before "
        "anybody looks at the abort",
    ),
)
