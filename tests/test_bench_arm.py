"""Loops that take turns: each gives what it gives alone, and nothing is left open."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.bench.arm import running
from minisched.bench.case import Case
from minisched.cli.loop_choice import overlapped_loop
from minisched.core import Request, SamplingParams
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


@given(prompts, st.integers(6, 20), st.lists(st.integers(0, 5), max_size=4))
@settings(max_examples=10)
def test_loops_that_take_turns_give_what_they_give_alone(
    subject: tuple[str, Any], prompts: list[list[int]], new_tokens: int, turns: list[int]
) -> None:
    device, model = subject
    case = make_case(device, model, prompts, new_tokens)
    alone = run_loop("serial", open_device(device), model, list(case.requests), case.config)
    heard: dict[str, dict[str, list[int]]] = {}
    with ExitStack() as stack:
        loops = "serial", overlapped_loop(device)
        arms = {loop: stack.enter_context(running(case, loop)) for loop in loops}
        for count in turns:
            for arm in arms.values():
                spent = arm.go_on(count)
                assert spent.host >= 0 and spent.wall >= 0
        for loop, arm in arms.items():
            run = arm.finish()
            assert run.trace.loop == loop and run.trace.slices
            heard[loop] = run.outputs
    assert list(heard.values()) == [alone.outputs] * 2


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
