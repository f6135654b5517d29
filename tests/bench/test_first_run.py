"""``bench cuda`` and ``first-run`` on the GPU that is not there: every step sees what it is for.

What no device but a real one can do says so, and is no success.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from minisched.bench import first_run, instruments
from minisched.bench.cuda import COMMON, SHAPES, num_parameters
from minisched.bench.first_run import (
    FAILED,
    NOT_RUN,
    OK,
    STEADY,
    STEPS,
    WINDOW,
    Errand,
    Failed,
    StepOutcome,
    take,
    trace_steady_decode,
)
from minisched.bench.instruments import NotRun
from minisched.cli import first_run as command
from minisched.museum.patch import Edit, put_in
from tests.devices.fake_cuda import Gpu, fake_cuda

BY_NAME = {step.name: step for step in STEPS}
FEW_DESIGNS = ("overlap:pool", "serial", "vllm_async", "mini_overlap")  # which run here


# -- bench cuda --------------------------------------------------------------------------------


def test_weights_are_of_the_published_sizes() -> None:
    for shape, billions in (("1B", 1.24), ("8B", 7.5)):
        assert num_parameters({**COMMON, **SHAPES[shape]}) / 1e9 == pytest.approx(billions, 0.01)


# -- first-run: each step ----------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A GPU for a few of the loops; nsys is nowhere."""
    every = first_run.designs()
    monkeypatch.setattr(
        first_run, "designs", lambda: [it for it in every if it.name in FEW_DESIGNS]
    )
    monkeypatch.setattr(instruments, "FREED", ((512, 2), (4096, 1)))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with fake_cuda() as made:
        yield made


@pytest.mark.thorough
def test_each_step_that_can_be_taken_here_is_ok(gpu: Gpu, cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli("first-run --here --seconds 0.5 --out found --json")
    told = json.loads(out)
    verdicts = {step["step"]: (step["verdict"], step["said"]) for step in told["steps"]}
    left_out = {"trace": "profiler sees nothing of a GPU", "figures": "GiB are free, and"}
    assert code == 0 and list(verdicts) == list(BY_NAME)
    for name, (verdict, said) in verdicts.items():
        assert verdict == (NOT_RUN if name in left_out else OK), said
        assert left_out.get(name, "") in said
    assert json.loads((tmp_path / "found" / "report.json").read_text())["steps"] == told["steps"]


FAULTS = {  # what is wrong; which step fails; what it says; where
    "the copy brings nothing": ("machine", "came to", Edit(
        "devices.thread:TorchDevice.bring_to_host",
        "target.copy_(values, non_blocking=True)", "target.fill_(7)")),
    "a number is asked for in a forward pass": ("waiting", "called a synchronizing", Edit(
        "worker.worker:forward", "    if edges is not None:\n",
        "    int(ids[0])\n    if edges is not None:\n")),
    "the clock of the GPU runs ahead": ("clock", "begins before its launch", Edit(
        "devices.cuda:GpuClock.time", "    return zero.at +", "    return zero.at - 10**8 +")),
    "an op drops its arguments": ("memory", "was let go before", Edit(
        "devices.cuda:CudaOp.run", "    self.named = fn, *args\n", "")),
    "a step is laid out when the GPU is done": ("waiting", "waits for the GPU", Edit(
        "worker.worker:Worker.prepare", "    self.ship(step)\n",
        "    self.ship(step)\n    self.device.stream('forward').stream.synchronize()\n")),
    "graphs keep the wrong page table": ("graphs", "", Edit(
        "models.llama_graphs:LlamaGraphs.init_cuda_graphs",
        "(len(runner.page_table), runner.max_bs) != (len(page_table), max_bs)", "False")),
    "a graph looks at the rows of the step before": ("graphs", "without graphs", Edit(
        "models.llama_graphs:CudaGraphRunner.run", "batch.token_rows)", "places[2].clone())")),
    "a copy does not wait": ("hash", "race: ", Edit(
        "worker.worker:Worker.queue", "if op.awaited_by:",
        'if op.awaited_by and op.name != "sample":')),
}  # fmt: skip


@pytest.mark.parametrize("fault", [
    *[*FAULTS][:2], *(pytest.param(it, marks=pytest.mark.thorough) for it in [*FAULTS][2:])
])  # fmt: skip
def test_a_fault_fails_the_step_that_is_for_it(gpu: Gpu, tmp_path: Path, fault: str) -> None:
    name, says, edit = FAULTS[fault]
    with put_in([edit]):
        found = take(BY_NAME[name], tmp_path, 0.1)
    assert (found.step, found.verdict) == (name, FAILED) and says in found.said, found
    for path in re.findall(r"[^ ;(]*\.json", found.said):
        assert json.loads(Path(path).read_text())["format"] == "minisched trace"


@pytest.mark.parametrize(("verdicts", "code"), [
    ({}, 0), ({"trace": NOT_RUN}, 0), ({"graphs": FAILED, "trace": NOT_RUN}, 1),
    (dict.fromkeys(BY_NAME, NOT_RUN), 1), ({"machine": FAILED}, 1),
])  # fmt: skip
def test_a_line_a_step_and_the_exit_code(
    gpu: Gpu, cli: Any, monkeypatch: pytest.MonkeyPatch, verdicts: dict[str, str], code: int
) -> None:
    def taken(step: Any, out: Path, seconds: float) -> StepOutcome:
        return StepOutcome(step.name, verdicts.get(step.name, OK), f"what {step.name} saw", 1.0)

    monkeypatch.setattr(command, "take_apart", taken)
    ended, out, _ = cli("first-run")
    *lines, last = out.splitlines()
    assert ended == code and last.startswith(f"Of {len(STEPS)} steps: ")
    stops = "machine" in verdicts and code  # where it does not compute nothing else is looked at
    for line, name in zip(lines, BY_NAME, strict=True):
        verdict = NOT_RUN if stops and name != "machine" else verdicts.get(name, OK)
        sign = {OK: "✓", FAILED: "✗", NOT_RUN: "-"}[verdict]
        assert line.startswith(f"{sign} {name}:" + (f" {verdict}:" if verdict != OK else ""))


# -- the trace of steady decode, as a profiler would write it --------------------------------------


@pytest.mark.parametrize("bad", ["cudaMalloc", "cudaHostAlloc", "cudaStreamSynchronize"])
def test_a_call_that_allocates_or_waits_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: str
) -> None:
    """The window is from 100 to 200 us."""

    def traced(*calls: tuple[str, float]) -> str:
        events = [("user_annotation", STEADY, 100.0, 100.0)]
        events += [("cuda_runtime", name, start, 1.0) for name, start in calls]
        seen = instruments.seen_in(
            {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1,
             "args": {}}
            for cat, name, ts, dur in events
        )  # fmt: skip
        monkeypatch.setattr(first_run, "seen_by_nsight", lambda *asked: seen)
        return trace_steady_decode(Errand(tmp_path, 0, 0))

    usual, outside = ("cudaMemcpyAsync", 120.0), [(bad, 50.0), (bad, 250.0)]
    assert f"saw 1 calls in {WINDOW} steps, none" in traced(usual, *outside)
    with pytest.raises(Failed, match=f"saw {bad} 2 times in {WINDOW} steps"):
        traced(usual, (bad, 140.0), (bad, 150.0))
    with pytest.raises(NotRun, match="saw no call of CUDA in steady decode"):
        traced(*outside)
