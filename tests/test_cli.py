"""The command as a user meets it: the main job, its JSON, its files, and bad input."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

import minisched.cli.run
import minisched.loops.run
from minisched.cli.app import app
from minisched.cli.scheduler_options import SchedulerOptions
from minisched.loops.run import Run, run_loop
from minisched.scheduler import SchedulerConfig
from minisched.scheduler.presets import PRESETS

FAR = 300  # seconds; only ends a hang
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
    "lost_ns",
}


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

    monkeypatch.setattr(minisched.loops.run, "run_loop", spoiled)
    code, out, _ = cli("compare --requests 2 --max-new-tokens 6")
    said = " ".join(out.split())
    assert code == 1
    assert "Not identical. overlap: request r1 differs first at output 3: expected" in said
    assert "top-2 logit margin" in said


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("compare --loops nope", "unknown loop 'nope'; the loops are serial, overlap, overlap_p"),
        ("run --loop nope", "unknown loop 'nope'"),
        ("compare --device tpu", "unknown device 'tpu'; the devices are sim, thread, cuda, mlx."),
        ("compare --model gpt9", "model 'gpt9' can't run on device 'sim'"),
        ("compare --device thread --model gpt9", "'gpt9'"),
        ("compare --device mlx --model nobody/nothing-here", "nobody/nothing-here"),
        ("fetch gpt9", "'gpt9'"),
        ("compare --requests 0", "--requests is 0, but it must be at least 1."),
        ("compare --requests many", "'--requests'"),
        ("compare --max-new-tokens 0", "--max-new-tokens is 0, but it must be at least 1."),
        ("compare --temperature -1", "--temperature is -1.0, but it must be 0 or from 0.001 on."),
        ("compare --top-p 2", "--top-p is 2.0"),
        ("compare --host-work -1", "--host-work is -1.0, but it must be between 0 and 60000."),
        ("compare --host-work inf", "--host-work is inf, but it must be between 0 and 60000."),
        ("compare --temperature nan", "--temperature is nan, but it must be 0 or from 0.001 on."),
        ("compare --tokens", "--tokens adds to --json, so it needs --json."),
        ("run --loop serial --loop overlap", "--loop was given 2 times, but run takes exactly one"),
        ("bench hidden --device sim", "bench measures real time, which --device sim has none of."),
        ("bench hidden --model hash --max-new-tokens 4", "a bench needs at least 10."),
        ("bench generation --model hash", "generation compares real models"),
        ("compare --loops ''", "unknown loop ''"),
        ("compare --prompts missing.txt", "--prompts missing.txt can't be read: No such file"),
        ("compare --frobnicate", "No such option: --frobnicate"),
        ("bench nothing", "unknown part 'nothing'; the parts are hidden, generation, scheduler,"),
        ("bench hidden --model hash --repeat 0", "--repeat is 0, but it must be at least 1."),
        ("replay missing.jsonl --chunk 0", "--chunked-prefill-size is 0, but it must be at least"),
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


CHUNK_LIMIT = "but it must be at least 1, or -1 for no limit."
AT_LEAST_1 = "but it must be at least 1."


@pytest.mark.parametrize("command", ["compare", "run"])
@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--chunked-prefill-size 0", f"--chunked-prefill-size is 0, {CHUNK_LIMIT}"),
        ("--chunk -2", f"--chunked-prefill-size is -2, {CHUNK_LIMIT}"),
        (
            "--chunk 100 --page-size 16",
            "--chunked-prefill-size is 100, but it must be a multiple of the page size, 16",
        ),
        (
            "--enable-mixed-chunk --chunk -1",
            "--enable-mixed-chunk needs chunks, but --chunked-prefill-size is -1 (no limit).",
        ),
        ("--max-prefill-tokens 0", f"--max-prefill-tokens is 0, {AT_LEAST_1}"),
        ("--max-running-requests 0", f"--max-running-requests is 0, {AT_LEAST_1}"),
        ("--cuda-graph-max-bs -1", "--cuda-graph-max-bs is -1, but it must be at least 0."),
        ("--page-size -1", f"--page-size is -1, {AT_LEAST_1}"),
        ("--kv-tokens 0", "--kv-tokens is 0, but it must be at least one page of 1."),
        (
            "--kv-tokens 5 --page-size 16",
            "--kv-tokens is 5, but it must be at least one page of 16.",
        ),
        (
            "--schedule-policy nice",
            "--schedule-policy is 'nice', but it must be one of fcfs, lof, random, priority, lpm,",
        ),
        (
            "--priority-scheduling-preemption-threshold -1",
            "--priority-scheduling-preemption-threshold is -1, but it must be at least 0.",
        ),
        (
            "--schedule-conservativeness -0.5",
            "--schedule-conservativeness is -0.5, but it must be at least 0.",
        ),
        (
            "--schedule-conservativeness nan",
            "--schedule-conservativeness is nan, but it must be at least 0.",
        ),
        ("--random-seed x", "Invalid value for '--random-seed'"),
        (
            "--run-first nobody",
            "--run-first is 'nobody', but it must be one of prefill, decode, unified.",
        ),
        (
            "--radix-eviction-policy mru",
            "--radix-eviction-policy is 'mru', but it must be one of lru, lfu, fifo.",
        ),
        ("--kv-tokens 100000000000", "more than 16777216; lower --kv-tokens, "),
        ("--page-size 100000000000", "--page-size or --max-running-requests."),
        ("--max-running-requests 10000000", "cells, more than 16777216; lower"),
        ("--preset 8088", "--preset is '8088', but it must be one of t4, rtx4090,"),
        ("--preset 0GiB", "--preset is '0GiB', but it must be one of"),
        ("--preset rtx4090 --page-size 48", "--chunked-prefill-size is 2048, but it must be a"),
        ("--priority high", "Invalid value for '--priority'"),
        ("--disable-radix-cache yes", "yes"),
        ("--pool 100", "No such option: --pool"),
    ],
)
def test_a_bad_setting_of_the_scheduler(
    cli: Any, tmp_path: Path, command: str, option: str, sentence: str
) -> None:
    test_a_bad_option_stops_before_anything_runs(
        cli, tmp_path, pytest.MonkeyPatch(), f"{command} {option}", sentence
    )


GOOD = {
    "--chunked-prefill-size 64": {"chunked_prefill_size": 64},
    "--chunk -1": {"chunked_prefill_size": -1},
    "--enable-mixed-chunk": {"enable_mixed_chunk": True},
    "--max-prefill-tokens 20": {"max_prefill_tokens": 20},
    "--max-running-requests 2": {"max_running_requests": 2},
    "--cuda-graph-max-bs 2": {"cuda_graph_max_bs": 2},
    "--page-size 16": {"page_size": 16, "chunked_prefill_size": 128},
    "--page-size 48": {"page_size": 48, "chunked_prefill_size": 144},
    "--kv-tokens 300": {"kv_tokens": 300},
    "--schedule-policy lpm": {"schedule_policy": "lpm"},
    "--priority-scheduling-preemption-threshold 0": {"priority_scheduling_preemption_threshold": 0},
    "--schedule-conservativeness 0": {"schedule_conservativeness": 0.0},
    "--random-seed 7": {"random_seed": 7},
    "--run-first unified": {"run_first": "unified"},
    "--disable-radix-cache": {"disable_radix_cache": True},
    "--radix-eviction-policy fifo": {"radix_eviction_policy": "fifo"},
    "--disable-overlap-schedule": {"disable_overlap_schedule": True},
    "--preset t4": {"chunked_prefill_size": 2048, "cuda_graph_max_bs": 8},
    "--preset 4x24GiB": {"chunked_prefill_size": 2048, "cuda_graph_max_bs": 80},
    "--preset h100 --chunk 512": {"chunked_prefill_size": 512, "cuda_graph_max_bs": 256},
    "": {"chunked_prefill_size": 128, "max_running_requests": 3, "cuda_graph_max_bs": None},
}


@pytest.mark.parametrize("command", ["compare", "run"])
@pytest.mark.parametrize(("option", "settings"), GOOD.items())
def test_a_good_setting_reaches_the_scheduler(
    cli: Any,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    option: str,
    settings: dict[str, Any],
) -> None:
    seen: list[SchedulerConfig] = []

    def spy(*args: Any, **options: Any) -> Run:
        run = run_loop(*args, **options)
        seen.extend(item for item in args if isinstance(item, SchedulerConfig))
        return run

    monkeypatch.setattr(minisched.loops.run, "run_loop", spy)
    monkeypatch.setattr(minisched.cli.run, "run_loop", spy)
    code, out, err = cli(f"{command} --json --requests 3 --max-new-tokens 4 {option}")
    result = json.loads(out)
    assert code == 0 and "Traceback" not in err
    assert seen and all(settings.items() <= vars(config).items() for config in seen)
    assert result.get("identical", True) and not result["errors"]


def test_every_setting_for_users_is_an_option_of_three_commands() -> None:
    for_users = {item.name for item in fields(SchedulerConfig)}
    for_users -= {"context_len", "vocab_size", "eos_ids", "run_ahead", "overrun", "row_len"}
    for_users -= {"keep_stale_outputs", "has_tokenizer", "has_logits", "refuses", "draft_slack"}
    assert {item.name for item in fields(SchedulerOptions)} == {*for_users, "preset"}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for command in ("compare", "run", "replay"):
        options = {name for param in commands[command].params for name in param.opts}
        assert {f"--{name.replace('_', '-')}" for name in for_users} <= options


def test_priorities_go_round_with_the_prompts(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def spy(loop: str, device: Any, model: Any, requests: Any, *rest: Any, **options: Any) -> Run:
        seen.append([request.priority for request in requests])
        return run_loop(loop, device, model, requests, *rest, **options)

    monkeypatch.setattr(minisched.loops.run, "run_loop", spy)
    line = "compare --json --requests 5 --max-new-tokens 3 --schedule-policy priority"
    assert cli(f"{line} --priority 1 --priority -7")[0] == 0
    assert seen == [[1, -7, 1, -7, 1]] * 2


def test_without_overlap_only_serial_runs(cli: Any) -> None:
    code, out, _ = cli("run --disable-overlap-schedule --requests 2 --max-new-tokens 3")
    assert code == 0 and "steps of the loop serial" in " ".join(out.split())
    code, out, _ = cli("compare --disable-overlap-schedule --requests 2 --max-new-tokens 3")
    assert code == 0 and "Only serial ran, so there is nothing to compare." in out
    for line in ("run --loop overlap", "compare --loops serial,overlap"):
        code, out, err = cli(f"{line} --disable-overlap-schedule")
        assert code == 2 and out == ""
        assert "leaves only serial, but the loop overlap was asked for." in err


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_log_goes_to_stderr_in_sglangs_words(cli: Any, command: str) -> None:
    line = f"{command} --json --requests 3 --max-new-tokens 4 --chunk 32"
    code, out, err = cli(f"{line} --log")
    json.loads(out)
    assert code == 0
    for grep in ("chunked_prefill_size=32", "Prefill batch. #new-seq: ", "Chunked prefill"):
        assert grep in err
    _, again, quiet = cli(line)
    assert again == out and "Prefill batch" not in quiet


@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_advice_names_figures_and_targets(cli: Any, loop: str) -> None:
    line = "--requests 3 --max-new-tokens 4 --advise"
    code, out, _ = cli(f"run --json --loop {loop} {line}")
    advice = json.loads(out)["advice"]
    figures = ["token usage", "running requests", "TTFT", "ITL"]
    assert code == 0 and [item["name"] for item in advice] == figures
    assert {item["verdict"] for item in advice} <= {"met", "below", "above"}
    code, out, _ = cli(f"compare --json --loops {loop} {line}")
    assert json.loads(out)["advice"][loop] == advice
    for command in (f"run --loop {loop}", f"compare --loops {loop}"):
        code, out, _ = cli(f"{command} {line}")
        assert code == 0 and f"Advice for {loop}" in out and "at most 1000 ms" in out


@pytest.mark.parametrize("loop", ["serial", "overlap", "vllm_async"])
def test_every_draft_is_counted(cli: Any, tmp_path: Path, loop: str) -> None:
    """The right ones are tokens that came without a step of their own."""
    drafts = "--speculative-algorithm STANDALONE --speculative-draft-model-path hash:8"
    line = f"--prompt one --prompt another --max-new-tokens 9 {drafts}"
    code, out, _ = cli(f"compare --json --loops {loop} {line} --out pictures")
    counted = json.loads(out)["runs"][-1]["drafts"]
    trace = json.loads((tmp_path / "pictures" / f"{loop}.trace.json").read_text())
    marks = [event["args"] for event in trace["traceEvents"] if event["name"] == "verified"]
    for rid in ("r0", "r1"):  # one token is the prompt's; a last one may have a step without drafts
        gained = sum(1 + mark["accepted"] for mark in marks if mark["rid"] == rid)
        assert gained in (9 - 2, 9 - 1)
    assert counted["accepted"] > 0
    assert code == 0 and counted["proposed"] == sum(mark["drafts"] for mark in marks)
    tokens = 1 + counted["accepted"] / len(marks)
    said = (
        f"{loop}: {counted['accepted']} of {counted['proposed']} drafts accepted, {tokens:.1f} "
        "tokens a step for each request."
    )
    for command in (f"compare --loops {loop}", f"run --loop {loop}"):
        assert said in " ".join(cli(f"{command} {line}")[1].split())
    assert json.loads(cli(f"run --json --loop {loop} {line}")[1])["drafts"] == counted
    assert "drafts" not in json.loads(cli(f"run --json --loop {loop} --max-new-tokens 2")[1])


def test_presets_are_listed(cli: Any) -> None:
    code, out, _ = cli("presets --json")
    listed = json.loads(out)["presets"]
    assert code == 0 and [item["name"] for item in listed] == [item.name for item in PRESETS]
    assert [item["prefill_decode_ratio"] for item in listed][2] == 25.6
    code, out, _ = cli("presets")
    assert code == 0 and all(item.name in out for item in PRESETS)


def test_empty_and_unreadable_prompt_files(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    assert "holds no prompt" in cli("compare --prompts empty.txt")[2]
    assert "it is not UTF-8 text" in cli("compare --prompts binary.txt")[2]


@pytest.mark.parametrize("loop", ["serial", "overlap", "mlx_async"])
def test_a_bad_request_is_named_and_the_others_finish(cli: Any, loop: str) -> None:
    code, out, err = cli(
        f"compare --json --tokens --loops {loop} --prompt hello --prompt '' --prompt 'a long one' "
        "--max-new-tokens 6 --kv-tokens 12"
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


def test_doctor_says_what_it_takes_to_look_into_weights(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)  # as without the extra
    code, out, _ = cli("doctor --json")
    assert code == 0 and "needs the package 'safetensors'" in json.loads(out)["model"]["smollm2"]


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
    code, out, err = cli("compare --max-new-tokens 100000000")
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


@pytest.mark.parametrize(
    ("command", "first"),
    [
        ("compare --host-work 200 --log", "max_running_requests="),  # the loop turns
        ("run --host-work 200 --log", "max_running_requests="),
        ("bench hidden --model hash", "repetition 1 of 5"),
    ],
)
def test_ctrl_c_ends_with_one_sentence(command: str, first: str, tmp_path: Path) -> None:
    """On threads, with a real interrupt: exit code 130, no traceback, nothing hangs.

    It comes once stderr has said ``first``, and what is asked for would take far longer. Stderr is
    a terminal, where a bench shows what it is doing.
    """
    line = f"{command} --device thread --requests 2 --max-new-tokens 3000"
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        [sys.executable, "-m", "minisched", *line.split()],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    said = ""
    try:
        while first not in said:
            more = heard(ours)
            assert more, f"it ended by itself: {said}"
            said += more
        started.send_signal(signal.SIGINT)
        while more := heard(ours):
            said += more
        assert started.wait(FAR) == 130
        assert "interrupted" in said and "Traceback" not in said
    finally:
        started.kill()
        started.wait()
        os.close(ours)


def heard(terminal: int) -> str:
    """What is said next; nothing once nobody is there to say it."""
    assert select.select([terminal], [], [], FAR)[0], f"it said nothing for {FAR} seconds"
    with suppress(OSError):  # how Linux says that nobody has the other end
        return os.read(terminal, 65536).decode(errors="replace")
    return ""


def test_run_says_what_each_client_would_have_measured(cli: Any) -> None:
    """The second request of a pair with one prompt finds it cached, if it comes later."""
    line = "--requests 3 --prompt aaaaaaaaaaaaaaaa --max-new-tokens 4 --max-running-requests 1"
    code, out, _ = cli(f"run --json {line}")
    requests = json.loads(out)["requests"]
    assert code == 0 and list(requests) == ["r0", "r1", "r2"]
    assert [found["cached_tokens"] for found in requests.values()] == [0, 15, 15]
    for found in requests.values():
        assert found["output_tokens"] == 4 and found["prompt_tokens"] == 16
        assert 0 < found["queue_ms"] < found["ttft_ms"] and found["itl_ms"] > 0
    code, out, _ = cli(f"run {line}")
    assert code == 0 and re.search(r"queue\s+ttft\s+itl", out)


def test_all_loops_are_those_that_take_the_workload_and_the_others_are_named(cli: Any) -> None:
    line = "compare --loops all --requests 1 --max-new-tokens 3 --frequency-penalty 1 --json"
    code, out, err = cli(line)
    ran = {run["loop"] for run in json.loads(out)["runs"]}
    assert code == 0 and "overlap" in ran and "mini_overlap" not in ran
    assert "left out: loop 'mini_overlap' takes no penalties: mini-sglang has none" in err
