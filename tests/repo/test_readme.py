"""Every command in the README is run, and its links and tables hold."""

from __future__ import annotations

import re
from pathlib import Path
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


# -- links and tables ------------------------------------------------------------------------------


def test_every_file_the_readme_names_exists() -> None:
    named = re.findall(r"\]\(([\w./]+)\)", README) + re.findall(r"`(minisched/[\w/]+\.py)`", README)
    assert named and all((ROOT / path).is_file() for path in named)


def test_the_tables_of_loops_and_relays_are_those_of_the_registries() -> None:
    for table in (loops_table(), relays_table(), refusals_table()):
        assert table in README
