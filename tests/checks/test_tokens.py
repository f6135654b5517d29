"""The story of a wrong token names the culprit, and an arrow starts where the token came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minisched.checks.draw.draw import draw
from minisched.checks.tokens.identity import Difference, differences
from minisched.checks.tokens.wrong_token import explain, offence_of
from minisched.checks.touches import Ops, Touched
from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from minisched.trace import Mark, Trace
from minisched.trace.lanes import is_forward
from tests.support import (
    EVERY_LOOP,
    VOCAB,
    LoopOptions,
    Workload,
    fresh,
    hash_model,
    many,
    play,
    some_requests,
)

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)


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
    wrong = replace(mark, attrs={**mark.attrs, "tokens": "999"})
    changed = replace(other, marks=(*other.marks[:at], wrong, *other.marks[at + 1 :]))
    [found] = differences(serial, changed)
    assert found == Difference("overlap", "a", 2, int(mark.attrs["tokens"]), 999)
    cut = replace(other, marks=tuple(item for item in other.marks if item.time < mark.time))
    assert [item.got for item in differences(serial, cut)] == [None]
    gave_up = Mark("finish", mark.time, {"rid": "a", "reason": "abort"})
    assert differences(serial, replace(cut, marks=(*cut.marks, gave_up))) == []
    dumb = tuple(item for item in other.marks if item.name != "tokens")
    with pytest.raises(ValueError, match="has no mark 'tokens'"):
        differences(serial, replace(other, marks=dumb))
    with pytest.raises(ValueError, match="has no program"):
        explain(found, replace(other, program=()))


# -- wrong tokens ----------------------------------------------------------------------------------


EDITS = {
    "copy without wait": Edit(
        "worker.worker:Worker.launch_copy", "self.copy_stream.wait(last)", "pass"
    ),
    "row not rewritten": Edit(
        "memory.prefix_cache:PrefixCache.cache_unfinished_req",
        "min(lease.sent_pages, lease.shared_pages)",
        "len(lease.pages)",
    ),
    "stale slot": Edit(
        "relay.future_map:FutureMapRing.bind",
        "-row.lease.future_slot if",
        "-max(1, row.lease.future_slot - 2) if",
    ),
    "unresolved placeholder": Edit(  # vLLM #46899
        "relay.future_map:FutureMapRing.resolve_future",
        "self.look_up(self.token_ids_map, ids)",
        "self.xp.clamp(ids, min=0)",
    ),
}


TREE = "memory.radix_cache:RadixCache"
NO_LOCK = [
    Edit(f"{TREE}.inc_lock_ref", "for above in self._path(node):", "for above in ():"),
    Edit(f"{TREE}.dec_lock_ref", "path = self._path(node)", "return"),
]


def together(requests: list[Request], **config: Any) -> Workload:
    """They all come at once."""
    return Workload(requests, [0] * len(requests), {}, SchedulerConfig(context_len=32, **config))


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
                play(again, loop, relay, {}, device, HashModel(VOCAB), COST)
            traces.append(device.recorder.trace(loop, "sim", "hash", "virtual"))
        difference = differences(*traces)[0]
        story, slices = explain(difference, traces[1]), {item.id: item for item in traces[1].slices}
        assert culprit in {(slices[at].name, slices[at].step) for at in story.culprit.slices}, bug
        assert difference.rid in story.chain[0].sentence
        assert story.is_known == (bug != "unresolved placeholder")
        assert offence_of(story).missing == story.missing
        assert (story.missing is not None) == (bug == "copy without wait")
        if relay == "ring" and not story.missing:
            marks = [mark.attrs for mark in traces[1].marks if mark.name == "wrong token"]
            told = next(mark for mark in marks if mark["rid"] == difference.rid)
            assert told["needs"] != told["got"] and told["step"] == 2
        lines += [f"{bug}, {loop}", f"{story}\n"]
    golden("wrong_tokens.txt", "\n".join(lines))


# -- the arrow of a token --------------------------------------------------------------------------

APART = replace(COST, forward_per_token=3)  # no two ops at once
RELAYS = {"future map", "token pool", "prev sampled", "last tokens"}
IN_VAIN = {"future map", "last tokens"}


def traced(workload: Workload, loop: LoopOptions) -> tuple[Trace, Ops]:
    """A run, and what was touched in it."""
    device = SimDevice()
    touched = Touched()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(fresh(workload), *loop, device, model, APART, touched.watch)
    return device.recorder.trace(loop[0], "sim", "", "virtual"), touched.touched()


def really_taken(trace: Trace, ops: Ops) -> set[tuple[int, int]]:
    """Read off the accesses themselves: (forward pass, step that wrote what it found there).

    Cell 0 is left out where it is read, in vain, for every token that the host knows.
    """
    slices = {item.id: item for item in trace.slices}
    found = set()
    for (op, name), cells in ops.items():
        if name not in RELAYS or op not in slices or not is_forward(slices[op].lane):
            continue
        for cell in cells.found - ({0} if name in IN_VAIN else set()):
            writers = (
                slices[other]
                for (other, same), theirs in ops.items()
                if same == name and cell in theirs.written
                if slices[other].end <= slices[op].start
            )
            newest = max(writers, key=lambda item: (item.end, item.id), default=None)
            if newest is not None and newest.name in ("sample", "verify"):
                found.add((op, newest.step))
    return found


def drawn(trace: Trace, ops: Ops) -> set[tuple[int, int]]:
    """The same as the trace has it: token edges between ops of the device."""
    slices = {item.id: item for item in trace.slices}
    edges = (edge for edge in trace.edges if edge.kind == "token")
    found = {(edge.dst, slices[edge.src].step) for edge in edges
             if slices[edge.src].name == "sample"}  # fmt: skip
    only_row_0 = {op for (op, name), cells in ops.items()
                  if name == "last tokens" and not cells.found - {0}}  # fmt: skip
    return {(op, step) for op, step in found if op not in only_row_0}


@EVERY_LOOP
def test_in_a_healthy_run_every_arrow_is_what_was_read(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    seen = 0
    for seed in range(20):
        try:
            trace, ops = traced(draw(seed, odd=False).workload, (loop, relay, options))
        except ValueError:  # the loop refuses what a request wants
            continue
        assert all(mark.name != "wrong token" for mark in trace.marks)
        if relay not in ("chain", "fill_host"):  # these have no memory on the device
            assert drawn(trace, ops) == really_taken(trace, ops)
        seen += 1
        if seen == many(2, 12):
            return
    pytest.fail("the loop refuses nearly everything")


@pytest.mark.parametrize("loop", ["overlap", "mlx_async", "vllm_async", "mindie_single"])
def test_on_a_wall_clock_the_relays_binding_says_what_a_step_takes(loop: str) -> None:
    """Nothing can be looked up there."""
    run = run_loop(loop, open_device("thread"), hash_model("thread", frozenset()), some_requests(6))
    slices = {item.id: item for item in run.trace.slices}
    taken = [(slices[edge.src], slices[edge.dst]) for edge in run.trace.edges
             if edge.kind == "token" and is_forward(slices[edge.dst].lane)]  # fmt: skip
    assert taken
    for source, reader in taken:
        assert source.name in ("sample", "copy") and set(source.rids) & set(reader.rids)
        assert source.step < reader.step
