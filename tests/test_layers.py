"""Layers hold: a file imports only from its own folder and from folders above it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "minisched"
TIERS = [
    {"core"},
    {"trace"},
    {"memory"},
    {"policy"},
    {"scheduler"},
    {"devices", "models", "relay", "speculative", "grammar"},
    {"worker"},
    {"engine"},
    {"loops"},
    {"checks"},
    {"topics.py"},
    {"export", "bench", "replay"},
    {"comparison.py", "defaults.py"},
    {"museum"},
    {"learn"},
    {"checking.py"},
    {"cli"},
    {"__init__.py", "__main__.py"},
]
TIER = {name: number for number, tier in enumerate(TIERS) for name in tier}
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The folders (or top-level modules) of minisched that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].relative_to(PACKAGE)
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                first = (base / name.replace(".", "/")).parts[0]
                found.add(first if (PACKAGE / first).is_dir() else f"{first}.py")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_up(path: Path) -> None:
    own = TIER[path.relative_to(PACKAGE).parts[0]]
    for name in imported(path):
        assert TIER[name] <= own, f"{path.relative_to(PACKAGE)} imports {name}"


def test_sim_needs_only_the_standard_library() -> None:
    """A whole run, its report and its pictures, in an interpreter without site-packages."""
    program = (
        "import sys\n"
        "from minisched.comparison import compare_loops\n"
        "from minisched.core import Request, SamplingParams\n"
        "from minisched.devices.cost import SIM_COST\n"
        "from minisched.export.html import to_html\n"
        "from minisched.export.svg import to_svg\n"
        "from minisched.models.hash import HashModel\n"
        "from minisched.scheduler import SchedulerConfig\n"
        "regex = SamplingParams(regex='(ab?)+c')\n"
        "requests = [Request('r', [1, 2, 3]), Request('g', [4], regex)]\n"
        "found = compare_loops(['overlap', 'mlx_async'], 'sim', HashModel(), requests,\n"
        "                SchedulerConfig(), SIM_COST)\n"
        "traces = [run.trace for run in found.runs]\n"
        "assert found.identical and to_svg(traces) and to_html(traces)\n"
        "roots = {name.partition('.')[0] for name in sys.modules} - {'minisched'}\n"
        "print(sorted(roots - sys.stdlib_module_names - {'__main__'}))\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{program}",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "layer", ["core", "trace", "memory", "policy", "scheduler", "engine", "loops", "worker"]
)
def test_the_scheduler_knows_no_tensor_library(layer: str) -> None:
    for path in (PACKAGE / layer).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names, f"{path}: {name}"


def test_the_index_of_the_loops_names_every_file() -> None:
    folder = PACKAGE / "loops"
    index = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    named = set(re.findall(r"``(\w+)``", index or ""))
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files <= named
    assert named - files == {"vllm_async"}, "a loop that is another one with options"
