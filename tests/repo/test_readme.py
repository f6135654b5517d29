"""Every command in the README is run, and its tables and figures are those of what they tell of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from minisched.export.loop_tables import loops_table, refusals_table, relays_table

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line
]
OURS = [line.removeprefix("minisched ") for line in COMMANDS if line.startswith("minisched ")]
LONG = re.compile(r"compare .*--|diagrams|check")  # about a second, or more
CSV = re.findall(r"```csv\n(.*?)```", README, re.DOTALL)[0]  # the file that it tells how to make

# -- commands --------------------------------------------------------------------------------------


def marks(line: str) -> list[pytest.MarkDecorator]:
    """What a command needs: SmolLM2's weights, or time."""
    return [
        getattr(pytest.mark, name)
        for name, is_so in (("weights", "smollm2" in line), ("thorough", LONG.match(line)))
        if is_so
    ]


@pytest.mark.parametrize("line", [pytest.param(line, marks=marks(line)) for line in OURS])
def test_a_command_of_the_readme(
    line: str, cli: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "smollm2" in line:
        request.getfixturevalue("smollm2")  # the fetch, if it has not happened yet
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    (tmp_path / "requests.csv").write_text(CSV, encoding="utf-8")
    if " out/" in line:  # what the first command of all has left
        assert cli("compare")[0] == 0
    code, out, err = cli(line)
    assert code == 0, err
    if line.startswith("compare"):
        assert "Identical:" in out
        assert (tmp_path / "out" / "compare.html").is_file()


def test_ci_runs_the_two_commands_as_they_stand_here_and_first() -> None:
    others = [line for line in COMMANDS if not line.startswith("minisched")]
    assert others[:3] == ["pip install -e .", "pip install -e '.[dev]'", "pytest"]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    steps = [line.split(" | ")[0] for line in ci.splitlines() if line and not line.startswith("#")]
    start = steps.index("pip install -e .")
    first = ["pip install -e .", "minisched compare", "pip install -e '.[dev]'", "pytest"]
    assert steps[start : start + 4] == first
    assert not any(re.search(r"\b(npm|apt-get|pip)\b", step) for step in steps[:start])
    assert any(step.startswith("pytest --thorough") for step in steps)


# -- links, tables, figures ------------------------------------------------------------------------


def test_every_file_the_readme_names_exists() -> None:
    named = re.findall(r"\]\(([\w./]+)\)", README) + re.findall(r"`(minisched/[\w/]+\.py)`", README)
    assert named and all((ROOT / path).is_file() for path in named)


def test_the_tables_of_loops_and_relays_are_those_of_the_registries() -> None:
    for table in (loops_table(), relays_table(), refusals_table()):
        assert table in README


def measured(name: str) -> dict[str, float]:
    """The medians of a kept table, by row."""
    file = ROOT / "traces" / "bench" / f"{name}.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: row["median"] for row in rows if row["median"] is not None}


def span(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f} x"


def figures() -> dict[str, list[str]]:
    """What the rows of the README's table of aims must say, by the tables that are kept."""
    overlap, rates, limit, host = map(measured, ("overlap", "generation", "limit", "host"))
    hidden = [value for name, value in overlap.items() if name.endswith(": hidden")]
    asleep = [value for name, value in overlap.items() if name.endswith("hidden, by a sleep")]

    def rate(*words: str) -> list[float]:
        return [value for name, value in rates.items() if all(word in name for word in words)]

    one, many = (
        sorted(rate("float", f"batch {batch},", "/ llama.cpp"))  # float32 and bfloat16
        for batch in (1, 16)
    )
    name = " decode, batch 1{}: step, of the limit"
    best = {
        dtype: max(limit[dtype + name.format(end)] for end in ("", ", 2 threads"))
        for dtype in ("float32", "bfloat16")
    }
    nano = [host[f"minisched / nano-vllm: step, {n:,} running"] for n in (1, 64, 256, 1024)]
    vllm = [value for name, value in host.items() if name.startswith("minisched / vLLM: step, ")]
    simulator = measured("simulator")
    slower = simulator["minisched serial / vidur, stand-in cost: time for steps"]
    more = 100 * (simulator["memory, 1000000 steps / 10000"] - 1)
    tracing = {
        at: next(value for name, value in measured("tracing").items() if f"on {at}, added" in name)
        for at in ("thread", "mlx")
    }
    near = [
        next(value for name, value in table.items() if f"{what} off by at most" in name)
        for table in (measured("prediction-device-thread"), measured("prediction-device-mlx"))
        for what in ("makespans", "speed-ups")
    ]
    return {
        "overlap": [
            f"{median(hidden):.0f} % (median of {len(hidden)} cases); {median(asleep):.0f} %"
        ],
        "generation": [
            f"{span(rate('/ transformers static'))}, {span(rate('/ transformers continuous'))}",
            f"mlx-lm {span(rate('/ mlx-lm'))}",
            f"{one[0]:.2f} and {one[1]:.2f} x for one request",
            f"{many[0]:.1f} and {many[1]:.1f} x for 16",
        ],
        "limit": [f"({best['float32']:.0f} % of the limit)", f"bfloat16 {best['bfloat16']:.0f} %"],
        "host": [
            span(nano[1:]),
            f"{nano[0]:.1f} x for one",
            f"{min(vllm):.2f} to {max(vllm):.2f} x vLLM",
        ],
        "simulator": [f"{slower:.2f} x its time", f"{more:.0f} % more"],
        "tracing": [f"{tracing['thread']:.1f} % on threads", f"{tracing['mlx']:.1f} % on MLX"],
        "prediction": [
            f"{near[0]:.0f} % of makespans and {near[1]:.0f} % of speed-ups on threads",
            f"{near[2]:.0f} % and {near[3]:.0f} % on MLX",
        ],
    }


def test_what_the_readme_says_was_measured_is_in_the_kept_tables() -> None:
    rows = README[README.index("| part | aim | there |") :].splitlines()
    for part, said in figures().items():
        row = next(line for line in rows if line.startswith(f"| `{part}` "))
        assert [figure for figure in said if figure not in row] == [], row
