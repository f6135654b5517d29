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
from minisched.core import Lease, Output, Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.layout import make_view
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.relay import FutureMapRing
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

Patch = Callable[[Engine], None]
COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)


def healthy(engine: Engine) -> None:
    pass


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


def copy_without_wait(engine: Engine) -> None:
    """The copy stream does not wait for the sample it copies."""
    engine.worker.copy_stream.wait = lambda op: None


def prefix_not_locked(engine: Engine) -> None:
    """A cached prefix that a running request reads is not locked, so it may be evicted."""
    tree = engine.scheduler.tree
    assert tree is not None
    tree.inc_lock_ref = tree.dec_lock_ref = lambda node: None


def row_not_rewritten(engine: Engine) -> None:
    """Duplicates are freed, but the device is not told which pages take their place."""
    leases, retire = engine.scheduler.leases, engine.scheduler.leases.retire

    def forgetful(lease: Lease, pages: list[int]) -> None:
        lease.sent_pages = len(lease.pages)
        retire(lease, pages)

    leases.retire = forgetful


def unresolved_placeholder(engine: Engine) -> None:
    """A placeholder reaches the model as if it were a token (vLLM #46899)."""
    relay = engine.worker.relay
    relay.resolve_future = lambda ids: relay.xp.clamp(ids, min=0)


def stale_slot(engine: Engine) -> None:
    """A step reads the slot of a step before the last one."""
    relay = engine.worker.relay
    assert isinstance(relay, FutureMapRing)
    bind = relay.bind

    def late(batch: Any, previous: Any) -> tuple[list[int], list[int]]:
        for lease in batch.leases:
            lease.future_slot = max(1, lease.future_slot - 2)
        return bind(batch, previous)

    relay.bind = late


def end_is_not_seen(engine: Engine) -> None:
    """A row in flight is delivered although its request has ended."""
    scheduler, process = engine.scheduler, engine.scheduler.process

    def unseen(batch: Any, result: Any) -> list[Output]:
        over = [req for req in batch.reqs if req.finished and req.lease is None]
        late = [Output(req.rid, 5) for req in over]
        return [*process(batch, result), *late]

    scheduler.process = unseen


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
STORIES: list[tuple[Patch, str, str, Workload, set[tuple[str, int]]]] = [
    (copy_without_wait, "serial", "host", ALONE, {("sample", 1), ("copy", 1)}),
    (copy_without_wait, "overlap", "ring", ALONE, {("sample", 1), ("copy", 1)}),
    (prefix_not_locked, "overlap", "pool", EVICTED, {("schedule", 0)}),
    (row_not_rewritten, "overlap", "pool", DUPLICATES, {("process", 4)}),
    (stale_slot, "overlap", "ring", PAIR, {("forward", 2)}),
    (end_is_not_seen, "overlap", "ring", ALONE, {("sample", 4)}),
    (unresolved_placeholder, "overlap", "ring", ALONE, {("forward", 2)}),
]


def test_the_story_names_the_culprit(golden: Callable[[str, str], None]) -> None:
    told = []
    for patch, loop, relay, workload, culprits in STORIES:
        traces = []
        for change in (healthy, patch):
            again, device = fresh(workload), SimDevice()
            play(again, loop, relay, {}, device, HashModel(VOCAB), COST, change)
            traces.append(device.recorder.trace(loop, "sim", "hash", "virtual"))
        difference = differences(*traces)[0]
        story, slices = explain(difference, traces[1]), {item.id: item for item in traces[1].slices}
        found = {(slices[at].name, slices[at].step) for at in story.culprit.slices}
        assert culprits <= found and difference.rid in story.chain[0].sentence, patch
        assert offence_of(story).missing == story.missing
        assert story.is_known == (patch is not unresolved_placeholder)
        assert (story.missing is not None) == (patch is copy_without_wait)
        told += [f"{patch.__name__}, {loop}", f"{story}\n"]
    golden("wrong_tokens.txt", "\n".join(told))


# -- the arrow of a token --------------------------------------------------------------------------

APART = replace(COST, forward_per_token=3)  # no two ops at once
RELAYS = {"future map", "token pool", "prev sampled", "last tokens"}
IN_VAIN = {"future map", "last tokens"}


def traced(
    workload: Workload, loop: LoopOptions, patch: Patch = healthy
) -> tuple[Trace, Ops, dict[str, list[int]]]:
    """A run, what was touched in it where that can be watched, and its tokens; right or wrong."""
    device = SimDevice()
    tokens: dict[str, list[int]] = {}
    touched = Touched()

    def watched(engine: Engine) -> None:
        touched.watch(engine)
        patch(engine)

    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    _, outputs = play(fresh(workload), *loop, device, model, APART, watched)
    for output in outputs:
        if output.token is not None:
            tokens.setdefault(output.rid, []).append(output.token)
    return device.recorder.trace(loop[0], "sim", "", "virtual"), touched.touched(), tokens


def wrong(trace: Trace) -> list[dict[str, Any]]:
    """The marks that say that a step ran on a wrong token."""
    return [mark.attrs for mark in trace.marks if mark.name == "wrong token"]


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
            trace, ops, _ = traced(draw(seed, odd=False).workload, (loop, relay, options))
        except ValueError:  # the loop refuses what a request wants
            continue
        assert not wrong(trace)
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
    assert taken and not wrong(run.trace)
    for source, reader in taken:
        assert source.name in ("sample", "copy") and set(source.rids) & set(reader.rids)
        assert source.step < reader.step


# -- relays that give wrong tokens -----------------------------------------------------------------


def unresolved(engine: Engine) -> None:
    """Placeholders reach the model."""
    engine.worker.relay.resolve = lambda ids, previous: ids


def mirrored(engine: Engine) -> None:
    """Each row's token is kept in another row's cell."""
    store, xp = engine.worker.relay.store, engine.device.xp
    engine.worker.relay.store = lambda dests, tokens: store(
        dests, xp.asarray(tokens.tolist()[::-1])
    )


@pytest.mark.parametrize(
    ("loop", "patch"),
    [(("overlap", "ring", {}), mirrored), (("overlap", "pool", {}), mirrored),
     (("mini_overlap", "token_pool", {}), mirrored), (("vllm_async", "prev_sampled", {}), mirrored),
     (("overlap", "ring", {}), unresolved), (("mlx_async", "pool", {}), unresolved)],
)  # fmt: skip
def test_a_broken_relays_arrows_are_what_was_read_and_name_the_token(
    loop: LoopOptions, patch: Patch
) -> None:
    """Of each request that got a wrong token the trace says what a step needed, and what it got."""
    seen = 0
    for seed in range(40):
        workload = draw(seed, odd=False).workload
        if workload.config.speculative_algorithm or seen >= many(1, 3):
            continue
        try:
            trace, ops, tokens = traced(workload, loop, patch)
        except (ValueError, AssertionError):  # refused, or so wrong that it never ends
            continue
        assert drawn(trace, ops) == really_taken(trace, ops)
        truth, slices = traced(workload, loop)[2], {item.id: item for item in trace.slices}
        for rid in (rid for rid, heard in tokens.items() if heard != truth[rid]):
            seen += 1
            told = next(item for item in wrong(trace) if item["rid"] == rid)
            assert told["needs"] != told["got"] and slices[told["reader"]].step == told["step"]
            assert told["needs"] in truth[rid]
            if told["source"]:
                assert patch is not unresolved
                [arrow] = [arrow for arrow in make_view(trace).arrows if arrow.kind == "token" and
                           (arrow.src.slice.id, arrow.dst.slice.id)
                           == (told["source"], told["reader"])]  # fmt: skip
                assert arrow.brings == "wrong" and f"needs {told['needs']}" in arrow.wrong
    assert seen
