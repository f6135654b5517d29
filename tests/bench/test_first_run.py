"""``bench cuda`` and ``first-run`` on the GPU that is not there: every step sees what it is for.

What no device but a real one can do says so, and is no success.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from minisched.bench.cuda import cuda, first_run, foreseen, instruments
from minisched.bench.cuda import sanitized as sanitized_run
from minisched.bench.cuda.cuda import (
    LOOPS,
    Load,
    cuda_figures,
)
from minisched.bench.cuda.first_run import (
    FAILED,
    NOT_RUN,
    OK,
    STEADY,
    STEPS,
    WINDOW,
    Errand,
    Failed,
    Found,
    take,
    trace_steady_decode,
)
from minisched.bench.cuda.instruments import NotRun
from minisched.bench.cuda.random_llama import COMMON, SHAPES, num_parameters, write_random_llama
from minisched.cli import bench_cuda
from minisched.cli import first_run as command
from minisched.devices.cost import SIM_COST
from minisched.models.llama_graphs import CudaGraphRunner, LlamaGraphs
from minisched.museum.patch import Edit, put_in
from tests.devices.fake_cuda import Gpu, fake_cuda

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "lessons/site/docs/first_run_on_a_gpu.md").read_text(encoding="utf-8")
BY_NAME = {step.name: step for step in STEPS}
FEW_DESIGNS = ("overlap:pool", "serial", "vllm_async", "mini_overlap")  # which run here
LOAD = Load(rows=2, prompt_len=20, new_tokens=12)
SMALL = {
    **COMMON, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8, "vocab_size": 200,
}  # fmt: skip
HERE_NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")


def quiet(doing: str) -> None:
    """Nobody reads it."""


# -- bench cuda --------------------------------------------------------------------------------


class StandIn:
    """A peer that answers at once."""

    def generate(self, asked: Sequence[list[int]], new_tokens: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only a GPU has is played."""
    monkeypatch.setattr(cuda, "DEVICE", "thread")
    monkeypatch.setattr(cuda, "bytes_per_second", lambda: 1e9)
    for name in ("calibrate", "observe_all"):
        monkeypatch.setattr(foreseen, name, lambda *what, **how: SIM_COST)


def small_llama(folder: Path) -> LlamaGraphs:
    """Graphs are played: captured, a step runs, and each time that it is replayed."""

    def captured(step: Callable[[], None]) -> Callable[[], None]:
        step()
        return step

    folder = write_random_llama(folder, SMALL)
    return LlamaGraphs(folder, "bfloat16", scripted=False, capture=captured)


@pytest.mark.thorough
@pytest.mark.usefixtures("without_a_gpu")
def test_every_figure_is_there(tmp_path: Path) -> None:
    keep = partial(bench_cuda.keep_pair, tmp_path / "kept", "small")
    model = small_llama(tmp_path)
    rows = cuda_figures("small", SMALL, model, StandIn, LOAD, 2, quiet, keep)
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept >= {"small-overlap.svg", "small-overlap-measured.json"} and len(kept) == 9
    by_name: dict[str, Any] = {row.name: row for row in rows}
    assert len(by_name) == len(rows) == len(LOOPS) * 9 + 7
    assert all(row.min <= row.median <= row.max for row in by_name.values())
    assert all(row.met for name, row in by_name.items() if name.endswith("races"))
    for loop in LOOPS:  # what is measured here is far from what these costs say
        name = f"small: {loop}, makespan"
        wrong = 100 * (by_name[f"{name} that sim predicts"].median / by_name[name].max - 1)
        assert by_name[f"{name}, off by"].min == pytest.approx(wrong)


def test_what_the_sanitizer_watches_runs_and_weights_are_of_the_published_sizes(
    tmp_path: Path,
) -> None:
    watched = sanitized_run.watched(write_random_llama(tmp_path, SMALL), "overlap", "thread")
    assert watched == sanitized_run.LOAD.rows * sanitized_run.LOAD.new_tokens
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
        "devices.torch_device:TorchDevice.bring_to_host",
        "target.copy_(values, non_blocking=True)", "target.fill_(7)")),
    "a number is asked for in a forward pass": ("waiting", "called a synchronizing", Edit(
        "worker.worker:Worker._forward", "    self.token_edges.took(batch, ids)\n",
        "    self.token_edges.took(batch, ids)\n    int(ids[0])\n")),
    "the clock of the GPU runs ahead": ("clock", "begins before its launch", Edit(
        "devices.cuda:GpuClock.time", "    return zero.at +", "    return zero.at - 10**8 +")),
    "an op drops its arguments": ("memory", "was let go before", Edit(
        "devices.cuda:CudaOp.run", "    self.named = fn, *args\n", "")),
    "a step is laid out when the GPU is done": ("waiting", "waits for the GPU", Edit(
        "worker.worker:Worker.prepare", "    self.declare(batch, flat)\n",
        "    self.declare(batch, flat)\n    self.forward_stream.stream.synchronize()\n")),
    "graphs keep the wrong page table": ("graphs", "", Edit(
        "models.llama_graphs:LlamaGraphs.init_cuda_graphs",
        "(len(runner.page_table), runner.max_bs) != (len(page_table), max_bs)", "False")),
    "a graph looks at the rows of the step before": ("graphs", "without graphs", Edit(
        "models.llama_graphs:CudaGraphRunner.run", "batch.token_rows)", "places[2].clone())")),
    "a copy does not wait": ("hash", "race: ", Edit(
        "worker.worker:Worker.launch_copy", "    self.copy_stream.wait(last)\n", "")),
}  # fmt: skip
QUICK = list(FAULTS)[:2]


@pytest.mark.parametrize(
    "fault", [*QUICK, *(pytest.param(it, marks=pytest.mark.thorough) for it in [*FAULTS][2:])]
)
def test_a_fault_fails_the_step_that_is_for_it(gpu: Gpu, tmp_path: Path, fault: str) -> None:
    name, says, edit = FAULTS[fault]
    with put_in([edit]):
        found = take(BY_NAME[name], tmp_path, 0.1)
    assert (found.step, found.verdict) == (name, FAILED) and says in found.said, found
    for path in re.findall(r"[^ ;(]*\.json", found.said):
        assert json.loads(Path(path).read_text())["format"] == "minisched trace"


# -- the trace of steady decode, as a profiler would write it --------------------------------------

Calls = list[tuple[str, float]]  # with their beginnings; the window is from 100 to 200 us


def by_torch(calls: Calls) -> Any:
    """What torch's profiler saw."""
    events = [("user_annotation", STEADY, 100.0, 100.0)]
    events += [("cuda_runtime", name, start, 1.0) for name, start in calls]
    return instruments.seen_in(
        {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": {}}
        for cat, name, ts, dur in events
    )


USUAL = [("cudaGraphLaunch", 110.0), ("cudaMemcpyAsync", 120.0), ("cudaEventSynchronize", 130.0)]


@pytest.mark.parametrize("bad", ["cudaMalloc", "cudaHostAlloc", "cudaStreamSynchronize"])
def test_a_call_that_allocates_or_waits_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: str
) -> None:
    errand = Errand(tmp_path, 0, 0)

    def traced(calls: Calls) -> str:
        monkeypatch.setattr(first_run, "seen_by_nsight", lambda *asked: by_torch(calls))
        return trace_steady_decode(errand)

    outside = [(bad, 50.0), (bad, 250.0)]
    assert f"saw 3 calls in {WINDOW} steps, none" in traced(USUAL + outside)
    with pytest.raises(Failed, match=f"saw {bad} 2 times in {WINDOW} steps"):
        traced([*USUAL, (bad, 140.0), (bad, 150.0)])
    with pytest.raises(NotRun, match="saw no call of CUDA in steady decode"):
        traced(outside)


def test_steady_decode_is_launched_from_graphs_alone(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first and the last step of the window nobody comes, goes or is captured."""
    replayed, healthy = list[str](), CudaGraphRunner.run

    def counted(runner: Any, replay: Any, batch: Any, ids: Any) -> Any:
        replayed.append(f"{len(batch.rows)} rows")
        return healthy(runner, replay, batch, ids)

    @contextmanager
    def around() -> Iterator[None]:
        replayed.append("begin")
        yield
        replayed.append("end")

    monkeypatch.setattr(CudaGraphRunner, "run", counted)
    first_run.steady_decode(around)
    inside = replayed[replayed.index("begin") + 1 : replayed.index("end")]
    assert inside == ["8 rows"] * WINDOW


# -- first-run: processes, and the command -------------------------------------------------------


@pytest.mark.thorough
@HERE_NO_GPU
def test_a_step_is_a_process_that_says_what_it_came_to(cli: Any, tmp_path: Path) -> None:
    found = command.take_apart(BY_NAME["machine"], tmp_path, 1.0)
    assert (found.step, found.verdict) == ("machine", FAILED)
    assert found.said.startswith("ValueError: torch sees no GPU, which device 'cuda' needs")
    for line in ("first-run", "bench cuda"):
        code, out, err = cli(line)
        assert (code, out) == (2, "") and "torch sees no GPU" in err


def stubs(monkeypatch: pytest.MonkeyPatch, verdicts: dict[str, str]) -> None:
    """Steps that come to these verdicts, and to ok; none takes a process."""

    def taken(step: Any, out: Path, seconds: float) -> Found:
        return Found(step.name, verdicts.get(step.name, OK), f"what {step.name} saw", 1.0)

    monkeypatch.setattr(command, "take_apart", taken)
    monkeypatch.setattr(command, "take", taken)


@pytest.mark.parametrize(("verdicts", "code"), [
    ({}, 0), ({"trace": NOT_RUN}, 0), ({"graphs": FAILED, "trace": NOT_RUN}, 1),
    (dict.fromkeys(BY_NAME, NOT_RUN), 1), ({"machine": FAILED}, 1),
])  # fmt: skip
def test_a_line_a_step_and_the_exit_code(
    gpu: Gpu, cli: Any, monkeypatch: pytest.MonkeyPatch, verdicts: dict[str, str], code: int
) -> None:
    stubs(monkeypatch, verdicts)
    ended, out, _ = cli("first-run")
    *lines, last = out.splitlines()
    assert ended == code and last.startswith(f"Of {len(STEPS)} steps: ")
    stops = "machine" in verdicts and code  # where it does not compute nothing else is looked at
    for line, name in zip(lines, BY_NAME, strict=True):
        verdict = NOT_RUN if stops and name != "machine" else verdicts.get(name, OK)
        sign = {OK: "✓", FAILED: "✗", NOT_RUN: "-"}[verdict]
        assert line.startswith(f"{sign} {name}:" + (f" {verdict}:" if verdict != OK else ""))


# -- the page about it ---------------------------------------------------------------------------


def test_the_page_tells_of_each_step_in_order_and_its_commands_run(
    gpu: Gpu, minisched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert sum(first_run.limit(step, 60.0) for step in STEPS) <= 600, "under ten minutes"
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(BY_NAME)
    assert all(
        (ROOT / "minisched" / path).is_file() for path in re.findall(r"`(\w+/\w+\.py)`", PAGE)
    )
    monkeypatch.chdir(tmp_path)
    stubs(monkeypatch, {})
    for line in re.findall(r"^minisched .*$", PAGE, re.MULTILINE):
        code, out, err = minisched(*shlex.split(line)[1:])
        assert code == 0 and out, err
        assert "--only" not in line or out.count("\n") == line.count("--only") + 1
