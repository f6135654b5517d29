"""What benches make of their measurements, how loops take turns, and that each part runs small.

No time is asserted: what is slow on one machine is fast on another.
"""

import json
import math
import os
import re
import sys
import threading
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from minisched.bench import host as hosts
from minisched.bench import overlap as overlap_cells
from minisched.bench.calibrate import CalibrationLoad
from minisched.bench.cuda import COMMON, SHAPES, num_parameters
from minisched.bench.figures import BenchCall, Figure, contest, no_peer
from minisched.bench.overlap import (
    AIM,
    PYTHON,
    SERIAL,
    MeasuredStep,
    running,
    share_rows,
)
from minisched.bench.peers import peer as peers
from minisched.bench.peers import transformers_generate
from minisched.bench.peers.peer import PACKAGE, Peer, PeerError
from minisched.devices.thread import ThreadDevice
from minisched.models.hash_arrays import HashArrays
from tests.conftest import pytest_xdist_auto_num_workers

times = st.floats(0.01, 100.0)


# -- figures -----------------------------------------------------------------------------------


def test_arms_take_turns_and_a_ratio_is_taken_repetition_by_repetition() -> None:
    def breaks_off() -> float:
        raise PeerError("it has ended.")

    absent = no_peer("none.")
    turns: list[str] = []
    call = BenchCall("it", repetitions=2, report=turns.append)
    arms = {"ours": iter([3.0, 2.0]).__next__, "a": iter([2.0, 4.0]).__next__, 
            "b": lambda: float(absent({})["us"]), "c": breaks_off}  # fmt: skip
    found = contest("it", arms, "us", {"a": 0.9, "b": 1.0}, call, why="so")
    rows = {row.name.removeprefix("it: "): row for row in found}
    assert [turn.split(",")[0] for turn in turns] == [
        *("it: ours", "it: a", "it: b", "it: c"), *("it: ours", "it: a")
    ]  # fmt: skip
    assert list(rows) == ["ours", "a", "b", "c", "ours / a", "ours / b", "ours / c"]
    told = {name: (*sorted(row.values), row.met, row.reason) for name, row in rows.items()}
    assert told["ours"] == (2.0, 3.0, None, "") and told["ours / a"] == (0.5, 1.5, False, "so")
    assert told["b"] == told["ours / b"] == (None, "none")
    assert told["c"] == told["ours / c"] == (None, "it has ended")
    assert Figure("it", [2.0], "us", aim=3.0).met is False, "an aim is a floor, or at most"


# -- loops that take turns, and overlap: what is hidden of what could be ------------------------


def test_whatever_happens_devices_are_closed_and_settings_are_given_back() -> None:
    before = threading.active_count(), torch.get_num_threads()
    run = partial(running, "thread", HashArrays(eos_ids=frozenset()), CalibrationLoad(1, 8, 50))
    with pytest.raises(KeyboardInterrupt), run("serial"), run("overlap") as arm:
        arm.go_on(2)
        raise KeyboardInterrupt
    assert (threading.active_count(), torch.get_num_threads()) == before
    try:
        torch.set_num_threads(4)
        devices = [ThreadDevice(), ThreadDevice()]
        assert [device.torch_threads for device in devices] == [3, 3], "they compute alike"
        devices[0].close()
        assert torch.get_num_threads() == 1
        devices[1].close()
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before[1])


@given(host=times, device=times, share=st.floats(0.0, 1.0))
def test_what_is_hidden_is_a_share_of_what_could_be(
    host: float, device: float, share: float
) -> None:
    serial, hideable = host + device, min(host, device)
    assume(abs(hideable - 1.0) > 1e-6)
    taken = serial - share * hideable
    steps = {SERIAL: MeasuredStep(serial, device), PYTHON: MeasuredStep(taken, device)}
    rows = {row.name: row for row in share_rows("it", [steps])}
    found = {name.removeprefix("it: "): row.median for name, row in rows.items()}
    assert len(rows) == 3 and found["host"] == pytest.approx(host)
    assert found["hidden"] == pytest.approx(100 * share, abs=1e-6)
    assert rows["it: hidden"].aim == (AIM if hideable > 1.0 else None)


# -- peers in their own processes --------------------------------------------------------------

ECHO = """
import sys
from minisched.bench.peers.peer import serve

def start(settings):
    print("a library talks")
    def answer(question):
        if question["add"] == 0:
            sys.exit("out of memory")
        return {"sum": settings["base"] + question["add"]}
    return answer

serve(start)
"""


def test_a_peer_answers_one_question_at_a_time_or_says_why_not(tmp_path: Path) -> None:
    (script := tmp_path / "echo.py").write_text(ECHO, "utf-8")
    with Peer("echo", [sys.executable, str(script)], {"base": 40}, os.environ) as peer:
        assert [peer.ask({"add": number})["sum"] for number in (1, 2)] == [41, 42]
        with pytest.raises(PeerError, match="echo: KeyError: 'add'"):
            peer.ask({})
        assert peer.ask({"add": 3}) == {"sum": 43}
        with pytest.raises(PeerError, match="echo has ended: out of memory"):
            peer.ask({"add": 0})
    assert peer.process.poll() is not None


SCRIPTS = [
    f"minisched.{folder}.{path.stem}"
    for folder in ("bench.peers", "fidelity")
    for path in (PACKAGE / folder.replace(".", "/")).glob("*.py")
    if re.search(r"serve\((ORIGINAL\.)?start\)", path.read_text("utf-8"))
]  # fmt: skip
OURS = (
    "minisched.bench.peers.ours",
    "minisched.fidelity.mini_sglang",  # it and the next run in SGLang's environment
    "minisched.fidelity.sglang_future_map",
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_names_the_versions_of_all_that_it_needs(script: str) -> None:
    needed, alone = peers.packages(script)
    assert all("==" in name for name in needed + alone) and bool(needed) == (script not in OURS)
    head = peers.HEADER.search(peers.path_of(script).read_text("utf-8"))
    assert head is None or all(name.partition("==")[2] in head[0] for name in alone)


def test_an_environment_has_what_the_head_names_is_made_once_and_sees_only_this_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(peers, "call", lambda name, *command: called.append(command[5:]))
    monkeypatch.setattr(peers.venv, "create", lambda folder, **_: folder.mkdir(parents=True))
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path))
    module = "minisched.fidelity.vllm"
    pythons = {peers.interpreter(module, lambda doing: None) for _ in range(2)}
    assert len(pythons) == 1 and pythons.pop().is_relative_to(tmp_path)
    (_, *needed), (_, bare, *alone) = called
    assert (needed, alone, bare) == (*peers.packages(module), "--no-deps")
    assert peers.version_of(module, "vllm") == alone[0].partition("==")[2]
    (folder,) = peers.environment()["PYTHONPATH"].split(os.pathsep)
    assert [path.name for path in Path(folder).iterdir()] == ["minisched"]


@pytest.mark.parametrize("here", [(), ("json",), ("json", "no_such_package")])
def test_without_a_network_a_script_takes_the_packages_that_are_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, here: tuple[str, ...]
) -> None:
    def no_network(name: str, *command: str) -> None:
        raise PeerError(f"{name} can't be installed: no route to host")

    monkeypatch.setattr(peers, "call", no_network)
    monkeypatch.setattr(peers.venv, "create", lambda folder, **_: folder.mkdir(parents=True))
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path))
    monkeypatch.setattr(peers, "Peer", lambda name, command, *rest: command)
    said: list[str] = []
    module = "minisched.bench.peers.transformers_generate"
    if here != ("json",):
        with pytest.raises(PeerError, match="can't be installed: no route to host"):
            peers.start_peer(module, {}, said.append, or_here=here)
        return
    command: Any = peers.start_peer(module, {}, said.append, or_here=here)
    assert command == [sys.executable, "-m", module]
    assert any("transformers_generate takes the json that are installed here" in it for it in said)


def test_the_page_size_has_the_name_that_the_installed_version_takes() -> None:
    from transformers.generation import ContinuousBatchingConfig

    older = make_dataclass("ContinuousBatchingConfig", [("block_size", int), ("num_blocks", int)])
    assert transformers_generate.page_size_name(older) == "block_size"
    name = transformers_generate.page_size_name(ContinuousBatchingConfig)
    assert getattr(ContinuousBatchingConfig(**{name: 64}), name) == 64


# -- cuda --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_there", [False, True])
def test_with_a_gpu_pytest_takes_one_worker(
    is_there: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_there)
    assert pytest_xdist_auto_num_workers(request.config) == (1 if is_there else None)


def test_weights_are_of_the_published_sizes() -> None:
    for shape, billions in (("1B", 1.24), ("8B", 7.5)):
        assert num_parameters({**COMMON, **SHAPES[shape]}) / 1e9 == pytest.approx(billions, 0.01)


# -- each part, small, as a user calls it ------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("line", ["overlap --device mlx --model small --requests 2", "host"])
def test_a_part_measures_all_its_rows(cli: Any, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr(overlap_cells, "WORKS_MS", (0.0, 1.0))
    monkeypatch.setattr(overlap_cells, "MEASURE_S", 0.0)
    monkeypatch.setattr(overlap_cells, "SLOW_S", math.inf)  # a loaded machine measures it as well
    monkeypatch.setattr(hosts, "SCRIPTS", {hosts.NANO_VLLM: "nano_vllm"})  # the others are large
    monkeypatch.setattr(hosts, "BESIDE", (hosts.pool_full(10), hosts.admitting(10)))
    monkeypatch.setattr(hosts, "GROWTH", ((hosts.after(8), hosts.after(4)),))
    before = {*Path.cwd().rglob("*")}
    code, out, _ = cli(f"bench {line} --repeat 1 --json")
    assert {*Path.cwd().rglob("*")} == before, "nothing is written unless --keep says so"
    rows = json.loads(out)["rows"]
    cells = {row["name"].split(":")[0] for row in rows}
    assert code == 0 and len(cells) > 1, rows
    assert all(row["median"] is not None or row["reason"] for row in rows)
