"""What options reach, and what is in the files and the objects that commands leave behind."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

import minisched.loops.run
from minisched.cli.app import app
from minisched.cli.scheduler_options import SchedulerOptions
from minisched.loops.run import Run, run_loop
from minisched.scheduler import SchedulerConfig

COMMANDS: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Any], SchedulerConfig]]:
    """The requests and the settings of every run, which runs as always."""
    seen: list[tuple[list[Any], SchedulerConfig]] = []

    def spy(loop: str, device: Any, model: Any, requests: Any, config: Any, *rest: Any,
            **options: Any) -> Run:  # fmt: skip
        seen.append((requests, config))
        return run_loop(loop, device, model, requests, config, *rest, **options)

    monkeypatch.setattr(minisched.loops.run, "run_loop", spy)
    monkeypatch.setattr("minisched.cli.run.run_loop", spy)
    return seen


SETTINGS = {
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


@pytest.mark.parametrize(("option", "settings"), SETTINGS.items())
def test_a_setting_reaches_the_scheduler(
    cli: Any, asked: list[Any], option: str, settings: dict[str, Any]
) -> None:
    code, out, _ = cli(f"compare --json --requests 3 --max-new-tokens 4 {option}")
    result = json.loads(out)
    assert code == 0 and result["identical"] and not result["errors"]
    assert len(asked) == (1 if "overlap" in option else 2)
    assert all(settings.items() <= vars(config).items() for _, config in asked)


def test_every_setting_for_users_is_an_option_of_three_commands() -> None:
    for_users = {item.name for item in fields(SchedulerConfig)}
    for_users -= {"context_len", "vocab_size", "eos_ids", "run_ahead", "overrun", "row_len"}
    for_users -= {"keep_stale_outputs", "has_tokenizer", "has_logits", "refuses", "draft_slack"}
    assert {item.name for item in fields(SchedulerOptions)} == {*for_users, "preset"}
    for command in ("compare", "run", "replay"):
        options = {name for param in COMMANDS[command].params for name in param.opts}
        assert {f"--{name.replace('_', '-')}" for name in for_users} <= options


def test_prompts_and_priorities_go_round(cli: Any, asked: list[Any]) -> None:
    line = "compare --json --requests 5 --max-new-tokens 3 --schedule-policy priority"
    assert cli(f"{line} --priority 1 --priority -7 --prompt a --prompt b --prompt c")[0] == 0
    for requests, _ in asked:
        assert [request.priority for request in requests] == [1, -7, 1, -7, 1]
        assert [bytes(request.prompt) for request in requests] == [b"a", b"b", b"c", b"a", b"b"]


def test_what_compare_says_of_itself_is_repeatable_and_follows_the_seed(cli: Any) -> None:
    line = "compare --json --tokens --requests 3 --max-new-tokens 8 --temperature 0.9 --seed "
    first, again, other = (json.loads(cli(line + seed)[1]) for seed in ("4", "4", "5"))
    assert first == again and first["outputs"].keys() == {"r0", "r1", "r2"}
    assert first["outputs"] != other["outputs"]


def test_compare_writes_the_files_it_names(cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli("compare --json --requests 2 --max-new-tokens 9 --out pictures")
    files = json.loads(out)["files"]
    assert code == 0 and {tmp_path / file for file in files} == {*(tmp_path / "pictures").iterdir()}
    traces = [file for file in files if file.endswith(".trace.json")]
    assert len(traces) == 2
    assert all(json.loads((tmp_path / file).read_text())["traceEvents"] for file in traces)
    ElementTree.parse(tmp_path / "pictures" / "compare.svg")


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
    assert code == 0 and 0 < counted["accepted"] == sum(mark["accepted"] for mark in marks)
    assert counted["proposed"] == sum(mark["drafts"] for mark in marks)
    assert json.loads(cli(f"run --json --loop {loop} {line}")[1])["drafts"] == counted
    assert "drafts" not in json.loads(cli(f"run --json --loop {loop} --max-new-tokens 2")[1])


def test_doctor_names_every_device_and_what_others_need(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = cli("doctor --json")
    findings = json.loads(out)
    assert code == 0 and findings["device"]["sim"] == ""
    assert set(findings["device"]) == {"sim", "thread", "cuda", "mlx"}
    for kind in findings.values():
        assert all(needs == "" or len(needs) > 20 for needs in kind.values())
    monkeypatch.setitem(sys.modules, "safetensors", None)  # as without the extra
    code, out, _ = cli("doctor --json")
    assert code == 0 and "needs the package 'safetensors'" in json.loads(out)["model"]["smollm2"]


@pytest.mark.parametrize(("line", "said"), [
    ("compare --prompts binary.txt", "it is not UTF-8 text"),
    ("compare --device thread --model {llama}", "has no tokenizer.json"),
    ("compare --device mlx --model nobody/nothing-here", "nobody/nothing-here"),
    ("bench cuda --device thread", "bench cuda measures cuda only"),
    ("bench generation --max-new-tokens 1025", "--max-new-tokens is 1025"),
    ("bench hidden --model hash --nano-vllm .", "--nano-vllm is of no use to bench hidden"),
    ("bench hidden --model hash --max-new-tokens 11", "needs at least 12"),
    ("bench limit --model hash", "can't be hash"),
    ("bench scheduler --nano-vllm .", "no checkout of nano-vllm"),
    ("bench tracing --device sim --model hash", "--device sim has none of"),
    ("replay .", "Is a directory"),
    ("replay lengths.csv --out a/b.json", "there is no folder a"),
    ("replay lengths.csv --out ./lengths.csv", "--out lengths.csv is the trace itself"),
    ("replay lengths.csv --trace .", "Is a directory"),
    ("replay lengths.csv --kv-tokens 1000000000", "62500000 pages"),
    ("replay lengths.csv --page-size 16 --chunk 100", "multiple of the page size, 16"),
])  # fmt: skip
def test_what_needs_more_than_a_line_is_refused_too_before_anything_runs(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama: Path, line: str,
    said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "lengths.csv").write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,20,3\n"
    )
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = cli(line.format(llama=tiny_llama))
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing is written"
