"""The figures of the README's table of aims are those of the tables that are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median

import pytest

from tests.test_readme import README, ROOT


class Table:
    """A kept table: the medians of the rows whose names hold some words."""

    def __init__(self, name: str) -> None:
        file = ROOT / "traces" / "bench" / f"{name}.json"
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        self.rows = {row["name"]: row["median"] for row in rows if row["median"] is not None}

    def of(self, *words: str) -> list[float]:
        found = [at for name, at in self.rows.items() if all(word in name for word in words)]
        assert found, words
        return found

    def ends(self, word: str) -> list[float]:
        return [value for name, value in self.rows.items() if name.endswith(word)]


def span(values: list[float], digits: int = 1) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f} x"


def overlap() -> list[str]:
    table = Table("overlap")
    hidden, asleep = table.ends(": hidden"), table.ends("hidden, by a sleep")
    return [f"{median(hidden):.0f} % (median of {len(hidden)} cases)", f"; {median(asleep):.0f} %"]


def generation() -> list[str]:
    table = Table("generation")
    one, many = ([value for dtype in ("float32", "bfloat16")
                  for value in table.of(dtype, f"batch {batch},", "/ llama.cpp")]
                 for batch in (1, 16))  # fmt: skip
    return [
        f"{span(table.of('/ transformers static'))}, {span(table.of('/ transformers continuous'))}",
        f"mlx-lm {span(table.of('/ mlx-lm'))}",
        f"{min(one):.2f} and {max(one):.2f} x for one request",
        f"{min(many):.1f} and {max(many):.1f} x for 16",
    ]


def limit() -> list[str]:
    table, name = Table("limit"), "decode, batch 1{}: step, of the limit"
    best = {
        dtype: max(table.rows[f"{dtype} {name.format(with_)}"] for with_ in ("", ", 2 threads"))
        for dtype in ("float32", "bfloat16")
    }
    return [f"({best['float32']:.0f} % of the limit)", f"bfloat16 {best['bfloat16']:.0f} %"]


def host() -> list[str]:
    table = Table("host")
    step = "minisched / {}: step, {:,} running"
    one, *many = (table.rows[step.format("nano-vllm", count)] for count in (1, 64, 256, 1024))
    vllm = table.of("minisched / vLLM: step, ")
    return [span(many), f"{one:.1f} x for one", f"{min(vllm):.2f} to {max(vllm):.2f} x vLLM"]


def simulator() -> list[str]:
    table = Table("simulator")
    slower = table.rows["minisched serial / vidur, stand-in cost: time for steps"]
    more = table.rows["memory, 1000000 steps / 10000"] - 1
    return [f"{slower:.2f} x its time", f"{100 * more:.0f} % more"]


def tracing() -> list[str]:
    at = {name: Table("tracing").of(f"on {name}, added")[0] for name in ("thread", "mlx")}
    return [f"{at['thread']:.1f} % on threads", f"{at['mlx']:.1f} % on MLX"]


def prediction() -> list[str]:
    near = {
        name: [Table(f"prediction-device-{name}").of(f"{what} off by at most")[0]
               for what in ("makespans", "speed-ups")]
        for name in ("thread", "mlx")
    }  # fmt: skip
    (spans, faster), mlx = near["thread"], near["mlx"]
    return [
        f"{spans:.0f} % of makespans and {faster:.0f} % of speed-ups on threads",
        f"{mlx[0]:.0f} % and {mlx[1]:.0f} % on MLX",
    ]


@pytest.mark.parametrize(
    "figures", [overlap, generation, limit, host, simulator, tracing, prediction]
)
def test_what_the_readme_says_was_measured_is_in_the_tables(
    figures: Callable[[], list[str]],
) -> None:
    rows = README[README.index("| part | aim | there |") :].splitlines()
    row = next(line for line in rows if line.startswith(f"| `{figures.__name__}` "))
    for figure in figures():
        assert figure in row
