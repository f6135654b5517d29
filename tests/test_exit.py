"""How every command ends where its output can't be written; and files, which are whole or not."""

from __future__ import annotations

import ast
import errno
import io
import os
import re
import resource
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from minisched.cli.app import app
from minisched.cli.exit import NOBODY_READS
from minisched.trace.files import WholeFile, write_whole

ROOT = Path(__file__).resolve().parents[1]
CSV = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n0.2,396,109\n"
LINES = {  # each command with something to say; where that takes long or needs Node, its help
    "bench": "bench --help",
    "calibrate": "calibrate --help",
    "check": f"check {ROOT}/traces/overlap.json",
    "compare": "compare --requests 2 --max-new-tokens 4",
    "diagrams": "diagrams --help",
    "doctor": "doctor",
    "fetch": "fetch --help",
    "first-run": "first-run --help",
    "museum list": "museum list",
    "museum run": "museum run stale_placeholder",
    "presets": "presets",
    "replay": "replay requests.csv",
    "run": "run --requests 2 --max-new-tokens 4",
    "scenario": "scenario --help",
    "stepper": f"stepper {ROOT}/traces/overlap.json",
    "view": f"view decode {ROOT}/traces/decode.json --form text",
    "watch": f"watch {ROOT}/traces/overlap.json --frames 2",
}
MORE = {  # other ways to say something
    "check many": "check --workloads 1 --loop overlap",
    "check faults": "check --faults --loop overlap",
    "compare json": "compare --json --requests 2 --max-new-tokens 4",
    "log": "run --log --requests 1 --max-new-tokens 2",
    "nothing": "",
    "replay json": "replay requests.csv --json --advise",
    "version": "--version",
}
EVERY = {**LINES, **MORE}


def registered() -> dict[str, str]:
    """Every command, as a user types it, with what stands below its help."""
    command: Any = typer.main.get_command(app)
    return {
        " ".join(filter(None, [name, inner])): item.epilog or ""
        for name, found in command.commands.items()
        for inner, item in getattr(found, "commands", {"": found}).items()
    }


def start(line: str, folder: Path, **options: Any) -> subprocess.Popen[str]:
    (folder / "requests.csv").write_text(CSV)
    command = [sys.executable, "-m", "minisched", *shlex.split(line)]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, **options)


def test_no_command_is_left_out() -> None:
    assert set(LINES) == set(registered())


@pytest.mark.parametrize("name", LINES)
def test_each_help_ends_with_an_example_that_parses(cli: Any, name: str) -> None:
    shown = registered()[name]
    assert shown.startswith(f"Example: minisched {name}")
    command: Any = typer.main.get_command(app)
    words = shlex.split(shown.removeprefix("Example: minisched "))
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(name, words)  # a bad option would raise
    for asks in ("-h", "--help"):
        code, out, _ = cli(f"{name} {asks}")
        assert code == 0 and "Example: minisched" in out


@pytest.mark.parametrize("name", ["", *LINES])
def test_the_help_of_a_narrow_terminal_names_options_whole(
    cli: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = cli(f"{name} --help")[1]
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    for item in command.params:
        assert all(option in out for option in (*item.opts, *item.secondary_opts) if "--" in option)


def test_the_version_and_what_can_be_chosen(cli: Any) -> None:
    assert re.fullmatch(r"minisched \d+\.\d+\S*\n", cli("--version")[1])
    assert "--install-completion" in cli("--help")[1] and "--show-completion" in cli("-h")[1]
    for line, choice in {
        "museum": "`museum run NAME`",
        "bench": "'part': hidden, generation, scheduler,",
        "scenario": "'name': Which case: long-document.",
        "fetch": "smollm2",
        "view": "radix_cache, page_allocator",
    }.items():
        code, out, err = cli(line)
        assert (code, out) == (2, "") and choice in err and len(err.splitlines()) == 1
    assert "long-document" in cli("scenario --help")[1]


@pytest.mark.parametrize("line", EVERY.values(), ids=EVERY)
def test_a_full_stdout_is_one_sentence_and_exit_code_2(line: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full, start(line, tmp_path, stdout=full) as started:
        said = started.communicate(timeout=300)[1].splitlines()
    assert started.returncode == 2
    assert said[-1] == "minisched: stdout can't be written: No space left on device."
    assert all(text.startswith("[") for text in said[:-1]), "nothing but the log before it"


@pytest.mark.parametrize("line", EVERY.values(), ids=EVERY)
def test_a_reader_who_has_gone_ends_it_quietly(line: str, tmp_path: Path) -> None:
    """Nobody reads from the beginning on, so the first byte is one too many."""
    theirs, ours = os.pipe()
    os.close(theirs)
    with start(line, tmp_path, stdout=ours) as started:
        os.close(ours)
        said = started.communicate(timeout=300)[1].splitlines()
    assert started.returncode == NOBODY_READS == 128 + 13
    assert all(text.startswith("[") for text in said), said


def test_a_log_that_nobody_reads_ends_a_run_too(tmp_path: Path) -> None:
    """``logging`` would print a traceback for every line and go on."""
    theirs, ours = os.pipe()
    os.close(theirs)
    command = [sys.executable, "-m", "minisched", "run", "--log", "--requests", "1"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=ours)
    os.close(ours)
    assert done.returncode == NOBODY_READS


def test_a_closed_stdout_is_one_sentence(tmp_path: Path) -> None:
    command = f"{sys.executable} -m minisched presets >&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "minisched: stdout is closed, so nothing can be said.\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437"])
@pytest.mark.parametrize("line", EVERY.values(), ids=EVERY)
def test_what_an_encoding_lacks_is_replaced(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, encoding: str
) -> None:
    (tmp_path / "requests.csv").write_text(CSV)
    code, usual, _ = cli(line)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    again, _, err = cli(line)
    said = raw.getvalue().decode(encoding)
    assert again == code and "codec" not in err
    assert len(said.splitlines()) == len(usual.splitlines())


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_tick_is_no_question_mark(
    cli: Any, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """``?`` is what says that nothing can be said."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    cli(f"check {ROOT}/traces/overlap.json")
    said = raw.getvalue().decode(encoding)
    assert "? identical?" in said and "+ leaks?" in said and "+ races?" in said


def test_the_environment_decides_on_the_encoding(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "minisched", "check", f"{ROOT}/traces/overlap.json"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=env)
    assert done.returncode == 0 and b"+ leaks?" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "compare --requests 2 --max-new-tokens 9 --out .",
        f"view decode {ROOT}/traces/decode.json --out found.svg",
        f"stepper {ROOT}/traces/overlap.json --out found.html",
        "museum run stale_placeholder --out found.html",
        "replay requests.csv --out found.json --loop serial",
        "replay requests.csv --trace found.json",
    ],
)
def test_a_full_disk_leaves_no_half_of_a_file(line: str, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk, which it takes root to make a small one.

    Linux sends a signal first, which Python ignores; then the write fails, with another reason.
    """
    before = (tmp_path / "found.svg", tmp_path / "found.html", tmp_path / "found.json")
    for path in (*before, tmp_path / "compare.html"):
        path.write_text("what was there")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))

    with start(line, tmp_path, stdout=subprocess.PIPE, preexec_fn=limit) as started:
        _, said = started.communicate(timeout=300)
    assert started.returncode == 2
    assert len(said.splitlines()) == 1 and "can't be written: File too large." in said
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left.pop("requests.csv") == CSV
    assert set(left.values()) == {"what was there"} and len(left) == 4


def test_only_one_function_writes_files() -> None:
    """Whoever opens a file himself can leave half of it. (Scratch folders may.)"""
    scratch = {
        "export/render_server.py", "models/gguf.py", "models/gguf_tokenizer.py", "models/tiny.py",
        "bench/cuda/random_llama.py", "bench/mutation/tree.py", "bench/simulator/made_trace.py",
        "trace/files.py",
    }  # fmt: skip
    package = ROOT / "minisched"
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            mode = next(iter(node.args), None)
            writes = isinstance(mode, ast.Constant) and str(mode.value)[:1] in "wax"
            if node.func.attr in ("write_text", "write_bytes") or (
                node.func.attr == "open" and writes
            ):
                found.add(path.relative_to(package).as_posix())
    assert found <= scratch


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with WholeFile(path) as file:
        file.write("all")
        file.flush()
        assert not path.exists()
    assert path.read_text() == "all" and list(tmp_path.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_an_interrupt_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), WholeFile(path) as file:
        file.write("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_link_and_rights_stay_as_they_were(tmp_path: Path) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "new")
    assert link.is_symlink() and path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_can_not_be_replaced_is_written_to(tmp_path: Path) -> None:
    """Such as ``/dev/null``, which is no file of ours to put another one in its place."""
    write_whole(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(ValueError, match=r"^/dev/full can't be written: No space"):
        write_whole(Path("/dev/full"), "gone")
    with pytest.raises(ValueError, match=r"can't be written: Is a directory"):
        write_whole(tmp_path, "gone")


def test_a_disk_that_is_full_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems say so only when the file is closed or moved."""
    path = tmp_path / "a.json"

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ValueError, match=r"a\.json can't be written: No space"):
        write_whole(path, "new")
    assert not list(tmp_path.iterdir())
