"""Random workloads: the same for a seed, over every axis, silent on healthy code, loud on bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.case import Case
from minisched.checks.case_text import case_text
from minisched.checks.draw.axes import (
    OF_A_WORKLOAD,
    Table,
    axes_of,
    axes_of_design,
    of_a_design,
)
from minisched.checks.draw.designs import Design, all_designs, read_design, variants
from minisched.checks.draw.draw import (
    CASES_EACH,
    designs_for,
    draw,
    loops_that_refuse,
)
from minisched.checks.faults.in_step import STEP_FAULTS
from minisched.checks.judge import Finding, judge
from minisched.checks.many import LAWS, Tried, case_of, try_seed, try_workloads
from minisched.checks.shrink import breaks_the_same, shrink
from minisched.checks.tally import CAUSES, Tally
from minisched.checks.tokens.identity import differences
from minisched.checks.tokens.oracle import oracle_trace
from minisched.checks.tokens.same_workload import another_workload
from minisched.loops.registry import LOOPS
from minisched.museum.patch import Edit, put_in
from minisched.trace import Mark, Trace
from tests.support import LOOP_OPTIONS

SEEDS = range(150)  # what the command draws unless told otherwise
TWO_IN_FLIGHT = ("prev_sampled", "fill_device")
REFUSED = {
    *(f"vllm_async:{relay}:depth={n}" for relay in TWO_IN_FLIGHT for n in range(3, 9)),
    *(f"vllm_async:{relay}:depth=4:harvest_when_done=true" for relay in TWO_IN_FLIGHT),
    *(f"vllm_async:ring:depth={n}" for n in range(5, 9)),
    "mindie_placeholder:host:max_async_schedule_times=2",
}
"""Relays whose loops say at their first turn that they don't go with that number of steps."""


# -- what is drawn ---------------------------------------------------------------------------------


def test_the_designs_are_those_of_the_registry() -> None:
    every = {
        Design(loop, relay, options).name
        for loop, spec in LOOPS.items()
        for options in ({}, *variants(loop))
        for relay in spec.relays
    }
    assert {design.name for design in all_designs()} == every - REFUSED
    assert all(read_design(design.name) == design for design in all_designs())


def test_whatever_the_property_tests_run_on_is_drawn_too() -> None:
    drawn = [(design.loop, design.relay, design.options) for design in all_designs()]
    assert [item for item in LOOP_OPTIONS if item not in drawn] == []


def test_every_loop_and_relay_comes_up_and_each_loop_about_as_often() -> None:
    drawn = Counter(design.name for seed in SEEDS for design in designs_for(draw(seed)))
    assert set(drawn) == {design.name for design in all_designs()}
    loops = Counter(name.partition(":")[0] for name in drawn.elements())
    assert set(loops) == set(LOOPS)
    assert min(loops.values()) > len(SEEDS) * CASES_EACH / len(LOOPS) / 2


MANY = range(600)


def test_every_value_of_every_axis_comes_up() -> None:
    """With each kind of drafts every pair of policies, and every relay at each depth it holds."""
    workloads, designs = Table(OF_A_WORKLOAD), Table(of_a_design("sim"))
    for drawn in map(draw, MANY):
        workloads.add(axes_of(drawn).items())
        for design in designs_for(drawn):
            designs.add(axes_of_design(design).items())
    assert workloads.never == designs.never == {}
    for table in (workloads, designs):
        assert {axis: set(found) for axis, found in table.counts.items()} == {
            axis: set(values) for axis, values in table.values.items()
        }
    assert {f"{design.relay}, {design.in_flight}" for design in all_designs()} >= {
        *(f"{relay}, {depth}" for relay in ("pool", "token_pool", "host") for depth in range(2, 9)),
        *(f"ring, {depth}" for depth in (2, 3, 4)),
    }


def test_what_never_came_up_is_known() -> None:
    table = Table({"page size": ("1", "2"), "theme": ("any",)})
    table.add([("page size", "2"), ("theme", "any")])
    assert table.never == {"page size": ["1"]}
    assert table.drawn("page size") == {"1": 0, "2": 1}
    assert table.as_json() == {"page size": {"2": 1}, "theme": {"any": 1}}


def test_what_may_come_about_does() -> None:
    """Requests are given up at every stage, retracted for each reason, wasted, found in the cache.

    Who is given up while it waits to start again is rare: a workload of several hundred has it.
    """
    tally = tally_of(range(60), ("overlap", "vllm_async", "vllm_batch_queue"))
    assert tally.run_axes.never in ({}, {"given up": ["retracted"]})
    assert tally.failures == []


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_seed_is_a_workload_and_any_seed_will_do(seed: int) -> None:
    """The same one again, which its loops take: no request is refused but for a reason."""
    assert repr(draw(seed)) == repr(draw(seed))
    designs = designs_for(draw(seed))
    assert designs and len({design.name for design in designs}) == len(designs)


def test_what_a_run_does_to_its_requests_does_not_reach_the_next_one() -> None:
    first, again = try_seed(3), try_seed(3)
    assert first == again and any(case.requests for case in first)


# -- what is found ---------------------------------------------------------------------------------


def tally_of(seeds: range, loops: tuple[str, ...] = (), jobs: int = 1) -> Tally:
    """The cases of some seeds."""
    cases: list[Tried] = [
        case for tried in try_workloads(seeds, loops, jobs=jobs) for case in tried
    ]
    return Tally(seeds.start, len(seeds), "sim", cases)


def test_healthy_code_breaks_no_law_and_processes_make_no_difference() -> None:
    alone, together = tally_of(range(12)), tally_of(range(12), jobs=2)
    assert alone.failures == []
    assert alone.as_json() == together.as_json()
    result = alone.as_json()
    assert result["cases"] == result["identical"] == len(alone.cases) > 100
    assert result["races"] == result["leaks"] == 0


BUGS = {
    "identity": Edit(
        "relay.future_map:FutureMapRing.resolve",
        "self.resolve_future(ids)",
        "self.xp.clamp(ids, min=0)",
    ),
    "ends": Edit(
        "scheduler.results:Results.process", "outputs.append(Output(req.rid, token))", "pass"
    ),
    "leak": Edit(
        "memory.lease_pool:LeasePool.release", "self.tree.dec_lock_ref(lease.node)", "pass"
    ),
    "race": Edit("worker.worker:Worker.launch_copy", "self.copy_stream.wait(last)", "pass"),
    "ownership": Edit(
        "memory.lease_pool:LeasePool.close",
        "self.release(lease)",
        "self.allocator.free(lease.pages[lease.shared_pages :], lease)",
    ),
    "livelock": Edit("scheduler.ending:Endings._finish", "del self.live[req.rid]", "pass"),
    "crash": Edit("scheduler.ending:Endings._end", "token in req.stop_ids", "token in req.stops"),
}
"""By law, a bug that breaks it: an early free, a copy that does not wait, a lock that is kept."""


def first_broken(law: str) -> Tried:
    """The first case of the first 60 workloads that breaks a law."""
    for tried in try_workloads(range(60)):
        for case in tried:
            if any(item.law == law for item in case.findings):
                return case
    pytest.fail(f"60 workloads on {CASES_EACH} loops each, and none of them breaks {law}")


@pytest.mark.parametrize("law", BUGS)
def test_a_bug_is_found_and_its_seed_and_loop_repeat_it(law: str) -> None:
    with put_in([BUGS[law]]):
        found = first_broken(law)
        assert try_seed(found.seed, [found.loop]) == [found]
    [healthy] = try_seed(found.seed, [found.loop])
    assert healthy.findings == () and healthy.finished


def test_a_case_that_stopped_counts_as_neither_identical_nor_ended() -> None:
    with put_in([BUGS["crash"]]):
        tally = tally_of(range(2))
    crashed = {(item.seed, item.loop) for item in tally.failures if item.law == "crash"}
    assert crashed and tally.as_json()["identical"] == len(tally.cases) - len(crashed)
    assert tally.holding("ends") == tally.holding("crash") == len(tally.cases) - len(crashed)


def test_a_failure_is_made_small_and_still_fails() -> None:
    with put_in([BUGS["ownership"]]):
        found = first_broken("ownership")
        finding = next(item for item in found.findings if item.law == "ownership")
        case = case_of(found.seed, found.loop)
        small = shrink(case, breaks_the_same(finding))
        assert judge(small).broke("ownership") is not None
        assert shrink(small, breaks_the_same(finding)) == small
    assert judge(small).holds
    assert sum(len(req.prompt) for req in small.workload.requests) <= 4
    assert len(case_text(small)) < len(case_text(case))


def test_a_crash_is_not_mistaken_for_another_one() -> None:
    case = case_of(0, "serial")
    with put_in([BUGS["crash"]]):
        assert breaks_the_same(Finding("crash", judge(case).findings[0].sentence))(case)
        assert not breaks_the_same(Finding("crash", "KeyError: 'r7'"))(case)


def test_the_search_for_a_small_case_ends_where_it_is_told_to() -> None:
    looked_at: list[int] = []

    def shows(case: object) -> bool:
        looked_at.append(1)
        return True

    shrink(case_of(1, "serial"), shows, most=7)
    assert len(looked_at) == 7


DEEP = Edit(
    "relay.future_map:FutureMapRing.__init__", "3 * max_running_requests", "max_running_requests"
)
"""A ring that is lapped, but only where tokens stay unread for three steps."""
SHARED_TOO_SOON = Edit(
    "scheduler.ending:Endings._finish",
    "            self.prefix_cache.cache_finished_req(req, lease)",
    "            lease.settled_len = min(req.computed_len, req.known_len)\n"
    "            self.prefix_cache.cache_finished_req(req, lease)",
)
"""An answer's last page is shared while a step still writes to it: wrong if that step fails."""


@pytest.mark.parametrize(
    ("edit", "is_near"),
    [
        (DEEP, lambda case: case.relay == "ring" and case.options.get("depth", 2) > 2),
        (SHARED_TOO_SOON, lambda case: case.workload.failures),
    ],
)
def test_what_is_rarely_wrong_is_found_by_what_the_command_draws(
    edit: Edit, is_near: Callable[[Case], bool]
) -> None:
    """A deep queue on a ring; a wasted step that fails before somebody asks on from the answer."""
    drawn = map(draw, SEEDS)
    cases = (item.on(design) for item in drawn for design in designs_for(item))
    near = filter(is_near, cases)
    with put_in([edit]):
        case = next(case for case in near if judge(case).broke("identity"))
    assert judge(case).holds


# -- steps that fail -------------------------------------------------------------------------------


def failing(seed: int, loop: str, kind: str) -> Case:
    """A case whose failing steps all go wrong in one way."""
    case = case_of(seed, loop)
    failures = tuple(item._replace(kind=kind) for item in case.workload.failures)
    return replace(case, workload=replace(case.workload, failures=failures))


@pytest.mark.parametrize("kind", STEP_FAULTS)
def test_who_was_in_a_step_that_failed_ends_and_nobody_else(kind: str) -> None:
    ends: list[bool] = []
    for seed in (seed for seed in range(40) if draw(seed).workload.failures):
        verdict = judge(failing(seed, "overlap", kind))
        workload = verdict.workload
        assert verdict.holds
        for req in workload.requests:
            ends += [workload.has_failed(req)] * (req.name in workload.struck)
            assert not workload.has_failed(req) or req.name in workload.struck
    assert {True, False} <= {*ends}, "it ends who was in it, but not who had ended already"


@pytest.mark.parametrize(
    "edit",
    [
        Edit("scheduler.results:Results.process", "elif result.error:", "elif req.rid == 'r0':"),
        Edit(
            "scheduler.results:Results.process",
            "elif result.error:",
            "elif result.error or (req.rid == 'r0' and req.output_ids):",
        ),
    ],
)
def test_a_failure_excuses_nobody_who_was_not_in_it(edit: Edit) -> None:
    """A step that failed and is delivered; one that did not fail and ends somebody."""
    with put_in([edit]):
        tried = tally_of(range(12), ("overlap",)).cases
    assert any(item.law in ("identity", "ends") for case in tried for item in case.findings)


def test_a_failure_is_kept_where_a_case_is_made_small() -> None:
    seed = next(seed for seed in SEEDS if draw(seed).workload.failures)
    case = case_of(seed, "overlap")

    def strikes(case: Case) -> bool:
        return bool(judge(case).workload.struck)

    small = shrink(case, strikes, most=120)
    (failure,) = small.workload.failures
    assert any(f"position {failure.position} of {failure.rid}" in line for line in case_text(small))
    assert not strikes(replace(small, workload=replace(small.workload, failures=())))


# -- the laws count whoever is refused or gives up ------------------------------------------------


def test_a_refused_request_must_have_got_nothing_and_an_aborted_one_the_first_tokens() -> None:
    tally = tally_of(range(16), ("overlap", "mini_overlap"))
    assert sum(case.aborted for case in tally.cases) and sum(case.refused for case in tally.cases)
    assert tally.failures == []
    delivered = Edit(
        "scheduler.ending:Endings._finish",
        "    self.prefill.remove_req(req)",
        "    if reason in (FinishReason.ERROR, FinishReason.ABORT):\n"
        "        req.output_ids.append(1)\n"
        "    self.prefill.remove_req(req)",
    )
    refused = Edit(
        "scheduler.ending:Endings._refuse",
        "    reason, other = FinishReason.ERROR, self.live.get(req.name)\n",
        "    reason, other = FinishReason.ERROR, self.live.get(req.name)\n"
        "    req.output_ids.append(1)\n",
    )
    with put_in([delivered, refused]):
        broken = tally_of(range(16), ("overlap", "mini_overlap"))
    ended_early = [case for case in tally.cases if case.aborted or case.refused or case.failed]
    assert len(ended_early) == len(tally.cases) - broken.holding("identity") > 0


def test_whoever_fails_without_being_refused_is_not_identical() -> None:
    fails = Edit(
        "scheduler.results:Results.process",
        "elif result.error:",
        "elif result.error or req.rid == 'r0':",
    )
    with put_in([fails]):
        assert {item.law for item in tally_of(range(2)).failures} >= {"identity"}


# -- what is shown first ---------------------------------------------------------------------------


def test_a_cause_is_shown_before_the_wrong_tokens_that_follow_from_it() -> None:
    assert sorted(CAUSES) == sorted(["lifetime", *LAWS])  # which is judged in tests alone
    with put_in([BUGS["race"]]):
        tally = tally_of(range(1, 3), ("overlap",))
    assert tally.failures[0].law == "identity"  # it is looked at first
    assert [failure.law for failure in tally.first] == ["race", "identity"]
    with put_in([BUGS["identity"]]):
        tally = tally_of(range(4), ("overlap:ring",))
    assert [item.law for item in tally.first][-2:] == ["identity", "logprobs"]


def test_the_oracle_is_a_baseline_of_whatever_a_workload_became() -> None:
    """Of who gave up and who was refused, too; and one who heard nothing is not another's."""
    for seed in range(12):
        verdict = judge(case_of(seed, "overlap"))
        oracle = oracle_trace(verdict.workload, verdict.refused)
        assert another_workload(oracle, verdict.trace) == ""
        assert differences(oracle, verdict.trace) == []
    deaf = Edit("engine.recording:Recording.tokens", "if output.token is not None", "if False")
    with put_in([deaf]):
        verdict = judge(case_of(3, "overlap"))
    assert another_workload(oracle_trace(verdict.workload), verdict.trace) == ""
    assert {item.got for item in differences(oracle_trace(verdict.workload), verdict.trace)} == {
        None
    }


def trace_of(prompts: dict[str, int], ended: str = "") -> Trace:
    """All that is looked at: how long prompts are, and who has ended."""
    marks = [Mark("match", 0, {"rid": rid, "prompt_len": size}) for rid, size in prompts.items()]
    marks += [Mark("finish", 1, {"rid": rid, "reason": "length"}) for rid in ended]
    return Trace("overlap", "sim", "hash", "virtual", (), (), (), tuple(marks))


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (trace_of({"a": 3, "b": 4}, "ab"), trace_of({"a": 3}, "a"), "has the request b."),
        (trace_of({"a": 3, "b": 4}, "ab"), trace_of({"a": 3}), ""),  # it may have come later
        (trace_of({"a": 3}, "a"), trace_of({"a": 4}, "a"), "the prompt of a has"),
        (trace_of({"a": 3}, "a"), trace_of({}, "a"), ""),  # no mark tells its length
        (trace_of({"a": 3}, "a"), trace_of({"a": 3}, "a"), ""),
    ],
)
def test_two_runs_are_of_one_workload_as_far_as_traces_tell(
    one: Trace, other: Trace, says: str
) -> None:
    for pair in ((one, other), (other, one)):
        told = another_workload(*pair)
        assert says in told and bool(told) == bool(says)


def test_how_many_loops_refuse_a_workload_is_counted() -> None:
    tally = tally_of(range(8))
    for seed, refusing in zip(SEEDS, tally.refusing, strict=False):
        drawn = draw(seed)
        takes = {design.loop for design in designs_for(drawn)}
        assert not takes & loops_that_refuse(drawn)
        assert refusing == len(loops_that_refuse(drawn))
        assert bool(refusing) == bool(drawn.workload.config.speculative_algorithm)


# Drafts by the device's own lookup and by a draft model, and none; with hash on the other devices.
REAL = [(501, "overlap:pool"), (503, "vllm_async"), (500, "overlap_thread"), (502, "mindie_plugin")]


@pytest.mark.parametrize("device", ["thread", "mlx"])
@pytest.mark.parametrize(("seed", "loop"), REAL)
def test_the_laws_hold_on_devices_with_a_real_clock(seed: int, loop: str, device: str) -> None:
    """Where the host builds the ops, it waits for a speculated step: then it knows the token."""
    (tried,) = try_seed(seed, [loop], device)
    assert tried.finished and not tried.findings
