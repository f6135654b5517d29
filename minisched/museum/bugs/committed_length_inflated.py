"""A request's end, while the next step has been committed for it already: one position too many."""

from __future__ import annotations

from dataclasses import replace

from ...checks.case import Case, Workload, same_on
from ...checks.judge import Finding, Verdict, judge
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...loops.overlap import AS_OF_0_5_21
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at


def hits_as_on_serial(case: Case) -> Verdict:
    """The general laws, and: what a request finds in the cache does not depend on the loop.

    On the serial loop no step is in flight when a request ends, so nothing can be counted early.
    """
    verdict, serial = judge(case), judge(same_on(case, "serial"))
    for here, there in zip(verdict.workload.requests, serial.workload.requests, strict=True):
        if here.hit_len != there.hit_len:
            sentence = (
                f"{here.rid} found {here.hit_len} cached positions, but on the serial loop "
                f"{there.hit_len}"
            )
            return replace(verdict, findings=(*verdict.findings, Finding("hits", sentence)))
    return verdict


EXHIBIT = Exhibit(
    name="committed_length_inflated",
    title="A wasted row that counts as computed",
    chapter="what the scheduler believes",
    references=("SGLang #24590", "SGLang #24745"),
    symptom="A request that goes on where another one ended finds one cached token more than it "
    "should: seqlen, and not seqlen - 1 (#24590).",
    here="Step 2 is committed for a while step 1 runs, and with it a's computed length. Step 1 "
    "brings a's last token. Step 2's row is wasted, but its position counts as computed, and goes "
    "to the prefix cache while step 2 is still writing it. So b finds two cached positions. On a "
    "loop with no step in flight it finds one. The tokens are right: step 2 really did compute "
    "that position, and b's step comes behind it.",
    cure="#24745 (closed, not merged) takes the position off again when the end is seen, if "
    "overlap is on. Here only what has come back counts (settled_len), so a step in flight cannot "
    "add to it.",
    law="hits",
    says="but on the serial loop",
    case=Case(
        Workload(
            [
                Request("a", [4], SamplingParams(max_new_tokens=1)),
                Request("b", [4, 5, 12], SamplingParams(max_new_tokens=1)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=4, max_running_requests=1),
        ),
        "overlap",
        "pool",
        AS_OF_0_5_21,
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "memory.prefix_cache:PrefixCache.cache_finished_req",
            healthy="    self.cache_unfinished_req(req, lease)\n",
            bug="""\
    lease.settled_len = min(req.computed_len, req.known_len)
    self.cache_unfinished_req(req, lease)
""",
        ),
    ),
    judge_by=hits_as_on_serial,
    points_at=at(
        ("process", 1),
        ("forward", 2),
        says="a's end is processed while step 2 runs, and step 2's position goes to the cache with "
        "the rest",
    ),
)
