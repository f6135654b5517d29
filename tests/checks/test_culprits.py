"""Who did it: leaks and wrong tokens that are put in are found, and the story names the culprit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from minisched.checks.draw import draw, read_design
from minisched.checks.identity import (
    Difference,
    Past,
    differences,
    explain,
    find_bad_ends,
    find_misreads,
)
from minisched.checks.judge import judge
from minisched.checks.laws import Ops, Touched
from minisched.checks.leaks import find_leaks, not_checked
from minisched.checks.many import case_of
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MICROSECOND, SIM_COST, CostModel
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.museum.blame import prompts_of, wrong_token
from minisched.museum.exhibit import case
from minisched.museum.patch import Edit, put_in, swapped
from minisched.scheduler import SchedulerConfig
from minisched.trace import Act, Mark, Trace
from minisched.trace.events import is_forward
from minisched.trace.native import from_json, to_json
from tests.support import (
    AS_OF_0_5_21,
    EVERY_LOOP,
    VOCAB,
    Workload,
    fresh,
    hash_model,
    many,
    play,
    some_requests,
)

HOST = {"schedule": 500 * MICROSECOND, "launch": 100 * MICROSECOND, "process": 500 * MICROSECOND}
COST = CostModel(HOST, 1000 * MICROSECOND, 0, 200 * MICROSECOND, 100 * MICROSECOND)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """A healthy run of three requests that share a prefix; the last ones stop early."""
    stops = frozenset(range(128))
    requests = [
        Request(f"r{i}", [7, 7, 11, 2, i], SamplingParams(max_new_tokens=6, stop_token_ids=ends))
        for i, ends in enumerate([frozenset[int](), stops, stops])
    ]
    loop = "overlap:ring:enable_skip_finishing_decode=false"
    run = run_loop(loop, SimDevice(), HashModel(), requests, SchedulerConfig(), COST)
    assert find_leaks(run.trace) == [] == not_checked(run.trace)
    assert find_bad_ends(run.trace) == [] == find_misreads(run.trace)
    assert find_leaks(from_json(to_json(run.trace))) == []
    return run.trace


def without(trace: Trace, mark: Mark) -> Trace:
    return replace(trace, marks=tuple(other for other in trace.marks if other != mark))


def phases(trace: Trace, leak: Any) -> list[tuple[str, int]]:
    found = {item.id: (item.name, item.step) for item in trace.slices}
    return [found[at] for at in leak.slices]


# -- leaks that are put in -------------------------------------------------------------------------

OWN, FREE = "lease.pages[lease.shared_pages :]", "self.allocator.free(free, lease)"
ROW, UNLOCK = "self.table.free(lease)", "self.cache.dec_lock_ref(lease.node)"
CLOSE = "self.leases.close(lease)"


def of_release(healthy: str, bug: str) -> Edit:
    return Edit("memory.pool:LeasePool.release", healthy, bug)


PAGE_LOST = Edit("memory.pool:LeasePool.free_retired", "self.allocator.free(pages)", "pass")
NOT_CLOSED = Edit(
    "scheduler.scheduler:Scheduler._finish", CLOSE, f"reason is FinishReason.ABORT or {CLOSE}"
)

LONG = SamplingParams(max_new_tokens=9, ignore_eos=True)
EXACT = "sglang,too_many_tokens=refused"  # each request gets all tokens that it asks for
WORKLOAD = Workload(
    [
        Request("a", [7, 7, 11, 2], SamplingParams(max_new_tokens=2)),
        Request("b", [7, 7, 11, 5], SamplingParams(max_new_tokens=4)),
        Request("c", [3, 3, 5, 6], LONG),
    ],
    arrivals=[0, 1, 1],
    aborts={5: "c"},
    config=SchedulerConfig(
        kv_tokens=40,
        context_len=16,
        max_running_requests=3,
        free_rule="lease",
        rules=EXACT,
    ),
)


@pytest.mark.parametrize(
    ("edit", "resource", "kind", "rid", "story", "told"),
    [
        (of_release(OWN, OWN.replace(":]", ": -1]")), "page", "held", "a",
         [("schedule", 0), ("process", 3)], "page 16 was allocated to a in step 1"),
        (PAGE_LOST, "page", "lost", "b",
         [("process", 3)], "gave up pages 5-7 in step 3 (process, 4.8 ms)"),
        (of_release(FREE, f"{FREE}; self.allocator.free(lease.pages[-1:])"), "page", "freed", "a",
         [("process", 4)] * 2, "again in step 4 (process, 6 ms)"),
        (of_release(ROW, "pass"), "row", "held", "a",
         [("schedule", 0), ("process", 3)], "in step 1 (schedule, 0.5 ms)"),
        (of_release(ROW, f"{ROW}; {ROW}"), "row", "freed", "a",
         [("schedule", 0), ("process", 3), ("process", 4)], "4 (process, 6 ms), when it was a's"),
        (of_release(UNLOCK, "pass"), "lock", "held", "a",
         [("schedule", 0), ("process", 3)], "taken for a in step 3 (process, 4.8 ms)"),
        (NOT_CLOSED, "row", "held", "c",
         [("schedule", 0), ("receive", 0)], "committed (receive, 6 ms)"),
    ],
)  # fmt: skip
def test_a_leak_is_found_and_whose_it_was_is_said(
    edit: Edit, resource: str, kind: str, rid: str, story: list[tuple[str, int]], told: str
) -> None:
    device = SimDevice()
    with put_in([edit]), suppress(Exception):  # a broken scheduler may crash in any way
        play(fresh(WORKLOAD), "overlap", "ring", AS_OF_0_5_21, device, HashModel(64), COST)
    trace = Trace.of(device.recorder, "overlap", "sim", "hash", "virtual")
    word = "a lock on" if resource == "lock" else resource
    found = [it for it in find_leaks(trace) if it.kind == kind and word in str(it)[:30]]
    assert found and (found[0].rid, rid in str(found[0])) == (rid, True), find_leaks(trace)
    assert phases(trace, found[0]) == story and told in str(found[0])


def test_the_story_says_who_took_it_when_and_who_should_have_given_it_back(trace: Trace) -> None:
    """A row that comes back in the end was held between two steps all the same."""
    first = next(mark for mark in trace.marks if mark.name == "row free")
    never = without(trace, first)
    late = replace(trace, marks=(*never.marks, replace(first, time=trace.end)))
    for ran, told in ((never, "r1 ended (stop) in step 2 (process, "), (late, "released only")):
        [leak] = [leak for leak in find_leaks(ran) if str(leak).startswith("row 2 ")]
        assert (leak.kind, leak.rid) == ("held", "r1") and told in str(leak)
        assert ran is late or phases(ran, leak) == [("schedule", 0), ("process", 2)]


def test_who_ended_twice_or_heard_a_token_behind_the_end_is_told(trace: Trace) -> None:
    end = next(mark for mark in trace.marks if mark.name == "finish")
    [found] = find_bad_ends(replace(trace, marks=(*trace.marks, replace(end, time=trace.end))))
    assert found.kind == "ends" and ("process", 2) in phases(trace, found)
    assert str(found).startswith("r1 ended twice: (stop) in step 2 (process, ")
    behind = Mark("tokens", trace.end, {"step": 9, "rids": ("r1",), "tokens": (5,)})
    [found] = find_bad_ends(replace(trace, marks=(*trace.marks, behind)))
    assert "r1 received a token of step 9" in str(found) and "ended (stop) in step 2" in str(found)


def test_ops_calls_and_steps_that_nobody_waited_for(trace: Trace) -> None:
    last = [mark for mark in trace.marks if mark.name == "tokens"][-1]
    [leak] = find_leaks(without(trace, last))
    assert str(leak).startswith(f"step {last.attrs['step']} was committed")
    ids = {item.id for item in trace.slices if item.name == "copy"}
    left = tuple(act for act in trace.program if not (act.kind == "wait" and act.op in ids))
    leaks = find_leaks(replace(trace, program=left))
    assert [leak.kind for leak in leaks] == ["pending"] * len(ids)
    assert "launched the copy of step 1 in its launch of step 1" in str(leaks[0])
    lane, call = "worker thread", 10**6
    acts = (Act("host", "launch", call), Act(lane, "begin", call))
    [leak] = find_leaks(replace(trace, program=(*trace.program, *acts)))
    assert str(leak).startswith(f"{lane} began a call")


def test_what_a_trace_does_not_tell_is_said(trace: Trace) -> None:
    dumb = ("commit", "tokens", "page alloc", "finish")
    marks = tuple(mark for mark in trace.marks if mark.name not in dumb)
    said = " ".join(not_checked(replace(trace, marks=marks, program=())))
    assert all(f"'{name}'" in said for name in dumb) and "no program" in said
    assert not_checked(trace) == []
    stuck = replace(trace, program=(*trace.program, Act("host", "wait", 10**6)))
    assert "A lane waits for ever" in " ".join(not_checked(stuck))


@pytest.mark.parametrize("seed", [11, 18])
def test_duplicates_that_outlive_their_lease_are_no_leak_unless_they_stay(seed: int) -> None:
    drawn = case_of(seed, "overlap")
    config = replace(drawn.workload.config, free_rule="at_once")
    case = replace(drawn, workload=replace(drawn.workload, config=config))

    def forget(engine: Engine) -> None:
        engine.scheduler.leases.free_retired = lambda: None

    assert judge(case).holds and judge(case, forget).broke("leak")


QUICK = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)


def greedy(rid: str, prompt: Any, max_new_tokens: int, **more: Any) -> Request:
    params = SamplingParams(max_new_tokens=max_new_tokens, **(more or {"ignore_eos": True}))
    return Request(rid, prompt, params)


# -- two traces ------------------------------------------------------------------------------------


def test_two_traces_are_compared_without_the_engine() -> None:
    serial, other = (
        run_loop(loop, SimDevice(), HashModel(), [Request("a", [1, 2, 3])], cost=SIM_COST).trace
        for loop in ("serial", "overlap")
    )
    assert differences(serial, other) == []
    at, mark = [item for item in enumerate(other.marks) if item[1].name == "tokens"][2]
    wrong = replace(mark, attrs={**mark.attrs, "tokens": (999,)})
    changed = replace(other, marks=(*other.marks[:at], wrong, *other.marks[at + 1 :]))
    [found] = differences(serial, changed)
    assert found == Difference("overlap", "a", 2, mark.attrs["tokens"][0], 999)
    cut = replace(other, marks=tuple(item for item in other.marks if item.time < mark.time))
    assert [item.got for item in differences(serial, cut)] == [None]
    gave_up = Mark("finish", mark.time, {"rid": "a", "reason": "abort"})
    assert differences(serial, replace(cut, marks=(*cut.marks, gave_up))) == []
    with pytest.raises(ValueError, match="has no mark 'tokens'"):
        differences(serial, replace(other, marks=()))
    with pytest.raises(ValueError, match="has no program"):
        explain(found, replace(other, program=()))


# -- wrong tokens ----------------------------------------------------------------------------------

EDITS = {
    "copy without wait": Edit(
        "worker.worker:Worker.launch_sample",
        "self.copy_stream.wait(step.next_token_ids)",
        "pass",
    ),
    "row not rewritten": Edit(
        "memory.prefix_cache:PrefixCache.cache_unfinished_req",
        "min(lease.sent_pages, lease.shared_pages)",
        "len(lease.pages)",
    ),
    "stale slot": Edit(
        "relay.future_map:FutureMapRing.bind",
        "-slot if",
        "-max(1, slot - 2) if",
    ),
    "unresolved placeholder": Edit(  # vLLM #46899
        "relay.future_map:FutureMap.resolve_future",
        "xp.where(ids < 0, self.token_ids_map[xp.clamp(-ids, min=0)], ids)",
        "xp.clamp(ids, min=0)",
    ),
}
TREE = "memory.radix_cache:RadixCache"
NO_LOCK = [
    Edit(f"{TREE}.inc_lock_ref", "for above in self._path(node):", "for above in ():"),
    Edit(f"{TREE}.dec_lock_ref", "path = self._path(node)", "return"),
]


def together(requests: list[Request], **config: Any) -> Workload:
    """They all come at once; memory goes back by the lease rule."""
    config = {"context_len": 32, "free_rule": "lease", "rules": EXACT, **config}
    return Workload(requests, [0] * len(requests), {}, SchedulerConfig(**config))


ALONE = together([greedy("a", [1, 2, 3], 3)], kv_tokens=8)
PAIR = together([greedy("a", [1, 2, 3], 5), greedy("b", [4, 5], 5)], kv_tokens=32)
EVICTED = together(
    [greedy("a", [7, 7, 11, 2, 7, 7, 11, 5, 3, 3], 3),
     greedy("b", [7, 7, 11, 2, 7, 7, 10, 14, 14, 5, 10, 13, 9], 6)],
    kv_tokens=28, page_size=4, max_running_requests=2, run_first="unified",
)  # fmt: skip
DUPLICATES = together(
    [greedy("a", [7], 1), greedy("b", [7], 5)], kv_tokens=6, max_running_requests=1
)
STORIES: list[tuple[str, str, str, Workload, tuple[str, int]]] = [
    ("copy without wait", "serial", "host", ALONE, ("sample", 1)),
    ("copy without wait", "overlap", "ring", ALONE, ("copy", 1)),
    ("prefix not locked", "overlap", "pool", EVICTED, ("schedule", 0)),
    ("row not rewritten", "overlap", "pool", DUPLICATES, ("process", 4)),
    ("stale slot", "overlap", "ring", PAIR, ("forward", 2)),
    ("unresolved placeholder", "overlap", "ring", ALONE, ("forward", 2)),
]


def test_the_story_names_the_culprit(golden: Callable[[str, str], None]) -> None:
    lines = []
    for bug, loop, relay, workload, culprit in STORIES:
        traces = []
        for edits in ([], NO_LOCK if bug == "prefix not locked" else [EDITS[bug]]):
            again, device = fresh(workload), SimDevice()
            with put_in(edits):
                options = AS_OF_0_5_21 if loop == "overlap" else {}
                play(again, loop, relay, options, device, HashModel(VOCAB), QUICK)
            traces.append(Trace.of(device.recorder, loop, "sim", "hash", "virtual"))
        difference = differences(*traces)[0]
        story, slices = explain(difference, traces[1]), {item.id: item for item in traces[1].slices}
        assert culprit in {(slices[at].name, slices[at].step) for at in story.culprit.slices}, bug
        assert difference.rid in story.chain[0].sentence
        assert story.is_known
        assert (story.culprit.missing is not None) == (bug == "copy without wait")
        if relay == "ring" and not story.culprit.missing:
            marks = [mark.attrs for mark in traces[1].marks if mark.name == "wrong token"]
            told = next(mark for mark in marks if mark["rid"] == difference.rid)
            assert told["needs"] != told["got"] and told["step"] == 2
        lines += [f"{bug}, {loop}", f"{story}\n"]
    golden("wrong_tokens.txt", "\n".join(lines))


# -- the arrow of a token --------------------------------------------------------------------------

APART = replace(QUICK, forward_per_token=3)  # no two ops at once
RELAYS = {"future map", "token pool", "prev sampled", "last sampled", "last tokens"}
IN_VAIN = ("future map", "last sampled", "last tokens")  # cell 0, for every token from elsewhere


def really_taken(trace: Trace, ops: Ops) -> set[tuple[int, int]]:
    """Read off the accesses themselves: (forward pass, step that wrote what it found there)."""
    slices, found = {item.id: item for item in trace.slices}, set()
    for (op, name), cells in ops.items():
        if name not in RELAYS or op not in slices or not is_forward(slices[op].lane):
            continue
        for cell in cells.found - ({0} if name in IN_VAIN else set()):
            writers = (
                slices[other] for (other, same), theirs in ops.items()
                if same == name and cell in theirs.written
                if slices[other].end <= slices[op].start
            )  # fmt: skip
            newest = max(writers, key=lambda item: (item.end, item.id), default=None)
            if newest is not None and newest.name in ("sample", "verify"):
                found.add((op, newest.step))
    return found


def drawn(trace: Trace, ops: Ops) -> set[tuple[int, int]]:
    """The same as the trace has it: token edges between ops of the device."""
    sampled = {item.id: item.step for item in trace.slices if item.name in ("sample", "verify")}
    found = {(edge.dst, sampled[edge.src]) for edge in trace.edges
             if edge.kind == "token" and edge.src in sampled}  # fmt: skip
    only_row_0 = {op for (op, name), cells in ops.items()
                  if name == "last tokens" and not cells.found - {0}}  # fmt: skip
    return {(op, step) for op, step in found if op not in only_row_0}


@EVERY_LOOP
def test_in_a_healthy_run_every_arrow_is_what_was_read(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    seen = 0
    for seed in range(20):
        device, touched, workload = SimDevice(), Touched(), draw(seed, odd=False).workload
        model = HashModel(VOCAB, eos_ids=workload.eos_ids)
        try:
            play(workload, loop, relay, options, device, model, APART, touched.watch)
        except ValueError:  # the loop refuses what a request wants
            continue
        trace, ops = Trace.of(device.recorder, loop, "sim", "", "virtual"), touched.touched()
        assert all(mark.name != "wrong token" for mark in trace.marks)
        if relay not in ("chain", "fill_host"):  # these have no memory on the device
            assert drawn(trace, ops) == really_taken(trace, ops)
        seen += 1
        if seen == many(1, 6):
            return
    pytest.fail("the loop refuses nearly everything")


@pytest.mark.parametrize("loop", ["overlap", "mlx_async", "vllm_async", "mindie_single"])
def test_on_a_wall_clock_the_relays_binding_says_what_a_step_takes(loop: str) -> None:
    run = run_loop(loop, open_device("thread"), hash_model("thread", frozenset()), some_requests(6))
    slices = {item.id: item for item in run.trace.slices}
    taken = [(slices[edge.src], slices[edge.dst]) for edge in run.trace.edges
             if edge.kind == "token" and is_forward(slices[edge.dst].lane)]  # fmt: skip
    assert taken
    for source, reader in taken:
        assert source.name in ("sample", "copy") and set(source.rids) & set(reader.rids)
        assert source.step < reader.step


# -- KV of another prompt --------------------------------------------------------------------------


def shares_too_much(node: Any, tokens: Any, offset: int) -> int:
    """``TreeNode.shared_pages`` without a look at the tokens."""
    return min(len(node.tokens), len(tokens) - offset) // int(node.page_size)


@pytest.mark.parametrize("page_size", [1, 2])
def test_kv_of_another_prompt_is_named_by_page_token_and_owner(page_size: int) -> None:
    shared = case(
        "afg: 1 2 3 4 10 11 -> 2; abc2 at 9: 1 2 3 4 5 6 7 8 -> 4", "overlap", kv=32, rows=2,
        page_size=page_size,
    )  # fmt: skip
    with swapped({"memory.radix_cache:TreeNode.shared_pages": shares_too_much}):
        verdict = judge(shared)
    found = wrong_token(verdict)
    assert found is not None and not explain(found, verdict.trace).is_known
    story = explain(found, verdict.trace, prompts_of(verdict.workload))
    page = 5 if page_size == 1 else 3
    said = f"page {page} holds token 10 of afg, and abc2 reads it as its token 5"
    assert story.is_known and story.culprit.sentence == said
    slices = {item.id: item for item in verdict.trace.slices}
    writer, reader = (slices[one] for one in story.culprit.slices)
    assert (writer.name, writer.rids) == ("forward", ("afg",))
    assert (reader.name, reader.rids) == ("forward", ("abc2",)) and reader.start > writer.start


@pytest.mark.parametrize("loop", ["overlap", "vllm_async", "mlx_async", "mindie_dual", "pd"])
def test_of_a_right_run_no_kv_belongs_to_another_prompt(loop: str) -> None:
    for seed in range(many(6, 20)):
        verdict = judge(draw(seed).on(read_design(loop)))
        if verdict.findings:
            continue
        prompts, trace = prompts_of(verdict.workload), verdict.trace
        side = "decode" if any("side" in mark.attrs for mark in trace.marks) else ""
        past = Past(trace, side, prompts)
        for step in list(past.of_step):
            assert not [it for rid in prompts for it in past.foreign_kv(step, rid)], (seed, step)
