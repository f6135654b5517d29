"""An engine: the door where requests come in, its messages, counters, launches and replies."""

from __future__ import annotations

import gc
import types
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.draw import ODD
from minisched.checks.identity import differences
from minisched.checks.laws import bad_end
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.core.form import wrong_form
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import (
    AbortReq,
    FlushCacheReq,
    Frontend,
    Message,
    handle_message,
)
from minisched.export.state import arrivals
from minisched.loops.design import LOOPS
from minisched.loops.run import make_engine, run_loop
from minisched.memory import MemoryLeak, flush_cache
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.scheduler.config import FILLED_BY_A_RUN
from minisched.trace import NullRecorder
from tests.support import (
    ONE_ENGINE,
    SOME_LOOP_OPTIONS,
    SOME_LOOPS,
    Workload,
    a_request,
    many,
    play_timed,
)

FIELDS = {*Request("r", [1]).__dataclass_fields__} & {*ODD, "arrival_time"}
NAN = float("nan")
SOME_NAMES = [loop for loop, _, _ in SOME_LOOP_OPTIONS]


def tokens(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, ignore_eos=True)


def alone(loop: str, req: Request) -> list[int]:
    """What it says where nobody else is."""
    return run_loop(loop, SimDevice(), HashModel(), [req]).outputs[req.rid]


def with_field(req: Request, name: str, value: Any) -> Request:
    if name not in FIELDS:
        name, value = "params", replace(req.params, **{name: value})
    return replace(req, **{name: value})


# -- what a field may hold -------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3),
    st.sampled_from([10**400, -(2**63) - 1, "\ud800", b"ab", 1j, object()]),
)  # fmt: skip
anything = scalars | st.lists(scalars) | st.dictionaries(st.integers(), scalars) | st.sets(scalars)
KNOWN_ODD = [(name, value) for name, values in ODD.items() for value in values]


@given(st.tuples(st.sampled_from(sorted({*ODD, *FIELDS})), anything) | st.sampled_from(KNOWN_ODD))
@settings(max_examples=many(80, 600))
def test_a_field_holds_a_value_of_its_kind_or_there_is_a_sentence(field: tuple[str, Any]) -> None:
    name, value = field
    req = with_field(Request("odd", [1, 2], tokens(4)), name, value)
    problem = wrong_form(req)
    if problem is not None:
        assert problem.startswith((name, "prompt[", "logit_bias"))
        assert problem.endswith(".") and "\n" not in problem and len(problem) < 250
    assert isinstance(req.name, str) and req.name.encode() is not None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("prompt", [1, 1.5], "prompt[1] is 1.5, but a token id must be a whole number."),
        ("prompt", "ab", "prompt is 'ab', but it must be a list of token ids."),
        ("priority", "x", "priority is 'x', but it must be a whole number of at most 64 bits."),
        ("rid", 7, "rid is 7, but it must be a text of at least one character."),
        ("params", None, "params is None, but it must be SamplingParams."),
        ("ignore_eos", "no", "ignore_eos is 'no', but it must be True or False."),
        ("top_k", 10**5000, "top_k is a value of type int, but it must be a whole number of at "
         "most 64 bits."),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_the_api_and_the_engine_have_one_sentence(name: str, value: Any, said: str) -> None:
    good = Request("good", [1, 2], tokens(5))
    bad = with_field(Request("bad", [3], tokens(5)), name, value)
    run = run_loop("overlap", SimDevice(), HashModel(), [good, bad])
    assert wrong_form(bad) == said and run.errors == {bad.name: said}
    assert run.outputs["good"] == alone("overlap", Request("good", [1, 2], tokens(5)))


@pytest.mark.parametrize("name", sorted({*FILLED_BY_A_RUN} - {"finish_reason"}))
def test_a_request_that_holds_what_only_a_run_fills_is_refused(name: str) -> None:
    """Its outputs would count as known tokens, and a lease or a length as memory."""
    value = {"output_ids": [9, 9]}.get(name, 3)
    good, bad = Request("good", [1, 2], tokens(5)), Request("bad", [3], tokens(5), **{name: value})
    run = run_loop("serial", SimDevice(), HashModel(), [bad, good])
    assert run.errors["bad"].startswith(f"{name} is {value}, but a new request has ")
    assert bad.finish_reason is FinishReason.ERROR and run.errors.keys() == {"bad"}
    assert run.outputs["good"] == alone("serial", Request("good", [1, 2], tokens(5)))


def test_an_arrival_time_that_is_none_delays_nobody() -> None:
    times: tuple[Any, ...] = ("x", NAN, None, 10**400, -(2**70))
    wrong = [Request(f"w{at}", [1], tokens(2), time) for at, time in enumerate(times)]
    good = Request("good", [1, 2], tokens(3), 5_000_000)
    for requests in ([good, *wrong], iter([wrong[0], good, *wrong[1:]])):
        frontend, taken = Frontend(requests), list[Any]()
        for _ in requests if isinstance(requests, list) else range(len(wrong) + 1):
            taken += frontend.take(min(frontend.next_arrival or 0, 5_000_000))
        assert good in taken and all(req in taken for req in wrong)


# -- whose id it is --------------------------------------------------------------------------------


def live(
    loop: str = "overlap", relay: str = "", **options: Any
) -> tuple[Engine, Iterator[object], Frontend, list[Output]]:
    outputs: list[Output] = []
    frontend, config = Frontend(on_output=outputs.append), SchedulerConfig()
    engine = make_engine(
        loop, SimDevice(), HashModel(), config, frontend, SIM_COST, relay, **options
    )
    return engine, LOOPS[loop].start(engine, **options), frontend, outputs


def finish(engine: Engine, turns: Iterator[object]) -> None:
    next(turns)
    while not engine.is_done:
        next(turns)


@pytest.mark.parametrize("loop", SOME_NAMES)
def test_a_namesake_is_refused_and_the_living_one_hears_nothing_of_it(loop: str) -> None:
    engine, turns, frontend, outputs = live(loop)
    first = Request("a", [1, 2, 3], tokens(16))
    frontend.push(first)
    for _ in range(2):
        next(turns)
    namesake, malformed = Request("a", [7], tokens(4)), Request("a", ["x"], tokens(4))  # type: ignore[list-item]
    for other in (namesake, malformed, first):
        frontend.push(other)
    finish(engine, turns)
    said = alone(loop, Request("a", [1, 2, 3], tokens(16)))
    assert first.finish_reason is FinishReason.LENGTH and not first.error
    heard = [output for output in outputs if not output.namesake]
    assert [output.token for output in heard] == first.output_ids == said
    refused = [output.error for output in outputs if output.namesake]
    taken = "request id 'a' is already in use; each request needs its own."
    assert refused == [taken, malformed.error, taken] and namesake.error == taken


@SOME_LOOPS
def test_an_id_comes_back_after_its_end(loop: str, relay: str, options: dict[str, Any]) -> None:
    """Aborted and sent anew in one breath, while steps in flight still have rows of the old one."""
    engine, turns, frontend, outputs = live(loop, relay, **options)
    lives = [Request("a", [1, 2, 3 + at], tokens(6)) for at in range(4)]
    for req in lives:
        frontend.push(req)
        for _ in range(4):
            next(turns)
        frontend.abort("a")
    finish(engine, turns)
    ends = [at for at, output in enumerate(outputs, start=1) if output.finish_reason]
    for req, start, end in zip(lives, [0, *ends], ends, strict=False):
        assert not list(bad_end(req, outputs[start:end]))
    assert not any(output.namesake for output in outputs) and len(engine.metrics.ended) == 4
    again = Request("a", [1, 2, 3], tokens(6))
    for _ in range(2):
        frontend.push(again)
        finish(engine, turns)
    assert again.output_ids == alone("serial", Request("a", [1, 2, 3], tokens(6)))
    error = "request 'a' has run already; a new run needs a new Request."
    assert again.finish_reason is FinishReason.LENGTH and outputs[-1].error == error


def test_who_shares_an_id_has_outputs_and_an_arrival_of_their_own() -> None:
    runs = []
    for loop in ("serial", "overlap", "pd"):
        requests = [Request("a", [1, at], tokens(3), at * 10**9) for at in range(3)]
        requests.append(Request("a", [9], tokens(3), 2 * 10**9 + 1))
        runs.append(run_loop(loop, SimDevice(), HashModel(), requests, cost=SIM_COST))
        assert runs[-1].outputs == runs[0].outputs and list(runs[-1].errors) == ["a (4)"]
        assert [at // 10**9 for at in arrivals(runs[-1].trace)["a"]] == [0, 1, 2]
    assert [len(tokens) for tokens in runs[0].outputs.values()] == [3, 3, 3, 0]
    assert not differences(runs[0].trace, runs[1].trace)


# -- a long run ------------------------------------------------------------------------------------

CODE = (type, types.ModuleType, types.FunctionType, types.CodeType, types.BuiltinFunctionType,
        str, int, float)  # fmt: skip


def num_kept(*roots: object) -> int:
    """Objects that hang on ``roots``, with all that their containers hold; no code, no arrays."""
    seen: dict[int, object] = {}
    left, size = deque(roots), 0
    while left:
        item = left.popleft()
        if id(item) in seen or isinstance(item, CODE):
            continue
        seen[id(item)] = item
        size += len(item) if isinstance(item, dict | list | set | deque) else 0
        left += gc.get_referents(item)
    return len(seen) + size


@pytest.mark.parametrize("loop", ONE_ENGINE)
def test_books_do_not_grow_with_the_number_of_ended_requests(loop: str) -> None:
    """Whatever hangs on a live engine and its loop: as much at the end as after half the rounds."""
    device, frontend = SimDevice(NullRecorder()), Frontend(on_output=lambda output: None)
    config = SchedulerConfig(kv_tokens=64, max_running_requests=3)
    engine = make_engine(loop, device, HashModel(), config, frontend)
    turns, rounds, kept = LOOPS[loop].start(engine), 2 * many(6, 30), list[int]()
    ended = 0
    for number in range(rounds):
        for at in range(3):
            frontend.push(Request(f"r{number}.{at}", [7, at], tokens(2 + at)))
        frontend.push(Request("same", [5], tokens(3)))
        frontend.push(Request("same", [6], tokens(3)))
        frontend.push(Request(f"bad{number}", ["x"]))  # type: ignore[list-item]
        frontend.abort(f"r{number}.1", at=device.now() + 3)
        finish(engine, turns)
        flush_cache(engine.scheduler.leases)
        frontend.take(device.now() + 100)
        ended += engine.metrics.num_finished
        engine.metrics.ended.clear()  # what a run keeps of them for who asks
        if number in (rounds // 2, rounds - 1):
            kept.append(num_kept(engine, turns))
    assert kept[0] == kept[1] and ended > rounds


# -- messages --------------------------------------------------------------------------------------


def test_each_message_is_handled_by_its_type() -> None:
    engine, *_ = live()

    def handle(messages: list[Message]) -> list[Output]:
        for item in messages:
            handle_message(item, engine.scheduler)
        return list(engine.scheduler.take_outputs())

    assert handle([a_request("r0")]) == [] and list(engine.scheduler.live) == ["r0"]
    twice = AbortReq("r0")
    assert [output.rid for output in handle([AbortReq("nobody"), twice, twice])] == ["r0"]
    handle([a_request("r1"), a_request("r2")])
    assert [output.rid for output in handle([AbortReq(abort_all=True)])] == ["r1", "r2"]
    with pytest.raises(TypeError, match=r"type str came, but .* are Request, AbortReq"):
        handle_message("hello", engine.scheduler)  # type: ignore[arg-type]


def test_the_cache_is_flushed_only_while_nothing_runs() -> None:
    engine, turns, frontend, _ = live()
    frontend.push(a_request("r0"))
    finish(engine, turns)
    tree = engine.scheduler.tree
    assert tree is not None and tree.evictable_size > 0
    engine.process_input_requests([FlushCacheReq()])
    assert tree.evictable_size + tree.protected_size == 0
    engine.process_input_requests([a_request("r1")])
    engine.get_next_batch_to_run()
    engine.process_input_requests([FlushCacheReq()])
    marks = engine.device.recorder.marks
    assert [mark.attrs["done"] for mark in marks if mark.name == "flush cache"] == [True, False]


# -- the check at idle ----------------------------------------------------------------------------


def test_a_leak_is_found_at_the_next_idle_moment() -> None:
    requests = [a_request("first"), a_request("second", 10**9)]
    workload = Workload(requests, [], {}, SchedulerConfig(max_running_requests=4))

    def lose_a_row(engine: Engine) -> None:
        engine.scheduler.leases.table.alloc()

    with pytest.raises(MemoryLeak, match=r"nothing runs, .*3 of 4 rows are free"):
        play_timed(workload, "overlap", "ring", {}, lose_a_row)
    assert requests[0].finished and not requests[1].finished


# -- a decode batch larger than any graph is launched op by op -------------------------------------


@SOME_LOOPS
@pytest.mark.parametrize(
    ("rows", "limit", "eager"), [(1, 0, 50), (3, 3, 50), (4, 3, None), (8, None, 50)]
)
def test_what_a_launch_costs_depends_on_the_largest_graph(
    loop: str, relay: str, options: dict[str, Any], rows: int, limit: int | None, eager: int | None
) -> None:
    host = {"launch": 5, **({"launch eager": eager} if eager else {})}
    cost = CostModel(host, forward_base=10, sample=1, copy=1)
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    requests = [Request(f"r{i}", [i, 1], params) for i in range(rows)]
    config = SchedulerConfig(cuda_graph_max_bs=limit)
    trace = run_loop(loop, SimDevice(), HashModel(), requests, config, cost).trace
    took: Counter[tuple[str, int]] = Counter()
    for item in trace.slices:
        if item.name == "launch":  # by whatever thread, in however many parts
            took[item.mode, item.step] += item.duration
    is_eager = limit is not None and rows > limit
    slow = (eager or 5) if is_eager else 5
    assert all(time == (slow if mode == "decode" else 5) for (mode, _), time in took.items())
    marks = [mark.attrs for mark in trace.marks if mark.name == "eager launch"]
    decodes = sorted(step for mode, step in took if mode == "decode")
    assert [mark["step"] for mark in marks] == (decodes if is_eager else [])
    assert all(mark["rows"] == rows for mark in marks)
