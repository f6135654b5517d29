"""Where output goes: lost, to terminals of 40 to 120 columns, to those of few letters."""

import io
import re
import subprocess
import sys
import threading
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import typer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch
from rich.cells import cell_len

from minisched.cli.app import app
from minisched.cli.exit import BAD_INPUT, NOBODY_READS
from minisched.cli.layout import say_command, work_progress
from minisched.comparison import text_table

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "traces"
GROUP: Any = typer.main.get_command(app)
COMMANDS = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}
SAYING = {  # each command with something to say; where that takes long or needs Node, its help
    **{name: f"{name} --help" for name in COMMANDS},
    "check": f"check {TRACES}/overlap.json",
    "check many": "check --workloads 1 --loop overlap --jobs 1",
    "compare": "compare --requests 2 --max-new-tokens 4",
    "compare json": "compare --json --requests 2 --max-new-tokens 4",
    "museum": "museum run stale_placeholder",
    "presets": "presets",
    "replay": f"replay {ROOT}/tests/cli/given/lengths.csv",
    "run": "run --requests 2 --max-new-tokens 4",
    "phases": f"view overlap {TRACES}/overlap.json --form text --part timing",
    "stepper": f"stepper {TRACES}/overlap.json",
    "version": "--version",
    "view": "view decode --form text",
    "relays": "compare --loops vllm_async:pool:depth=4,mindie_dual:fill_device --requests 2 "
    "--max-new-tokens 3",
}
DRAWN = {name: line for name, line in SAYING.items() if line[-6:] not in ("--help", "ersion")}


@pytest.mark.parametrize("line", SAYING.values(), ids=SAYING)
def test_a_full_disk_ends_a_command(cli: Any, monkeypatch: MonkeyPatch, line: str) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        ended, _, err = cli(line)
    assert ended == BAD_INPUT
    assert err == "minisched: stdout can't be written: No space left on device.\n"


@pytest.mark.parametrize(("line", "ends", "code", "said"), [
    ("presets", "| true", NOBODY_READS, b""),
    ("presets", ">&-", BAD_INPUT, b"minisched: stdout is closed, so there is no output.\n"),
    # ``logging`` would print a traceback for every line and go on
    ("run --log --requests 1", "2>&1 >/dev/null | true", NOBODY_READS, b""),
])  # fmt: skip
def test_a_shell_hears_of_it(tmp_path: Path, line: str, ends: str, code: int, said: bytes) -> None:
    """And Python itself has nothing to complain about at its end."""
    command = f"{{ sleep 0.1; {sys.executable} -m minisched {line}; echo $? >code; }} {ends}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True)
    assert (int((tmp_path / "code").read_text("utf-8")), done.stderr) == (code, said)


@pytest.mark.parametrize("line", DRAWN.values(), ids=DRAWN)
def test_a_command_fits_its_columns_and_its_letters(
    cli: Any, monkeypatch: MonkeyPatch, line: str
) -> None:
    """A tick by a sign that is no question mark, which is what says that nothing can be said."""
    monkeypatch.setenv("COLUMNS", "40")
    code, usual, _ = cli(line)
    assert code == 0
    is_free = "--json" in line or line.startswith("view")  # a drawing may be wider
    assert is_free or all(cell_len(text.rstrip()) <= 40 for text in usual.splitlines())
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    again, _, err = cli(line)
    said = raw.getvalue().decode("ascii")
    assert again == code and "codec" not in err
    assert len(said.splitlines()) == len(usual.splitlines())
    assert said.count("+ races?") == usual.count("✓ races?") or "--json" in line


def test_help_in_40_columns_names_options_whole(cli: Any, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for name, command in COMMANDS.items():
        out = cli(f"{name} --help")[1]
        options = [name for item in command.params for name in (*item.opts, *item.secondary_opts)]
        assert all(option in out for option in options if "--" in option)


def test_without_a_terminal_a_sentence_is_a_line_that_can_be_searched_for(cli: Any) -> None:
    out = cli(f"check {TRACES}/overlap.json")[1]
    assert max(map(len, out.splitlines())) > 120


@pytest.mark.parametrize("form", ["puml", "svg"])
def test_a_file_on_stdout_is_whole(cli: Any, monkeypatch: MonkeyPatch, form: str) -> None:
    line = f"view pd {TRACES}/pd.json --form {form}"
    assert cli(f"{line} --out pd.{form}")[0] == 0
    monkeypatch.setenv("COLUMNS", "80")
    assert cli(f"{line} --out -")[1] == Path(f"pd.{form}").read_text(encoding="utf-8")


NAME = st.text("abcdefgh_", min_size=1, max_size=24)
NUMBER = st.integers(0, 10**9).map(str) | st.floats(0, 1e6).map(lambda value: f"{value:.2f} ms")
WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=12), min_size=5, max_size=20)


@settings(phases=[Phase.generate])
@given(
    rows=st.lists(st.tuples(NAME, NUMBER, NUMBER, NUMBER, WORDS.map(" ".join)), min_size=1),
    heads=st.lists(WORDS.map(lambda words: " ".join(words[:3])), min_size=5, max_size=5),
    width=st.integers(40, 130) | st.none(),
)  # fmt: skip
def test_any_table_keeps_names_and_numbers_whole(
    rows: list[tuple[str, ...]], heads: list[str], width: int | None
) -> None:
    lines = text_table(heads, rows, width)
    assert width is None or max(map(len, lines)) <= width
    out = "\n".join(lines)
    for name, *numbers, words in rows:
        assert all(cell in out for cell in (name, *numbers))
        assert all(word in out for word in words.split())


@pytest.mark.parametrize("width", [40, 100])
def test_a_long_command_can_still_be_copied(
    monkeypatch: MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    line = "minisched check --workloads 1 --seed 4711 --loop vllm_async:pool:depth=4 --device sim"
    say_command(line)
    said = capsys.readouterr().out
    assert all(len(part) <= width for part in said.splitlines())
    assert said.replace("\\\n", "").split() == line.split()


def test_long_work_tells_its_progress_without_a_terminal(
    monkeypatch: MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("minisched.cli.layout.EVERY_S", 0.05)
    with work_progress(4) as work:
        work.advance("workloads, 3 cases")
        sleep(0.5)
    assert not any(thread.name == "progress" for thread in threading.enumerate())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    for line in lines:
        told = r"minisched: workloads, 3 cases, 25 % done, after \d+ s, about \d+ s left"
        assert re.fullmatch(told, line)


def test_what_takes_minutes_is_told_at_once_and_short_work_tells_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with work_progress() as work:
        work.at("warming up")
        work.at("installing the packages of sglang on their own (about 1 GB, minutes)")
        work.at("cases", 3)
        work.advance()
    out, err = capsys.readouterr()
    said = "minisched: installing the packages of sglang on their own (about 1 GB, minutes), after"
    assert out == "" and err.startswith(said) and err.count("\n") == 1
