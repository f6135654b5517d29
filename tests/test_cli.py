"""The command as a user meets it: the main job, its JSON, its files, and bad input."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import minisched.compare
from minisched.cli.app import main
from minisched.loops.run import Run, run_loop

RUN_FIELDS = {
    "loop",
    "steps",
    "tokens",
    "makespan_ns",
    "device_busy_ns",
    "host_busy_ns",
    "host_hidden_ns",
    "bubble_ns",
    "wasted_rows",
}


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs a command line in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["minisched", *shlex.split(line)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        out, err = capsys.readouterr()
        code = exit_info.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


def test_compare_with_no_option_at_all(cli: Any) -> None:
    code, out, _ = cli("compare --json")
    result = json.loads(out)
    assert code == 0 and result["identical"] is True
    assert (result["device"], result["model"], result["clock"]) == ("sim", "hash", "virtual")
    assert [run["loop"] for run in result["runs"]] == ["serial", "overlap"]
    assert all(set(run) == RUN_FIELDS for run in result["runs"])
    assert result["speedup"]["overlap"] >= 1.2
    assert result["speedup"]["overlap"] >= 0.95 * result["ideal"]
    assert "outputs" not in result


def test_compare_writes_the_files_it_names(cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli("compare --json --requests 2 --max-new-tokens 9 --out pictures")
    files = json.loads(out)["files"]
    assert code == 0 and all((tmp_path / file).is_file() for file in files)
    names = {Path(file).name for file in files}
    assert {"compare.html", "compare.svg"} <= names
    assert sum(name.endswith(".puml") for name in names) >= 2
    traces = [file for file in files if file.endswith(".trace.json")]
    assert len(traces) == 2
    assert all(json.loads((tmp_path / file).read_text())["traceEvents"] for file in traces)
    ElementTree.parse(tmp_path / "pictures" / "compare.svg")


def test_compare_is_repeatable_and_tokens_come_on_request(cli: Any) -> None:
    line = "compare --json --tokens --requests 3 --max-new-tokens 8 --temperature 0.9 --seed "
    first, again, other = (json.loads(cli(line + seed)[1]) for seed in ("4", "4", "5"))
    assert first == again
    assert first["outputs"].keys() == {"r0", "r1", "r2"}
    assert first["outputs"] != other["outputs"]


@pytest.mark.parametrize("loops", ["serial", "overlap", "mlx_async", "overlap,mlx_async"])
def test_serial_is_always_the_baseline(cli: Any, loops: str) -> None:
    code, out, _ = cli(f"compare --json --requests 2 --max-new-tokens 4 --loops {loops}")
    wanted = list(dict.fromkeys(["serial", *loops.split(",")]))
    assert code == 0
    assert [run["loop"] for run in json.loads(out)["runs"]] == wanted


def test_compare_says_it_in_words_too(cli: Any) -> None:
    code, out, _ = cli("compare")
    assert code == 0
    assert "Identical: overlap gave every request the same tokens as serial." in out
    assert re.search(r"overlap +\d+ +512 ", out)
    assert "now run while the device is busy" in " ".join(out.split())


def test_a_difference_is_exit_code_1_and_says_where(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(loop: str, *args: Any, **options: Any) -> Run:
        run = run_loop(loop, *args, **options)
        if loop == "overlap":
            run.requests[1].output_ids[3] += 1
        return run

    monkeypatch.setattr(minisched.compare, "run_loop", spoiled)
    code, out, _ = cli("compare --requests 2 --max-new-tokens 6")
    said = " ".join(out.split())
    assert code == 1
    assert "Not identical. overlap: request r1 differs first at output 3: expected" in said
    assert "top-2 logit margin" in said


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("compare --loops nope", "unknown loop 'nope'; the loops are serial, overlap, mlx_async."),
        ("run --loop nope", "unknown loop 'nope'"),
        ("compare --device tpu", "unknown device 'tpu'; the devices are sim, thread, cuda, mlx."),
        ("compare --model gpt9", "model 'gpt9' can't run on device 'sim'"),
        ("compare --device thread --model gpt9", "'gpt9'"),
        ("compare --device mlx --model nobody/nothing-here", "nobody/nothing-here"),
        ("fetch gpt9", "'gpt9'"),
        ("compare --requests 0", "--requests is 0, but it must be at least 1."),
        ("compare --requests many", "'--requests'"),
        ("compare --chunk 0", "--chunk is 0, but it must be at least 1."),
        ("compare --page-size -1", "--page-size is -1, but it must be at least 1."),
        ("compare --pool 0", "--pool is 0, but it must be at least 1."),
        ("compare --max-new-tokens 0", "--max-new-tokens is 0, but it must be at least 1."),
        ("compare --temperature -1", "--temperature is -1.0, but it must be 0 or from 0.001 on."),
        ("compare --top-p 2", "--top-p is 2.0"),
        ("compare --host-work -1", "--host-work is -1.0, but it must be between 0 and 60000."),
        ("compare --host-work inf", "--host-work is inf, but it must be between 0 and 60000."),
        ("compare --temperature nan", "--temperature is nan, but it must be 0 or from 0.001 on."),
        (
            "compare --pool 5 --page-size 16",
            "--pool is 5, but it must hold at least one page of 16.",
        ),
        ("compare --tokens", "--tokens adds to --json, so it needs --json."),
        ("run --loop serial --loop overlap", "--loop was given 2 times, but run takes exactly one"),
        ("bench hidden --device sim", "bench measures real time, which --device sim has none of."),
        ("bench hidden --model hash --max-new-tokens 4", "a bench needs at least 10."),
        ("bench generation --model hash", "generation compares real models"),
        ("compare --loops ''", "unknown loop ''"),
        ("compare --prompts missing.txt", "--prompts missing.txt can't be read: No such file"),
        ("compare --frobnicate", "No such option: --frobnicate"),
        ("bench nothing", "unknown part 'nothing'; the parts are hidden, generation."),
        ("bench hidden --model hash --repeat 0", "--repeat is 0, but it must be at least 1."),
        ("nonsense", "No such command 'nonsense'."),
    ],
)
def test_a_bad_option_stops_before_anything_runs(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, sentence: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = cli(line)
    assert code == 2 and out == ""
    assert sentence in err and len(err.splitlines()) == 1 and "Traceback" not in err
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_empty_and_unreadable_prompt_files(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    assert "holds no prompt" in cli("compare --prompts empty.txt")[2]
    assert "it is not UTF-8 text" in cli("compare --prompts binary.txt")[2]


@pytest.mark.parametrize("loop", ["serial", "overlap", "mlx_async"])
def test_a_bad_request_is_named_and_the_others_finish(cli: Any, loop: str) -> None:
    code, out, err = cli(
        f"compare --json --tokens --loops {loop} --prompt hello --prompt '' --prompt 'a long one' "
        "--max-new-tokens 6 --pool 12"
    )
    result = json.loads(out)
    assert code == 2 and result["identical"]
    assert len(result["outputs"]["r0"]) == 6
    assert result["outputs"]["r1"] == result["outputs"]["r2"] == []
    assert "request r1: the prompt is empty" in err
    assert "request r2: the prompt has 10 tokens" in err and "12 slots" in err


def test_prompts_from_a_file_on_hash_are_bytes(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("ab\n\nc\n")
    code, out, _ = cli("run --json --prompts prompts.txt --max-new-tokens 3 --loop serial")
    assert code == 0 and set(json.loads(out)["outputs"]) == {"r0", "r1"}


def test_run_shows_each_request(cli: Any) -> None:
    code, out, _ = cli("run --requests 2 --max-new-tokens 5")
    assert code == 0
    assert out.count("length") == 2 and "10 tokens in" in out


def test_doctor_names_every_device(cli: Any) -> None:
    code, out, _ = cli("doctor --json")
    findings = json.loads(out)
    assert code == 0 and findings["device"]["sim"] == ""
    assert set(findings["device"]) == {"sim", "thread", "cuda", "mlx"}
    assert all(
        needs == "" or len(needs) > 20 for kind in findings.values() for needs in kind.values()
    )
    assert cli("doctor")[0] == 0


@pytest.mark.parametrize(("device", "package"), [("thread", "torch"), ("mlx", "mlx")])
def test_a_missing_extra_is_one_sentence(tmp_path: Path, device: str, package: str) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        hide = f"import sys; sys.modules[{package!r}] = sys.modules['mlx.core'] = None; "
        run = f"sys.argv = {['minisched', *arguments]}; from minisched.cli.app import main; main()"
        command = [sys.executable, "-c", hide + run]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = call("compare", "--device", device)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert f"needs the package '{package}" in done.stderr
    assert f"pip install 'minisched[{package}]'" in done.stderr
    assert f"minisched[{package}]" in "".join(call("doctor").stdout.split())


def test_a_request_beyond_all_bounds_costs_nothing(cli: Any) -> None:
    code, out, err = cli("compare --max-new-tokens 100000000 --max-running 10000000")
    assert code == 2 and "No request gave a token" in out
    assert "together more than the context of 4096 tokens" in err


def test_a_picture_that_cannot_be_written_is_named(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "out" / "compare.html").mkdir(parents=True)
    code, _, err = cli("compare --requests 1 --max-new-tokens 2")
    assert code == 2 and "out/compare.html can't be written: Is a directory." in err


def test_serial_alone_is_no_comparison(cli: Any) -> None:
    assert "Only serial ran" in cli("compare --loops serial --requests 1")[1]


def test_a_llama_without_a_tokenizer_reads_no_text(cli: Any, tiny_llama: Path) -> None:
    code, _, err = cli(f"compare --device thread --model {tiny_llama}")
    assert code == 2 and "has no tokenizer.json, so it can't read prompts." in err


@pytest.mark.parametrize("command", ["compare", "run", "bench hidden --model hash"])
def test_ctrl_c_ends_with_one_sentence(command: str, tmp_path: Path) -> None:
    """On threads, with a real interrupt: exit code 130, no traceback, nothing hangs."""
    slow = "" if "bench" in command else "--host-work 200"
    line = f"{command} --device thread --requests 2 --max-new-tokens 3000 {slow}"
    started = subprocess.Popen(
        [sys.executable, "-m", "minisched", *line.split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(6)  # the loop turns; what is asked for would take far longer
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "interrupted" in err and "Traceback" not in err
