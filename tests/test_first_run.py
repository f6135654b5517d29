"""``minisched first-run`` on the GPU that is not there: every step sees what it is for.

What no device but a real one can do says so, and is no success.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minisched.bench.cuda import cuda, first_run, instruments
from minisched.bench.cuda.cuda import Load
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
    Step,
    take,
    trace_steady_decode,
)
from minisched.bench.cuda.instruments import NotRun
from minisched.bench.cuda.random_llama import write_random_llama
from minisched.cli import first_run as command
from minisched.models.llama_graphs import CudaGraphRunner
from minisched.museum.patch import Edit, put_in
from tests.devices.fake_cuda import Gpu, fake_cuda
from tests.foreign_files import TABLES
from tests.test_bench_cuda import SMALL

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "lessons/site/docs/first_run_on_a_gpu.md").read_text(encoding="utf-8")
BY_NAME = {step.name: step for step in STEPS}
FEW = ("overlap:pool", "serial", "vllm_async", "mini_overlap")  # designs that run here


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A GPU for a few of the loops; nsys is nowhere."""
    every = first_run.designs()
    monkeypatch.setattr(first_run, "designs", lambda: [it for it in every if it.name in FEW])
    monkeypatch.setattr(instruments, "FREED", ((512, 2), (4096, 1)))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with fake_cuda() as made:
        yield made


def test_each_step_that_can_be_taken_here_is_ok(gpu: Gpu, cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli("first-run --here --seconds 0.5 --out found --json")
    told = json.loads(out)
    verdicts = {step["step"]: (step["verdict"], step["said"]) for step in told["steps"]}
    assert list(verdicts) == list(BY_NAME)
    assert code == 0
    assert {name: verdict for name, (verdict, _) in verdicts.items()} == {
        **dict.fromkeys(BY_NAME, OK), "trace": NOT_RUN, "figures": NOT_RUN,
    }, verdicts  # fmt: skip
    assert "profiler sees nothing of a GPU" in verdicts["trace"][1]
    assert re.search(r"\d+ GiB are free, and \d+ are needed", verdicts["figures"][1])
    assert "every law held" in verdicts["hash"][1] and "every law held" in verdicts["memory"][1]
    assert json.loads((tmp_path / "found" / "report.json").read_text())["steps"] == told["steps"]


FAULTS = {
    "an op drops its arguments": (
        "memory", "was let go before",
        Edit("devices.cuda:CudaOp.run", "    self.named = fn, *args\n", ""),
    ),
    "a number is asked for in a forward pass": (
        "waiting", "called a synchronizing CUDA operation",
        Edit("worker.worker:Worker._forward", "    self.token_edges.took(batch, ids)\n",
             "    self.token_edges.took(batch, ids)\n    int(ids[0])\n"),
    ),
    "a step is laid out when the GPU is done": (
        "waiting", "waits for the GPU",
        Edit("worker.worker:Worker.prepare", "    self.declare(batch, flat)\n",
             "    self.declare(batch, flat)\n    self.forward_stream.stream.synchronize()\n"),
    ),
    "graphs keep the wrong page table": (
        "graphs", "",
        Edit("models.llama_graphs:LlamaGraphs.init_cuda_graphs",
             "(len(runner.page_table), runner.max_bs) != (len(page_table), max_bs)", "False"),
    ),
    "a graph looks at the rows of the step before": (
        "graphs", "without graphs",
        Edit("models.llama_graphs:CudaGraphRunner.run", "batch.token_rows)", "places[2].clone())"),
    ),
    "the clock of the GPU runs ahead": (
        "clock", "begins before its launch",
        Edit("devices.cuda:GpuClock.time", "    return zero.at +", "    return zero.at - 10**8 +"),
    ),
    "a copy does not wait": (
        "hash", "race: ",
        Edit("worker.worker:Worker.launch_copy", "    self.copy_stream.wait(last)\n", ""),
    ),
    "the copy brings nothing": (
        "machine", "came to",
        Edit("devices.torch_device:TorchDevice.bring_to_host",
             "target.copy_(values, non_blocking=True)", "target.fill_(7)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_the_step_that_is_for_it(gpu: Gpu, tmp_path: Path, fault: str) -> None:
    name, says, edit = FAULTS[fault]
    with put_in([edit]):
        found = take(BY_NAME[name], tmp_path, 0.1)
    assert (found.step, found.verdict) == (name, FAILED) and says in found.said, found
    for path in re.findall(r"[^ ;(]*\.json", found.said):
        assert json.loads(Path(path).read_text())["format"] == "minisched trace"


def test_a_gpu_that_is_lost_ends_a_step_with_what_was_seen(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost(case: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(first_run, "judge", lost)
    found = take(BY_NAME["hash"], tmp_path, 0.1)
    assert found.verdict == FAILED
    assert "crash: RuntimeError: CUDA error: an illegal memory access" in found.said


# -- the trace of steady decode, as a profiler would write it --------------------------------------


def by_torch(calls: list[tuple[str, float]], folder: Path) -> Any:
    """What torch's profiler saw: the window from 100 to 200 us, and calls with their beginnings."""
    events = [("user_annotation", STEADY, 100.0, 100.0)]
    events += [("cuda_runtime", name, start, 1.0) for name, start in calls]
    return instruments.seen_in(
        {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": {}}
        for cat, name, ts, dur in events
    )


def by_nsys(calls: list[tuple[str, float]], folder: Path) -> Any:
    """The same, as nsys exports it; its names have the version of the call."""
    import sqlite3

    path = folder / "trace.sqlite"
    with sqlite3.connect(path) as file:
        file.executescript(TABLES)
        file.execute("INSERT INTO NVTX_EVENTS VALUES (100000, 200000, 59, ?, NULL, 7)", [STEADY])
        for number, (name, start) in enumerate(calls):
            at = round(1000 * start)
            file.execute("INSERT INTO StringIds VALUES (?, ?)", [number, f"{name}_v3020"])
            row = [at, at + 1000, 0, 7, number, number, 0]
            file.execute(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({', '.join('?' * 7)})", row
            )
    return instruments.seen_by_nsys(path)


USUAL = [("cudaGraphLaunch", 110.0), ("cudaMemcpyAsync", 120.0), ("cudaEventSynchronize", 130.0)]


@pytest.mark.parametrize("reader", [by_torch, by_nsys])
@pytest.mark.parametrize(
    "bad", ["cudaMalloc", "cudaHostAlloc", "cudaStreamSynchronize", "cudaDeviceSynchronize"]
)
def test_a_call_that_allocates_or_waits_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reader: Callable[..., Any], bad: str
) -> None:
    errand = Errand(tmp_path, 0, 0)

    def traced(calls: list[tuple[str, float]], folder: Path) -> str:
        folder.mkdir()
        monkeypatch.setattr(first_run, "seen_by_nsight", lambda *asked: reader(calls, folder))
        return trace_steady_decode(errand)

    outside = [(bad, 50.0), (bad, 250.0)]
    assert f"saw 3 calls in {WINDOW} steps, none" in traced(USUAL + outside, tmp_path / "healthy")
    with pytest.raises(Failed, match=f"saw {bad} 2 times in {WINDOW} steps"):
        traced([*USUAL, (bad, 140.0), (bad, 150.0)], tmp_path / "bad")
    with pytest.raises(NotRun, match="saw no call of CUDA in steady decode"):
        traced(outside, tmp_path / "nothing")


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


@pytest.mark.parametrize("code", [0, 1])
def test_nsight_watches_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    asked: list[str] = []

    def profiled(command: list[str], **options: Any) -> Any:
        asked.extend(command)
        [output] = [Path(word.partition("=")[2]) for word in command if word.startswith("--output")]
        by_nsys(USUAL, output.parent)
        return SimpleNamespace(returncode=code, stdout="", stderr="first\nno such GPU\n")

    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", profiled)
    if code:
        with pytest.raises(NotRun, match="nsys ended with 1: no such GPU"):
            instruments.seen_by_nsight(tmp_path / "trace", ["module", STEADY], 10)
        return
    seen = instruments.seen_by_nsight(tmp_path / "trace", ["module", STEADY], 10)
    assert instruments.calls_in(seen, STEADY) == [name for name, _ in USUAL]
    assert asked[0] == "/bin/nsys" and asked[-3:] == ["-m", "module", STEADY]


def test_what_torch_profiles_is_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a GPU, but for what is looked at."""
    real, activities = torch.profiler.profile, torch.profiler.ProfilerActivity
    monkeypatch.setattr(
        torch.profiler, "supported_activities", lambda: set(activities.__members__.values())
    )
    monkeypatch.setattr(
        torch.profiler, "profile", lambda activities: real(activities=activities[:1])
    )

    def work(around: instruments.Around) -> None:
        with around():
            torch.zeros(3).add_(1)

    seen = instruments.seen_by_torch(tmp_path / "trace.json", work, STEADY)
    names = [item.name for item in seen.ranges]
    assert STEADY in names and "aten::add_" in names and instruments.calls_in(seen, STEADY) == []


def test_the_figures_come_with_all_their_rows(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a model as small as this device can take, and without a peer."""
    load = Load(rows=2, prompt_len=20, new_tokens=12)
    stand_ins: dict[str, Any] = {
        "memory_reserved": lambda: 2 * first_run.GIB,
        "max_memory_reserved": lambda: 5 * first_run.GIB,
        "reset_peak_memory_stats": lambda: None,
    }
    for name, value in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(cuda, "LOOPS", ("serial", "overlap"))
    monkeypatch.setattr(cuda, "bytes_per_second", lambda: 1e9)
    monkeypatch.setattr(cuda, "foreseen_figures", lambda *asked: [])
    monkeypatch.setattr(
        first_run,
        "write_random_llama",
        lambda folder, sizes, device: write_random_llama(folder, sizes),
    )
    monkeypatch.setattr(first_run, "NEEDED", 0)
    monkeypatch.setattr(first_run, "QUICK", load)
    monkeypatch.setattr(first_run, "SHAPES", {"small": SMALL})

    def no_peer(*asked: Any) -> Any:
        raise OSError("no such package")

    monkeypatch.setattr(first_run, "TransformersPeer", no_peer)
    found = take(BY_NAME["figures"], tmp_path, 0.1)
    assert found.verdict == OK, found
    assert (
        found.said.startswith("small: overlap ") and "transformers: no such package" in found.said
    )
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    by_name = {row["name"]: row["median"] for row in rows}
    assert by_name["small: memory that minisched holds"] == 0.0
    assert by_name["small: overlap, memory of a run beyond that"] == 3.0


# -- processes, and the command --------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_a_step_is_a_process_that_says_what_it_came_to(tmp_path: Path) -> None:
    found = command.take_apart(BY_NAME["machine"], tmp_path, 1.0)
    assert (found.step, found.verdict) == ("machine", FAILED)
    assert found.said.startswith("ValueError: torch sees no GPU, which device 'cuda' needs")


@pytest.mark.parametrize(
    ("code", "log", "says"),
    [
        (
            1,
            "Timeout (0:00:30)!\nThread 1:\n  File x",
            "it took more than 30 seconds; where it was",
        ),
        (-11, "Fatal Python error: Segmentation fault", "its process ended with -11: Fatal Python"),
        (1, "", "its process ended with 1: no word"),
        (None, "", "it took more than 30 seconds"),
    ],
)
def test_a_process_that_hangs_or_dies_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int | None, log: str, says: str
) -> None:
    def played(*args: Any, **options: Any) -> Any:
        if code is None:
            raise subprocess.TimeoutExpired("it", 90)
        return SimpleNamespace(returncode=code, stdout="", stderr=log)

    monkeypatch.setattr(subprocess, "run", played)
    found = command.take_apart(BY_NAME["machine"], tmp_path, 1.0)
    assert found.verdict == FAILED and says in found.said
    assert not log or (tmp_path / "machine.log").read_text() == log


def stubs(monkeypatch: pytest.MonkeyPatch, verdicts: dict[str, str]) -> None:
    """Steps that come to these verdicts, and to ok; none takes a process."""

    def taken(step: Step, out: Path, seconds: float) -> Found:
        return Found(step.name, verdicts.get(step.name, OK), f"what {step.name} saw", 1.0)

    monkeypatch.setattr(command, "take_apart", taken)
    monkeypatch.setattr(command, "take", taken)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ({}, 0),
        ({"trace": NOT_RUN}, 0),
        ({"graphs": FAILED, "trace": NOT_RUN}, 1),
        (dict.fromkeys(BY_NAME, NOT_RUN), 1),
    ],
)
def test_a_line_a_step_and_the_exit_code(
    gpu: Gpu, cli: Any, monkeypatch: pytest.MonkeyPatch, verdicts: dict[str, str], code: int
) -> None:
    stubs(monkeypatch, verdicts)
    ended, out, _ = cli("first-run")
    lines = out.splitlines()
    assert ended == code and len(lines) == len(STEPS) + 1
    for line, name in zip(lines, BY_NAME, strict=False):
        verdict = verdicts.get(name, OK)
        sign = {OK: "✓", FAILED: "✗", NOT_RUN: "-"}[verdict]
        why = "" if verdict == OK else f" {verdict}:"
        assert line == f"{sign} {name}:{why} what {name} saw (1 s)"
    assert lines[-1].startswith(f"Of {len(STEPS)} steps: ")


def test_where_the_machine_does_not_compute_nothing_else_is_looked_at(
    gpu: Gpu, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubs(monkeypatch, {"machine": FAILED, "hash": FAILED})
    code, out, _ = cli("first-run --json")
    verdicts = [step["verdict"] for step in json.loads(out)["steps"]]
    assert code == 1 and verdicts == [FAILED] + [NOT_RUN] * (len(STEPS) - 1)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--only graph", "--only is 'graph'; the steps are machine, hash, memory, waiting,"),
        ("--seconds 0", "--seconds is 0, but it must be more than 0."),
    ],
)
def test_a_bad_option_is_one_sentence(cli: Any, line: str, sentence: str) -> None:
    code, out, err = cli(f"first-run {line}")
    assert (code, out) == (2, "") and sentence in err and len(err.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_without_a_gpu_it_says_so(cli: Any) -> None:
    code, out, err = cli("first-run")
    assert (code, out) == (2, "") and "torch sees no GPU" in err


def test_all_of_it_takes_under_ten_minutes() -> None:
    assert sum(first_run.limit(step, 60.0) for step in STEPS) <= 600


# -- the page --------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", re.findall(r"^minisched .*$", PAGE, re.MULTILINE))
def test_a_command_of_the_page(
    gpu: Gpu, minisched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    stubs(monkeypatch, {})
    code, out, err = minisched(*shlex.split(line)[1:])
    assert code == 0 and out, err
    if "--only" in line and "--only" in PAGE:
        assert len(out.splitlines()) == line.count("--only") + 1


def test_the_page_tells_of_each_step_in_order() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(BY_NAME)
    for path in re.findall(r"`(\w+/\w+\.py)`", PAGE):
        assert (ROOT / "minisched" / path).is_file()
