"""The token pool: it holds every token of every request, and only streams keep it in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from minisched.core import Output, Request, Result, SamplingParams, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export.pictures.mini import at_once, wasted_step
from minisched.export.recipes import trace_of
from minisched.export.views import NothingToShow, draw
from minisched.export.views.token_pool import MOST_STEPS, MOST_TENANCIES
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.models.registry import open_model
from minisched.relay import TokenPool
from minisched.relay.token_pool import DUMP
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from tests.support import (
    VOCAB,
    Broken,
    Picture,
    Workload,
    check_all,
    check_picture,
    fresh,
    play,
    workloads,
)

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 4)
LOOPS = ["mini_normal", "mini_overlap", "overlap"]


def token_pool(engine: Engine) -> TokenPool:
    """The engine's relay."""
    assert isinstance(engine.worker.relay, TokenPool)
    return engine.worker.relay


def check_pool(engine: Engine) -> None:
    """After each step: the row of whoever still holds it has all tokens, up to the newest."""
    scheduler, process, pool = engine.scheduler, engine.scheduler.process, token_pool(engine)

    def checked(batch: ScheduleBatch, result: Result) -> list[Output]:
        outputs = process(batch, result)
        for row in batch.rows:
            if row.req.lease is row.lease:
                first, length = row.lease.row * pool.max_len, row.end + row.deliver
                there = pool.token_pool[first : first + length]
                known = list(row.req.known_tokens(0, length))
                if there != known:
                    raise Broken(f"pool: {row.req.rid}'s row has {there}, it should be {known}")
        return outputs

    scheduler.process = checked  # type: ignore[method-assign]


def play_checked(
    workload: Workload, loop: str, patch: Callable[[Engine], None] = lambda engine: None
) -> Trace:
    """Plays on sim, under every law and the one above."""

    def patches(engine: Engine) -> None:
        check_pool(engine)
        patch(engine)

    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    engine, outputs = play(workload, loop, "token_pool", {}, device, model, COST, patches)
    check_all(workload, engine, outputs)
    return device.recorder.trace(loop, "sim", "hash", "virtual")


@pytest.mark.parametrize("loop", LOOPS)
@given(workload=workloads())
@settings(max_examples=150, deadline=None)
def test_a_row_holds_every_token_of_its_request(loop: str, workload: Workload) -> None:
    play_checked(workload, loop)


@pytest.mark.parametrize("loop", LOOPS)
@given(workload=workloads())
@settings(max_examples=100, deadline=None)
def test_only_prompts_travel_and_each_step_waits_for_its_own(loop: str, workload: Workload) -> None:
    """An upload for every step with a prompt, none for the others; the forward comes after it."""
    trace = play_checked(workload, loop)
    steps = {item.id: item for item in trace.slices}
    uploads = [item for item in trace.slices if item.name == "upload"]
    forwards = {item.step: item for item in trace.slices if item.name == "forward"}
    modes = {step for step, item in forwards.items() if item.mode != "decode"}
    assert {item.step for item in uploads} == modes and len(uploads) == len(modes)
    lane = "forward" if loop == "mini_normal" else "scheduler"
    assert all(item.lane == lane for item in uploads)
    waits = [(steps[e.src], steps[e.dst]) for e in trace.edges if e.kind == "upload"]
    assert len(waits) == len(uploads)
    for upload, forward in waits:
        assert upload.step == forward.step and upload.end <= forward.start


@pytest.mark.parametrize("loop", LOOPS)
@given(workload=workloads())
@settings(max_examples=60, deadline=None)
def test_a_step_waits_for_its_launch_the_step_before_and_its_prompts(
    loop: str, workload: Workload
) -> None:
    """And for nothing else: it starts when the last of the three has ended."""
    trace = play_checked(workload, loop)
    ends = {(item.name, item.step): item.end for item in trace.slices}
    for item in trace.slices:
        if item.name == "forward":
            before = ends.get(("sample", item.step - 1), 0)
            prompts = ends.get(("upload", item.step), 0)
            assert item.start == max(ends["launch", item.step], before, prompts)


@given(workload=workloads())
@settings(max_examples=100, deadline=None)
def test_every_input_comes_from_the_device(workload: Workload) -> None:
    """No token edge leads to the host: each decode row's leads from the sample before."""
    trace = play_checked(workload, "mini_overlap")
    slices = {item.id: item for item in trace.slices}
    rows = {(item.step, rid) for item in trace.slices if item.name == "forward"
            for rid in item.rids if item.mode == "decode"}  # fmt: skip
    given_by_device = set()
    for edge in trace.edges:
        if edge.kind == "token":
            sample, forward = slices[edge.src], slices[edge.dst]
            assert (sample.name, forward.name) == ("sample", "forward")
            given_by_device |= {(forward.step, rid) for rid in {*sample.rids} & {*forward.rids}}
    assert rows <= given_by_device


def test_prompts_are_copied_beside_the_step_that_runs() -> None:
    """On its own stream: an upload begins and ends while another request's step is running."""
    requests = [
        Request("a", [1, 2, 3], SamplingParams(max_new_tokens=12, ignore_eos=True)),
        Request("b", range(40), SamplingParams(max_new_tokens=2, ignore_eos=True), arrival_time=40),
    ]
    cost = CostModel({"schedule": 5, "process": 5}, forward_base=60, sample=2, copy=4)
    trace = run_loop("mini_overlap", SimDevice(), HashModel(), requests, cost=cost).trace
    upload = next(item for item in trace.on("scheduler") if item.rids == ("b",))
    before = next(
        s for s in trace.on("forward") if s.name == "forward" and s.step == upload.step - 1
    )
    assert before.rids == ("a",) and before.start <= upload.start < upload.end < before.end


# -- the law can fail --------------------------------------------------------------------------


def sample_of_a_chunk_is_kept(engine: Engine) -> None:
    """A chunk's sample goes where the next chunk begins (mini-sglang before ef4367f)."""
    pool = token_pool(engine)
    bind = pool.bind

    def keeping(
        batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        ids, _ = bind(batch, previous)
        return ids, [pool.cell(row, row.end) for row in batch.rows]

    pool.bind = keeping  # type: ignore[method-assign]


def nobody_waits(engine: Engine) -> None:
    """The forward stream does not wait for the scheduler's stream."""
    engine.worker.forward_stream.wait = lambda op: None  # type: ignore[method-assign]


def a_row_is_not_filled_again(engine: Engine) -> None:
    """A row counts as filled, whoever had it before."""
    pool = token_pool(engine)
    pool.is_filled = lambda row: row.lease.row in pool.filled_for  # type: ignore[method-assign]


ALL = SamplingParams(max_new_tokens=3, ignore_eos=True)


def one_after_the_other(*prompts: range, chunk: int = 9) -> Workload:
    """Greedy requests that share the only row."""
    config = SchedulerConfig(max_running_requests=1, chunked_prefill_size=chunk, context_len=32)
    requests = [Request(f"r{i}", prompt, ALL) for i, prompt in enumerate(prompts)]
    return Workload(requests, [0] * len(prompts), {}, config)


@pytest.mark.parametrize(
    ("bug", "says", "workload"),
    [
        (sample_of_a_chunk_is_kept, r"^pool", one_after_the_other(range(12), chunk=4)),
        (nobody_waits, r"^identity", one_after_the_other(range(4))),
        (a_row_is_not_filled_again, r"^pool", one_after_the_other(range(6), range(1, 7), range(8))),
    ],
)
def test_a_law_catches_the_bug(
    bug: Callable[[Engine], None], says: str, workload: Workload
) -> None:
    play_checked(fresh(workload), "mini_overlap")
    with pytest.raises(Broken, match=says):
        play_checked(fresh(workload), "mini_overlap", bug)


@pytest.mark.parametrize(
    ("bug", "workload"),
    [
        (sample_of_a_chunk_is_kept, one_after_the_other(range(12), chunk=4)),
        (nobody_waits, one_after_the_other(range(4))),
    ],
)
def test_identity_catches_it_too(bug: Callable[[Engine], None], workload: Workload) -> None:
    """Whoever looks at the tokens alone sees these; a cached prefix that was not copied, nobody."""
    workload, device, model = fresh(workload), SimDevice(), HashModel(VOCAB, eos_ids=frozenset())
    engine, outputs = play(workload, "mini_overlap", "token_pool", {}, device, model, COST, bug)
    with pytest.raises(Broken, match=r"^identity"):
        check_all(workload, engine, outputs)


def test_a_chunks_sample_does_no_harm_where_the_next_chunk_comes_after_it() -> None:
    """In the normal loop that repairs what it did; in the overlapping one it came before."""
    workload = one_after_the_other(range(12), chunk=4)
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=frozenset())
    bug = sample_of_a_chunk_is_kept
    engine, outputs = play(workload, "mini_normal", "token_pool", {}, device, model, COST, bug)
    check_all(workload, engine, outputs)


# -- the relay by itself, and real models ------------------------------------------------------


def test_cells_by_row_and_position() -> None:
    """Worked out by hand, for rows of 10 cells: a chunk of three, the fourth token, a decode."""
    bound: list[tuple[list[int], list[int]]] = []

    def spy(engine: Engine) -> None:
        pool = token_pool(engine)
        bind = pool.bind

        def noted(
            batch: ScheduleBatch, previous: ScheduleBatch | None
        ) -> tuple[list[int], list[int]]:
            bound.append(bind(batch, previous))
            return bound[-1]

        pool.bind = noted  # type: ignore[method-assign]
        assert len(pool.token_pool.values) == 20, "row 0 is nobody's"

    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    config = SchedulerConfig(chunked_prefill_size=3, context_len=9, max_running_requests=1)
    workload = Workload([Request("a", [5, 6, 7, 8], params)], [0], {}, config)
    model = HashModel(VOCAB, eos_ids=frozenset())
    play(workload, "mini_normal", "token_pool", {}, SimDevice(), model, COST, spy)
    assert bound == [([-10, -11, -12], [DUMP]), ([-13], [14]), ([-14], [15])]


@pytest.mark.parametrize("backend", ["thread", "mlx"])
def test_a_llama_says_the_same_through_the_token_pool_and_the_future_map(
    backend: str, tiny_llama: Path
) -> None:
    """The same loop gives the same batches, so that even the floats are the same."""
    said = []
    for relay in ("token_pool", "pool"):
        params = [SamplingParams(0.7 * (i % 2), max_new_tokens=9) for i in range(4)]
        prompts = [range(20 + i, 40 + 3 * i) for i in range(4)]
        requests = [Request(f"r{i}", prompts[i], params[i]) for i in range(4)]
        config = SchedulerConfig(chunked_prefill_size=16, max_running_requests=3, kv_tokens=512)
        model = open_model(str(tiny_llama), backend)
        run = run_loop("mini_overlap", open_device(backend), model, requests, config, relay=relay)
        assert not run.errors and all(run.outputs.values())
        said.append(run.outputs)
    assert said[0] == said[1]


# -- the picture -------------------------------------------------------------------------------


def drawn(trace: Trace) -> Picture:
    """The view, read back and checked."""
    picture = Picture(draw("token_pool", trace))
    check_picture(picture)
    return picture


@given(workload=workloads(max_requests=3))
@settings(max_examples=60, deadline=None)
def test_the_picture_shows_every_cell_with_its_writer_and_its_reader(workload: Workload) -> None:
    trace = play_checked(workload, "mini_overlap")
    steps = {item.step for item in trace.slices if item.name == "forward"}
    assume(0 < len(steps) <= MOST_STEPS)
    pages = [mark.attrs for mark in trace.marks if mark.name == "token pool"]
    owners = sum(str(attrs["uploads"]).split().count("0") for attrs in pages)
    assume(owners <= MOST_TENANCIES)
    writes: Counter[tuple[str, str, str]] = Counter()
    reads: Counter[tuple[str, str, str]] = Counter()
    for attrs in pages:
        names = ("rows", "uploads", "starts", "ends", "writes")
        columns = [map(int, str(attrs[name]).split()) for name in names]
        for row, upload, start, end, write in zip(*columns, strict=True):
            copied = range(upload, end) if upload >= 0 else range(0)
            written = [*copied, *([write] if write >= 0 else [])]
            step = str(attrs["step"])
            writes.update((step, str(row), str(position)) for position in written)
            reads.update((step, str(row), str(position)) for position in range(start, end))
    picture = drawn(trace)
    assert picture.count("step", "row", "position", tag="rect") == writes
    assert picture.count("gathered", "row", "position", tag="text") == reads
    assert picture.count("op", "step") == Counter(
        (item.name, str(item.step))
        for item in trace.slices
        if item.name in ("upload", "forward", "sample")
    )


def test_the_golden_pictures_differ_in_the_cell_that_a_freed_row_spoils() -> None:
    assert drawn(trace_of("token_pool")).shapes("rect", "bubble") == []
    (cell,) = drawn(at_once()).shapes("rect", "bubble", row="*")
    at = {name: cell[f"data-{name}"] for name in ("row", "position", "rid", "step")}
    assert at == {"row": "2", "position": "10", "rid": "c", "step": str(wasted_step(at_once()))}


def test_who_gets_a_row_without_an_upload_is_refused() -> None:
    trace = trace_of("token_pool")
    first = next(mark for mark in trace.marks if mark.name == "token pool")
    cut = replace(trace, marks=tuple(mark for mark in trace.marks if mark is not first))
    with pytest.raises(NothingToShow, match=r"lacks an upload for a, which has just got row 1\.$"):
        draw("token_pool", cut)
