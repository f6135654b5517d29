"""A row of the request table, rewritten on the schedule stream while a forward pass reads it."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...loops.overlap import AS_OF_0_5_21
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit

IN_THE_FORWARD_PASS = """\
    step.flat, step.touches = flat, self.touches.declare(batch, flat)
"""
ON_THE_SCHEDULE_STREAM = """\
    table, flat = flat, replace(flat, table_index=[], table_slots=[])
    step.flat, step.touches = flat, self.touches.declare(batch, flat)
    at, slots, stream = table.table_index, table.table_slots, self.device.stream("schedule")
    touch = self.touches.inputs(batch)._replace(kind="write", resource="page table", cells=at)
    self.device.stream("forward").wait(stream.launch(
        self.page_table.__setitem__, self.device.xp.asarray(at), self.device.xp.asarray(slots),
        name="req_to_token", label=step.label, touches=[touch],
    ))
"""
BARRIER = ON_THE_SCHEDULE_STREAM.replace(
    "    touch =",
    """\
    if hasattr(self, "newest_forward"):
        stream.wait(self.newest_forward)  # _apply_war_barrier
    touch =""",
)

EXHIBIT = Exhibit(
    name="request_table_rewritten",
    title="A request table that is rewritten while a forward pass reads it",
    chapter="streams and buffers",
    references=(
        "SGLang #26380",
        "SGLang #28363",
        "SGLang #31687",
        "SGLang #26646",
        "SGLang #27967",
    ),
    symptom="With overlap scheduling and prefill apart from decode, the score on gsm8k is lower in "
    "some runs than in others. Nothing fails, and every run by itself looks well. #26380 names two "
    "tables that are written while a forward pass reads them: the request table, and the index of "
    "the sliding window, to which it lays that score.",
    here="The table that says in which KV slots a request's tokens lie (req_to_token, here the "
    "page table) is on the device, and SGLang's scheduler writes it on a stream of its own. Step 1 "
    "comes back with a's last token, while step 2 is in flight with a surplus row for a, and reads "
    "row 1 of the table. The row is free at once and given to b, whose slots are written to it on "
    "the schedule stream. b's step waits for that write; but nothing lets the write wait for step "
    "2, which may then read, and write through, a row that is half a's and half b's. That step 3 "
    "comes after step 2 on the forward stream does not help: the table is not written there. In "
    "this run step 2 had read the row in time.",
    cure="#26380 lets the schedule stream wait for the forward stream before it writes "
    "(_apply_war_barrier). That serializes the two, so #28363 waits for an event behind the last "
    "read of the table instead, which comes before the pass itself where a graph is replayed. "
    "#31687 puts the barrier right behind the launch, since processing a result writes as well. It "
    "is on for CUDA alone (#26646), elsewhere if asked for (#27967). Here the forward pass fills "
    "the table itself, so that the order of its stream orders these writes too; with the barrier "
    "in the bug's place every law holds as well.",
    law="race",
    says="req_to_token of step 3",
    case=Case(
        Workload(
            [
                Request("a", [18], SamplingParams(max_new_tokens=1)),
                Request("b", [7], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=2, max_running_requests=1, free_rule="at_once"),
        ),
        "overlap",
        "ring",
        AS_OF_0_5_21,
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "worker.worker:Worker.lay_out", healthy=IN_THE_FORWARD_PASS, bug=ON_THE_SCHEDULE_STREAM
        ),
    ),
    original_cure=(
        Edit("worker.worker:Worker.lay_out", healthy=IN_THE_FORWARD_PASS, bug=BARRIER),
        Edit(
            "worker.worker:Worker.queue",
            healthy="    step.launched.append(done)\n",
            bug="""\
    step.launched.append(done)
    if op.gives == "logits_output":
        self.newest_forward = done
""",
        ),
    ),
)
