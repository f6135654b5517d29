"""What users read and what options reach: here, and in ``tests/doors`` from a wheel.

``golden/COMMAND.txt`` is a transcript, played again and compared word by word. A new ``$`` line in
one of them gets its answer from ``pytest tests/cli --golden-update``. Commands of a file run one
after another in a folder with copies of ``given/`` and the golden ``traces``.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer
from pytest import MonkeyPatch

import minisched.loops.run
from minisched.cli.app import app
from minisched.cli.museum import first_sentence
from minisched.loops.run import run_loop
from minisched.museum import exhibits, refuted
from minisched.scheduler import SchedulerConfig

ROOT = Path(__file__).resolve().parents[2]
GROUP: Any = typer.main.get_command(app)
COMMANDS = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}
CSV = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,20,3\n0.5,30,6\n"
HERE = Path(__file__).parent
TRANSCRIPTS = sorted((HERE / "golden").glob("*.txt"))
IN_REAL_TIME = re.compile(
    r"(?<=, in )[\d.]+(?= s\b)|(?<=took )[\d.]+(?= s of real time)|\d+(?= requests each second)"
    r'|(?<="host_seconds": )[\d.]+|(?<="requests_per_second": )[\d.]+|(?<="seconds": )[\d.]+'
)
"""Figures that are never the same, in sentences and in JSON."""


@pytest.mark.parametrize("file", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transcript_is_what_is_printed(
    file: Path, cli: Any, golden: Any, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(HERE / "given", tmp_path, dirs_exist_ok=True)
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    seen = []
    for line in re.findall(r"^\$ .*", file.read_text("utf-8"), re.MULTILINE):
        _, program, rest = line.split(" ", 2) if line.count(" ") > 1 else (*line.split(), "")
        code, out, err = (0, Path(rest).read_text("utf-8"), "") if program == "cat" else cli(rest)
        assert "Traceback" not in err
        if "--json" in rest and out:
            assert out.count("\n") == 1  # one object, broken here, so that one sees what changed
            out = broken(json.loads(out)) + "\n"
        said = [text.rstrip() for text in IN_REAL_TIME.sub("#", out + err).splitlines()]
        seen += [line, *said, *([f"[exit code {code}]"] if code else []), ""]
    golden(file.name, "\n".join(seen))


def broken(value: Any, indent: str = "") -> str:
    """JSON in lines of 100 columns where it can be."""
    short = json.dumps(value, ensure_ascii=False)
    if len(indent + short) < 99 or not isinstance(value, dict | list):
        return short
    inner, opens, ends = indent + "  ", *("[]" if isinstance(value, list) else "{}")
    named = [("", item) for item in value] if opens == "[" else value.items()
    items = [f"{inner}{name and json.dumps(name) + ': '}{broken(it, inner)}" for name, it in named]
    return "\n".join([opens, ",\n".join(items), indent + ends])


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command under the words that a user types, those of ``museum`` included."""
    for first, found in COMMANDS.items():
        inner = getattr(found, "commands", {})
        yield from ((f"{first} {name}", item) for name, item in inner.items())
        if not inner:
            yield first, found


def test_the_examples_in_help_parse() -> None:
    for name, command in commands():
        example, _, words = command.epilog.partition("\n")[0].partition(name)
        assert example == "Example: minisched "
        told = re.findall(rf"^ *minisched {name} (.*?)(?:  |$)", command.help or "", re.M)
        for line in (words, *told):
            command.make_context(name, shlex.split(line))  # a bad option would raise
    assert len(re.findall("minisched compare --", COMMANDS["compare"].help)) == 5


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_help_names_each_option_with_its_default(
    cli: Any, monkeypatch: MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    code, out, _ = cli(f"{name} --help")
    assert code == 0
    words = " ".join(out.replace("│", " ").split())
    for param in dict(commands())[name].params:
        assert all(option in words for option in param.opts)
        if isinstance(param.show_default, str):  # where the default depends on other settings
            assert f"[default: ({param.show_default})]" in words
        elif param.show_default and param.default not in (None, [], False, True):
            assert f"[default: {param.default}]" in words


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_help_fits_80_columns_without_ragged_lines(name: str) -> None:
    _, *paragraphs = (dict(commands())[name].help or "").split("\n\n")  # only the first is wrapped
    assert max((len(line) for text in paragraphs for line in text.split("\n")), default=0) <= 78


def test_help_begins_with_the_list_of_commands(cli: Any) -> None:
    for line, ends in (("", 2), ("-h", 0), ("--help", 0)):
        code, out, err = cli(line)
        assert (code, err) == (ends, "")
        assert all(re.search(rf"^. {name} +\w", out, re.M) for name in COMMANDS)


@pytest.fixture
def asked(monkeypatch: MonkeyPatch) -> Mock:
    """Every run, which runs as always."""
    spy = Mock(wraps=run_loop)
    monkeypatch.setattr(minisched.loops.run, "run_loop", spy)
    return spy


@pytest.mark.parametrize(("option", "settings"), [
    ("", {"chunked_prefill_size": 128, "max_running_requests": 3, "cuda_graph_max_bs": None}),
    ("--chunk -1", {"chunked_prefill_size": -1}),
    ("--page-size 48", {"page_size": 48, "chunked_prefill_size": 144}),
    ("--kv-tokens 300 --enable-mixed-chunk", {"kv_tokens": 300, "enable_mixed_chunk": True}),
    ("--schedule-policy lpm --run-first unified", {
        "schedule_policy": "lpm", "run_first": "unified"}),
    ("--disable-radix-cache", {"disable_radix_cache": True}),
    ("--preset t4", {"chunked_prefill_size": 2048, "cuda_graph_max_bs": 8}),
    ("--preset 4x24GiB", {"chunked_prefill_size": 2048, "cuda_graph_max_bs": 80}),
    ("--preset h100 --chunk 512", {"chunked_prefill_size": 512, "cuda_graph_max_bs": 256}),
])  # fmt: skip
def test_a_setting_reaches_the_scheduler(
    cli: Any, asked: Mock, option: str, settings: dict[str, Any]
) -> None:
    code, out, _ = cli(f"compare --json --requests 3 --max-new-tokens 4 {option}")
    assert code == 0 and json.loads(out)["identical"] and asked.call_count == 2
    assert all(settings.items() <= vars(call.args[4]).items() for call in asked.call_args_list)


@pytest.mark.parametrize(("gib", "chunk"), [(15.0, 2048), (79.1, 8192), (None, 0)])
def test_the_preset_auto_asks_the_gpu(
    cli: Any, asked: Mock, monkeypatch: MonkeyPatch, gib: float | None, chunk: int
) -> None:
    gpu = Mock(total_memory=int((gib or 0) * (1 << 30)))
    found = {"is_available": lambda: gib is not None, "get_device_properties": lambda index: gpu}
    monkeypatch.setattr("minisched.cli.presets.load", lambda module, name, *_: found[name])
    code, out, err = cli("compare --json --requests 3 --max-new-tokens 4 --preset auto")
    if gib is None:
        assert (
            (code, out) == (2, "")
            and "--preset is 'auto', but torch sees no GPU" in err
            and err.count("\n") == 1
        )
    else:
        assert code == 0 and all(
            call.args[4].chunked_prefill_size == chunk for call in asked.call_args_list
        )


def test_every_setting_for_users_is_an_option_of_three_commands() -> None:
    for_users = {item.name for item in fields(SchedulerConfig)}
    for_users -= {"context_len", "vocab_size", "eos_ids", "run_ahead", "overrun", "row_len"}
    for_users -= {"keep_stale_outputs", "has_tokenizer", "has_logits", "refuses", "draft_slack"}
    assert {item.name for item in fields(SchedulerConfig) if "help" in item.metadata} == for_users
    for command in ("compare", "run", "replay"):
        options = {name for param in COMMANDS[command].params for name in param.opts}
        assert {f"--{name.replace('_', '-')}" for name in for_users} <= options


def test_prompts_and_priorities_go_round_and_tokens_follow_seeds(cli: Any, asked: Mock) -> None:
    line = "compare --json --requests 3 --max-new-tokens 3 --temperature 0.9 "
    line += "--schedule-policy priority --priority 1 --priority -7 --prompt a --prompt b --seed "
    first, again, other = (json.loads(cli(line + seed)[1]) for seed in ("4", "4", "5"))
    assert first == again and first["outputs"] != other["outputs"]
    for call in asked.call_args_list:
        found = [(request.priority, bytes(request.prompt)) for request in call.args[3]]
        assert found == [(1, b"a"), (-7, b"b"), (1, b"a")]


def test_doctor_names_devices_and_what_others_need(cli: Any, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)  # as without the extra
    code, out, _ = cli("doctor --json")
    findings = json.loads(out)
    assert code == 0 and findings["device"].keys() == {"sim", "thread", "cuda", "mlx"}
    assert findings["device"]["sim"] == ""
    assert "needs the package 'safetensors'" in findings["model"]["smollm2"]


@pytest.mark.parametrize(("line", "said"), [
    ("compare --device thread --model {llama}", "has no tokenizer.json"),
    ("compare --device mlx --model nobody/nothing-here", "nobody/nothing-here"),
    ("bench cuda --device thread", "bench cuda knows cuda"),
    ("bench overlap --model hash --nano-vllm .", "--nano-vllm is of no use to bench overlap"),
    ("bench host --nano-vllm .", "no checkout of nano-vllm"),
    ("replay .", "Is a directory"),
    ("run --rules vllm --prompt x --max-new-tokens 100000000", "no request can run: the"),
    ("compare --rules vllm --prompt x --max-new-tokens 5000", "no request can run: the"),
    ("check --workloads 0", "--workloads is 0, but it must be at least 1"),
    ("check --seed -1", "--seed is -1, but it must be at least 0"),
    ("replay lengths.csv --kv-tokens 1000000000", "62500000 pages"),
    ("replay lengths.csv --page-size 16 --chunk 100", "multiple of the page size, 16"),
])  # fmt: skip
def test_what_needs_more_than_a_line_is_refused_too_before_anything_runs(
    cli: Any, monkeypatch: MonkeyPatch, tmp_path: Path, tiny_llama: Path, line: str,
    said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "lengths.csv").write_text(CSV, "utf-8")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = cli(line.format(llama=tiny_llama))
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing is written"


def test_an_example_says_where_its_files_come_from() -> None:
    names = [
        name for name, command in commands() if re.search(r"\.(json|csv|toml)", command.epilog)
    ]
    assert names == ["check", "view", "stepper", "replay", "sweep"]
    assert all("\n" in dict(commands())[name].epilog for name in names)


def test_the_files_of_the_examples_can_be_made_as_help_says(cli: Any, tmp_path: Path) -> None:
    helps = {name: command.epilog for name, command in commands()}
    head = re.findall(r"a line (\S+), then numbers", helps["replay"])[0]
    (tmp_path / "requests.csv").write_text(f"{head}\n0.0,20,3\n", "utf-8")
    assert cli("replay requests.csv")[0] == 0
    grid = helps["sweep"].partition("such as one line: ")[2]
    (tmp_path / "grid.toml").write_text(f"{grid}\n", "utf-8")
    code, out, err = cli("sweep grid.toml --jobs 1")
    assert code == 0 and "2 cells: 2 ok" in out, err


def test_a_sweep_shows_ties(cli: Any, tmp_path: Path) -> None:
    loops = "['overlap', 'serial', 'overlap_pool_indexed']"
    (tmp_path / "grid.toml").write_text(f"[grid]\nloop = {loops}\n", "utf-8")
    code, out, err = cli("sweep grid.toml --jobs 1")
    assert code == 0, err
    table = out[: out.index("Of each workload")]
    assert re.search(r" ties$", table, re.M) and "overlap_pool_indexed" in table


def test_the_list_of_the_museum_has_a_symptom_each(cli: Any) -> None:
    out = cli("museum list")[1]
    for item in (*exhibits(), *refuted()):
        assert f"    {first_sentence(item.symptom)}\n" in out
