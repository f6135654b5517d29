"""Row reuse, blamed for wrong tokens: on one stream it is harmless."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...loops.overlap import AS_OF_0_5_21
from ...scheduler import SchedulerConfig
from ..exhibit import Refuted

REFUTED = Refuted(
    name="row_reuse_on_one_stream",
    title="Row reuse, blamed for a tensor's short life",
    references=(
        "SGLang #18803",
        "SGLang #18746",
        "SGLang #18744",
        "SGLang #18958",
        "SGLang #26380",
    ),
    suspicion="With overlap, index errors on the device (SGLang #18744): a request that has "
    "finished gives its row back while a forward that names it still runs, and the next request "
    "gets the row. That was blamed, and #18746 and #18803 wanted to free rows later.",
    truth="The maintainers rejected it: the memory of a tensor was handed out while the forward "
    "stream had yet to read it (see tensor_freed_under_kernel). Row 1 is reused here too: b gets "
    "it while step 2 runs with a's surplus row. But all that reads or writes a row are ops on "
    "one stream, each with its own copy of what it needs, so b's come after a's; and every law "
    "holds. It is another thing where a second stream writes the row: see row_reused_in_flight, "
    "and SGLang's own barriers for its schedule stream (#26380).",
    case=Case(
        Workload(
            [
                Request("a", [18], SamplingParams(max_new_tokens=2)),
                Request("b", [7, 3, 5], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1, free_rule="at_once"),
            eos_ids=frozenset({10}),
        ),
        "overlap",
        "pool",
        AS_OF_0_5_21,
        cost=SIM_COST,
    ),
)
