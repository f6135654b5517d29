"""An input whose memory is handed out again while a kernel has yet to read it."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...loops.overlap import AS_OF_0_5_21
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="tensor_freed_under_kernel",
    title="An input whose memory is handed out while a kernel reads it",
    chapter="streams and buffers",
    references=("SGLang #18744", "SGLang #18958", "SGLang #34076", "SGLang #2070", "SGLang #18803"),
    symptom="Under overlap alone, now and then: an index out of bounds on the device (#18744), or "
    "an illegal memory access (#2070).",
    here="The record of batches has one slot. Step 1 is running when the host has laid out step 2 "
    "and records it: step 1 falls out, nobody names its tensors any more, and their memory may be "
    "handed out again. Step 1's kernels have yet to read them, and no event orders the two. In "
    "this run nobody took the memory in time, so every token is right; only the order shows the "
    "bug. With an allocator that hands it out at once, tokens are wrong "
    "(tests/worker/test_generation_batch_result.py).",
    cure="Two slots in turn hold the newest batches, with every tensor that the forward stream "
    "reads (record_batch_in_overlap); or the tensor is told which stream reads it (record_stream, "
    "as in #34076, open). Where the allocator orders reuse by itself, as torch's default one "
    "happened to, nothing shows; #34076 saw 19 of 20 runs go wrong with another one. #18803 blamed "
    "the reuse of a row of the request table instead, and was turned down.",
    law="race",
    says="inputs",
    case=Case(
        Workload(
            [Request("a", [7], SamplingParams(max_new_tokens=1))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=2, max_running_requests=1),
        ),
        "overlap",
        "pool",
        AS_OF_0_5_21,
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "worker.worker:Worker.__init__",
            healthy="max(pins, depth) if pins",
            bug="1 if pins",
        ),
    ),
)
