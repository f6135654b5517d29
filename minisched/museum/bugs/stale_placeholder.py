"""A placeholder that nobody overwrites, because its request was left out of a step."""

from __future__ import annotations

from ...checks.case import Case, Workload
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at

EXHIBIT = Exhibit(
    name="stale_placeholder",
    title="A placeholder that reaches the model",
    chapter="tokens on their way",
    references=("vLLM #46899", "vLLM #40768", "vLLM #37092"),
    symptom="A crash on the device that is seldom: token ids are out of bounds where they are "
    "looked up. It takes a request that is left out of a step now and then, as happens with "
    "images or a small token budget.",
    here="Step 1 leaves a's token on the device; the host's copy of the ids holds -1 in its "
    "place. Step 2 is b's prompt, and a is left out of it. Step 3 has a again. Its -1 still "
    "stands, although the host knows the token by now. Only requests that were in the step before "
    "are filled in, and a was not: the model gets -1 as a token.",
    cure="In vLLM it is the placeholders of drafts that leak so, in async_scheduler.py. #46899 "
    "clears them for a request that is left out of a step, #40768 where it was not in the batch "
    "before, and #37092 puts 0 in their place; all three were closed, none was merged. Here a "
    "token that the host knows is sent as itself, and a relay that would have to leave a "
    "placeholder standing refuses to.",
    law="identity",
    says="alone it gives",
    case=Case(
        Workload(
            [
                Request("a", [4], SamplingParams(max_new_tokens=2)),
                Request("b", [7], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(rules="sglang", kv_tokens=6, max_running_requests=2),
        ),
        "vllm_async",
        "prev_sampled",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler._add_decodes",
            healthy="(req.output_ids[-1] if start < req.known_len else None,)",
            bug="(None,)",
        ),
        Edit(
            "relay.prev_sampled:PrevSampled.bind",
            healthy="""\
    rids = (rid for rid, row in zip(batch.rids, batch.ids, strict=True) if None in row)
""",
            bug="""\
    rids = [rid for rid, row in zip(batch.rids, batch.ids, strict=True) if None in row]
    common = [rid in self.prev_req_id_to_index for rid in rids]
    targets = [at for at, there in zip(targets, common) if there]
    rids = [rid for rid, there in zip(rids, common) if there]
""",
        ),
    ),
    points_at=at(
        ("forward", 3),
        says="the model reads -1: a was not in step 2, so nobody fills its placeholder in",
    ),
)
