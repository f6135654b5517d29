"""Loops that take turns: each gives what it gives alone, and nothing is left open."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.bench.arm import SETTLING, Arm, ArmStopped, running
from minisched.bench.case import Case
from minisched.cli import bench
from minisched.core import Request, SamplingParams
from minisched.defaults import overlapped_loop
from minisched.devices.registry import open_device
from minisched.devices.thread import ThreadDevice
from minisched.loops.run import run_loop
from minisched.models.hash_torch import HashTorch
from minisched.models.registry import open_model
from minisched.scheduler import SchedulerConfig

torch: Any = pytest.importorskip("torch")


@pytest.fixture(scope="module", params=["thread", "mlx"])
def subject(request: Any, tiny_llama: Path) -> tuple[str, Any]:
    """A device, and a model that keeps its KV in itself."""
    return request.param, open_model(str(tiny_llama), request.param)


def make_case(device: str, model: Any, prompts: list[list[int]], new_tokens: int) -> Case:
    """Requests of one length each."""
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    requests = [Request(f"r{at}", prompt, params) for at, prompt in enumerate(prompts)]
    return Case(device, model, requests, SchedulerConfig())


prompts = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=9), min_size=1, max_size=3)


@given(prompts, st.lists(st.integers(0, 5), max_size=4), st.integers(3, 6))
@settings(max_examples=10)
def test_loops_that_take_turns_give_what_they_give_alone(
    subject: tuple[str, Any], prompts: list[list[int]], turns: list[int], spare: int
) -> None:
    """And a turn is a step: after so many turns so many forward passes were launched."""
    device, model = subject
    case = make_case(device, model, prompts, SETTLING + sum(turns) + spare)
    alone = run_loop("serial", open_device(device), model, list(case.requests), case.config)
    overlapped = overlapped_loop(device)
    heard: list[dict[str, list[int]]] = []
    with ExitStack() as stack:
        loops = ["serial", overlapped, overlapped]
        arms = [stack.enter_context(running(case, loop, together=True)) for loop in loops]
        for done in accumulate(turns):
            for arm, count in zip(arms, [done - launched(arms[0]) + SETTLING] * 3, strict=True):
                arm.go_on(count)
                assert launched(arm) == SETTLING + done
        for loop, arm in zip(loops, arms, strict=True):
            run = arm.finish()
            assert run.trace.loop == loop and run.trace.slices
            heard.append(run.outputs)
    assert heard == [alone.outputs] * 3


def launched(arm: Arm) -> int:
    """How many steps a loop has launched so far."""
    so_far = arm.engine.device.recorder.trace(arm.loop, "", "", "virtual")
    return len({item.step for item in so_far.on("host") if item.name == "launch"})


def test_a_turn_without_a_step_is_an_error() -> None:
    case = make_case("thread", HashTorch(eos_ids=frozenset()), [[1, 2]], 6)
    with running(case, "overlap") as arm, pytest.raises(ArmStopped, match="has nothing to run"):
        arm.go_on(9)
    long = make_case("thread", HashTorch(eos_ids=frozenset()), [[1] * 50], 6)
    config = replace(long.config, context_len=20)
    refused = running(replace(long, config=config), "overlap")
    with pytest.raises(ArmStopped, match=r"nothing to run: r0: .*20"), refused:
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_happens_devices_are_closed(error: type[BaseException]) -> None:
    before = threading.active_count(), torch.get_num_threads()
    case = make_case("thread", HashTorch(eos_ids=frozenset()), [[1, 2]], 50)
    with pytest.raises(error), running(case, "serial"), running(case, "overlap") as arm:
        arm.go_on(2)
        raise error
    assert (threading.active_count(), torch.get_num_threads()) == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_devices_that_are_open_together_compute_alike_and_give_settings_back(
    order: tuple[int, int],
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        devices = [ThreadDevice(), ThreadDevice()]
        assert [device.torch_threads for device in devices] == [3, 3]
        devices[order[0]].close()
        assert torch.get_num_threads() == 1
        devices[order[1]].close()
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_a_bench_whose_loop_stops_is_one_sentence(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(call: Any) -> list[Any]:
        raise ArmStopped("overlap has nothing to run: r0: it was lost")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "find_part", lambda part: measure)
    code, out, err = cli("bench tracing")
    assert code == 1 and not out and not list(tmp_path.iterdir())
    assert err.endswith(
        "minisched: bench tracing stopped: overlap has nothing to run: r0: it was lost\n"
    )


def test_requests_too_short_for_a_round_are_refused(cli: Any) -> None:
    code, _, err = cli("bench hidden --model hash --device thread --max-new-tokens 11")
    assert code == 2 and "--max-new-tokens is 11, but bench hidden needs at least 12." in err
