"""One pinned buffer for every upload, rewritten before the copy from it has run."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="pinned_buffer_rewritten",
    title="A pinned buffer that is rewritten before its copy has run",
    chapter="streams and buffers",
    references=("mini-sglang #102", "mini-sglang #103", "vLLM #25279", "vLLM #31841"),
    symptom="An illegal memory access under overlap; with overlap off the same benchmark runs "
    "through (mini-sglang #102). In vLLM, with images, crashes now and then under sustained load "
    "(#31841).",
    here="All uploads are made from one pinned buffer. Step 1's upload of a's prompt is queued on "
    "the scheduler's stream. It is asynchronous: the host goes on, lays out step 2, and writes "
    "b's prompt into the same buffer. Nothing says that the first copy has run by then. In this "
    "run it has, since copies are quick and the stream is free; had it started late, a's row of "
    "the token pool would hold b's prompt.",
    cure="vLLM waits for an event behind the last step's copies before it writes to buffers that "
    "are used again (#25279), or has two buffers and takes them in turn (#31841). Here each step "
    "has host memory of its own, which its result holds until the copy has ended.",
    law="race",
    says="pinned",
    case=Case(
        Workload(
            [
                Request("a", [4], SamplingParams(max_new_tokens=1)),
                Request("b", [7], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 1],
            aborts={},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=2),
        ),
        "mini_overlap",
        "token_pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "relay.token_pool:TokenPool.upload",
            healthy="""\
    source, target = self.xp.asarray(tokens), self.xp.asarray(cells)
    self.recorder.program.touch("write", "pinned", [batch.step])
    touches = [Touch("read", "pinned", [batch.step]), Touch("write", "token pool", cells)]
""",
            bug="""\
    source, target = vars(self).setdefault("pinned", (self.xp.asarray([]), self.xp.asarray([])))
    source[:], target[:] = tokens, cells
    self.recorder.program.touch("write", "pinned", [0])
    touches = [Touch("read", "pinned", [0]), Touch("write", "token pool", cells)]
""",
        ),
    ),
)
