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
from tests.support import many

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = [40, 60, 80, 120]
LINES = [
    "compare --loops vllm_async:pool:depth=4,mindie_dual:fill_device --requests 2 "
    "--max-new-tokens 3",
    "run --advise --requests 2 --max-new-tokens 4",
    f"check {ROOT}/traces/serial.json {ROOT}/traces/overlap.json",
    "check --workloads 1 --loop overlap",
    "presets",
    "museum list",
    f"view radix_cache {ROOT}/traces/radix_cache.json --form text",
    f"view overlap {ROOT}/traces/overlap.json --form text --part steps",
    f"watch {ROOT}/traces/overlap.json --frames 2",
]


@pytest.mark.parametrize("width", WIDTHS[:: many(2, 1)])
@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:16])
def test_every_command_fits(
    cli: Any, monkeypatch: pytest.MonkeyPatch, line: str, width: int
) -> None:
    tables, before = list[Table](), Fitted.__init__

    def kept(self: Fitted, table: Table) -> None:
        tables.append(table)
        before(self, table)

    monkeypatch.setattr(Fitted, "__init__", kept)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda self: False))
    code, out, err = cli(line)
    assert code == 0, err
    assert max(cell_len(text.rstrip()) for text in out.splitlines()) <= width
    assert CUT not in out or line.startswith(("view", "watch")), "only drawings are cut"
    for table in tables:
        columns = [[layout.as_text(cell, Console()).plain for cell in column.cells]
                   for column in table.columns]  # fmt: skip
        for row in zip(*columns, strict=True):
            name = next(cell for cell in row if cell not in ("", "✓", "✗", "?"))
            numbers = [c for c in row if re.search(r"\d", c) and len(c) <= layout.SENTENCE]
            assert all(cell in out for cell in [name, *numbers]), row


def test_a_file_and_a_sentence_are_whole_whatever_the_width(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max(map(len, cli(f"check {ROOT}/traces/overlap.json")[1].splitlines())) > 120
    line = f"view pd {ROOT}/traces/pd.json --form svg"
    assert cli(f"{line} --out pd.svg")[0] == 0
    monkeypatch.setenv("COLUMNS", "80")
    assert cli(f"{line} --out -")[1] == Path("pd.svg").read_text(encoding="utf-8")


NAME = st.text("abcdefgh_", min_size=1, max_size=24)
NUMBER = st.integers(0, 10**9).map(str) | st.floats(0, 1e6).map(lambda value: f"{value:.2f} ms")
WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=12), min_size=5, max_size=20)


@settings(phases=[Phase.generate])
@given(
    rows=st.lists(
        st.tuples(NAME, NUMBER, NUMBER, NUMBER, WORDS.map(" ".join)), min_size=1, max_size=4
    ),
    heads=st.lists(WORDS.map(lambda words: " ".join(words[:3])), min_size=5, max_size=5),
    width=st.integers(40, 130),
    is_boxed=st.booleans(),
)
def test_any_table_keeps_names_and_numbers_whole(
    rows: list[tuple[str, ...]], heads: list[str], width: int, is_boxed: bool
) -> None:
    table = Table(*heads, box=SIMPLE_HEAD) if is_boxed else Table(*heads)
    for row in rows:
        table.add_row(*row)
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(Fitted(table))
    out = file.getvalue()
    assert all(cell_len(line.rstrip()) <= width for line in out.splitlines())
    for name, *numbers, words in rows:
        assert all(cell in out for cell in (name, *numbers, *words.split()))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_command_can_be_copied_and_a_figure_read(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    line = "minisched check --workloads 1 --seed 4711 --loop vllm_async:pool:depth=4 --device sim"
    files = [io.StringIO() for _ in range(3)]
    say_command(Console(file=files[0], width=width), line)
    assert all(len(part) <= width for part in files[0].getvalue().splitlines())
    assert files[0].getvalue().replace("\\\n", "").split() == line.split()
    say(Console(file=files[1], width=width), f"  [red]✗[/] question?   {line}", 16)
    assert files[1].getvalue().split() == ["✗", "question?", *line.split()]
    figures = [
        Figure("thread, smollm2: hidden of 20 ms, overlap", 93.25, 91.5, 96.75, "%", 90.0),
        Figure("mlx: hidden", None, None, None, "%", 90.0, reason="mlx is not installed here"),
    ]
    Console(file=files[2], width=width, highlight=False).print(Fitted(bench_table(figures)))
    out = files[2].getvalue()
    assert all(cell_len(part.rstrip()) <= width for part in out.splitlines())
    assert "93.25" in out and "at least 90" in out and "mlx is not installed" in out
