"""Decode batches in the order of a set: each rank of a tensor-parallel group has another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from ...checks.case import Case, Workload
from ...checks.judge import Finding, Verdict, judge
from ...checks.overlap import forwards
from ...core import Request, SamplingParams
from ...devices.cost import SIM_COST
from ...scheduler import SchedulerConfig
from ..exhibit import Exhibit
from ..patch import Edit
from ..picture import at


@contextmanager
def addresses(of: Mapping[str, int]) -> Iterator[None]:
    """Requests hash as if they lay there; by default they hash by their real address."""

    def address(req: Request) -> int:
        return of[req.rid]

    Request.__hash__ = address  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del Request.__hash__


def ranks_agree(case: Case) -> Verdict:
    """The general laws, and: two ranks run the same rows in the same order.

    The ranks are two runs that differ only in where their requests lie in memory.
    """
    rids = [req.rid for req in case.workload.requests]
    ranks = []
    for order in (rids, rids[::-1]):
        with addresses({rid: at for at, rid in enumerate(order)}):
            ranks.append(judge(case))
    for one, other in zip(*(forwards(rank.trace) for rank in ranks), strict=False):
        if one.rids != other.rids:
            sentence = (
                f"step {one.step} runs {' '.join(one.rids)} on rank 0, "
                f"and {' '.join(other.rids)} on rank 1"
            )
            return replace(ranks[0], findings=(*ranks[0].findings, Finding("ranks", sentence)))
    return ranks[0]


EXHIBIT = Exhibit(
    name="ranks_disagree",
    title="Two ranks that run one batch in two orders",
    chapter="what the scheduler believes",
    references=("mini-sglang #113",),
    symptom="With tensor parallelism the tokens are wrong now and then; one GPU alone is always "
    "right.",
    here="The running requests are a set, and a decode batch is the list of it. A set of plain "
    "objects is in the order of their addresses, which each process has its own. Here two ranks "
    "run the same requests, and differ only in that: rank 0 puts a first, rank 1 puts b first. "
    "Each alone gives the right tokens; but each computes a part of every row, and the parts of "
    "different rows are added up.",
    cure="mini-sglang #113 sorts the requests by their ids when it makes a batch. Here they are "
    "keys of a dict, in the order in which their prompts were done.",
    law="ranks",
    says="on rank 1",
    case=Case(
        Workload(
            [
                Request("a", [4], SamplingParams(max_new_tokens=2)),
                Request("b", [7], SamplingParams(max_new_tokens=2)),
            ],
            arrivals=[0, 0],
            aborts={},
            config=SchedulerConfig(kv_tokens=7, max_running_requests=2),
        ),
        "mini_overlap",
        "token_pool",
        cost=SIM_COST,
    ),
    edits=(
        Edit(
            "policy.plan:DecodeManager.schedule_next_batch",
            healthy="        for req in self.running_reqs\n",
            bug="        for req in set(self.running_reqs)\n",
        ),
    ),
    judge_by=ranks_agree,
    points_at=at(
        ("forward", 2),
        says="step 2 runs a b here, and b a on the other rank",
    ),
)
