"""A block that is freed under a step in flight, and filled by a network that waits for nobody."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

EXHIBIT = Exhibit(
    name="freed_block_unordered_writer",
    title="A freed block, and a writer that no stream orders",
    chapter="who owns memory",
    references=("vLLM #45357", "vllm-ascend #14055"),
    symptom="With prefill and decode on separate machines and async scheduling, answers are "
    "wrong now and then. On one GPU, where the same blocks are freed at the same moment, they "
    "never are.",
    here="On the decode side step 1 comes back with a's last token, while step 2 is in flight "
    "with a surplus row, which writes a's third position to KV slot 3. The slot is free at once, "
    "and given to b, whose prompt's KV comes over the network. The transfer waits for no stream "
    "of this device: nothing lets it come after step 2. Here the prompt takes longer than the "
    "step, and all goes well, as it would most of the time. No law on tokens sees it; the order "
    "does.",
    cure="#45357 keeps freed blocks behind a fence where a KV connector may write to them: they "
    "go back when the newest step launched has come back. That is the lease rule; with two steps "
    "in flight deferred, used here, frees at the same moments.",
    law="race",
    says="transfer of step",
    case=Case(
        Workload(
            [
                Request("a", [16], SamplingParams(max_new_tokens=2)),
                Request("b", [2], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=1, free_rule="deferred"),
        ),
        "pd",
        "pool",
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
