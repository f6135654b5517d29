"""Random workloads: the same for a seed and over every axis, and what is said of many of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checking import try_workloads
from minisched.checks.case import FAILURES, Failure, case_text, shallow, shrink, simpler
from minisched.checks.draw import (
    CASES_EACH,
    CHANGES,
    DRAFTERS,
    THEMES,
    USUAL,
    Variant,
    all_designs,
    designs_for,
    draw,
    other_options,
    read_design,
)
from minisched.checks.identity import another_workload, differences
from minisched.checks.judge import Finding, breaks_the_same, judge
from minisched.checks.many import CaseTally, case_of, cases_of, try_seed
from minisched.checks.oracle import oracle_trace
from minisched.checks.step_fault import CONDITIONS, POSTPROCESS
from minisched.core.form import wrong_form
from minisched.loops.design import LOOPS
from minisched.memory.radix_cache import POLICIES as EVICTION_POLICIES
from minisched.museum.exhibit import case as written_case
from minisched.museum.patch import Edit, put_in
from minisched.policy.rules import RUN_FIRST
from minisched.policy.waiting import POLICIES as SCHEDULE_POLICIES
from minisched.sweep.workers import Workers
from minisched.trace import Mark, Trace
from tests.laws.mutations.mutation import MUTATIONS, look_for, places
from tests.support import many

SEEDS = range(150)  # what the command draws unless told otherwise
BUGS = {item.name: item for item in MUTATIONS}


# -- what is drawn ---------------------------------------------------------------------------------


def test_the_designs_are_those_of_the_registry() -> None:
    two_in_flight = ("prev_sampled", "fill_device")
    refused = {
        *(f"vllm_async:{relay}:depth={n}" for relay in two_in_flight for n in range(3, 9)),
        *(f"vllm_async:{relay}:depth=4:harvest_when_done=true" for relay in two_in_flight),
        *(f"vllm_async:ring:depth={n}" for n in range(5, 9)),
    }
    every = {
        Variant(loop, relay, options).name
        for loop, spec in LOOPS.items()
        for options in ({}, *other_options(loop))
        for relay in spec.relays
    }
    assert {design.name for design in all_designs()} == every - refused
    assert all(read_design(design.name) == design for design in all_designs())


def test_every_design_comes_up_and_each_loop_about_as_often() -> None:
    drawn = Counter(design.name for seed in SEEDS for design in designs_for(draw(seed)))
    assert set(drawn) == {design.name for design in all_designs()}
    loops = Counter(name.partition(":")[0] for name in drawn.elements())
    assert set(loops) == set(LOOPS)
    assert min(loops.values()) > len(SEEDS) * CASES_EACH / len(LOOPS) / 2


def test_every_choice_that_a_workload_has_comes_up() -> None:
    """Of each setting every value that is drawn at all, of rules every answer; all that befalls."""
    drawn = [draw(seed) for seed in range(800)]
    workloads = [item.workload for item in drawn]
    configs, requests = (
        [it.config for it in workloads],
        [r for it in workloads for r in it.requests],
    )
    fine = [req.params for req in requests if not wrong_form(req)]
    fine_ones = [[req for req in it.requests if not wrong_form(req)] for it in workloads]
    for found, wanted in (
        ({item.theme for item in drawn}, {*THEMES}),
        ({bool(wrong_form(req)) for req in requests}, {False, True}),
        ({len({it.rid for it in all_of}) < len(all_of) for all_of in fine_ones}, {False, True}),
        ({failure.kind for it in workloads for failure in it.failures}, {*FAILURES}),
        ({failure.when for it in workloads for failure in it.failures}, {"", *CONDITIONS}),
        ({it.interrupt is None for it in workloads}, {False, True}),
        ({len(it.sent_again) for it in workloads}, {*range(3)}),
        ({len(it.aborts) for it in workloads}, {*range(4)}),
        ({bool(it.flushes) for it in workloads}, {False, True}),
        ({config.page_size for config in configs}, {*USUAL.page_sizes}),
        ({config.radix_eviction_policy for config in configs}, {*EVICTION_POLICIES}),
        ({config.max_running_requests for config in configs}, {*range(1, 6)}),
        ({config.rules.rpartition(",")[2] for config in configs}, {"", *CHANGES}),
        ({config.cuda_graph_max_bs for config in configs}, {None, 0, 2}),
        *(({getattr(config, name) for config in configs}, {False, True}) for name in (
            "disable_radix_cache", "enable_mixed_chunk", "late_penalties", "late_stop_strings")),
        *(({bool(getattr(it, name)) for it in fine}, {False, True}) for name in (
            "temperature", "return_logprob", "stop_token_ids", "ignore_eos", "regex", "stop",
            "logit_bias", "frequency_penalty", "presence_penalty")),
        ({(config.in_force.run_first, config.schedule_policy, config.speculative_algorithm)
          for config in configs}, {*product(RUN_FIRST, SCHEDULE_POLICIES, {*DRAFTERS})}),
    ):  # fmt: skip
        assert found >= wanted
    depths = {(design.relay, design.in_flight) for it in drawn for design in designs_for(it)}
    assert depths >= {*product(("pool", "token_pool", "host"), range(2, 9)),
                      *product(["ring"], range(2, 5))}  # fmt: skip


@given(st.integers(0, 10**9))
def test_a_seed_is_a_workload_and_any_seed_will_do(seed: int) -> None:
    designs = designs_for(draw(seed))
    assert repr(draw(seed)) == repr(draw(seed))
    assert designs and len({design.name for design in designs}) == len(designs)
    algorithm = draw(seed).workload.config.speculative_algorithm
    assert not any(algorithm and algorithm in design.refuses() for design in designs)


# -- many of them ----------------------------------------------------------------------------------


def tally_of(seeds: range, loops: tuple[str, ...]) -> CaseTally:
    cases = [case for tried in try_workloads(seeds, loops) for case in tried]
    return CaseTally(seeds.start, len(seeds), "sim", cases)


def test_one_case_of_four_is_judged_in_depth_and_all_where_a_loop_is_named() -> None:
    cases = [case for seed in SEEDS for case in cases_of(seed).values()]
    deep = [case for case in cases if case.in_depth]
    assert 0.2 < len(deep) / len(cases) < 0.3
    assert {case.loop for case in deep} == {*LOOPS}
    assert sum(case.runs_whole for case in deep) > 100
    assert case_of(0, "overlap").in_depth


def test_a_wrong_mark_is_seen_in_depth_alone() -> None:
    case = case_of(1, "overlap:ring")
    assert judge(case).lacking("record") == "" != judge(shallow(case)).lacking("record")
    with put_in(BUGS["the ring is twice as long as there are rows"].edits):
        assert judge(case).broke("record") and judge(shallow(case)).holds


def test_everything_is_counted() -> None:
    tally = tally_of(range(24), ("vllm_batch_queue",))
    assert tally.failures == []
    told = tally.as_json()
    assert told["cases"] == told["identical"] == len(tally.cases) == 24
    assert told["races"] == told["leaks"] == 0
    assert min(told["aborted"], told["refused"], told["failed"]) > 0


def test_what_a_run_does_to_its_requests_does_not_reach_the_next_one() -> None:
    one_by_one = [try_seed(seed, ("serial",)) for seed in range(8)]
    assert one_by_one == list(try_workloads(range(8), ("serial",), workers=Workers(2)))


def test_a_bug_is_counted_where_it_strikes_and_its_cause_is_shown_first() -> None:
    with put_in(BUGS["the loop knows no stop"].edits):
        tally = tally_of(range(3), ("serial", "overlap"))
        case = case_of(0, "serial")
        assert breaks_the_same(Finding("crash", judge(case).findings[0].sentence))(case)
        assert not breaks_the_same(Finding("crash", "KeyError: 'r7'"))(case), "it is another one"
    crashed = {(case.seed, case.loop) for case, item in tally.failures if item.law == "crash"}
    left = len(tally.cases) - len(crashed)
    assert crashed and tally.as_json()["identical"] == left, "a run that stopped is not identical"
    assert tally.holding("ends") == tally.holding("crash") == left, "nor has it ended"
    with put_in(BUGS["the copy does not wait for the sample"].edits):
        tally = tally_of(range(2, 4), ("overlap",))
    assert tally.failures[0][1].law == "identity", "it is looked at first"
    assert [broken.law for _, broken in tally.first] == ["race", "time", "identity"]


# -- a failure made small --------------------------------------------------------------------------


def test_a_failure_is_made_small_and_still_fails() -> None:
    bug = BUGS["the pages of a lease go back and the lease does not"]
    place = look_for(bug, places(SEEDS[3:], "sim")).place
    case = case_of(place.seed, place.loop)
    with put_in(bug.edits):
        finding = next(item for item in judge(case).findings if item.law in bug.laws)
        small = shrink(case, breaks_the_same(finding))
        assert judge(small).broke(finding.law) is not None
        assert shrink(small, breaks_the_same(finding)) == small
    assert judge(small).holds
    assert sum(len(req.prompt) for req in small.workload.requests) <= 4
    assert len(case_text(small)) < len(case_text(case))


# -- steps that fail -------------------------------------------------------------------------------

OF_ONE_LOOP = {"transfer fails": "pd", "another op fails": "two_batch"}  # with few wasted rows


def test_each_case_has_simpler_ones_whatever_its_requests_are() -> None:
    cases = [case_of(seed, "overlap") for seed in range(180, many(200, 600))]
    forms = {type(req.rid) for case in cases for req in case.workload.requests}
    assert list in forms and all([*simpler(case)] for case in cases)


@pytest.mark.parametrize("kind", [kind for kind in FAILURES if kind != POSTPROCESS])
def test_who_was_in_a_step_that_failed_ends_and_nobody_else(kind: str) -> None:
    ends: list[bool] = []
    has_mask, of_loop = kind == "mask finds no memory", OF_ONE_LOOP.get(kind)
    loop = of_loop or "overlap:ring:enable_skip_finishing_decode=false"
    seeds = range(60 if has_mask else many(9, 16))
    for seed in (seed for seed in seeds if draw(seed).workload.failures):
        case = case_of(seed, loop)
        failures = tuple(item._replace(kind=kind) for item in case.workload.failures)
        verdict = judge(replace(case, workload=replace(case.workload, failures=failures)))
        workload = verdict.workload
        assert verdict.holds
        for req in workload.requests:
            ends += [workload.has_failed(req)] * (req.name in workload.struck)
            assert not workload.has_failed(req) or req.name in workload.struck
    assert ({True} if of_loop else {True, False}) <= {*ends}


def test_an_error_in_the_layer_of_a_loop_ends_the_run_and_leaves_no_thread() -> None:
    case = written_case("a: 1 2 -> 4; b: 3 -> 4", "mindie_plugin", kv=32, rows=2)
    case.workload.failures = (Failure("a", 2, POSTPROCESS),)
    verdict = judge(case)
    assert verdict.holds and not verdict.finished and verdict.hit
    where = "loops.mindie_plugin:PluginManager.generate_token_async"
    signal = "item.postprocess_done.set()\n"
    edit = Edit(where, f"finally:\n        {signal}", f"except StopIteration:\n        {signal}")
    with put_in([edit]):
        assert not judge(case).holds


def test_a_timed_request_is_waited_for() -> None:
    case = written_case("a: 1 2 -> 2; b at 1: 3 -> 2", "serial", kv=32, rows=2)
    case.workload.delay = 100_000_000
    assert judge(case).holds
    where = "engine.frontend:Frontend.is_empty"
    with put_in([Edit(where, " and not self._said and not self._later", " and not self._said")]):
        assert judge(case).broke("ends")


# -- the oracle as a baseline ----------------------------------------------------------------------


def test_the_oracle_is_a_baseline_of_whatever_a_workload_became() -> None:
    for seed in range(12):
        verdict = judge(draw(seed, odd=False).on(read_design("overlap")))
        oracle = oracle_trace(verdict.workload, verdict.refused)
        assert another_workload(oracle, verdict.trace) == ""
        assert differences(oracle, verdict.trace) == []


def trace_of(**prompts: int) -> Trace:
    marks = [Mark("match", 0, {"rid": rid, "prompt_len": size}) for rid, size in prompts.items()]
    marks += [Mark("finish", 1, {"rid": rid, "reason": "length"}) for rid in prompts]
    return Trace("overlap", "sim", "hash", "virtual", (), (), (), tuple(marks))


def test_two_runs_are_of_one_workload_as_far_as_traces_tell() -> None:
    whole, later = trace_of(a=3, b=4), replace(trace_of(a=3), marks=trace_of(a=3).marks[:1])
    for other, says in (
        (trace_of(a=3), "has the request b."),
        (later, ""),  # who is missing may have come later
        (trace_of(a=4, b=4), "the prompt of a has"),
        (replace(whole, marks=whole.marks[2:]), ""),  # without marks no length is told
        (whole, ""),
    ):
        for told in (another_workload(whole, other), another_workload(other, whole)):
            assert says in told and bool(told) == bool(says)
