"""Progress and order: each rule is red on a bug that breaks it, and silent on healthy code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.case import Case
from minisched.checks.judge import judge
from minisched.checks.play import EACH, most_turns
from minisched.checks.progress.queue_order import QueueOrder
from minisched.checks.workload import Workload
from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.loops.registry import LOOPS
from minisched.museum.patch import Edit, put_in
from minisched.policy.schedule_policy import POLICIES
from minisched.scheduler import Scheduler, SchedulerConfig

SAME = (7, 7, 11, 2)  # what prompts begin with that share a prefix


def request(rid: str, prompt: Sequence[int], outputs: int, priority: int = 0) -> Request:
    """One that says exactly so many tokens."""
    params = SamplingParams(max_new_tokens=outputs, ignore_eos=True)
    return Request(rid, tuple(prompt), params, priority=priority)


def a_case(
    requests: Sequence[Request],
    loop: str = "overlap",
    relay: str = "",
    arrivals: Sequence[int] = (),
    aborts: Mapping[int, str] | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Case:
    """Those requests, at once unless told otherwise, on a loop with settings."""
    config = SchedulerConfig(**{"kv_tokens": 64, "schedule_conservativeness": 0.0, **settings})
    at = list(arrivals) or [0] * len(requests)
    workload = Workload(list(requests), at, dict(aborts or {}), config)
    return Case(workload, loop, relay, options or {})


def crowd(count: int = 4, outputs: int = 4, **settings: Any) -> Case:
    """Prompts of different tokens and lengths, in a pool that has room for all of them."""
    lengths = (3, 2, 4, 1, 2, 3)[:count]
    requests = [request(f"r{at}", [at + 1] * size, outputs) for at, size in enumerate(lengths)]
    return a_case(requests, **settings)


def tight(loop: str = "overlap", late: bool = False, **settings: Any) -> Case:
    """Three who are admitted one after the other, and whose outputs do not fit together."""
    requests = [
        request("r0", [1, 1], 8), request("r1", [2, 2], 8), request("r2", [3, 3, 3], 8),
    ]  # fmt: skip
    return a_case(
        requests,
        loop,
        arrivals=[0, 4, 5] if late else [0, 1, 2],
        **{"kv_tokens": 16, "max_running_requests": 3, **settings},
    )


def starved(**settings: Any) -> Case:
    """Five who need a page each step, one who gives up, with pages on their way, and a small one.

    The small one comes when those who decode wait for pages, of which some are there for it.
    """
    rows = [request(f"r{at}", [at + 1], 12) for at in range(5)]
    return a_case(
        [*rows, request("r8", [9] * 6, 12), request("r9", [10], 1)],
        "vllm_async", "pool", [0] * 6 + [7], {6: "r8"}, {"depth": 4},
        **{"kv_tokens": 31, "max_running_requests": 7, "disable_radix_cache": True, **settings},
    )  # fmt: skip


def starved_of_drafts() -> Case:
    """The same for three whose drafts need several pages each step, with vLLM's one budget."""
    rows = [request(f"r{at}", [at + 1], 12) for at in range(3)]
    return a_case(
        [*rows, request("r8", [9] * 6, 12), request("r9", [10], 1)],
        "overlap", "pool", [0] * 4 + [5], {4: "r8"},
        kv_tokens=29, max_running_requests=6, disable_radix_cache=True, run_first="unified",
        speculative_algorithm="NGRAM_GPU",
    )  # fmt: skip


def both_sides(arrivals: Sequence[int] = (), **settings: Any) -> Case:
    """Four on the two sides of ``pd``, whose prompts are computed before pages are reserved."""
    requests = [request(f"r{at}", [at + 1] * 2, outputs) for at, outputs in enumerate((2, 9, 5, 5))]
    case = a_case(requests, "pd", "", arrivals, options={"prealloc_first": False}, **settings)
    return replace(case, cost=SIM_COST)


def ranked(**settings: Any) -> Case:
    """Two who run, and one of higher priority that comes later."""
    requests = [
        request("r0", [1, 1], 8, priority=1),
        request("r1", [2, 2], 8, priority=0),
        request("r2", [3, 3, 3], 4, priority=settings.pop("high", 9)),
    ]
    return a_case(
        requests, arrivals=[0, 0, 3], schedule_policy="priority",
        priority_scheduling_preemption_threshold=3, **{"max_running_requests": 2, **settings},
    )  # fmt: skip


def families(policy: str) -> Case:
    """One leaves a prefix in the cache; then one of its family waits behind three strangers."""
    requests = [
        request("r0", [*SAME, 1], 2), request("r1", [9], 6), request("r2", [5, 6], 2),
        request("r3", [*SAME, 3], 2), request("r4", [*SAME, 4], 2), request("r5", [9, 6], 2),
    ]  # fmt: skip
    return a_case(
        requests, "serial", arrivals=[0, 2, 4, 4, 4, 4], schedule_policy=policy,
        max_running_requests=1,
    )  # fmt: skip


@dataclass(frozen=True)
class Bug:
    """A change of the engine, and the small workload on which a law sees it."""

    where: str
    healthy: str
    bug: str
    law: str
    says: str
    case: Case

    @property
    def edits(self) -> list[Edit]:
        return [Edit(self.where, self.healthy, self.bug)]


QUEUE, PREFILL = "policy.waiting_queue:WaitingQueue", "policy.prefill:PrefillManager"
DECODE, RETRACTION = "policy.decode:DecodeManager", "policy.retraction:Retraction"
UNIFIED, PREEMPT = "policy.unified:UnifiedBudget", "policy.preemption:preempt_to_schedule"

BUGS: dict[str, Bug] = {
    # -- who may run, and does not ---------------------------------------------------------------
    "only one row decodes a step": Bug(
        f"{DECODE}.schedule_next_batch",
        "for req in self.running_reqs\n", "for req in self.running_reqs[:1]\n",
        "progress", "r1 may run (its token need not be known, 1 of 16 rows used) and is not",
        crowd(),
    ),
    "the last one never decodes": Bug(
        f"{DECODE}.schedule_next_batch",
        "for req in self.running_reqs\n",
        "for req in (self.running_reqs[:-1] or self.running_reqs)\n",
        "progress", "r3 may run (its token is known, 3 of 16 rows used) and is not in step",
        crowd(loop="serial"),
    ),
    "unified: the last one never decodes": Bug(
        f"{UNIFIED}._running",
        "in self.decode.schedule_next_batch():", "in self.decode.schedule_next_batch()[:3]:",
        "progress", "r3 may run", crowd(run_first="unified"),
    ),
    "nobody decodes beside a prompt": Bug(
        "policy.mixed_chunk:mix_with_running", "return list(running)", "return []",
        "progress", "r0 may run", crowd(arrivals=[0, 3, 4, 5], enable_mixed_chunk=True),
    ),
    "one decodes beside a prompt": Bug(
        "policy.mixed_chunk:mix_with_running", "return list(running)", "return list(running)[:1]",
        "progress", "r1 may run", crowd(arrivals=[0, 0, 3, 3], enable_mixed_chunk=True),
    ),
    "decode first is prefill first": Bug(
        "policy.run_first:RunFirst._choose", 'self.rule == "decode" and', "False and",
        "progress", "r0 may run", crowd(arrivals=[0, 3, 4, 5], run_first="decode"),
    ),
    "a chunk waits for those who decode": Bug(
        f"{PREFILL}.schedule_next_batch",
        "if not self.may_start:",
        "if not self.may_start or (self.chunked_req is not None and len(running) > 0):",
        "progress", "of its prompt, with memory for",
        a_case([request("r0", [1], 9), request("r1", [2] * 9, 2)], chunked_prefill_size=4,
               arrivals=[0, 2]),
    ),
    # -- who could be admitted, and is not -------------------------------------------------------
    "nobody is admitted while anybody holds memory": Bug(
        f"{PREFILL}.may_start",
        "and not self.batch_is_full", "and not self.batch_is_full and self.leases.is_idle",
        "progress", "r1 waits and is first in the queue, 15 of 16 rows are free",
        crowd(arrivals=[0, 2, 2, 2]),
    ),
    "unified: nobody is admitted while anybody runs": Bug(
        f"{UNIFIED}._waiting", "if self.prefill.batch_is_full:", "if self.decode.running_reqs:",
        "progress", "r1 waits and is first in the queue",
        crowd(arrivals=[0, 2, 2, 2], run_first="unified"),
    ),
    "one prompt a step": Bug(
        f"{PREFILL}._admit", "if result is not AddReqResult.CONTINUE:", "if True:",
        "progress", "r1 waits and is first in the queue", crowd(),
    ),
    "more is kept back than is told": Bug(
        "policy.prefill_budget:PrefillBudget.reserve",
        "* self.new_token_ratio", "* self.new_token_ratio * 3 + 9",
        "progress", "waits and is first in the queue",
        crowd(arrivals=[0, 2, 2, 2], kv_tokens=26, schedule_conservativeness=1.0),
    ),
    "unified: half of the budget": Bug(
        f"{UNIFIED}.schedule",
        "left = self.budget - len(decodes)", "left = self.budget // 2 - len(decodes)",
        "progress", "waits and is first in the queue",
        crowd(run_first="unified", chunked_prefill_size=10),
    ),
    "those behind one who left are not asked": Bug(
        f"{PREFILL}.remove_req", "self._full_at = None", "pass",
        "progress", "r2 waits and is first in the queue",
        a_case([request("r0", [1] * 4, 9), request("r1", [2] * 9, 9), request("r2", [3], 1)],
               arrivals=[0, 2, 2], aborts={5: "r1"}, kv_tokens=22),
    ),
    "a chain is deaf to the queue": Bug(
        "scheduler.scheduler:Scheduler.can_chain",
        "if self.waiting_queue or self.prefill.chunked_req:", "if self.prefill.chunked_req:",
        "progress", "r1 waits and is first in the queue",
        crowd(loop="mlx_async", arrivals=[0, 3, 3, 3], outputs=9),
    ),
    "a burst never looks up": Bug(
        "loops.multi_step:multi_step",
        "while len(burst) < num_steps and", "while len(burst) < num_steps + 2 and",
        "progress", "in a row that asks nobody else", crowd(loop="multi_step", outputs=12),
    ),
    "one step too deep": Bug(
        "loops.vllm_batch_queue:vllm_batch_queue",
        "if len(batch_queue) < depth and", "if len(batch_queue) < depth + 1 and",
        "progress", "there are 3 steps in flight, but the loop has at most 2",
        crowd(loop="vllm_async", relay="pool"),
    ),
    "who gave way is forgotten": Bug(
        f"{RETRACTION}.retract", "self.prefill.waiting_queue.add(req)", "pass",
        "progress", "has not ended, but neither waits nor runs", tight(),
    ),
    "who has stale output never comes back": Bug(
        "scheduler.results:Results._came_back", "self.waiting_queue.add(req)", "pass",
        "progress", "waits and is first in the queue",
        a_case([request("r0", [1], 6), request("r1", [2] * 11, 3)], "vllm_async", "pool",
               kv_tokens=20, page_size=4, max_running_requests=2, run_first="unified",
               max_prefill_tokens=4),
    ),
    "pd: pages are reserved only while nobody decodes": Bug(
        "scheduler.prealloc:DecodeScheduler.pop_preallocated",
        "if not self.table.available_size or", "if self.running_batch or",
        "progress", "gets no pages, when", both_sides([0, 2, 4, 6]),
    ),
    # -- who goes before others ------------------------------------------------------------------
    "the newest first": Bug(
        f"{QUEUE}._head", "min(fronts)", "max(fronts)",
        "order", "r0 is admitted in step 1 before r1, which by lof goes first",
        a_case([request("r0", [1], 2), request("r1", [2], 5)], schedule_policy="lof"),
    ),
    "who decodes is listed as admitted": Bug(
        f"{DECODE}.add_reqs",
        "insort(self.running_reqs, req, key=lambda running: running.order)",
        "self.running_reqs.append(req)",
        "order", "r1 is in step 2 before r0, which came earlier",
        a_case([request("r0", [1], 2), request("r1", [2], 5)], schedule_policy="lof"),
    ),
    "whoever starves starves for ever": Bug(
        f"{RETRACTION}.make_room", "self.starved = self.starved and not reqs", "pass",
        "progress", "r9 waits and is first in the queue", starved(),
    ),
    "the shortest prompt first": Bug(
        "policy.schedule_policy:SchedulePolicy.rank",
        "return RANKS.get", "return len(req.prompt) if self.name == 'fcfs' else RANKS.get",
        "order", "before r0, which by fcfs goes first", crowd(max_running_requests=2),
    ),
    "lof: the shortest output first": Bug(
        "policy.schedule_policy:SchedulePolicy.rank", "return RANKS.get", "return -RANKS.get",
        "order", "which by lof goes first",
        a_case([request("r0", [1], 2), request("r1", [2], 5)], schedule_policy="lof"),
    ),
    "random: by id": Bug(
        "policy.schedule_policy:SchedulePolicy.rank",
        "return RANKS.get", "return int(req.rid[1:]) if self.name == 'random' else RANKS.get",
        "order", "which by random goes first", crowd(5, schedule_policy="random"),
    ),
    "lpm: who finds least first": Bug(
        "policy.schedule_policy:lpm", "-len(item[1].pages)", "len(item[1].pages)",
        "order", "which by lpm goes first", families("lpm"),
    ),
    "dfs-weight: the lightest branch first": Bug(
        "policy.schedule_policy:dfs_weight", "lambda child: weight[child]",
        "lambda child: -weight[child]",
        "order", "which by dfs-weight goes first", families("dfs-weight"),
    ),
    "who gave way goes to the end of the queue": Bug(
        f"{RETRACTION}.retract", "    req.restart()\n", "    req.restart()\n    req.order += 9\n",
        "order", "which by fcfs goes first", tight(),
    ),
    "others come before a prompt is done": Bug(
        f"{PREFILL}.schedule_next_batch",
        "if self.chunked_req is not None and not adder.add_chunked_req(self.chunked_req.req):",
        "if self.waiting_queue:\n        self.chunked_req = None\n    elif self.chunked_req is not "
        "None and not adder.add_chunked_req(self.chunked_req.req):",
        "order", "r1 is admitted in step 2 before the prompt of r0 is done",
        a_case([request("r0", [1] * 9, 2), request("r1", [2], 2)], chunked_prefill_size=4,
               arrivals=[0, 1]),
    ),
    "whoever starves is forgotten": Bug(
        f"{RETRACTION}.wait", "self.starved = True", "pass",
        "order", "r9 is admitted in step 8, when r0 may run and waits for memory", starved(),
    ),
    "unified: somebody comes although one starves": Bug(
        f"{UNIFIED}.schedule",
        "if not (preempted or self.retraction.starved or", "if not (preempted or",
        "order", "r9 is admitted in step 5, when r0 may run and waits for memory",
        starved_of_drafts(),
    ),
    "pd: the newest gets its pages first": Bug(
        "scheduler.prealloc:DecodeScheduler.pop_preallocated",
        "in list(self.prealloc_queue.items()):", "in list(self.prealloc_queue.items())[::-1]:",
        "order", "r3 gets its pages before r2", both_sides(max_running_requests=2),
    ),
    # -- who loses their memory ------------------------------------------------------------------
    "the oldest gives way": Bug(
        "policy.retraction:choose_victim", "-req.order", "req.order",
        "order", "but the rule names", tight(),
    ),
    "who has said most gives way": Bug(
        "policy.retraction:choose_victim", "(len(req.output_ids),", "(-len(req.output_ids),",
        "order", "r0 has to give its memory back, but the rule names r2, with 3",
        tight(late=True, kv_tokens=20),
    ),
    "unified: the oldest gives way": Bug(
        f"{UNIFIED}._make_room", "newest = max(", "newest = min(",
        "order", "but the rule names", tight(run_first="unified"),
    ),
    "one more gives way while memory comes back": Bug(
        f"{RETRACTION}.make_room",
        "if nobody_else or short <= self.leases.pages_returning:", "if nobody_else:",
        "order", "are on their way back", starved(),
    ),
    "unified: one more gives way while memory comes back": Bug(
        f"{UNIFIED}._make_room", "if short <= self.leases.pages_returning:", "if False:",
        "order", "are on their way back", tight(run_first="unified"),
    ),
    "priority is ignored": Bug(
        f"{PREFILL}._victims", "if self.preemption_threshold is None:", "if True:",
        "order", "r2 (priority 9) waits, and r1 (priority 0) does not make way", ranked(),
    ),
    "the threshold is ignored": Bug(
        PREEMPT, "<= threshold", "<= 0",
        "order", "r1 had to make way for r2, but the rule names nobody", ranked(high=2),
    ),
    "all who are lower make way": Bug(
        PREEMPT, "if short <= 0 and has_row:\n            break", "if False:\n            break",
        "order", "r1 and r0 had to make way for r2, but the rule names r1", ranked(),
    ),
    "the highest makes way": Bug(
        PREEMPT, "(running.priority, -running.order)", "(-running.priority, -running.order)",
        "order", "r0 had to make way for r2, but the rule names r1", ranked(),
    ),
    "the oldest of equals makes way": Bug(
        PREEMPT, "-running.order", "running.order",
        "order", "r0 had to make way for r2, but the rule names r1",
        a_case([request("r0", [1], 8), request("r1", [2], 8), request("r2", [3], 4, priority=5)],
               arrivals=[0, 0, 3], schedule_policy="priority", max_running_requests=2,
               priority_scheduling_preemption_threshold=0),
    ),
}  # fmt: skip
"""By what it does to whom."""


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_seen_and_healthy_code_is_not_accused(name: str) -> None:
    bug = BUGS[name]
    healthy = judge(bug.case)
    assert healthy.holds and not healthy.lacking(bug.law)
    with put_in(bug.edits):
        found = judge(bug.case).broke(bug.law)
    assert found is not None and bug.says in found.sentence


def test_who_comes_in_place_of_the_one_who_runs_comes_with_a_page_at_least() -> None:
    """One token of the chunk was kept for whoever has just made way: no page of it is left."""
    requests = [request("r0", [1] * 10, 7), request("r1", [2] * 10, 7, priority=3)]
    case = a_case(
        requests, "serial", arrivals=[0, 3], kv_tokens=28, page_size=4, max_running_requests=2,
        chunked_prefill_size=4, max_prefill_tokens=3, enable_mixed_chunk=True,
        schedule_policy="priority", priority_scheduling_preemption_threshold=0,
        schedule_conservativeness=2.0,
    )  # fmt: skip
    assert judge(case).findings == ()
    adder, lease = "policy.prefill_adder:PrefillAdder.add_alone", "lease.settled_len"
    with put_in([Edit(adder, f"self.budget.cut(req.known_len - {lease})", "True")]):
        found = judge(case).broke("identity")
    assert found is not None and "r1 gave []" in found.sentence


# -- the order of the queue, told twice ----------------------------------------------------------


@st.composite
def queues(draw: st.DrawFn) -> tuple[Scheduler, list[Request]]:
    """A scheduler with something in its cache, and requests that wait; few tokens, long prompts."""
    page_size = draw(st.sampled_from([1, 2, 4]))
    config = SchedulerConfig(
        kv_tokens=1024, page_size=page_size, random_seed=draw(st.integers(0, 9)),
        schedule_policy=draw(st.sampled_from(POLICIES)),
    )  # fmt: skip
    scheduler = Scheduler(config)
    parts = st.sampled_from([(1,) * 4, (2,) * 4, (1, 2) * 18, (2, 1) * 17, (1, 1, 2), (2,)])
    prompts = st.lists(parts, min_size=1, max_size=4).map(lambda some: sum(some, ()))
    assert scheduler.tree is not None
    for tokens in draw(st.lists(prompts, max_size=4)):
        pages = len(tokens) // page_size
        scheduler.tree.insert(tokens, range(pages))
    waiting = [
        request(f"r{at}", draw(prompts), draw(st.integers(1, 3)), priority=draw(st.integers(0, 2)))
        for at in range(draw(st.integers(1, 6)))
    ]
    assert scheduler.receive(waiting) == []
    return scheduler, waiting


@given(queues())
@settings(max_examples=300, deadline=None)
def test_the_policies_have_the_declared_order(queue: tuple[Scheduler, list[Request]]) -> None:
    """Whoever a policy takes next is next as declared; which looks at the cache, not into it."""
    scheduler, waiting = queue
    assert scheduler.tree is not None
    clock = scheduler.tree.clock
    order = QueueOrder(scheduler, {req: at for at, req in enumerate(waiting)})
    for req in waiting:
        order.add(req)
    assert scheduler.tree.clock == clock
    left = list(waiting)
    for req in scheduler.waiting_queue.in_order():
        heads = order.heads(left)
        assert req in heads
        assert len(heads) == 1 or scheduler.config.schedule_policy == "dfs-weight"
        scheduler.waiting_queue.remove(req)
        left.remove(req)
    assert left == []


# -- turns are bounded by the work ---------------------------------------------------------------


def test_more_work_may_take_more_turns() -> None:
    """Each prompt twice, in steps of the budget, and its outputs; ``EACH`` turns for a step."""
    small = a_case([request("r0", [1] * 8, 3)]).workload
    assert most_turns(small, depth=1) == 1 + 0 + EACH * (1 + 1 + 1 + 3)
    in_chunks = a_case([request("r0", [1] * 8, 3)], chunked_prefill_size=4).workload
    assert most_turns(in_chunks, depth=2) == 1 + 0 + EACH * (2 + 2 + 3 + 3)
    later = a_case([request("r0", [1] * 8, 3)] * 2, arrivals=[0, 7]).workload
    assert most_turns(later, depth=1) == 1 + 7 + EACH * (1 + 2 * 5)


@pytest.mark.parametrize("loop", ["serial", "overlap", "vllm_pp4", "mlx_async"])
def test_a_livelock_is_over_when_the_work_could_be_done_twice(loop: str) -> None:
    next_batch = "scheduler.scheduler:Scheduler.next_batch"
    never = Edit(next_batch, "plan = self.run_first.plan()\n", "return NoBatch.WAIT\n")
    case = crowd(loop=loop)
    assert judge(case).holds
    with put_in([never]):
        found = judge(case).broke("livelock")
    most = most_turns(case.workload, LOOPS[loop].in_flight)
    assert (
        found is not None
        and f"must end within {most} turns of this workload, but r0 and r1 and r2" in found.sentence
    )


def test_who_was_alone_is_not_judged() -> None:
    alone = judge(a_case([request("r0", [1], 4)]))
    assert alone.holds and alone.lacking("progress") and alone.lacking("order")
