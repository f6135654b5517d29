"""A GPU that is not there keeps CUDA's rules; on it every law holds, and faults are seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from minisched.checks.draw.designs import Design, read_design
from minisched.checks.draw.draw import designs_for, draw
from minisched.checks.judge import Verdict, judge
from minisched.devices.cuda import CudaDevice
from minisched.museum.patch import Edit, put_in
from minisched.trace import Touch
from tests.devices.fake_cuda import Gpu, fake_cuda
from tests.support import LOOP_OPTIONS, runs_on

CUDA = torch.device("cuda", 0)
ON_CUDA = [item for item in LOOP_OPTIONS if runs_on(item[0], "cuda")]


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with fake_cuda() as gpu:
        yield gpu


def ints(*values: int) -> torch.Tensor:
    """Numbers that are on the GPU by now."""
    made = torch.tensor(values).to(CUDA)
    torch.cuda.synchronize()
    return made


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_what_is_launched_runs_in_order_on_its_stream(seed: int) -> None:
    with fake_cuda(seed):
        memory, stream = ints(0), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for digit in (1, 2, 3):
                memory.mul_(10).add_(digit)
        stream.synchronize()
        assert memory.tolist() == [123]


def written_elsewhere(wait: Callable[[Any, Any], None]) -> list[int]:
    """What one stream reads of what another one writes, for some seeds."""
    found = []
    for seed in range(20):
        with fake_cuda(seed):
            memory, writer, reader = ints(1), torch.cuda.Stream(), torch.cuda.Stream()
            with torch.cuda.stream(writer):
                memory.fill_(7)
                written = torch.cuda.Event()
                written.record()
            wait(reader, written)
            with torch.cuda.stream(reader):
                copy = memory + 0
            reader.synchronize()
            with torch.cuda.stream(reader):
                found += copy.tolist()
    return found


def test_a_stream_that_waits_finds_what_another_one_has_written() -> None:
    assert written_elsewhere(lambda reader, event: reader.wait_event(event)) == [7] * 20


def test_a_missing_wait_shows() -> None:
    assert 1 in written_elsewhere(lambda reader, event: None)


def test_a_wait_for_an_event_that_nobody_has_recorded_is_none() -> None:
    assert 1 in written_elsewhere(lambda reader, event: reader.wait_event(torch.cuda.Event()))


def test_a_copy_to_the_host_lands_late(gpu: Gpu) -> None:
    """And what the host reads before is wrong."""
    landing = torch.full((1,), -5, pin_memory=True)
    landing.copy_(ints(3), non_blocking=True)
    assert landing.tolist() == [-5]
    torch.cuda.synchronize()
    assert landing.tolist() == [3]


def test_a_pinned_buffer_that_is_rewritten_too_early_is_read_as_it_is_then(gpu: Gpu) -> None:
    pinned, plain = torch.tensor([3], pin_memory=True), torch.tensor([4])
    late, at_once = pinned.to(CUDA, non_blocking=True), plain.to(CUDA, non_blocking=True)
    pinned.fill_(0)
    plain.fill_(0)
    assert (late.tolist(), at_once.tolist()) == ([0], [4])


def test_events_tell_the_time_when_the_gpu_got_there(gpu: Gpu) -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    ints(1)
    last.record()
    with pytest.raises(RuntimeError, match="not ready"):
        first.elapsed_time(torch.cuda.Event(enable_timing=True))
    last.synchronize()
    assert 0 < first.elapsed_time(last) < 60_000
    asked = torch.cuda.Event()
    asked.record()
    assert any(asked.query() for _ in range(1000))  # asking is enough, sooner or later


def test_a_kernel_that_fails_is_heard_of_late_and_for_ever(gpu: Gpu) -> None:
    memory = ints(1, 2)
    memory[ints(5)]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="device-side assert"):
            torch.cuda.synchronize()


def test_tensors_of_two_devices_do_not_mix(gpu: Gpu) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        ints(1, 2) + torch.tensor([1, 2])
    assert (ints(1, 2) + torch.tensor(1)).tolist() == [2, 3]


def test_a_thread_says_which_gpu_it_is_on(gpu: Gpu) -> None:
    memory, found = ints(1), list[str]()

    def work(inside: bool) -> None:
        try:
            with torch.cuda.device(0) if inside else torch.inference_mode():
                found.append(str((memory + 1).tolist()))
        except RuntimeError as error:
            found.append(str(error)[-30:])

    for inside in (True, False):
        thread = threading.Thread(target=work, args=(inside,))
        thread.start()
        thread.join()
    assert found == ["[2]", "is on no GPU (torch.cuda.device)"[-30:]]


@pytest.mark.parametrize("waits", [
    lambda it: it.tolist(), lambda it: it.item(), lambda it: it[it > 0], lambda it: bool(it),
    lambda it: it.copy_(torch.tensor([1])), lambda it: it.nonzero(),
])  # fmt: skip
def test_a_launch_that_waits_can_be_refused(gpu: Gpu, waits: Callable[[Any], Any]) -> None:
    memory = ints(1)
    waits(memory)
    torch.cuda.set_sync_debug_mode("error")
    memory.add_(1)
    torch.tensor([1], pin_memory=True).to(CUDA, non_blocking=True)
    with pytest.raises(RuntimeError, match="synchronizing"):
        waits(memory)


# -- lifetimes -------------------------------------------------------------------------------------


def let_go(*, wait: bool, same_stream: bool = False) -> list[str]:
    """A tensor of one stream is read by another one, and nobody names it any more."""
    with fake_cuda() as gpu:
        side = torch.cuda.current_stream() if same_stream else torch.cuda.Stream()
        memory = ints(3)
        with torch.cuda.stream(side):
            copy = memory + 0
        if wait:
            side.synchronize()
        del memory
        with torch.cuda.stream(side):
            values = copy.tolist()
        assert values == [3 if not gpu.findings else 1]
        return [item.sentence for item in gpu.findings]


def test_memory_that_is_let_go_under_a_kernel_is_found_and_filled() -> None:
    [sentence] = let_go(wait=False)
    assert "was let go before aten.add" in sentence and sentence.endswith("had ended")
    assert let_go(wait=True) == let_go(wait=False, same_stream=True) == []


def test_a_stream_that_is_waited_for_may_have_its_readers_memory_back(gpu: Gpu) -> None:
    """``record_stream`` by hand: the owner waits for the reader before it hands memory out."""
    side, memory = torch.cuda.Stream(), ints(3)
    with torch.cuda.stream(side):
        memory + 0
    torch.cuda.current_stream().wait_stream(side)
    del memory
    assert gpu.findings == []


def test_an_op_keeps_what_it_names_until_the_host_has_waited(gpu: Gpu) -> None:
    """Its arguments, and what its function is bound to."""

    class Bound:
        def __init__(self) -> None:
            self.memory = torch.tensor([4], pin_memory=True).to(CUDA, non_blocking=True)

        def add(self, other: torch.Tensor) -> torch.Tensor:
            return self.memory + other

    def findings() -> list[str]:
        device = CudaDevice()
        stream = device.stream("forward")
        other = device.xp.asarray([1])
        op = stream.launch(Bound().add, other, name="add", touches=[Touch("read", "kv", [1])])
        del other
        stream.launch(Bound().add, device.xp.asarray([1]), name="late").synchronize()
        assert op.synchronize().tolist() == [5] or device.lifetimes
        device.close()
        return list(device.lifetimes)

    assert findings() == []
    for kept in ("args", "()"):
        edit = Edit("devices.cuda:CudaOp.run", "self.named = fn, *args", f"self.named = {kept}")
        with put_in([edit]):
            assert findings()


# -- graphs ----------------------------------------------------------------------------------------


def captured(mode: str, body: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode=mode):
        body()
    return graph


def test_a_graph_runs_when_it_is_replayed_on_what_lies_there_then(gpu: Gpu) -> None:
    place, out = ints(1), ints(0)
    graph = captured("thread_local", lambda: out.copy_(place * 10))
    assert out.tolist() == [0]
    for value in (2, 3):
        place.fill_(value)
        graph.replay()
        assert out.tolist() == [10 * value]
    assert gpu.findings == []


def test_a_graph_that_names_what_was_let_go_is_found(gpu: Gpu) -> None:
    places, out = [ints(2)], ints(0)
    graph = captured("thread_local", lambda: out.copy_(places[0] * 10))
    places.clear()
    graph.replay()
    assert [item.sentence for item in gpu.findings] and out.tolist() == [10]  # of what is filled in


@pytest.mark.parametrize("body", [
    lambda it: it.tolist(), lambda it: torch.cuda.synchronize(),
    lambda it: torch.tensor([1], pin_memory=True), lambda it: it.copy_(torch.tensor([1])),
    lambda it: it[it > 0],
])  # fmt: skip
def test_what_a_capture_does_not_allow_ends_it(gpu: Gpu, body: Callable[[Any], Any]) -> None:
    memory = ints(1)
    with pytest.raises(RuntimeError, match=r"previous error during capture|capturing"):
        captured("thread_local", lambda: body(memory))
    assert gpu.captures == [] and not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_another_threads_call_ends_a_global_capture_alone(gpu: Gpu, mode: str) -> None:
    memory, refused = ints(1), list[str]()
    event = torch.cuda.Event()
    event.record()

    def ask() -> None:
        try:
            event.query()
        except RuntimeError as error:
            refused.append(str(error))

    def body() -> None:
        memory.add_(1)
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    if mode == "global":
        with pytest.raises(RuntimeError, match="previous error during capture"):
            captured(mode, body)
    else:
        captured(mode, body)
    assert bool(refused) == (mode == "global")


# -- every law, on every loop ----------------------------------------------------------------------


def on_cuda(seed: int, design: Design) -> Verdict:
    return judge(draw(seed).on(design, "cuda"))


@pytest.mark.parametrize("seed", [3, 9, 13])
def test_every_law_holds_on_what_is_drawn(gpu: Gpu, seed: int) -> None:
    """Seed 13 has drafts that are looked up on the device."""
    for design in designs_for(draw(seed), "cuda"):
        assert on_cuda(seed, design).findings == (), design.name


@pytest.mark.parametrize(("loop", "relay", "options"), ON_CUDA, ids=str)
def test_every_law_holds_on_every_loop(
    gpu: Gpu, loop: str, relay: str, options: dict[str, Any]
) -> None:
    assert on_cuda(8, Design(loop, relay, options)).findings == ()


FAULTS = {
    "args": ("devices.cuda:CudaOp.run", "self.named = fn, *args", "self.named = ()"),
    "bound": ("devices.cuda:CudaOp.run", "self.named = fn, *args", "self.named = args"),
    "plan": ("relay.prev_sampled:PrevSampled.resolve", "self.used.append(plan)", "pass"),
    "upload": (
        "worker.upload:Uploads.take", "op = self.queued.pop(batch.step, None)",
        "self.queued.pop(batch.step, None); op = None",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "seed", "design"), [
    ("args", 0, "overlap_pool_indexed:token_pool"), ("bound", 13, "serial"),
    ("plan", 8, "mini_overlap:prev_sampled"), ("upload", 0, "overlap_pool_indexed:token_pool"),
])  # fmt: skip
def test_what_is_named_by_nobody_is_found(gpu: Gpu, fault: str, seed: int, design: str) -> None:
    chosen = read_design(design)
    assert on_cuda(seed, chosen).findings == ()
    with put_in([Edit(*FAULTS[fault])]):
        found = on_cuda(seed, chosen).broke("lifetime")
    assert found is not None and "was let go before" in found.sentence
