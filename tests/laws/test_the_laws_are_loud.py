"""Each law is red on bugs that break it: on deliberate ones, found among what is drawn, and on some
that take a case made for them; and green without them.

The set of deliberate bugs is in ``tests/laws/mutations``, with the place where each was seen first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.case import Case
from minisched.checks.clients import find_ends, told_each
from minisched.checks.draw.designs import Design, all_designs, read_design
from minisched.checks.faults.matrix import Place as FaultPlace
from minisched.checks.faults.matrix import try_place
from minisched.checks.judge import judge
from minisched.checks.many import LAWS, case_of
from minisched.checks.play import EACH, most_turns
from minisched.checks.progress.queue_order import QueueOrder
from minisched.checks.tally import CAUSES
from minisched.checks.tokens.logprobs import OF_HASH, find_unlike
from minisched.checks.tokens.oracle import alone
from minisched.checks.touches import Touched
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.registry import library
from minisched.loops.registry import LOOPS
from minisched.museum.patch import Edit, changes, compiled, put_in
from minisched.policy.schedule_policy import POLICIES
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import Trace
from minisched.trace.lanes import is_host
from tests.laws.mutations.mutation import (
    MUTATIONS,
    Mutation,
    Place,
    look_for,
    places,
    seen_before,
)
from tests.support import VOCAB, Workload, hash_model, open_device, play

FAULTS = [item for item in MUTATIONS if not item.equivalent]
MISSED = [item for item in FAULTS if item.missed]
EXPECTED = [item for item in FAULTS if not item.missed]
LEAST_SEEN = 0.95  # of the faults
NEXT = 30  # workloads on the same loop that are looked at where a kept place shows nothing any more


FEW = 3  # bugs of each law that plain ``pytest`` looks at


def expected() -> list[object]:
    """Some for each law on the simulator; the others, and other devices, with ``--thorough``."""
    params, had = list[object](), Counter[str]()
    for item in EXPECTED:
        is_plain = item.device == "sim" and had[item.laws[0]] < FEW
        had[item.laws[0]] += is_plain
        marks = [] if is_plain else [pytest.mark.thorough]
        params.append(pytest.param(item, id=item.name, marks=marks))
    return params


# -- bugs that are found among what is drawn -------------------------------------------------------


def test_every_law_has_bugs_of_its_own_and_every_bug_a_law() -> None:
    assert sorted(CAUSES) == sorted(["lifetime", *LAWS])
    assert Counter(law for item in EXPECTED for law in item.laws).keys() == {*CAUSES}
    assert len({item.name for item in MUTATIONS}) == len(MUTATIONS) >= 250
    assert len({item.edits for item in MUTATIONS}) == len(MUTATIONS)
    assert all(bool(item.laws) != bool(item.equivalent) for item in MUTATIONS)
    assert len(EXPECTED) >= LEAST_SEEN * len(FAULTS)
    assert seen_before().keys() == {item.name for item in EXPECTED}


def test_every_bug_still_applies() -> None:
    for item in MUTATIONS:
        for change in changes(item.edits):
            assert change.bug != change.healthy, item.name
            assert compiled(change).__code__ != change.function.__code__, item.name


@pytest.mark.parametrize("item", expected())
def test_a_bug_is_seen_by_a_law_that_is_named_for_it(item: Mutation) -> None:
    """Where a sweep has seen it; if draws have changed since, in other workloads on that loop."""
    kept = seen_before()[item.name]
    others = (Place(kept.seed + more, kept.loop) for more in range(1, NEXT))
    assert look_for(item, chain([kept], others)).law, f"{item.name}: {' or '.join(item.laws)}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "item", [item for item in MUTATIONS if item.equivalent or item.missed], ids=lambda it: it.name
)
def test_nothing_is_seen_of_what_is_equivalent_or_known_to_be_missed(item: Mutation) -> None:
    """Else its reason is out of date."""
    some = islice(places(range(0, 400, 17), item.device), 48)
    sight = look_for(replace(item, laws=LAWS), some)
    assert not sight.law, f"{item.name} ({item.equivalent or item.missed}): {sight}"


# -- bugs that take a case made for them -----------------------------------------------------------


def request(rid: str, prompt: Sequence[int], outputs: int, priority: int = 0) -> Request:
    """One that says exactly so many tokens."""
    params = SamplingParams(max_new_tokens=outputs, ignore_eos=True)
    return Request(rid, tuple(prompt), params, priority=priority)


def a_case(
    requests: Sequence[Request],
    loop: str = "overlap",
    arrivals: Sequence[int] = (),
    aborts: dict[int, str] | None = None,
    cost: CostModel | None = None,
    **settings: Any,
) -> Case:
    """Those requests, at once unless told otherwise, on a loop with settings."""
    config = SchedulerConfig(**{"kv_tokens": 64, "schedule_conservativeness": 0.0, **settings})
    workload = Workload(list(requests), list(arrivals) or [0] * len(requests), aborts or {}, config)
    design = read_design(loop)
    options = LINK if design.loop == "pd" else design.options
    return Case(workload, design.loop, design.relay, options, cost or CostModel())


LINK = {"latency": 20, "bytes_per_second": 10**9, "slot_bytes": 9}


def crowd(loop: str = "overlap") -> Case:
    """Prompts of different tokens and lengths, in a pool that has room for all of them."""
    lengths = (3, 2, 4, 1)
    return a_case([request(f"r{at}", [at + 1] * size, 4) for at, size in enumerate(lengths)], loop)


def starved() -> Case:
    """Five who need a page each step, one who gives up, with pages on their way, and a small one.

    The small one comes when those who decode wait for pages, of which some are there for it.
    """
    rows = [request(f"r{at}", [at + 1], 12) for at in range(5)]
    return a_case(
        [*rows, request("r8", [9] * 6, 12), request("r9", [10], 1)],
        "vllm_async:pool:depth=4", [0] * 6 + [7], {6: "r8"}, kv_tokens=31, max_running_requests=7,
        disable_radix_cache=True,
    )  # fmt: skip


def starved_of_drafts() -> Case:
    """The same for three whose drafts need several pages each step, with vLLM's one budget."""
    rows = [request(f"r{at}", [at + 1], 12) for at in range(3)]
    return a_case(
        [*rows, request("r8", [9] * 6, 12), request("r9", [10], 1)],
        "overlap:pool", [0] * 4 + [5], {4: "r8"}, kv_tokens=29, max_running_requests=6,
        disable_radix_cache=True, run_first="unified", speculative_algorithm="NGRAM_GPU",
    )  # fmt: skip


def a_page_for_whoever_comes_instead() -> Case:
    """Who preempts the one who runs comes with a page at least, and not with a part of one."""
    return a_case(
        [request("r0", [1] * 10, 7), request("r1", [2] * 10, 7, priority=3)], "serial", [0, 3],
        kv_tokens=28, page_size=4, max_running_requests=2, chunked_prefill_size=4,
        max_prefill_tokens=3, enable_mixed_chunk=True, schedule_policy="priority",
        priority_scheduling_preemption_threshold=0, schedule_conservativeness=2.0,
    )  # fmt: skip


def too_little_for_three() -> Case:
    """Three whose outputs do not fit together, under one budget."""
    prompts = [1, 1], [2, 2], [3, 3, 3]
    return a_case(
        [request(f"r{at}", prompt, 8) for at, prompt in enumerate(prompts)], arrivals=[0, 1, 2],
        kv_tokens=16, max_running_requests=3, run_first="unified",
    )  # fmt: skip


def one_who_is_urgent() -> Case:
    """Two of one priority run, and one of a higher one comes later."""
    return a_case(
        [request("r0", [1], 8), request("r1", [2], 8), request("r2", [3], 4, priority=5)],
        arrivals=[0, 0, 3], schedule_policy="priority", max_running_requests=2,
        priority_scheduling_preemption_threshold=0,
    )  # fmt: skip


RETRACTION = "policy.retraction:Retraction."
RARE: dict[str, tuple[Case, str, Edit]] = {
    "whoever starves starves for ever": (
        starved(), "progress",
        Edit(RETRACTION + "make_room", "self.starved = self.starved and not reqs", "pass"),
    ),
    "whoever starves is forgotten": (
        starved(), "order", Edit(RETRACTION + "wait", "self.starved = True", "pass"),
    ),
    "one more gives way while memory comes back": (
        starved(), "order",
        Edit(RETRACTION + "make_room",
             "if nobody_else or short <= self.leases.pages_returning:", "if nobody_else:"),
    ),
    "somebody comes although one starves": (
        starved_of_drafts(), "order",
        Edit("policy.unified:UnifiedBudget.schedule",
             "if not (preempted or self.retraction.starved or", "if not (preempted or"),
    ),
    "under one budget one more gives way while memory comes back": (
        too_little_for_three(), "order",
        Edit("policy.unified:UnifiedBudget._make_room",
             "if short <= self.leases.pages_returning:", "if False:"),
    ),
    "the oldest of equals makes way": (
        one_who_is_urgent(), "order",
        Edit("policy.preemption:preempt_to_schedule", "-running.order", "running.order"),
    ),
    "a part of a page is kept for whoever comes": (
        a_page_for_whoever_comes_instead(), "identity",
        Edit("policy.prefill_adder:PrefillAdder.add_alone",
             "self.budget.cut(req.known_len - lease.settled_len)", "True"),
    ),
    "no batch is ever made": (
        crowd("mlx_async"), "livelock",
        Edit("scheduler.scheduler:Scheduler.next_batch",
             "plan = self.run_first.plan()\n", "return NoBatch.WAIT\n"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RARE)
def test_a_rare_bug_is_seen_where_it_shows(name: str) -> None:
    case, law, edit = RARE[name]
    healthy = judge(case)
    assert healthy.holds and not healthy.lacking(law)
    with put_in([edit]):
        assert judge(case).broke(law)


PLACES = {
    "waits": ("serial", "req in self.waiting_queue"),
    "is between two chunks": ("overlap:pool", "self.prefill.chunked_req is not None"),
    "decodes, with nothing in flight": (
        "serial", "req in self.decode.running_reqs and not self.batches_in_flight"
    ),
    "is in a step in flight": (
        "overlap:pool", "req in self.decode.running_reqs and self.batches_in_flight > 0"
    ),
    "is in four steps in flight": ("vllm_async:pool:depth=4", "self.batches_in_flight >= 3"),
    "has lost its memory with output on its way": (
        "vllm_async:pool:depth=4", "req.num_stale_output_tokens"
    ),
    "waits for pages on the other side": ("pd:pool", "req.bootstrap_room in self.prealloc_queue"),
    "is being transferred": ("pd:pool", "req.lease and req.lease.num_transfers"),
}  # fmt: skip
"""Where somebody may be who gives up: a loop, and how its scheduler knows."""


@pytest.mark.parametrize("place", PLACES)
def test_whoever_gives_up_ends_in_that_turn_wherever_it_is(place: str) -> None:
    """In one turn or another it was there: whoever is deaf just then is found."""
    loop, condition = PLACES[place]
    deaf = Edit(
        "scheduler.scheduler:Scheduler.abort",
        "if req else []",
        f"if req and not ({condition}) else []",
    )
    for turn in range(40):
        case = a_case(
            [request("old", [1, 2, 3], 14), request("new", range(12), 10)], loop, [0, 0],
            {turn: "new"}, CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1),
            kv_tokens=30, context_len=32, chunked_prefill_size=4,
        )  # fmt: skip
        with put_in([deaf]):
            if judge(case).broke("abort"):
                break
    else:
        pytest.fail("it was never there")
    assert judge(case).holds


FINISH = "scheduler.ending:Endings._finish"


@pytest.mark.parametrize(("fault", "law", "where", "told", "lost"), [
    ("forward raises", "client", FINISH, "Output(req.rid, token, reason, error)",
     "Output(req.rid, token, reason)"),
    ("reader raises", "abort", "scheduler.scheduler:Scheduler.abort", "error=error", "error=''"),
])  # fmt: skip
def test_a_reason_that_is_lost_is_found_where_something_fails(
    fault: str, law: str, where: str, told: str, lost: str
) -> None:
    place = FaultPlace(fault, "serial", "sim", 0)
    assert try_place(place).trial.survived
    with put_in([Edit(where, told, lost)]):
        assert law in {item.law for item in try_place(place).trial.findings}


# -- what is judged, and how closely ---------------------------------------------------------------


def test_a_run_is_not_judged_by_what_it_does_not_have() -> None:
    verdict = judge(a_case([request("a", [1, 2], 3)], "serial"))
    assert verdict.holds
    assert {law for law in LAWS if verdict.lacking(law)} == {
        "logprobs",
        "abort",
        "progress",
        "order",
    }


@pytest.mark.parametrize("device", ["thread", "mlx"])
def test_the_tolerance_is_what_a_device_needs_and_no_more(device: str) -> None:
    """To the last bit on ``sim``; elsewhere the exponential is another one, and little off."""
    case = case_of(10, "serial", device)
    verdict = judge(case)
    assert not verdict.broke("logprobs") and not verdict.lacking("logprobs")
    told = [(req, list[Output]()) for req in verdict.workload.requests]
    vocab_size = case.workload.vocab_size
    assert not list(find_unlike(told, vocab_size, OF_HASH[library(device)]))
    assert list(find_unlike(told, vocab_size, OF_HASH[library(device)] / 1e4)), (
        "it is not needed at all"
    )


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"max_new_tokens": 3}, FinishReason.LENGTH),
        ({"max_new_tokens": 3, "stop_token_ids": frozenset(range(VOCAB))}, FinishReason.STOP),
        ({"max_new_tokens": 1, "stop_token_ids": frozenset(range(VOCAB))}, FinishReason.STOP),
        ({"max_new_tokens": 3, "regex": "("}, FinishReason.ERROR),
    ],
)
def test_the_oracle_says_why_a_request_ends(params: dict[str, Any], reason: FinishReason) -> None:
    req = Request("a", [1, 2], SamplingParams(ignore_eos=True, **params))
    workload = Workload([req], [0], {}, SchedulerConfig())
    truth = alone(workload, req)
    assert truth.finish_reason is reason and bool(truth.error) == (reason is FinishReason.ERROR)
    refused = alone(workload, req, lambda req: "it is refused.")
    assert refused == ([], FinishReason.ERROR, "it is refused.")


def test_what_nobody_has_sent_and_what_comes_behind_the_end_is_found() -> None:
    req = Request("a", [1], output_ids=[3], finish_reason=FinishReason.LENGTH)
    workload = Workload([req], [0], {}, SchedulerConfig())
    end = Output("a", 3, FinishReason.LENGTH)
    for outputs, said in (
        ([end], []),
        ([end, Output("b", 1)], ["clients heard of b, whom nobody has sent"]),
        ([Output("a", None, FinishReason.LENGTH), Output("a", 3)], ["a heard something behind"]),
        ([end, end], ["a ended 2 times"]),
    ):
        found = list(find_ends(told_each(workload, outputs), outputs))
        assert len(found) == len(said) and all(map(str.startswith, found, said))


def test_the_turns_that_a_workload_may_take_are_bounded_by_its_work() -> None:
    """Each prompt twice, in steps of the budget, and its outputs; ``EACH`` turns for a step."""
    small = a_case([request("r0", [1] * 8, 3)]).workload
    assert most_turns(small, depth=1) == 1 + 0 + EACH * (1 + 1 + 1 + 3)
    in_chunks = a_case([request("r0", [1] * 8, 3)], chunked_prefill_size=4).workload
    assert most_turns(in_chunks, depth=2) == 1 + 0 + EACH * (2 + 2 + 3 + 3)
    later = a_case([request("r0", [1] * 8, 3)] * 2, arrivals=[0, 7]).workload
    assert most_turns(later, depth=1) == 1 + 7 + EACH * (1 + 2 * 5)


# -- the order of the queue, told twice ------------------------------------------------------------


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
        scheduler.tree.insert(tokens, range(len(tokens) // page_size))
    waiting = [
        request(f"r{at}", draw(prompts), draw(st.integers(1, 3)), priority=draw(st.integers(0, 2)))
        for at in range(draw(st.integers(1, 6)))
    ]
    assert scheduler.receive(waiting) == []
    return scheduler, waiting


@given(queues())
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


# -- what ops declare ------------------------------------------------------------------------------


def small_workload() -> Workload:
    """Four requests on a pool too small for them: chunks, a cached prefix, a retraction."""
    prompts = [[7, 7, 11, 2, 7, 7], [7, 7, 11, 2, 5], [1, 2, 3, 4, 5, 6, 7], [7, 7, 11, 2, 9]]
    requests = [
        Request(f"r{i}", prompt, SamplingParams(i % 2 * 0.8, max_new_tokens=6))
        for i, prompt in enumerate(prompts)
    ]
    config = SchedulerConfig(
        kv_tokens=22, page_size=2, max_running_requests=3, chunked_prefill_size=4, context_len=32,
        schedule_conservativeness=0.0,
    )  # fmt: skip
    return Workload(requests, [0, 1, 3, 6], {}, config)


def traced(design: Design, backend: str) -> tuple[Trace, Touched]:
    """A run, and what it really touched where the device is ``sim``."""
    device, touched, model = open_device(backend), Touched(), hash_model(backend, frozenset())
    play(
        small_workload(), design.loop, design.relay, dict(design.options), device, model,
        patch=touched.watch,
    )  # fmt: skip
    return device.recorder.trace(design.loop, backend, "hash", device.clock), touched


@pytest.mark.parametrize(("kind", "resource", "words"), [
    ("read", "kv", "KV slot"), ("write", "kv", "KV slot"), ("read", "page table", "page table"),
    ("write", "page table", "page table"), ("read", "future map", "future slot"),
    ("write", "future map", "future slot"), ("write", "output 1", "device output buffer 1"),
    ("read", "output 1", "device output buffer 1"),
    ("write", "host output 1", "host output buffer 1"),
])  # fmt: skip
def test_what_is_not_declared_and_what_is_declared_in_vain_is_noticed(
    kind: str, resource: str, words: str
) -> None:
    trace, touched = traced(read_design("overlap:pool"), "sim")
    assert list(touched.check(trace)) == [] and touched.accesses
    act = [act for act in trace.program if (act.kind, act.resource) == (kind, resource)][1]
    without = [one for one in trace.program if one is not act]
    wider = [replace(one, at=f"{one.at} 999") if one is act else one for one in trace.program]
    [unsaid] = touched.check(replace(trace, program=tuple(without)))
    assert f" {kind}s " in unsaid and words in unsaid and unsaid.endswith(", and has not said so")
    [in_vain] = touched.check(replace(trace, program=tuple(wider)))
    assert f"says that it {kind}s" in in_vain and in_vain.endswith(", and does not")


def declared_by_op(trace: Trace) -> dict[tuple[str, str, int], list[tuple[str, ...]]]:
    """What the ops on streams declare, by lane, name and step."""
    ops = {item.id: (item.lane, item.name, item.step) for item in trace.slices}
    found: dict[tuple[str, str, int], list[tuple[str, ...]]] = defaultdict(list)
    for act in trace.program:
        if act.op in ops and act.resource not in ("", "value") and not is_host(act.lane):
            found[ops[act.op]].append((act.kind, act.resource, act.at, act.rid))
    return found


def in_real_time() -> list[object]:
    """Each loop as it is on one device, and with ``--thorough`` every design on both.

    Where a loop asks whether a step has ended, its batches are the clock's affair.
    """
    plain = {*zip(LOOPS, ("thread", "mlx") * len(LOOPS), strict=False)}
    return [
        pytest.param(
            design, backend, id=f"{design.name}-{backend}",
            marks=[] if (design.name, backend) in plain else [pytest.mark.thorough],
        )
        for design in all_designs()
        for backend in ("thread", "mlx")
        if backend in LOOPS[design.loop].devices and "harvest_when_done" not in design.options
    ]  # fmt: skip


@pytest.mark.parametrize(("design", "backend"), in_real_time())
def test_in_real_time_each_op_declares_the_same_as_on_the_simulator(
    design: Design, backend: str
) -> None:
    """Where nobody can watch what it touches."""
    ideal, real = traced(design, "sim")[0], traced(design, backend)[0]
    assert declared_by_op(real) == declared_by_op(ideal) != {}
