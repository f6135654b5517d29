"""Terminals of 40 to 120 columns and of few letters: names and numbers stay whole."""

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from minisched.bench.rows import Figure
from minisched.cli import layout
from minisched.cli.app import app
from minisched.cli.bench import table as bench_table
from minisched.cli.layout import CUT, Fitted, say, say_command

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "traces"
WIDTHS = pytest.mark.parametrize("width", [40, 60, 120])
LINES = {
    "all loops": "compare --loops all --requests 2 --max-new-tokens 4",
    "relays": "compare --loops vllm_async:pool:depth=4,mindie_dual:fill_device --requests 2 "
    "--max-new-tokens 3",
    "advice": "run --advise --requests 2 --max-new-tokens 4",
    "check": f"check {TRACES}/serial.json {TRACES}/overlap.json",
    "check many": "check --workloads 1 --loop overlap --jobs 1",
    "check faults": "check --faults --loop overlap --jobs 1",
    "museum": "museum run stale_placeholder",
    "presets": "presets",
    "replay": "replay requests.csv --advise",
    "tree": f"view radix_cache {TRACES}/radix_cache.json --form text",
    "steps": f"view overlap {TRACES}/overlap.json --form text --part steps",
    "watch": f"watch {TRACES}/overlap.json --frames 2",
}
EACH = pytest.mark.parametrize("line", LINES.values(), ids=LINES)


@pytest.fixture
def cli(cli: Any, tmp_path: Path) -> Any:
    """The command line, in a folder with a trace."""
    rows = ("arrived_at,num_prefill_tokens,num_decode_tokens", "0.0,374,44", "0.2,396,109", "")
    (tmp_path / "requests.csv").write_text("\n".join(rows))
    return cli


# -- widths ------------------------------------------------------------------------------------


@WIDTHS
@EACH
def test_every_command_fits(
    cli: Any, monkeypatch: pytest.MonkeyPatch, line: str, width: int
) -> None:
    """And each row's name, and every cell with a number that is no sentence, is as it was."""
    tables: list[Table] = []
    before = Fitted.__init__

    def kept(self: Fitted, table: Table) -> None:
        tables.append(table)
        before(self, table)

    monkeypatch.setattr(Fitted, "__init__", kept)
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = cli(line)
    assert code == 0, err
    wide = [text for text in out.splitlines() if cell_len(text.rstrip()) > width]
    assert not wide, wide[0]
    for table in tables:
        check_rows(table, out)
    assert CUT not in out or line.split()[0] in ("view", "watch"), "only drawings are cut"


def check_rows(table: Table, out: str) -> None:
    columns = [
        [layout.as_text(cell, Console()).plain for cell in column.cells] for column in table.columns
    ]
    for row in zip(*columns, strict=True):
        assert next(cell for cell in row if cell not in ("", "✓", "✗", "?")) in out
        for cell in row:
            if re.search(r"\d", cell) and len(cell) <= layout.SENTENCE:
                assert cell in out
            assert all(word in out.replace("\n", "") for word in cell.split() if len(word) < 30)


def test_the_help_of_a_narrow_terminal_names_options_whole(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    commands: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        out = cli(f"{name} --help")[1]
        for item in command.params:
            options = (*item.opts, *item.secondary_opts)
            assert all(option in out for option in options if "--" in option)


def test_without_a_terminal_a_sentence_is_a_line_that_can_be_searched_for(cli: Any) -> None:
    out = cli(f"check {TRACES}/overlap.json")[1]
    assert max(map(len, out.splitlines())) > 120


@pytest.mark.parametrize("form", ["puml", "svg"])
def test_a_file_on_stdout_is_whole(cli: Any, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    line = f"view pd {TRACES}/pd.json --form {form}"
    assert cli(f"{line} --out pd.out")[0] == 0
    monkeypatch.setenv("COLUMNS", "80")
    assert cli(f"{line} --out -")[1] == Path("pd.out").read_text(encoding="utf-8")


def printed(width: int, what: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(what)
    return file.getvalue()


@WIDTHS
def test_a_table_of_the_bench_fits(width: int) -> None:
    """Which takes too long to be filled here."""
    out = printed(width, Fitted(bench_table([
        Figure("thread, smollm2: hidden of 20 ms, overlap", 93.25, 91.5, 96.75, "%", 90.0),
        Figure("mlx: hidden", None, None, None, "%", 90.0, reason="mlx is not installed here"),
    ])))  # fmt: skip
    assert all(cell_len(line.rstrip()) <= width for line in out.splitlines())
    assert "93.25" in out and "at least 90" in out and "mlx is not installed" in out


NAME = st.text("abcdefgh_", min_size=1, max_size=24)
NUMBER = st.integers(0, 10**9).map(str) | st.floats(0, 1e6).map(lambda value: f"{value:.2f} ms")
WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=12), min_size=5, max_size=20)


@settings(phases=[Phase.generate])
@given(
    rows=st.lists(
        st.tuples(NAME, NUMBER, NUMBER, NUMBER, WORDS.map(" ".join)), min_size=1, max_size=4
    ),
    heads=st.lists(WORDS.map(lambda words: " ".join(words[:3])), min_size=5, max_size=5),
    width=st.integers(40, 130), is_boxed=st.booleans(),
)  # fmt: skip
def test_any_table_keeps_names_and_numbers_whole(
    rows: list[tuple[str, ...]], heads: list[str], width: int, is_boxed: bool
) -> None:
    table = Table(*heads, box=SIMPLE_HEAD) if is_boxed else Table(*heads)
    for row in rows:
        table.add_row(*row)
    out = printed(width, Fitted(table))
    assert all(cell_len(line.rstrip()) <= width for line in out.splitlines())
    for name, *numbers, words in rows:
        assert all(cell in out for cell in (name, *numbers))
        assert all(word in out for word in words.split())


@WIDTHS
def test_a_long_command_can_still_be_copied(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    line = "minisched check --workloads 1 --seed 4711 --loop vllm_async:pool:depth=4 --device sim"

    def said(how: Callable[[Console], None]) -> str:
        file = io.StringIO()
        how(Console(file=file, width=width))
        return file.getvalue()

    copied = said(lambda console: say_command(console, line))
    assert all(len(part) <= width for part in copied.splitlines())
    assert copied.replace("\\\n", "").split() == line.split()
    listed = said(lambda console: say(console, f"  [red]✗[/] question?   {line}", 16))
    assert listed.split() == ["✗", "question?", *line.split()]


# -- letters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "cp437"])
@EACH
def test_what_an_encoding_lacks_is_replaced(
    cli: Any, monkeypatch: pytest.MonkeyPatch, line: str, encoding: str
) -> None:
    code, usual, _ = cli(line)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    again, _, err = cli(line)
    assert again == code and "codec" not in err
    assert len(raw.getvalue().decode(encoding).splitlines()) == len(usual.splitlines())


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_tick_is_no_question_mark(
    cli: Any, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """``?`` is what says that nothing can be said."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    cli(f"check {TRACES}/overlap.json")
    said = raw.getvalue().decode(encoding)
    assert "? identical?" in said and "+ leaks?" in said and "+ races?" in said
