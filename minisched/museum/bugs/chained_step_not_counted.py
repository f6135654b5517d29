"""A chained step that takes no slot and advances no length in the scheduler."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="chained_step_not_counted",
    title="A chained step that the scheduler does not count",
    chapter="what the scheduler believes",
    references=("SGLang #30093", "SGLang #30147", "SGLang #33874"),
    symptom="Nothing that was said in a long conversation is found in the cache in the next turn; "
    "and, seldom, one request's KV lies over another's (#30093).",
    here="Step 3 is chained upon step 2 without the scheduler: it takes no KV slot, and no length "
    "is advanced. Its row of the page table has nothing at that position, so it writes where the "
    "cell happens to point: into somebody else's KV, if there is somebody. And nobody waits for a "
    "step that was never counted: step 2 brings a's last token, and a's row is freed while step 3 "
    "still reads it.",
    cure="Open. #33874 (closed, not merged) commits a real slot and real lengths for every chained "
    "step; #30147 (open) only keeps what was never committed out of the pool. In SGLang decoding "
    "itself stays right, because MLX keeps each request's KV in arrays of its own, and only the "
    "shared pool suffers (#30093). Here the pool is all there is, and a chained step is committed "
    "as every other.",
    law="ownership",
    says="step 3 computes a's position 2, but a holds pages for 2 positions only",
    case=Case(
        Workload(
            [Request("a", [4], SamplingParams(max_new_tokens=2))],
            arrivals=[0],
            aborts={},
            config=SchedulerConfig(kv_tokens=3, max_running_requests=1),
        ),
        "mlx_async",
        "chain",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler.chain",
            healthy="""\
    return self.commit(Plan([], batch.reqs))
""",
            bug="""\
    self.leases.launched_step += 1
    starts, ids = [start + 1 for start in batch.starts], [(None,)] * len(batch.reqs)
    rest = batch.reqs, batch.leases, starts, ids, batch.delivers
    return ScheduleBatch(self.step, batch.mode, 0, *rest)
""",
        ),
    ),
    points_at=at(
        ("forward", 3),
        ("process", 2),
        says="step 3 has no slot to write to, and a's row is freed under it: nobody has counted it",
    ),
)
