"""Every command in the README is run: pip and pytest by ``.ci/run``, all others here."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from minisched.export.loop_tables import loops_table, refusals_table, relays_table

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line
]

CSV = re.findall(r"```csv\n(.*?)```", README, re.DOTALL)[0]  # the file that it tells how to make


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of the README, in that folder."""
    command = [sys.executable, "-m", *shlex.split(line)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.weights if "smollm2" in line else ())
        for line in COMMANDS
        if line.startswith("minisched")
    ],
)
def test_a_command_of_the_readme(line: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "smollm2" in line:
        request.getfixturevalue("smollm2")  # the fetch, if it has not happened yet
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    (tmp_path / "requests.csv").write_text(CSV, encoding="utf-8")
    if " out/" in line and " compare" not in line:  # what the first command of all has left
        assert run("minisched compare", tmp_path).returncode == 0
    done = run(line, tmp_path)
    assert done.returncode == 0, done.stderr
    if " compare" in line:
        assert "Identical:" in done.stdout
        assert (tmp_path / "out" / "compare.html").is_file()


def test_ci_runs_what_the_readme_says() -> None:
    """The two commands as they stand here, first; what follows them may need what they install."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    others = [line for line in COMMANDS if not line.startswith("minisched")]
    assert others == [
        "pip install -e .", "pip install -e '.[dev]'", "pytest",
        "pip install -e '.[site,lessons,mlx]'",
        "npm ci --prefix lessons/site",  # in tests/conftest.py, as a fixture
        "sphinx-build lessons/site out/site",  # in tests/test_site.py, where a warning is an error
    ]  # fmt: skip
    steps = [line.split(" | ")[0] for line in ci.splitlines() if line and not line.startswith("#")]
    start = steps.index("pip install -e .")
    first = ["pip install -e .", "minisched compare", "pip install -e '.[dev]'", "pytest"]
    assert steps[start : start + 4] == first
    assert not any(re.search(r"\b(npm|apt-get|pip)\b", step) for step in steps[:start])
    assert "pip install --quiet -e '.[site,lessons,mlx]'" in steps
    assert "pytest --thorough -m thorough --durations=15" in steps


def test_every_file_the_readme_names_exists() -> None:
    named = re.findall(r"\]\(([\w./]+)\)", README) + re.findall(r"`(minisched/[\w/]+\.py)`", README)
    assert named and all((ROOT / path).is_file() for path in named)


def test_the_tables_of_loops_and_relays_are_those_of_the_registries() -> None:
    for table in (loops_table(), relays_table(), refusals_table()):
        assert table in README
