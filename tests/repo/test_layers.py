"""Layers hold: a file imports only from its own folder and from folders above it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "minisched"
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
STANDARD = ("core", "trace", "memory", "policy", "scheduler", "engine", "loops", "worker")


@cache
def imports() -> list[tuple[Path, str, bool]]:
    """Every import of the package: the file, what it names, and whether that is the package's."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.Import):
                found += [(path, name, False) for name in names]
            elif not node.level:
                found.append((path, node.module or "", False))
            else:
                base = path.parents[node.level - 1].relative_to(PACKAGE)
                for name in [node.module] if node.module else names:
                    first = (base / name.replace(".", "/")).parts[0]
                    is_folder = (PACKAGE / first).is_dir()
                    found.append((path, first if is_folder else f"{first}.py", True))
    return found


def test_imports_point_up() -> None:
    own = [(path, name) for path, name, is_own in imports() if is_own]
    assert len(own) > 1000
    wrong = [(path, n) for path, n in own if TIER[n] > TIER[path.relative_to(PACKAGE).parts[0]]]
    assert wrong == []


def test_the_scheduler_knows_no_tensor_library() -> None:
    wrong = [
        (path, name)
        for path, name, is_own in imports()
        if not is_own and path.relative_to(PACKAGE).parts[0] in STANDARD
        if name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert wrong == []


RUN = """
import sys
sys.path.insert(0, sys.argv[1])
from minisched.comparison import compare_loops
from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST
from minisched.export.html import to_html
from minisched.export.svg import to_svg
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
regex = SamplingParams(regex="(ab?)+c")
requests = [Request("r", [1, 2, 3]), Request("g", [4], regex)]
config = SchedulerConfig()
found = compare_loops(["overlap", "mlx_async"], "sim", HashModel(), requests, config, SIM_COST)
traces = [run.trace for run in found.runs]
assert found.identical and to_svg(traces) and to_html(traces)
roots = {name.partition(".")[0] for name in sys.modules} - {"minisched"}
print(sorted(roots - sys.stdlib_module_names - {"__main__"}))
"""


def test_a_run_its_report_and_its_pictures_need_only_the_standard_library() -> None:
    without_packages = [sys.executable, "-I", "-S", "-c", RUN, str(PACKAGE.parent)]
    done = subprocess.run(without_packages, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_the_index_of_the_loops_names_every_file() -> None:
    folder = PACKAGE / "loops"
    index = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    named = set(re.findall(r"``(\w+)``", index or ""))
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert named - files == {"vllm_async"}, "a loop that is another one with options"
    assert files <= named
