"""``import minisched``: three lines in a notebook, a script or a terminal, and what it refuses."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import minisched as ms
import minisched.core.request
import minisched.core.sampling_params
from minisched.core import ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.profiles import PROFILES
from minisched.engine.engine import Engine
from minisched.export.native import to_json
from minisched.loops.registry import LOOPS
from minisched.loops.spec import LoopSpec
from minisched.scheduler import SchedulerConfig
from minisched.worker.batch_record import OverlapWorker
from tests.test_notebook import EXECUTE

PACKAGE = Path(ms.__file__).parent
README = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
THREE_LINES = re.findall(r"## In Python\n\n```python\n(.*?)```", README, re.DOTALL)[0]
NAMES = ["Request", "SamplingParams", "check", "compare", "requests", "run", "show"]
FREE = CostModel()  # nothing takes any time


def python(program: str, *options: str) -> str:
    """What a program prints in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, *options, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def alone(program: str) -> str:
    """The same without site-packages."""
    return python(f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{program}", "-I", "-S")


def test_the_three_lines_of_the_readme_need_nothing_installed() -> None:
    assert len(THREE_LINES.strip().splitlines()) == 3
    said = alone(THREE_LINES)
    assert "Identical: overlap gave every request the same tokens as serial." in said
    assert re.search(r"^overlap +66 +256 +623\.1 ", said, re.MULTILINE)


def test_the_import_is_the_standard_library_and_little_else() -> None:
    program = "import minisched\nprint(*[m for m in sys.modules if m.startswith('minisched')])"
    loaded = set(alone(program).split())
    assert all(name.startswith("minisched.core") for name in loaded - {"minisched"})


def test_every_name_is_there_and_stays_what_it_is() -> None:
    """A module of that name would take a function's place as soon as somebody imports it."""
    assert sorted(ms.__all__) == sorted(NAMES)
    taken = {path.stem for path in PACKAGE.iterdir()}
    assert not taken & set(NAMES)
    program = (
        "import minisched.checking, minisched.comparison, minisched.cli.compare, minisched.cli.run"
        "\n"
        f"from minisched import {', '.join(NAMES)}\n"
        "import minisched\n"
        f"print(all(callable(getattr(minisched, name)) for name in {NAMES!r}))"
    )
    assert python(program).split() == ["True"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_documented_with_an_example(name: str) -> None:
    assert ">>> " in (getattr(ms, name).__doc__ or "")


@pytest.mark.parametrize(
    "module", [ms, minisched.core.request, minisched.core.sampling_params], ids=lambda m: m.__name__
)
def test_the_examples_are_true(module: Any) -> None:
    tried = doctest.testmod(module)
    assert tried.attempted >= 2 and tried.failed == 0


def test_the_defaults_are_those_of_the_command_line(cli: Any) -> None:
    result = json.loads(cli("compare --json --tokens")[1])
    found = ms.compare()
    assert found.runs[0].outputs == result["outputs"]
    assert [item.makespan_ns for item in found.reports] == [
        item["makespan_ns"] for item in result["runs"]
    ]
    assert found.speedup == result["speedup"] and found.ideal == result["ideal"]
    assert ms.run().trace.end == found.reports[1].makespan_ns


def test_settings_are_named_and_costs_are_given() -> None:
    cost = PROFILES["llama8b-h100"].cost
    config = {"page_size": 16, "enable_mixed_chunk": True, "max_running_requests": 2}
    found = ms.compare(ms.requests(4), ["vllm_async:pool"], config=config, cost=cost)
    own = ms.run(ms.requests(4), "vllm_async:pool", config=config, cost=cost)
    assert found.identical and own.trace.end == found.reports[1].makespan_ns
    assert own.trace.end != ms.run(ms.requests(4), "vllm_async:pool", config=config).trace.end
    whole = SchedulerConfig(kv_tokens=512, context_len=256)
    assert ms.run(ms.requests(2), config=whole).outputs == ms.run(ms.requests(2)).outputs


def test_requests_are_as_they_were_and_run_again() -> None:
    asked = ms.requests(3, ms.SamplingParams(max_new_tokens=5))
    first, second = ms.run(asked), ms.run(iter(asked), "serial")
    assert first.outputs == second.outputs and set(map(len, first.outputs.values())) == {5}
    assert ms.compare(asked).identical
    assert all(not request.output_ids and request.finish_reason is None for request in asked)


def test_a_speed_up_without_time_is_none_and_said() -> None:
    found = ms.compare(ms.requests(2), cost=FREE)
    assert set(found.speedup.values()) == {None} and found.ideal == 1
    assert "no time passed" in repr(found) and "0.00 x" not in repr(found)
    found.show()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ms.compare(ms.requests(2), loops="overlap"),  # type: ignore[arg-type]
         "loops is a list of texts, such as ['overlap'], not the string 'overlap'."),
        (lambda: ms.compare("overlap"),  # type: ignore[arg-type]
         "requests is a list of Request, such as minisched.requests(4), not the string 'overlap'."),
        (lambda: ms.compare(["overlap"]),  # type: ignore[list-item]
         "requests is a list of Request, such as minisched.requests(4), "
         "but it holds the string 'overlap'."),
        (lambda: ms.compare(4),  # type: ignore[arg-type]
         "requests is a list of Request, such as minisched.requests(4), not 4."),
        (lambda: ms.run([ms.Request("a", "hello")]),  # type: ignore[arg-type]
         "request a: prompt is 'hello', but it must be a list of token ids."),
        (lambda: ms.compare([ms.Request("a", [1]), ms.Request("a", [2])]),
         "two requests have the id 'a'; each needs one of its own."),
        (lambda: ms.run([ms.Request("a", [1]), ms.Request("a", [2])]),
         "two requests have the id 'a'; each needs one of its own."),
        (lambda: ms.run(loop=["overlap"]),  # type: ignore[arg-type]
         "loop is one name, such as 'overlap', not ['overlap']."),
        (lambda: ms.run(loop="overlop"), "unknown loop 'overlop'; the loops are "),
        (lambda: ms.run(device="gpu"), "unknown device 'gpu'; the devices are sim, "),
        (lambda: ms.run(model="gpt"), "model 'gpt' can't run on device 'sim'"),
        (lambda: ms.run(config={"pagesize": 4}),
         "config has no setting 'pagesize'; did you mean 'page_size'?"),
        (lambda: ms.run(config={"page_size": "4"}), "config has a value of a wrong type"),
        (lambda: ms.run(config=[1]),  # type: ignore[arg-type]
         "config is settings by name, such as {'page_size': 4}, not [1]."),
        (lambda: ms.run(cost=5), "cost is a CostModel (devices/cost.py), not 5."),  # type: ignore[arg-type]
        (lambda: ms.run(ms.requests(1)[0]),  # type: ignore[arg-type]
         "requests is a list of Request, such as minisched.requests(4), not a Request."),
        (lambda: ms.requests(1, 5), "params is a SamplingParams, not 5."),  # type: ignore[arg-type]
        (lambda: ms.run(config={"kv_tokens": 2**30}), "lower kv_tokens, page_size or"),
        (lambda: ms.requests("hello"),
         "prompts is a list of texts, such as ['Once upon a time'], not the string 'hello'."),
        (lambda: ms.requests(0), "prompts is 0, but there must be at least 1."),
        (lambda: ms.requests([]), "prompts is empty, but there must be at least 1."),
        (lambda: ms.requests([1]),  # type: ignore[list-item]
         "prompts is a list of texts, such as ['Once upon a time'], but it holds 1."),
        (lambda: ms.compare(device="thread", loops=["pd"]), "does not run on device 'thread'"),
        (lambda: ms.check("overlap"), "it is check(loops=['overlap'])."),
        (lambda: ms.check("no_such_file.json"), "no_such_file.json can't be read"),
        (lambda: ms.check(3), "check takes runs, traces, their files or one loop, but not 3."),  # type: ignore[arg-type]
        (lambda: ms.check(loops="serial"),
         "loops is a list of texts, such as ['overlap'], not the string 'serial'."),
        (lambda: ms.check(workloads=0), "workloads is 0, but it must be a whole number from 1 on."),
        (lambda: ms.check(len), "len has no `yield`"),  # type: ignore[arg-type]
        (lambda: ms.check(turns, turns), "checked alone, but 2 things were given."),
        (lambda: ms.check(turns, loops=["serial"]), "a loop of your own is checked alone"),
        (lambda: ms.check(ms.run(ms.requests(1)), workloads=3), "are not for recorded runs."),
        (lambda: ms.show([]), "there is no run to show; give at least one."),
        (lambda: ms.show("overlap"),  # type: ignore[arg-type]
         "runs are what run or compare gave, but one is the string 'overlap'."),
        (lambda: ms.show(ms.run(ms.requests(1)), height=0), "at least 1 pixel high"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    said = str(caught.value)
    assert sentence in said and "\n" not in said


def turns(engine: Engine) -> Iterator[Any]:
    """Serial, as anybody would write it."""
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            engine.process_batch_result(engine.run_batch(batch))
        else:
            engine.on_idle()
        yield batch


def too_late(engine: Engine) -> Iterator[Any]:
    """Launches three steps before it processes the first, and takes the last one first."""
    pending: list[Any] = []
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if isinstance(batch, ScheduleBatch):
            pending.append(engine.run_batch(batch))
        if len(pending) == 2 or (pending and not batch):
            engine.process_batch_result(pending.pop())
        elif not batch:
            engine.on_idle()
        yield batch


def test_a_loop_of_ones_own_is_judged() -> None:
    before = dict(LOOPS)
    good = ms.check(turns, workloads=12)
    assert good.holds is True and good.tally is not None and len(good.tally.cases) == 12
    assert repr(good).startswith("✓ every law held in all 12 cases: 12 random workloads on turns")
    bad = ms.check(too_late, workloads=12)
    assert bad.holds is False and bad.tally is not None and bad.tally.failures
    assert "repeats it" in repr(bad) and "made as small as it could be" in repr(bad)
    first = bad.tally.first[0]
    again = ms.check(too_late, seed=first.seed, workloads=1)
    assert again.tally is not None and first in again.tally.failures
    assert before == LOOPS


def test_a_design_of_ones_own_keeps_the_name_of_a_loop_alone() -> None:
    def serial(engine: Engine) -> Iterator[Any]:
        yield from turns(engine)

    found = ms.check(LoopSpec(serial, depth=1, relays=("host",)), workloads=3)
    assert found.holds and found.tally is not None
    assert set(found.tally.by_loop) == {"your_serial"}
    spec = LoopSpec(serial, 2, ("ring",), overrun=1, worker=OverlapWorker)
    assert ms.check(replace(spec, refuses={}), workloads=2).holds


def test_runs_and_their_files_are_judged_as_the_command_does(cli: Any, tmp_path: Path) -> None:
    found = ms.compare(ms.requests(2), ["overlap", "vllm_async"])
    judged = ms.check(found)
    assert judged.holds is True and list(judged.answers) == ["serial", "overlap", "vllm_async"]
    files = []
    for run in found.runs:
        files.append(str(tmp_path / f"{run.loop}.json"))
        Path(files[-1]).write_text(to_json(run.trace), encoding="utf-8")
    read = ms.check(*files)
    code, out, _ = cli(f"check --json {' '.join(files)}")
    said = json.loads(out)
    assert code == 0 and said["holds"] is read.holds is True
    for run in said["runs"]:
        for answer in read.answers[run["file"]]:
            assert run[answer.question] == json.loads(json.dumps(answer.as_json()))
    twice = ms.check(found.runs[1], found.runs[1].trace)
    assert list(twice.answers) == ["overlap", "overlap (2)"]


def test_runs_of_two_workloads_are_not_compared() -> None:
    with pytest.raises(ValueError, match="can't be compared"):
        ms.check(ms.run(ms.requests(2)), ms.run(ms.requests(3)))


def test_random_workloads_are_those_of_the_command(cli: Any) -> None:
    found = ms.check(workloads=3, seed=5, loops=["overlap", "mlx_async"])
    code, out, _ = cli(
        "check --workloads 3 --seed 5 --loop overlap --loop mlx_async --json --jobs 1"
    )
    said = json.loads(out)
    assert code == 0 and found.tally is not None
    assert found.tally.as_json() == {k: v for k, v in said.items() if k != "files"}


def test_a_terminal_that_knows_no_letters_gets_question_marks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = ms.run(ms.requests(1))
    ms.show([ran, ran.trace])
    assert "Forward stream (device) │" in capsys.readouterr().out

    class Ascii(StringIO):
        encoding = "ascii"

    plain = Ascii()
    monkeypatch.setattr(sys, "stdout", plain)
    ms.show(ran)
    assert "Forward stream (device) ?" in plain.getvalue() and plain.getvalue().isascii()


def test_a_notebook_shows_the_player() -> None:
    cell = "import minisched as ms\nms.compare(ms.requests(2), loops=['overlap']).show(height=500)"
    shown = python(f"import sys; sys.argv = ['', {cell!r}]\n{EXECUTE}")
    assert shown.startswith("<iframe") and "height:500px" in shown


def test_who_is_refused_is_named() -> None:
    asked = [ms.Request("a", [1, 2]), ms.Request("b", [3], ms.SamplingParams(top_p=2))]
    found = ms.compare(asked)
    assert "Request b: top_p is 2" in repr(found) and found.errors.keys() == {"b"}
    ran = ms.run([ms.Request("a", [1.5])])  # type: ignore[list-item]
    assert "0 tokens of 1 requests, 1 of them with an error, in" in repr(ran) and ran.errors["a"]
    none = ms.compare([], ["overlap"])
    assert none.identical and "nothing to compare" in repr(none)
    none.show()
