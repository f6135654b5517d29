"""Every law, on every loop with every relay and option: random workloads, each judged whole.

What is drawn is what ``minisched check --workloads`` draws, so each failure prints the command that
repeats it. Plain ``pytest`` runs every loop with every relay, and every option with two relays, in
virtual time. Every loop also runs on a device with a real clock, with two relays (overlap: all).
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import defaultdict
from dataclasses import replace
from itertools import cycle
from random import Random

import pytest

from minisched.checking import command
from minisched.checks.draw import DRAFTERS, THEMES, Variant, all_designs, draw, read_design
from minisched.checks.judge import judge
from minisched.checks.laws import Touched
from minisched.checks.many import case_of
from minisched.core import Request, SamplingParams
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.design import LOOPS
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace
from minisched.trace.events import is_host
from tests.support import Workload, every, hash_model, many, open_device, play

# -- random workloads ------------------------------------------------------------------------------

DESIGNS = all_designs()
REAL = ("thread", "mlx")
REAL_DESIGNS = [design for design in DESIGNS if "thread" in LOOPS[design.loop].devices]
CUDA_DESIGNS = [
    design
    for design in REAL_DESIGNS
    if not design.options or design.relay == LOOPS[design.loop].relays[0]
]
"""On the GPU that is not there (``tests/devices/fake_cuda.py``) an option meets one relay."""
SOME_ON_CUDA = CUDA_DESIGNS[8::60]
LONGEST = 600  # characters of a finding


def seeds_of(design: Variant, plain: int, thorough: int) -> list[int]:
    """Draw workloads for a design, others than its neighbours have.

    Of three in a row one has too little memory, one has drafts (urgent requests where the design
    takes none), and one has log-probabilities or whatever comes. The next design begins with the
    next of these kinds. A design that differs from another one in an option alone has half as many.
    """
    count = many(plain, thorough)
    count = -(-count // 2) if design.options else count
    drafts = {*DRAFTERS} - design.refuses() - {""}
    seeds, seed = list[int](), 1001 * DESIGNS.index(design)
    while len(seeds) < count:
        theme, algorithm = Random(seed).choice(THEMES), DRAFTERS[seed % len(DRAFTERS)]
        kind = (DESIGNS.index(design) + len(seeds)) % 3
        if kind == 0:
            is_wanted = theme == "crowded" and not algorithm
        elif kind == 1:
            is_wanted = algorithm in drafts if drafts else theme == "urgent"
        else:
            asked = [req.params for req in draw(seed, odd=False).workload.requests]
            is_wanted = len(seeds) % 2 == 1 or any(params.return_logprob for params in asked)
        seeds += [seed] * is_wanted
        seed += 1
    return seeds


def is_idle(device: SimDevice) -> bool:
    """Whether no stream has anything left to do."""
    lanes = device._lanes.values()
    return device.next_event is None and not any(lane.queue or lane.is_busy for lane in lanes)


def check_holds(design: Variant, seeds: list[int], device: str) -> None:
    said = []
    for seed in seeds:
        engines: list[Engine] = []
        verdict = judge(case_of(seed, design.name, device), engines.append)
        for found in verdict.findings:
            said += [
                f"{found.law}: {found.sentence[:LONGEST]}",
                f"    {command(seed, design.name, device)}",
            ]
        devices = [it.device for it in engines if isinstance(it.device, SimDevice)]
        if verdict.holds and not all(map(is_idle, devices)):
            said.append(f"seed {seed}: something is on its way when all have ended")
    if said:
        text = "\n".join(said)
        pytest.fail(f"laws broken by {design.name} on {device}:\n{text}", pytrace=False)


@pytest.mark.parametrize("loop", every(11, LOOPS))
def test_a_run_that_nobody_names_is_forgotten(loop: str) -> None:
    engines: list[weakref.ref[Engine]] = []
    for seed in range(many(1, 6)):
        judge(case_of(seed, loop, "sim"), lambda engine: engines.append(weakref.ref(engine)))
    gc.collect()
    assert engines and not any(ref() for ref in engines)


def by_name(item: object) -> str:
    return item.name if isinstance(item, Variant) else str(item)


def relays_before(design: Variant) -> int:
    """Return how many relays that come before a design's own have the same loop and options."""
    same = [it for it in DESIGNS if (it.loop, it.options) == (design.loop, design.options)]
    return same.index(design)


IN_VIRTUAL_TIME = [
    pytest.param(
        design,
        marks=[pytest.mark.thorough] * bool(design.options and relays_before(design) > 1),
    )
    for design in DESIGNS
]
ON_A_REAL_CLOCK = [
    pytest.param(
        device,
        design,
        marks=[pytest.mark.thorough]
        * bool(
            design.options
            or (relays_before(design) > 1 and design.loop != "overlap")
            or device != REAL[at % 2]
        ),
    )
    for at, design in enumerate(REAL_DESIGNS)
    for device in REAL
]
ON_THE_GPU = [
    pytest.param("cuda", design, marks=[] if design in SOME_ON_CUDA else [pytest.mark.thorough])
    for design in CUDA_DESIGNS
]


@pytest.mark.parametrize("design", IN_VIRTUAL_TIME, ids=by_name)
def test_every_law_holds_in_virtual_time(design: Variant) -> None:
    check_holds(design, seeds_of(design, 2, 18), "sim")


@pytest.mark.parametrize(("backend", "design"), ON_A_REAL_CLOCK, ids=by_name)
def test_every_law_holds_in_real_time(backend: str, design: Variant) -> None:
    before = threading.active_count()
    check_holds(design, seeds_of(design, 1, 2), backend)
    assert threading.active_count() <= before


@pytest.mark.parametrize(("backend", "design"), ON_THE_GPU, ids=by_name)
def test_every_law_holds_on_a_gpu_that_is_not_there(backend: str, design: Variant) -> None:
    check_holds(design, seeds_of(design, 1, 2), backend)


# -- what ops declare ------------------------------------------------------------------------------


def small_workload() -> Workload:
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


def traced(design: Variant, backend: str) -> tuple[Trace, Touched]:
    device, touched, model = open_device(backend), Touched(), hash_model(backend, frozenset())
    play(
        small_workload(), design.loop, design.relay, dict(design.options), device, model,
        patch=touched.watch,
    )  # fmt: skip
    return Trace.of(device.recorder, design.loop, backend, "hash", device.clock), touched


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
    assert f" {kind}s " in unsaid and words in unsaid
    assert unsaid.endswith(", but does not declare it")
    [in_vain] = touched.check(replace(trace, program=tuple(wider)))
    assert f"declares that it {kind}s" in in_vain and in_vain.endswith(", but does not")


def declared_by_op(trace: Trace) -> dict[tuple[str, str, int], list[tuple[str, ...]]]:
    ops = {item.id: (item.lane, item.name, item.step) for item in trace.slices}
    found: dict[tuple[str, str, int], list[tuple[str, ...]]] = defaultdict(list)
    for act in trace.program:
        if act.op in ops and act.resource not in ("", "value") and not is_host(act.lane):
            found[ops[act.op]].append((act.kind, act.resource, act.at, act.rid))
    return found


OF_EACH_LOOP = [it for it in REAL_DESIGNS if not it.options and (it.name in LOOPS or many(0, 1))]
"""With ``--thorough`` of each relay."""


@pytest.mark.parametrize(
    ("backend", "design"), [*zip(cycle(REAL), OF_EACH_LOOP, strict=False)], ids=by_name
)
def test_in_real_time_each_op_declares_the_same_as_on_the_simulator(
    design: Variant, backend: str
) -> None:
    ideal, real = traced(design, "sim")[0], traced(design, backend)[0]
    assert declared_by_op(real) == declared_by_op(ideal) != {}
