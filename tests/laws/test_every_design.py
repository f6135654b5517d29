"""Every law, on every loop with every relay and option: random workloads, each judged whole.

What is drawn is what ``minisched check --workloads`` draws, so each failure prints the command that
repeats it. Plain ``pytest`` runs a design in virtual time and on one device with a real clock.
"""

from __future__ import annotations

import threading

import pytest

from minisched.checks.draw.designs import Design, all_designs
from minisched.checks.draw.draw import ALGORITHMS, THEMES, dealt
from minisched.checks.judge import judge
from minisched.checks.many import case_of
from minisched.checks.tally import Failure
from minisched.cli.check_failure import command
from minisched.devices.base import Device
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.registry import LOOPS
from tests.support import many

DESIGNS = all_designs()
REAL = ("thread", "mlx")
REAL_DESIGNS = [design for design in DESIGNS if "thread" in LOOPS[design.loop].devices]
SOME_ON_CUDA = REAL_DESIGNS[8::40]
"""Plain ``pytest`` has these on the GPU that is not there (``tests/devices/fake_cuda.py``)."""
LONGEST = 600  # characters of a finding


def seeds_of(design: Design, count: int) -> list[int]:
    """Workloads for a design, others than its neighbours have; of three in a row one of each kind:

    too little memory; drafts, or where it takes none, urgent requests; and whatever comes.
    """
    drafts = {*ALGORITHMS} - design.refuses() - {""}
    seeds, seed = list[int](), 1001 * DESIGNS.index(design)
    while len(seeds) < count:
        theme, algorithm = dealt(THEMES, seed, "theme"), ALGORITHMS[seed % len(ALGORITHMS)]
        kind = len(seeds) % 3
        if kind == 0:
            is_wanted = theme == "crowded" and not algorithm
        elif kind == 1:
            is_wanted = algorithm in drafts if drafts else theme == "urgent"
        else:
            is_wanted = True
        seeds += [seed] * is_wanted
        seed += 1
    return seeds


def broken(design: Design, seeds: list[int], device: str) -> str:
    """What does not hold of those workloads, each with what repeats it; nothing if all does."""
    said = []
    for seed in seeds:
        engines: list[Engine] = []
        verdict = judge(case_of(seed, design.name, device), engines.append)
        for found in verdict.findings:
            failure = Failure(seed, design.name, found.law, found.sentence)
            said += [f"{found.law}: {found.sentence[:LONGEST]}", f"    {command(failure, device)}"]
        if verdict.holds and not all(is_idle(engine.device) for engine in engines):
            said.append(f"seed {seed}: something is on its way when all have ended")
    return "\n".join(said)


def is_idle(device: Device) -> bool:
    return not isinstance(device, SimDevice) or device.is_idle


def by_name(item: object) -> str:
    return item.name if isinstance(item, Design) else str(item)


def on_a_real_clock() -> list[object]:
    """The devices by turns, and with ``--thorough`` all of them."""
    return [
        pytest.param(device, design, marks=[] if device == REAL[at % 2] else [pytest.mark.thorough])
        for at, design in enumerate(REAL_DESIGNS)
        for device in REAL
    ]


def on_the_gpu() -> list[object]:
    return [
        pytest.param("cuda", design, marks=[] if design in SOME_ON_CUDA else [pytest.mark.thorough])
        for design in REAL_DESIGNS
    ]


def check_holds(design: Design, seeds: list[int], device: str) -> None:
    if said := broken(design, seeds, device):
        pytest.fail(f"laws broken by {design.name} on {device}:\n{said}", pytrace=False)


@pytest.mark.parametrize("design", DESIGNS, ids=by_name)
def test_every_law_holds_in_virtual_time(design: Design) -> None:
    check_holds(design, seeds_of(design, many(3, 60)), "sim")


@pytest.mark.parametrize(("backend", "design"), on_a_real_clock(), ids=by_name)
def test_every_law_holds_in_real_time(backend: str, design: Design) -> None:
    before = threading.active_count()
    check_holds(design, seeds_of(design, many(1, 5)), backend)
    assert threading.active_count() <= before


@pytest.mark.parametrize(("backend", "design"), on_the_gpu(), ids=by_name)
def test_every_law_holds_on_a_gpu_that_is_not_there(backend: str, design: Design) -> None:
    """The printed command needs a real one; this test repeats it by its name."""
    check_holds(design, seeds_of(design, many(1, 2)), backend)
