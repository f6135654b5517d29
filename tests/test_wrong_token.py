"""The story of a wrong token names the culprit; of a right one there is none to tell.

What a bug does to a token is read from two traces alone, that of a healthy run and that of the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from minisched.checks.happens_before import Past
from minisched.checks.tokens.identity import Difference, differences, tokens_heard
from minisched.checks.tokens.wrong_token import explain, offence_of
from minisched.core import Lease, Output, Request, Result, SamplingParams, ScheduleBatch
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.native import from_json, to_json
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.museum.exhibit import Exhibit
from minisched.relay import FutureMapRing
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Mark, Trace
from tests.support import LOOP_OPTIONS, VOCAB, LoopOptions, Workload, fresh, play, workloads
from tests.test_free_rule import two_in_one_row

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)


def copy_without_wait(engine: Engine) -> None:
    """The copy stream does not wait for the sample it copies."""
    engine.worker.copy_stream.wait = lambda op: None  # type: ignore[method-assign]


def prefix_not_locked(engine: Engine) -> None:
    """A cached prefix that a running request reads is not locked, so it may be evicted."""
    tree = engine.scheduler.tree
    if tree is not None:
        tree.inc_lock_ref = lambda node: None  # type: ignore[method-assign]
        tree.dec_lock_ref = lambda node: None  # type: ignore[method-assign]


def row_not_rewritten(engine: Engine) -> None:
    """Duplicates are freed, but the device is not told which pages take their place."""
    leases, retire = engine.scheduler.leases, engine.scheduler.leases.retire

    def forgetful(lease: Lease, pages: list[int]) -> None:
        lease.sent_pages = len(lease.pages)
        retire(lease, pages)

    leases.retire = forgetful  # type: ignore[method-assign]


def healthy(engine: Engine) -> None:
    """Nothing is changed."""


def played(
    workload: Workload,
    loop: str,
    relay: str,
    patch: Callable[[Engine], None] = healthy,
    options: dict[str, Any] | None = None,
) -> Trace | None:
    """A run's trace; None if it crashed."""
    workload, device = fresh(workload), SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    try:
        play(workload, loop, relay, options or {}, device, model, COST, patch)
    except Exception:  # a broken scheduler may crash in any way
        return None
    return device.recorder.trace(loop, "sim", "hash", "virtual")


# -- right tokens --------------------------------------------------------------------------------


@given(workload=workloads(), loops=st.lists(st.sampled_from(LOOP_OPTIONS), min_size=3, max_size=3))
@settings(max_examples=15, deadline=None)
def test_on_every_loop_the_traces_agree_and_nobody_is_accused(
    loops: list[LoopOptions], workload: Workload
) -> None:
    """A difference that is made up finds all that was read as it should be."""
    base = played(workload, "serial", "host")
    for loop, relay, options in loops:
        trace = played(workload, loop, relay, options=options)
        assert base is not None and trace is not None
        assert differences(base, trace) == []
        for rid, heard in tokens_heard(trace).items():
            made_up = Difference(loop, rid, len(heard) - 1, -1, heard[-1].token)
            story = explain(made_up, trace)
            assert not story.is_known, str(story)


def test_the_marks_are_what_clients_heard() -> None:
    requests = [greedy(f"warm up {i}", [3, 1, i], 4) for i in range(3)]
    for loop in ("serial", "overlap", "mindie_dual", "pd"):
        again = [Request(req.rid, req.prompt, req.params) for req in requests]
        run = run_loop(loop, SimDevice(), HashModel(), again, SchedulerConfig(), SIM_COST)
        heard = tokens_heard(from_json(to_json(run.trace)))
        assert {rid: [item.token for item in items] for rid, items in heard.items()} == run.outputs


def test_two_traces_are_compared_without_the_engine() -> None:
    serial, other = (
        run_loop(loop, SimDevice(), HashModel(), [Request("a", [1, 2, 3])], cost=SIM_COST).trace
        for loop in ("serial", "overlap")
    )
    assert differences(serial, other) == []
    at, mark = [item for item in enumerate(other.marks) if item[1].name == "tokens"][2]
    wrong = replace(mark, attrs={**mark.attrs, "tokens": "999"})
    changed = replace(other, marks=(*other.marks[:at], wrong, *other.marks[at + 1 :]))
    (found,) = differences(serial, changed)
    right = int(mark.attrs["tokens"])
    assert found == Difference("overlap", "a", 2, right, 999)
    cut = cut_before(other, mark.time)
    assert [item.got for item in differences(serial, cut)] == [None]
    gave_up = Mark("finish", mark.time, {"rid": "a", "reason": "abort"})
    assert differences(serial, replace(cut, marks=(*cut.marks, gave_up))) == []
    without = tuple(item for item in other.marks if item.name != "tokens")
    with pytest.raises(ValueError, match="has no mark 'tokens'"):
        differences(serial, replace(other, marks=without))
    with pytest.raises(ValueError, match="has no program"):
        explain(found, replace(other, program=()))


def cut_before(trace: Trace, time: int) -> Trace:
    """The trace as if its run had stopped then."""
    return replace(trace, marks=tuple(mark for mark in trace.marks if mark.time < time))


# -- wrong tokens --------------------------------------------------------------------------------


def unresolved_placeholder(engine: Engine) -> None:
    """A placeholder reaches the model as if it were a token (vLLM #46899)."""
    relay = engine.worker.relay
    assert isinstance(relay, FutureMapRing)
    relay.resolve_future = lambda ids: relay.xp.clamp(ids, min=0)  # type: ignore[method-assign]


def live_last_chunk_flag(engine: Engine) -> None:
    """The result is delivered by what is true now, not by what was true at commit (MindIE #233)."""
    scheduler, process = engine.scheduler, engine.scheduler.process

    def live(batch: ScheduleBatch, result: Result) -> list[Output]:
        chunked = scheduler.prefill.chunked_req
        batch.delivers[:] = [chunked is None or chunked.req is not req for req in batch.reqs]
        return process(batch, result)

    scheduler.process = live  # type: ignore[method-assign]


def stale_slot(engine: Engine) -> None:
    """A step reads the slot of a step before the last one."""
    relay = engine.worker.relay
    assert isinstance(relay, FutureMapRing)
    bind = relay.bind

    def late(batch: ScheduleBatch, previous: ScheduleBatch | None) -> tuple[list[int], list[int]]:
        for lease in batch.leases:
            lease.future_slot = max(1, lease.future_slot - 2)
        return bind(batch, previous)

    relay.bind = late  # type: ignore[method-assign]


def end_is_not_seen(engine: Engine) -> None:
    """A row in flight is delivered although its request has ended."""
    scheduler, process = engine.scheduler, engine.scheduler.process

    def unseen(batch: ScheduleBatch, result: Result) -> list[Output]:
        over = [req for req in batch.reqs if req.finished and req.lease is None]
        late = [Output(req.rid, 5) for req in over]
        return [*process(batch, result), *late]

    scheduler.process = unseen  # type: ignore[method-assign]


@dataclass(frozen=True)
class Bug:
    """A patch, the loop it is put into, a workload, and what the culprit's sentence has to say."""

    patch: Callable[[Engine], None]
    loop: str
    relay: str
    workload: Workload
    says: str
    is_known: bool = True


def greedy(rid: str, prompt: list[int], max_new_tokens: int) -> Request:
    """A request that goes on to its length."""
    return Request(rid, prompt, SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True))


def together(requests: list[Request], **config: Any) -> Workload:
    """They all come at once."""
    return Workload(requests, [0] * len(requests), {}, SchedulerConfig(context_len=32, **config))


ALONE = together([greedy("a", [1, 2, 3], 3)], kv_tokens=8)
PAIR = together([greedy("a", [1, 2, 3], 5), greedy("b", [4, 5], 5)], kv_tokens=32)
SHARED = [7, 7, 11, 2, 7, 7, 11, 5, 3, 3]
EVICTED = together(
    [greedy("a", SHARED, 3), greedy("b", [7, 7, 11, 2, 7, 7, 10, 14, 14, 5, 10, 13, 9], 6)],
    kv_tokens=28, page_size=4, max_running_requests=2, run_first="unified",
)  # fmt: skip
DUPLICATES = together(
    [greedy("a", [7], 1), greedy("b", [7], 5)], kv_tokens=6, max_running_requests=1
)

BUGS = [
    Bug(copy_without_wait, "serial", "host", ALONE,
        "the copy of step 1 reads cell 0 of device output buffer 0, which the sample of step 1 "
        "writes, and nothing makes one of them wait for the other"),
    Bug(copy_without_wait, "overlap", "ring", ALONE,
        "the copy of step 1 reads cell 0 of device output buffer 1, which the sample of step 1 "
        "writes, and nothing makes one of them wait for the other"),
    Bug(prefix_not_locked, "overlap", "pool", EVICTED,
        "KV slot 20 was given back by the prefix cache after step 4 was committed (schedule, "
        "5.3e-05 ms), although b still reads it in step 6"),
    Bug(row_not_rewritten, "overlap", "pool", DUPLICATES,
        "KV slot 2 was given back and allocated to b once more in step 6 (schedule, 7.7e-05 ms), "
        "although b still reads it in step 6"),
    Bug(stale_slot, "overlap", "ring", PAIR,
        "step 2 reads future slot 1 for b, which step 1 was given for a; it should have read "
        "future slot 2, which step 1 was given for b"),
    Bug(end_is_not_seen, "overlap", "ring", ALONE,
        "the token of step 4 was delivered to a, although a ended (length) in step 3 (process, "),
    Bug(unresolved_placeholder, "overlap", "ring", ALONE,
        "step 2 read future slot 1 for a, which step 1 had written for a", is_known=False),
]  # fmt: skip
SEARCH = settings(
    max_examples=400, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.patch.__name__}-{bug.loop}")
def test_the_story_names_the_culprit(bug: Bug) -> None:
    base, trace = (
        played(bug.workload, bug.loop, bug.relay, patch) for patch in (healthy, bug.patch)
    )
    assert base is not None and trace is not None
    difference = differences(base, trace)[0]
    story = explain(difference, trace)
    assert bug.says in story.culprit.sentence
    assert story.is_known == bug.is_known
    assert difference.rid in story.chain[0].sentence
    assert {item.id for item in trace.slices} >= set(story.culprit.slices) != set()
    offence = offence_of(story)
    assert (offence.slices, offence.sentence) == (story.culprit.slices, story.culprit.sentence)
    assert (offence.missing is not None) == (bug.patch is copy_without_wait)


OF_THE_MUSEUM = {
    "late_token_of_retracted": "the token of step 5 was delivered to b, although b had lost the "
    "lease that the step was committed under (retraction): it is computed once more",
    "ring_lapped": "future slot 1 was written in step 7 for b, although a still needs",
    "mlx_old_token": "step 3 did not take the token that step 2 had sampled for a",
    "reprefilled_row_filled": "row 0 of step 2 was filled with the token of row 1 of the step",
    "live_last_chunk_flag": "what step 1 sampled for a was delivered, although that step computed",
}


@pytest.mark.parametrize("name", OF_THE_MUSEUM)
def test_the_story_of_an_exhibit(name: str) -> None:
    exhibit: Exhibit = import_module(f"minisched.museum.bugs.{name}").EXHIBIT
    bug, right = exhibit.with_bug().trace, exhibit.healthy().trace
    story = explain(differences(right, bug)[0], bug)
    assert OF_THE_MUSEUM[name] in story.culprit.sentence


def test_a_chunk_that_is_delivered_by_a_live_flag() -> None:
    """One of both: what a chunk sampled is heard, or what the last one sampled is not."""

    def differ(workload: Workload) -> bool:
        base, trace = (played(workload, "overlap", "ring", patch) for patch in (healthy, bug))
        return base is not None and trace is not None and bool(differences(base, trace))

    bug = live_last_chunk_flag
    workload = find(workloads(with_aborts=False), differ, settings=SEARCH)
    base, trace = (played(workload, "overlap", "ring", patch) for patch in (healthy, bug))
    assert base is not None and trace is not None
    difference = differences(base, trace)[0]
    story = explain(difference, trace)
    assert "that is not the last of its prompt" in str(story) or "was not delivered" in str(story)
    assert f"sampled a token for {difference.rid}" in str(story) or (
        f"sampled for {difference.rid}" in str(story)
    )


def test_a_wasted_row_that_overwrites_the_next_one_s_prompt() -> None:
    """mini-sglang #89: a's late token lands in the row that is b's by now."""
    base, trace = (
        run_loop(
            "mini_overlap", SimDevice(), HashModel(), two_in_one_row(rule).requests,
            two_in_one_row(rule).config, OVERWRITES, "token_pool",
        ).trace
        for rule in ("lease", "at_once")
    )  # fmt: skip
    difference = differences(base, trace)[0]
    assert difference.rid == "b"
    story = explain(difference, trace)
    late = [item for item in trace.slices if item.name == "sample" and item.rids == ("a",)][-1]
    assert "of row 1 of the token pool" in story.culprit.sentence
    assert f"step {late.step}" in story.culprit.sentence
    assert late.id in story.culprit.slices


HOST = {"schedule": 5, "launch": 1, "process": 5}
OVERWRITES = CostModel(HOST, 30, 0, 2, 1)


# -- what comes before what ----------------------------------------------------------------------


def test_what_orders_two_acts_is_launch_wait_and_a_lane_s_order() -> None:
    program = [
        Act("host", "launch", 1), Act("forward", "begin", 1), Act("forward", "end", 1),
        Act("host", "launch", 2), Act("copy", "wait", 1), Act("copy", "begin", 2),
        Act("copy", "end", 2), Act("host", "wait", 2),
    ]  # fmt: skip
    past = Past(Trace("", "", "", "virtual", (), (), (), (), tuple(program)))
    before = {(one, other) for one in range(len(program)) for other in range(len(program))
              if past.done[one].is_before(past.done[other])}  # fmt: skip
    lanes = {(0, 3), (0, 7), (3, 7), (1, 2), (4, 5), (4, 6), (5, 6)}
    assert before == lanes | {
        (0, 1), (0, 2), (0, 4), (0, 5), (0, 6), (1, 4), (2, 4), (1, 5), (2, 5), (1, 6), (2, 6),
        (3, 5), (3, 6), (1, 7), (2, 7), (4, 7), (5, 7), (6, 7),
    }  # fmt: skip
    assert not past.is_unordered(2, past.done[7]) and past.is_unordered(2, past.done[3])
