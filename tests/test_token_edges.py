"""The arrow of a token starts where the data came from, and says so where that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import pytest

from minisched.checks.draw.draw import draw
from minisched.checks.tokens.oracle import tokens_alone
from minisched.checks.touches import Ops, Touched
from minisched.devices.cost import CostModel
from minisched.devices.registry import open_device
from minisched.engine.engine import Engine
from minisched.export.layout import make_view
from minisched.loops.registry import LOOPS
from minisched.loops.run import run_loop
from minisched.relay import HostTrip
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from minisched.trace.lanes import is_forward
from tests.support import (
    EVERY_LOOP,
    LOOP_OPTIONS,
    LoopOptions,
    Workload,
    fresh,
    hash_model,
    in_real_time,
    play,
    some_requests,
)

Patch = Callable[[Engine], None]
COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 3, 2, 1)  # no two ops at once
RELAYS = {"future map", "token pool", "prev sampled", "last tokens"}
IN_VAIN = {"future map", "last tokens"}
ON_DEVICE = [item for item in LOOP_OPTIONS if item[1] not in ("host", "chain", "fill_host")]


def nothing(engine: Engine) -> None:
    """The package's own lines."""


def traced(
    workload: Workload, loop: LoopOptions, patch: Patch = nothing, backend: str = "sim"
) -> tuple[Trace, Ops, dict[str, list[int]]]:
    """A run, what was touched in it where that can be watched, and its tokens; right or wrong."""
    name, relay, options = loop
    device = open_device(backend)
    model = hash_model(backend, workload.eos_ids)
    tokens: dict[str, list[int]] = {}
    touched = Touched()

    def watched(engine: Engine) -> None:
        touched.watch(engine)
        patch(engine)

    _, outputs = play(fresh(workload), name, relay, options, device, model, COST, watched)
    for output in outputs:
        if output.token is not None:
            tokens.setdefault(output.rid, []).append(output.token)
    trace = device.recorder.trace(name, backend, "hash", device.clock)
    return trace, touched.touched(), tokens


def drawn_workloads(count: int) -> Iterator[Workload]:
    """The first ones that ``minisched check`` draws."""
    yield from (draw(seed, odd=False).workload for seed in range(count))


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
        vain = {0} if name in IN_VAIN else set()
        for cell in cells.found - vain:
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


# -- relays that give wrong tokens ----------------------------------------------------------------


def unresolved(engine: Engine) -> None:
    """Placeholders reach the model."""
    engine.worker.relay.resolve = lambda ids, previous: ids  # type: ignore[method-assign]


def mirrored(engine: Engine) -> None:
    """Each row's token is kept in another row's cell."""
    store = engine.worker.relay.store
    engine.worker.relay.store = (  # type: ignore[method-assign]
        lambda dests, tokens: store(dests, engine.device.xp.asarray(tokens.tolist()[::-1]))
    )


def kept_too_late(engine: Engine) -> None:
    """A step's tokens are kept only with those of the step after it."""
    relay = engine.worker.relay
    store, before = relay.store, list[tuple[Any, Any]]()

    def late(dests: Any, tokens: Any) -> None:
        before.append((dests, tokens))
        if len(before) > 1:
            store(*before.pop(0))

    relay.store = late  # type: ignore[method-assign]


class OldToken(HostTrip):
    """In the place of a token that nobody knows: the newest one that the host has."""

    run_ahead = True

    def bind(self, batch: Any, previous: Any) -> tuple[list[int], list[int]]:
        """Known ids, or old ones."""
        old = [(req.output_ids or req.prompt)[-1] for req in batch.reqs]
        rows = zip(batch.ids, old, strict=True)
        return [last if token is None else token for ids, last in rows for token in ids], []


def from_host(engine: Engine) -> None:
    """An old token comes from the host."""
    engine.worker.relay = OldToken()


BROKEN = [
    *((item, mirrored) for item in ON_DEVICE if item[0] != "mlx_async"),  # it decodes alone here
    *((item, unresolved) for item in ON_DEVICE if item[1] != "token_pool"),
    (("overlap", "ring", {}), kept_too_late), (("vllm_async", "pool", {"depth": 4}), kept_too_late),
    *(((loop, LOOPS[loop].relays[0], {}), from_host) for loop in ("overlap", "mlx_async")),
]  # fmt: skip
ONLY_KNOWN = {"mini_normal", "mindie_placeholder"}  # with these a token may never be waited for
BUGS = pytest.mark.parametrize(
    ("loop", "patch"),
    [item for item in BROKEN if item[0][0] not in ONLY_KNOWN],
    ids=lambda part: part.__name__ if callable(part) else f"{part[0]}-{part[1]}-{part[2]}",
)


# -- the laws -------------------------------------------------------------------------------------


@EVERY_LOOP
def test_in_a_healthy_run_every_arrow_is_what_was_read(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    seen = 0
    for workload in drawn_workloads(12):
        try:
            trace, ops, _ = traced(workload, (loop, relay, options))
        except ValueError:  # the loop refuses what a request wants
            continue
        seen += 1
        assert not wrong(trace)
        if relay not in ("chain", "fill_host"):  # these have no memory on the device
            assert drawn(trace, ops) == really_taken(trace, ops)
    assert seen >= 4


@BUGS
def test_a_broken_relays_arrows_are_what_was_read_and_name_the_token(
    loop: LoopOptions, patch: Patch
) -> None:
    """Of the first wrong token of a request the trace says what it was built on, and its due."""
    seen = 0
    for workload in drawn_workloads(40):
        if workload.config.speculative_algorithm or seen >= 3:
            continue
        try:
            trace, ops, tokens = traced(workload, loop, patch)
        except (ValueError, AssertionError):  # refused, or so wrong that it never ends
            continue
        assert drawn(trace, ops) == really_taken(trace, ops)
        for step, rid, needs in first_wrong(workload, trace, tokens):
            seen += 1
            told = next(x for x in wrong(trace) if x["rid"] == rid and x["step"] <= step)
            assert told["needs"] == needs[told["step"]] != told["got"]
            check_arrow(trace, told, patch)
    assert seen


def check_arrow(trace: Trace, told: dict[str, Any], patch: Patch) -> None:
    """It is there where anything was taken, and where it was not, nothing is drawn."""
    slices = {item.id: item for item in trace.slices}
    edges = {(edge.src, edge.dst) for edge in trace.edges if edge.kind == "token"}
    source, reader = told["source"], told["reader"]
    assert slices[reader].step == told["step"]
    if source:
        assert (source, reader) in edges and patch is not unresolved
        arrows = make_view(trace).arrows
        (arrow,) = (x for x in arrows if (x.src.slice.id, x.dst.slice.id) == (source, reader)
                    and x.kind == "token")  # fmt: skip
        assert arrow.brings == "wrong" and f"needs {told['needs']}" in arrow.wrong
    if patch is from_host and source:
        assert slices[source].name == "process" and slices[reader].name == "prepare"


def first_wrong(
    workload: Workload, trace: Trace, tokens: dict[str, list[int]]
) -> list[tuple[int, str, dict[int, int]]]:
    """The first wrong token of a run: its step, its request, and what each step of it needs.

    A step on a wrong token gives the right one now and then, by chance; a later one doesn't.
    """
    for mark in (mark for mark in trace.marks if mark.name == "tokens"):
        for rid in map(unquote, str(mark.attrs["rids"]).split()):
            tokens.setdefault(f"steps of {rid}", []).append(int(mark.attrs["step"]))
    found = []
    for req in workload.requests:
        truth = tokens_alone(workload, req)
        pairs = enumerate(zip(tokens.get(req.rid, []), truth, strict=False))
        at = next((at for at, (mine, right) in pairs if mine != right), 0)
        if at:
            steps = tokens[f"steps of {req.rid}"]
            needs = dict(zip(steps[1 : at + 1], truth, strict=False))
            found.append((steps[at], req.rid, needs))
    return sorted(found, key=lambda item: item[:2])[:1]


@in_real_time([item for item in LOOP_OPTIONS if item[1] != "host" and item[0] not in ONLY_KNOWN])
def test_on_a_wall_clock_a_healthy_run_has_its_arrows_too(
    backend: str, loop: str, relay: str, options: dict[str, Any]
) -> None:
    """Nothing can be looked up there: the relay's binding says what each step takes."""
    requests = some_requests(6)
    run = run_loop(loop, open_device(backend), hash_model(backend, frozenset()), requests,
                   relay=relay, **options)  # fmt: skip
    assert not wrong(run.trace)
    slices = {item.id: item for item in run.trace.slices}
    taken = [(slices[edge.src], slices[edge.dst]) for edge in run.trace.edges
             if edge.kind == "token" and is_forward(slices[edge.dst].lane)]  # fmt: skip
    assert taken
    for source, reader in taken:
        assert source.name in ("sample", "copy") and set(source.rids) & set(reader.rids)
        assert source.step < reader.step


def test_on_a_wall_clock_an_old_token_is_told_by_its_binding() -> None:
    """No values are known there, but who gave it."""
    _, trace = on_threads(("overlap", "ring", {}), from_host)
    slices = {item.id: item for item in trace.slices}
    assert wrong(trace)
    for told in wrong(trace):
        ends = slices[told["source"]].name if told["source"] else "", slices[told["reader"]].name
        assert "got" not in told and ends in (("process", "prepare"), ("", "forward"))


def on_threads(loop: LoopOptions, patch: Patch) -> tuple[Any, Trace]:
    """Three requests on threads."""
    device, model = open_device("thread"), hash_model("thread", frozenset())
    requests, name = some_requests(6), loop[0]
    config = SchedulerConfig(kv_tokens=64, max_running_requests=4)
    workload = Workload(requests, [0] * len(requests), {}, config)
    _, outputs = play(workload, *loop, device, model, patch=patch)
    return outputs, device.recorder.trace(name, "thread", "hash", device.clock)
