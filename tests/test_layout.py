"""Terminals of 40 to 120 columns: no line is wider, and names and numbers stay whole."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from minisched.bench.rows import Figure
from minisched.cli import layout
from minisched.cli.bench import table as bench_table
from minisched.cli.layout import CUT, Fitted, say, say_command
from minisched.cli.museum_page import table as museum_table
from tests.test_exit import CSV, EVERY

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = [40, 60, 80, 120]
LINES = {
    **{name: line for name, line in EVERY.items() if name not in ("log",)},
    "all loops": "compare --loops all --requests 2 --max-new-tokens 4",
    "relays": "compare --loops vllm_async:pool:depth=4,mindie_dual:fill_device --requests 2 "
    "--max-new-tokens 3",
    "advice": "run --advise --requests 2 --max-new-tokens 4",
    "check two": f"check {ROOT}/traces/serial.json {ROOT}/traces/overlap.json",
    "drawing": f"view radix_cache {ROOT}/traces/radix_cache.json --form text",
    "steps": f"view overlap {ROOT}/traces/overlap.json --form text --part steps",
    "replay advice": "replay requests.csv --advise",
}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[Table]:
    """Every table that a command prints."""
    found: list[Table] = []
    before = Fitted.__init__

    def kept(self: Fitted, table: Table) -> None:
        found.append(table)
        before(self, table)

    monkeypatch.setattr(Fitted, "__init__", kept)
    return found


def plain(cell: object) -> str:
    return layout.as_text(cell, Console()).plain


def check_rows(table: Table, out: str) -> None:
    """Each row's name, and every cell with a number that is no sentence, is there as it is."""
    columns = [[plain(cell) for cell in column.cells] for column in table.columns]
    assert columns and columns[0]
    for row in zip(*columns, strict=True):
        name = next(cell for cell in row if cell not in ("", "✓", "✗", "?"))
        assert name in out, name
        for cell in row:
            if re.search(r"\d", cell) and len(cell) <= layout.SENTENCE:
                assert cell in out, cell
            assert all(word in out.replace("\n", "") for word in cell.split() if len(word) < 30)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_every_command_fits(
    cli: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tables: list[Table],
    line: str,
    width: int,
) -> None:
    (tmp_path / "requests.csv").write_text(CSV)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda self: False))
    code, out, err = cli(line)
    assert code == (2 if not line else 0), err
    if "--json" not in line:
        wide = [text for text in out.splitlines() if cell_len(text.rstrip()) > width]
        assert not wide, wide[0]
    assert "Traceback" not in err
    for table in tables:
        check_rows(table, out)
    if CUT in out:
        assert "view" in line or "watch" in line, "only drawings are cut"


@pytest.mark.parametrize("form", ["puml", "svg"])
def test_a_file_on_stdout_is_whole(cli: Any, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    line = f"view pd {ROOT}/traces/pd.json --form {form}"
    assert cli(f"{line} --out pd.out")[0] == 0
    monkeypatch.setenv("COLUMNS", "80")
    assert cli(f"{line} --out -")[1] == Path("pd.out").read_text(encoding="utf-8")


def test_without_a_terminal_a_sentence_is_a_line(cli: Any) -> None:
    """So that it can be searched for."""
    out = cli(f"check {ROOT}/traces/overlap.json")[1]
    assert max(map(len, out.splitlines())) > 120


def printed(width: int, what: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(what)
    return file.getvalue()


FIGURES = [
    Figure("thread, smollm2: hidden of 20 ms, overlap", 93.25, 91.5, 96.75, "%", 90.0),
    Figure("mlx: hidden", None, None, None, "%", 90.0, reason="mlx is not installed here"),
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("made", [
    lambda: bench_table(FIGURES),
    lambda: next(iter(museum_table([], {}))).table,  # type: ignore[union-attr]
], ids=["bench", "museum"])  # fmt: skip
def test_tables_that_take_long_to_fill(made: Any, width: int) -> None:
    table = made()
    out = printed(width, Fitted(table))
    assert all(cell_len(line.rstrip()) <= width for line in out.splitlines())
    if table.rows:
        assert "93.25" in out and "at least 90" in out and "mlx is not installed" in out


NAME = st.text("abcdefgh_", min_size=1, max_size=24)
NUMBER = st.integers(0, 10**9).map(str) | st.floats(0, 1e6).map(lambda value: f"{value:.2f} ms")
WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=12), min_size=5, max_size=20)


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
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


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_command_can_still_be_copied(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    line = "minisched check --workloads 1 --seed 4711 --loop vllm_async:pool:depth=4 --device sim"
    file = io.StringIO()
    say_command(Console(file=file, width=width), line)
    said = file.getvalue()
    assert all(len(part) <= width for part in said.splitlines())
    assert said.replace("\\\n", "").split() == line.split()
    file = io.StringIO()
    say(Console(file=file, width=width), f"  [red]✗[/] question?   {line}", 16)
    assert file.getvalue().split() == ["✗", "question?", *line.split()]
