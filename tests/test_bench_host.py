"""What ``bench host`` says of its figures: phases of a loop, and peers that take turns with us.

No time is asserted. Peers are stood in for by one that answers at once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from minisched.bench.peers import missing
from minisched.bench.peers.peer import PeerError
from minisched.bench.peers.steps import answer_with
from minisched.bench.rows import SideBySide
from minisched.bench.scheduling import host, host_peers, phases, scheduler
from minisched.bench.scheduling.engines import PAGE, Minisched, Workload
from minisched.trace import Slice


def quiet(doing: str) -> None:
    """Nobody reads it."""


# -- phases ----------------------------------------------------------------------------------------


def turn_of(*parts: tuple[str, int, int]) -> list[Slice]:
    return [Slice(at, "host", name, start, end) for at, (name, start, end) in enumerate(parts)]


def test_what_lies_between_phases_is_neither_work_nor_the_devices_time() -> None:
    turn = turn_of(
        ("schedule", 0, 10), ("prepare", 11, 20), ("launch", 22, 30), ("wait", 60, 90),
        ("process", 95, 100), ("output", 103, 110), ("schedule", 117, 130),
    )  # fmt: skip
    assert [phases.spent(turn, name) for name in phases.STEP_PHASES] == [10, 9, 8, 5, 7]
    gaps = (11 - 10) + (22 - 20) + (103 - 100) + (117 - 110)
    assert phases.between_phases(turn) == gaps


def test_a_loop_has_every_phase_for_every_load() -> None:
    figures = phases.phase_figures(2, quiet, [(3, 0), (2, 5)])
    names = [row.name for row in figures]
    assert names == [
        f"{name}, {load}"
        for load in ("3 running, 0 waiting", "2 running, 5 waiting")
        for name in phases.NAMES
    ]
    assert all(row.median is not None and row.median > 0 and row.unit == "us" for row in figures)


def test_settled_turns_decode_for_all_who_run() -> None:
    turns = phases.split(phases.record(3, 4))
    assert len(turns) == phases.SETTLED + phases.TURNS
    for turn in turns:
        names = [item.name for item in turn]
        assert names == ["schedule", "prepare", "launch", "wait", "process", "output", "schedule"]


def test_growth_with_the_queue_is_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = {256: 1.0}
    monkeypatch.setattr(
        phases, "phases_us", lambda run, wait: dict.fromkeys(phases.NAMES, made_up[run] + wait)
    )
    large, small = phases.QUEUE_GROWTH
    rows = phases.phase_figures(1, quiet, [large, small])
    grown = {row.name.split(",")[0]: row.median for row in rows if row.name.startswith("growth")}
    assert grown == {f"growth: {name}": 1.0 + large[1] for name in phases.STEP_PHASES}


# -- peers -----------------------------------------------------------------------------------------


class Near:
    """A peer in this very process, whose scheduler is ours."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.measure = answer_with(Minisched)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(question)
        return self.measure(question)


@pytest.mark.parametrize("page_size", [1, 16, PAGE])
def test_a_peer_is_asked_for_the_same_work(page_size: int) -> None:
    load = host_peers.with_pages(Workload(running=3, spare_pages=2), page_size)
    peer = Near()
    taken, rows = host_peers.ask(peer, load, 2, 5)  # type: ignore[arg-type]
    assert rows == 3 * 5 and taken > 0
    assert peer.asked == [{"load": asdict(load), "warm_up": 2, "steps": 5}]
    assert load.spare_pages * page_size == 2 * PAGE


def test_a_peer_that_runs_others_gives_no_figure() -> None:
    class Short:
        def ask(self, question: dict[str, Any]) -> dict[str, Any]:
            return {"us": 1.0, "rows": 2 * scheduler.STEPS}

    with pytest.raises(RuntimeError, match=r"2\.0 requests ran in a step, not 3"):
        host_peers.peer_step_us(Short(), Workload(running=3))  # type: ignore[arg-type]


@pytest.mark.parametrize("known", host_peers.SCHEDULER_PEERS, ids=lambda known: known.name)
def test_a_peer_that_cannot_be_had_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, known: host_peers.SchedulerPeer
) -> None:
    def none(name: str, home: Path, report: object) -> Path:
        raise PeerError(f"{name} can't be installed: no network.")

    monkeypatch.setattr(host_peers, "environment", none)
    with ExitStack() as opened:
        part = host_peers.peer_cases(known, Path("nowhere"), opened, quiet)
    assert part.reason == f"{known.environment} can't be installed: no network"
    assert set(part.ours) == set(part.theirs) and set(part.theirs.values()) == {None}
    assert part.growth == ()


def test_the_whole_table_says_why_peers_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"a case": lambda: 2.0}

    def parts(known: host_peers.SchedulerPeer, *others: object) -> SideBySide:
        return SideBySide(known.name, one, {"a case": None}, reason="no network")

    monkeypatch.setattr(host, "phase_figures", lambda repetitions, report: [])
    monkeypatch.setattr(
        host, "step_cases", lambda nano, why: SideBySide("nano", one, {"a case": None}, reason=why)
    )
    monkeypatch.setattr(host, "peer_cases", parts)
    rows = host.host_figures(None, "no checkout", Path("nowhere"), 2, quiet)
    reasons = {row.name: row.reason for row in rows if row.median is None}
    assert reasons == {
        "nano: a case": "no checkout",
        "minisched / nano: a case": "no checkout",
        **{f"{name}: a case": "no network" for name in ("vLLM", "SGLang")},
        **{f"minisched / {name}: a case": "no network" for name in ("vLLM", "SGLang")},
        **{
            f"{row}: a request admitted, 1,000 waiting": known.no_admission
            for known in host_peers.SCHEDULER_PEERS
            for row in (known.name, f"minisched / {known.name}")
        },
    }


# -- stand-ins -------------------------------------------------------------------------------------


@pytest.fixture
def stood_in() -> Iterator[None]:
    finders, modules = list(sys.meta_path), set(sys.modules)
    missing.stand_in("no_such_kernels")
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - modules:
        if name.startswith("no_such_kernels"):
            del sys.modules[name]


@pytest.mark.usefixtures("stood_in")
def test_a_stand_in_can_be_imported_decorated_with_and_derived_from() -> None:
    kernels: Any = importlib.import_module("no_such_kernels.language")

    @kernels.jit
    def kernel() -> int:
        return 3

    assert kernel() == 3

    @kernels.autotune(configs=[kernels.Config()], key=["n"])
    def tuned() -> int:
        return 4

    assert tuned() == 4

    class Derived(kernels.Base):  # type: ignore[misc]
        pass

    assert isinstance(Derived(), kernels.Base) is False  # each look makes a class of its own
    assert kernels.Mode.FAST is not None
    with pytest.raises(AttributeError):
        _ = kernels.__path_of_nothing__


@pytest.mark.usefixtures("stood_in")
def test_only_what_is_named_has_a_stand_in() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_other"):
        importlib.import_module("no_such_other")
